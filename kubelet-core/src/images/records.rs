//! What was pulled, for whom, and what is being pulled: kept over restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::pull_secrets::PullCredential;
use super::reference::Reference;
use super::verification::{Access, Known, trimmed};
use crate::clock::Clock;
use crate::error::{BoxError, error_chain};
use crate::ids::ImageId;
use crate::runtime::{ImageRecord, ImageRef, ImageService, RegistryAuth};
use crate::state_dir::StateDir;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// From how many on what was read is read anew.
const MAX_CACHED: usize = 2000;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PullIntent {
    kind: String,
    api_version: String,
    image: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    #[serde(default)]
    credential_mapping: BTreeMap<String, Access>,
}

/// One image that is being pulled.
#[derive(Debug, Default)]
struct Intent {
    running: usize,
    /// Nobody knows what a pull has left: from an earlier life of the agent, or cut off.
    is_left: bool,
}

#[derive(Debug, Default)]
struct Memory {
    is_open: bool,
    /// By the image's name with its tag, as pods ask for it.
    intents: BTreeMap<String, Intent>,
    /// What the files hold that were read; nothing: there is none.
    read: BTreeMap<ImageId, Option<Arc<PulledRecord>>>,
}

/// The records of pulls.
///
/// An intent is written before a pull and removed once there is a record of what it brought. An image with an intent and
/// without a record is for nobody who cannot pull it, so that no crash lets a pod use what another one has pulled.
///
/// Source: kubelet 1.36, `images/pullmanager`, whose files these are.
#[derive(Debug)]
pub(crate) struct PullRecords {
    state: StateDir,
    folder: &'static str,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
    /// One writer at a time: each change is read, merged and written.
    writer: Semaphore,
}

impl PullRecords {
    /// Keeps them in `folder`, which ends in a slash unless it is empty.
    pub(crate) fn new(state: StateDir, folder: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self {
            state,
            folder,
            clock,
            memory: Mutex::default(),
            writer: Semaphore::new(1),
        }
    }

    /// Clears up, once, after pulls that the end of the agent has cut off: those that brought an image leave a record that
    /// lets nobody in.
    ///
    /// # Errors
    /// If that cannot be told now.
    pub(crate) async fn open(&self, service: &dyn ImageService) -> Result<(), BoxError> {
        if self.memory().is_open {
            return Ok(());
        }
        let _writer = self.writer.acquire().await;
        if self.memory().is_open {
            return Ok(());
        }
        let mut left = Vec::new();
        for name in self.state.list(&self.path("pulling", "")).await? {
            let path = self.path("pulling", &name);
            let Some(text) = self.state.read(&path).await? else {
                continue;
            };
            match serde_json::from_slice::<PullIntent>(&text) {
                Ok(intent) => left.push(intent.image),
                Err(error) => tracing::warn!(file = %path, %error, "what was being pulled cannot be read"),
            }
        }
        if !left.is_empty() {
            let present = service.list().await?;
            for image in &left {
                let brought = present.iter().filter(|record| is_named(record, image));
                for record in brought {
                    self.write_access(&record.id, image, None).await?;
                }
                self.state.remove(&self.intent_path(image)).await?;
            }
        }
        self.memory().is_open = true;
        Ok(())
    }

    /// What is known of a present image that a pod asks for by a name.
    pub(crate) async fn known(&self, image: &ImageRef, record: &ImageRecord) -> Known {
        // Before the record is looked for: a pull that ends in between writes that first.
        let is_intended = {
            let memory = self.memory();
            memory
                .intents
                .keys()
                .any(|intended| *intended == image.name || is_named(record, intended))
        };
        match self.read(&record.id).await {
            Ok(Some(pulled)) => Known::Pulled(pulled.credential_mapping.clone()),
            Ok(None) if is_intended => Known::Intended,
            Ok(None) => Known::Nothing,
            Err(error) => {
                let error = error_chain(&*error);
                tracing::warn!(image = %image, %error, "who may use an image cannot be read");
                Known::Unreadable
            }
        }
    }

