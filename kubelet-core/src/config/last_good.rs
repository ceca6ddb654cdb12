//! The last good text of each origin, kept over restarts.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fnv::fnv1a_128;
use crate::ids::SourceName;
use crate::manifest::decode_pod;
use crate::source::{Origin, RawPod};
use crate::state_dir::StateDir;

/// One file: `sources/<source>/<hash of the origin>`.
#[derive(Serialize, Deserialize)]
struct Kept {
    origin: String,
    text: String,
}

pub(super) struct LastGood {
    state: StateDir,
}

impl LastGood {
    pub(super) fn new(state: StateDir) -> Self {
        Self { state }
    }

    /// Keeps a good text. That it cannot be kept stops no pod: the text of before then stays.
    pub(super) async fn keep(&self, source: &SourceName, origin: &Origin, text: &[u8]) {
        let path = path_of(source, origin);
        let kept = Kept {
            origin: tag(origin),
            text: String::from_utf8_lossy(text).into_owned(),
        };
        let Ok(bytes) = serde_json::to_vec(&kept) else {
            return;
        };
        // At a restart most texts are there already.
        if let Ok(Some(there)) = self.state.read(&path).await
            && there == bytes
        {
            return;
        }
        if let Err(error) = self.state.write(&path, bytes).await {
            tracing::warn!(error = &error as &dyn Error, %source, %origin, "manifest not kept as the last good one");
        }
    }

    /// The pod that last was good at an origin.
    pub(super) async fn recall(&self, source: &SourceName, origin: &Origin) -> Option<RawPod> {
        let read = self.state.read(&path_of(source, origin)).await;
        let bytes = match read {
            Ok(bytes) => bytes?,
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, %source, %origin, "last good manifest not read");
                return None;
            }
        };
        let kept: Kept = serde_json::from_slice(&bytes).ok()?;
        if kept.origin != tag(origin) {
            return None;
        }
        let decoded = decode_pod(kept.text.as_bytes()).ok()?;
        let mut raw = RawPod::new(decoded.pod);
        raw.origin = Some(origin.clone());
        raw.text = Some(Arc::from(kept.text.into_bytes()));
        Some(raw)
    }

    pub(super) async fn forget(&self, source: &SourceName, origin: &Origin) {
        self.remove(&path_of(source, origin)).await;
    }

    /// Forgets all origins of a source but these.
    pub(super) async fn forget_others(&self, source: &SourceName, origins: impl Iterator<Item = &Origin>) {
        let folder = folder_of(source);
        let kept: BTreeSet<_> = origins.map(hash).collect();
        let names = match self.state.list(&folder).await {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, %source, "last good manifests not listed");
                return;
            }
        };
        for name in names {
            if !kept.contains(&name) {
                self.remove(&format!("{folder}/{name}")).await;
            }
        }
    }

    async fn remove(&self, path: &str) {
        if let Err(error) = self.state.remove(path).await {
            tracing::warn!(error = &error as &dyn Error, "last good manifest not removed");
        }
    }
}

fn folder_of(source: &SourceName) -> String {
    let name = source.as_str();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.len() <= 64 && name.chars().all(plain) {
        format!("sources/{name}")
    } else {
        // Embedders may name a source as they like, but a folder not.
        format!("sources/{:032x}", fnv1a_128(name.as_bytes()))
    }
}

fn path_of(source: &SourceName, origin: &Origin) -> String {
    format!("{}/{}", folder_of(source), hash(origin))
}

fn hash(origin: &Origin) -> String {
    format!("{:032x}", fnv1a_128(tag(origin).as_bytes()))
}

fn tag(origin: &Origin) -> String {
    match origin {
        Origin::File(path) => format!("file:{}", path.as_os_str().as_encoded_bytes().escape_ascii()),
        Origin::Url(url, index) => format!("url:{index}:{url}"),
        Origin::Named(name) => format!("named:{name}"),
    }
}
