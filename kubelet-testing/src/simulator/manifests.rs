//! A model of a folder of manifests, and the source that reads it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    InvalidManifest, Origin, PodConfig, PodRecord, PodSource, RawPod, Removed, SourceContext, SourceError, SourceItem,
    SourceKind, SourceName, StateDir, SystemClock, decode_pod,
};
use tokio::sync::mpsc;

/// The name of the model's source.
pub(crate) const FILES: &str = "file";

/// One manifest.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) text: String,
    /// What it makes on the node; nothing if it is no good.
    pub(crate) pod: Option<Arc<PodRecord>>,
}

/// The folder, and what the node has heard of it.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    pub(crate) files: BTreeMap<String, Manifest>,
    /// The pod that is in force of each file, as far as the node has heard.
    pub(crate) in_force: BTreeMap<String, Arc<PodRecord>>,
    pub(crate) sender: Option<mpsc::Sender<SourceItem>>,
    /// Manifests that were removed, and may come back as they were.
    pub(crate) removed: Vec<(String, Manifest)>,
    /// How broken manifests were before.
    pub(crate) broken: BTreeMap<String, Manifest>,
    /// The folder cannot be read.
    pub(crate) trouble: bool,
}

fn origin(file: &str) -> Origin {
    Origin::File(Arc::from(Path::new("/manifests").join(file)))
}

/// What a reader of the folder says of one manifest.
fn read(file: &str, text: &str) -> Result<RawPod, InvalidManifest> {
    match decode_pod(text.as_bytes()) {
        Ok(decoded) => {
            let mut raw = RawPod::new(decoded.pod);
            raw.origin = Some(origin(file));
            raw.text = Some(text.as_bytes().into());
            raw.unknown_fields = decoded.unknown_fields;
            raw.locator = Some(decoded.locator);
            Ok(raw)
        }
        Err(error) => {
            let error = SourceError::invalid(file, error.to_string());
            Err(InvalidManifest::new(origin(file), None, error))
        }
    }
}

/// A manifest of a pod, in JSON, which is YAML too.
pub(crate) async fn manifest(file: &str, pod: &Pod, node: &str) -> Manifest {
    let mut value = kubelet_core::k8s_openapi::serde_json::to_value(pod).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".to_owned(), "v1".into());
        fields.insert("kind".to_owned(), "Pod".into());
    }
    let text = value.to_string();
    // The mux itself says which UID and name it makes of it.
    let name = SourceName::from(FILES);
    let mut mux = PodConfig::new(
        node,
        Arc::new(SystemClock),
        StateDir::in_memory(),
        Arc::new(|_| false),
        &[(name.clone(), SourceKind::Static)],
    );
    if let Ok(raw) = read(file, &text) {
        mux.apply(&name, SourceItem::snapshot(vec![raw])).await;
    }
    let pod = mux.pods().next().cloned();
    Manifest { text, pod }
}

/// A manifest that is no good: cut short, or not a pod.
pub(crate) fn broken(text: &str, cut: usize) -> Manifest {
    let text = match cut % 3 {
        0 => String::new(),
        1 => text.get(..text.len() / 2).unwrap_or_default().to_owned(),
        _ => r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x_y"},"spec":{"containers":[]}}"#.to_owned(),
    };
    Manifest { text, pod: None }
}

impl Folder {
    fn heard(&mut self, file: &str) {
        match self.files.get(file) {
            None => drop(self.in_force.remove(file)),
            Some(Manifest { pod: Some(pod), .. }) => drop(self.in_force.insert(file.to_owned(), pod.clone())),
            // The last good one stays.
            Some(_) => {}
        }
    }

    fn open(&self) -> Option<mpsc::Sender<SourceItem>> {
        self.sender.clone().filter(|_| !self.trouble)
    }

    /// Says what became of one file, if anybody hears it.
    pub(crate) async fn send(&mut self, file: &str) -> bool {
        let Some(sender) = self.open() else { return false };
        let item = match self.files.get(file) {
            None => SourceItem::Remove(Removed::Origin(origin(file))),
            Some(manifest) => match read(file, &manifest.text) {
                Ok(raw) => SourceItem::Upsert(Box::new(raw)),
                Err(bad) => SourceItem::Invalid(bad),
            },
        };
        let sent = sender.send(item).await.is_ok();
        if sent {
            self.heard(file);
        }
        sent
    }

    /// Says everything.
    pub(crate) async fn send_all(&mut self) -> bool {
        let Some(sender) = self.open() else { return false };
        let (mut pods, mut invalid) = (Vec::new(), Vec::new());
        for (file, manifest) in &self.files {
            match read(file, &manifest.text) {
                Ok(raw) => pods.push(raw),
                Err(bad) => invalid.push(bad),
            }
        }
        let item = SourceItem::Snapshot {
            pods,
            invalid,
            remembered: false,
        };
        let sent = sender.send(item).await.is_ok();
        if sent {
            let named: Vec<String> = self.files.keys().chain(self.in_force.keys()).cloned().collect();
            for file in named {
                self.heard(&file);
            }
        }
        sent
    }

    /// Says that the folder cannot be read.
    pub(crate) async fn send_trouble(&self) {
        if let Some(sender) = &self.sender {
            let error = SourceError::unreadable("/manifests", std::io::Error::other("simulated"));
            let _ = sender.send(SourceItem::Trouble(error)).await;
        }
    }
}

/// The source of one life of the agent.
#[derive(Debug)]
pub(crate) struct ManifestSource {
    name: SourceName,
    items: Mutex<Option<mpsc::Receiver<SourceItem>>>,
}

impl ManifestSource {
    pub(crate) fn new() -> (mpsc::Sender<SourceItem>, Self) {
        let (sender, receiver) = mpsc::channel(64);
        let source = Self {
            name: SourceName::from(FILES),
            items: Mutex::new(Some(receiver)),
        };
        (sender, source)
    }
}

impl PodSource for ManifestSource {
    fn name(&self) -> &SourceName {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Static
    }

    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream::unfold((items, cx.stop), |(items, stop)| async move {
            let mut items = items?;
            tokio::select! {
                biased;
                () = stop.cancelled() => None,
                item = items.recv() => Some((item?, (Some(items), stop))),
            }
        })
        .boxed()
    }
}