    /// Notes, durably, that an image is about to be pulled.
    ///
    /// # Errors
    /// If it cannot be written; nothing is noted then.
    pub(crate) async fn begin(&self, image: &ImageRef) -> Result<(), BoxError> {
        let _writer = self.writer.acquire().await;
        if !self.memory().intents.contains_key(&image.name) {
            let intent = PullIntent {
                kind: "ImagePullIntent".to_owned(),
                api_version: API_VERSION.to_owned(),
                image: image.name.clone(),
            };
            self.state
                .write(&self.intent_path(&image.name), serde_json::to_vec(&intent)?)
                .await?;
        }
        self.memory().intents.entry(image.name.clone()).or_default().running += 1;
        Ok(())
    }

    /// Notes, durably, what a pull has brought and who may use it, and that it has ended.
    ///
    /// # Errors
    /// If it cannot be written; the intent then stays.
    pub(crate) async fn succeeded(
        &self,
        image: &ImageRef,
        id: &ImageId,
        with: Option<&PullCredential>,
    ) -> Result<(), BoxError> {
        let _writer = self.writer.acquire().await;
        let written = self.write_access(id, &image.name, Some(with)).await;
        {
            let mut memory = self.memory();
            let intent = memory.intents.entry(image.name.clone()).or_default();
            intent.running = intent.running.saturating_sub(1);
            intent.is_left = written.is_err();
        }
        written?;
        self.remove_ended(image).await
    }

    /// Notes that a pull has brought nothing.
    pub(crate) async fn failed(&self, image: &ImageRef) -> Result<(), BoxError> {
        let _writer = self.writer.acquire().await;
        if let Some(intent) = self.memory().intents.get_mut(&image.name) {
            intent.running = intent.running.saturating_sub(1);
        }
        self.remove_ended(image).await
    }

    /// Notes that a pull was cut off, and may have brought something: the intent stays.
    pub(crate) fn cut_off(&self, image: &ImageRef) {
        if let Some(intent) = self.memory().intents.get_mut(&image.name) {
            intent.running = intent.running.saturating_sub(1);
            intent.is_left = true;
        }
    }

    /// Notes, durably, that a pod with these credentials may use an image too.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) async fn grant(&self, image: &ImageRef, id: &ImageId, with: &PullCredential) -> Result<(), BoxError> {
        let _writer = self.writer.acquire().await;
        self.write_access(id, &image.name, Some(Some(with))).await
    }

    /// Removes the records of images that are not present, unless they were written since: those images were pulled anew.
    ///
    /// # Errors
    /// The first record that cannot be looked at or removed; the others stay for the next time.
    pub(crate) async fn prune(&self, present: &[ImageRecord], since: Timestamp) -> Result<(), BoxError> {
        let kept: BTreeSet<String> = present.iter().map(|image| file_name(image.id.as_str())).collect();
        for name in self.state.list(&self.path("pulled", "")).await? {
            if kept.contains(&name) {
                continue;
            }
            let _writer = self.writer.acquire().await;
            let path = self.path("pulled", &name);
            let Some(text) = self.state.read(&path).await? else {
                continue;
            };
            // What cannot be read says nothing, and is told of where it is asked for.
            let Ok(record) = serde_json::from_slice::<PulledRecord>(&text) else {
                continue;
            };
            let written: Option<Timestamp> = record.last_updated_time.parse().ok();
            if written.is_none_or(|written| written.as_second() < since.as_second()) {
                self.memory().read.remove(&ImageId::from(record.image_ref));
                self.state.remove(&path).await?;
            }
        }
        Ok(())
    }

    async fn remove_ended(&self, image: &ImageRef) -> Result<(), BoxError> {
        let has_ended = |memory: &Memory| {
            let intent = memory.intents.get(&image.name);
            intent.is_some_and(|intent| intent.running == 0 && !intent.is_left)
        };
        if has_ended(&self.memory()) {
            self.state.remove(&self.intent_path(&image.name)).await?;
            // No pull of it can have begun meanwhile: there is one writer.
            self.memory().intents.remove(&image.name);
        }
        Ok(())
    }

    /// Merges an access into the record of an image; nothing: only that it was pulled.
    async fn write_access(
        &self,
        id: &ImageId,
        image: &str,
        with: Option<Option<&PullCredential>>,
    ) -> Result<(), BoxError> {
        // One that cannot be read would let nobody in for ever.
        let old = self.read(id).await.unwrap_or_default();
        let mut record = match &old {
            Some(old) => PulledRecord::clone(old),
            None => PulledRecord {
                kind: "ImagePulledRecord".to_owned(),
                api_version: API_VERSION.to_owned(),
                last_updated_time: String::new(),
                image_ref: id.to_string(),
                credential_mapping: BTreeMap::new(),
            },
        };
        let access = record.credential_mapping.entry(trimmed(image).to_owned()).or_default();
        if let Some(with) = with {
            access.grant(with);
        }
        if old.as_deref() == Some(&record) {
            return Ok(());
        }
        API_VERSION.clone_into(&mut record.api_version);
        // Whole seconds, as Kubernetes writes them.
        let now = self.clock.now();
        record.last_updated_time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let path = self.path("pulled", &file_name(id.as_str()));
        self.memory().read.remove(id);
        self.state.write(&path, serde_json::to_vec(&record)?).await?;
        self.remember(id, Some(Arc::new(record)));
        Ok(())
    }

    async fn read(&self, id: &ImageId) -> Result<Option<Arc<PulledRecord>>, BoxError> {
        if let Some(known) = self.memory().read.get(id) {
            return Ok(known.clone());
        }
        let text = self.state.read(&self.path("pulled", &file_name(id.as_str()))).await?;
        let record = match text {
            Some(text) => Some(Arc::new(decode(&text, id)?)),
            None => None,
        };
        // A record may have been written since; what is there is newer, and what is not is read anew.
        if record.is_some() {
            self.memory().read.entry(id.clone()).or_insert_with(|| record.clone());
        }
        Ok(record)
    }

    fn remember(&self, id: &ImageId, record: Option<Arc<PulledRecord>>) {
        let mut memory = self.memory();
        if memory.read.len() >= MAX_CACHED {
            memory.read.clear();
        }
        memory.read.insert(id.clone(), record);
    }

    fn intent_path(&self, image: &str) -> String {
        self.path("pulling", &file_name(image))
    }

    fn path(&self, kind: &str, file: &str) -> String {
        let slash = if file.is_empty() { "" } else { "/" };
        format!("{}{kind}{slash}{file}", self.folder)
    }

    // A panic while the lock is held leaves plain data in a readable state.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn decode(text: &[u8], id: &ImageId) -> Result<PulledRecord, BoxError> {
    let record: PulledRecord = serde_json::from_slice(text)?;
    let is_known = record.kind == "ImagePulledRecord" && record.api_version.starts_with("kubelet.config.k8s.io/");
    if is_known && record.image_ref == id.as_str() {
        Ok(record)
    } else {
        Err(format!("not the record of image {id}").into())
    }
}

/// Whether an image has that name, however much of it is written.
fn is_named(record: &ImageRecord, name: &str) -> bool {
    let full = |text: &str| Reference::parse(text).map(|reference| reference.to_string()).ok();
    let wanted = full(name);
    let names = record.tags.iter().chain(&record.digests);
    names
        .into_iter()
        .any(|known| known == name || (wanted.is_some() && full(known) == wanted))
}

fn file_name(of: &str) -> String {
    format!("sha256-{}", hex(of.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tells two credentials apart without being one.
///
/// Source: kubelet 1.36 hashes the JSON of its `AuthConfig`; none at all has no hash.
pub(crate) fn credential_hash(auth: &RegistryAuth) -> String {
    let fields = [
        ("username", &auth.username),
        ("password", &auth.password),
        ("email", &auth.email),
        ("identitytoken", &auth.identity_token),
        ("registrytoken", &auth.registry_token),
    ];
    let written: Vec<String> = fields
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("\"{name}\":{}", crate::pod::go_json(value)))
        .collect();
    if written.is_empty() {
        return String::new();
    }
    hex(format!("{{{}}}", written.join(",")).as_bytes())
}

#[cfg(test)]
mod tests;
