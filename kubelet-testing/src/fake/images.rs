//! The fake's images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use kubelet_core::{
    ImageFilesystems, ImageId, ImageRecord, ImageRef, ImageService, ImageSpace, PullProgress, PullRequest,
    RandomSource, RegistryAuth, RuntimeError, SeededRandom, async_trait,
};
use tokio::time;

use crate::fake::FakeRuntime;
use crate::fake::call::{Op, Subject};
use crate::fake::gate::Passage;

const DEFAULT_SIZE: u64 = 10 << 20;

/// How pulls of one image go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FakeImage {
    /// How long a pull takes.
    pub pull_latency: Duration,
    /// Why a pull is refused; absent: it succeeds.
    pub refusal: Option<String>,
    /// The image's size in bytes.
    pub size_bytes: u64,
    /// Who may pull it, by name and password; nobody named: everyone.
    pub pullers: Vec<(String, String)>,
}

impl Default for FakeImage {
    fn default() -> Self {
        Self {
            pull_latency: Duration::ZERO,
            refusal: None,
            size_bytes: DEFAULT_SIZE,
            pullers: Vec::new(),
        }
    }
}

impl FakeImage {
    /// One whose pulls succeed at once, 10 MiB in size.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One whose pulls are refused, for that reason.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self {
            refusal: Some(reason.into()),
            ..Self::default()
        }
    }

    /// Nobody pulls it but who shows these credentials, or those of a further call.
    #[must_use]
    pub fn private(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.pullers.push((user.into(), password.into()));
        self
    }

    /// Pulls take that long.
    #[must_use]
    pub fn pull_latency(mut self, latency: Duration) -> Self {
        self.pull_latency = latency;
        self
    }

    /// It is that large.
    #[must_use]
    pub fn size_bytes(mut self, size: u64) -> Self {
        self.size_bytes = size;
        self
    }
}

impl FakeImage {
    fn refusal_of(&self, name: &str, auth: Option<&RegistryAuth>) -> Option<String> {
        let shown = auth.map(|auth| (&auth.username, &auth.password));
        let is_allowed = self.pullers.is_empty()
            || self
                .pullers
                .iter()
                .any(|(user, password)| shown == Some((user, password)));
        let unauthorized = (!is_allowed).then(|| format!("failed to pull {name}: 401 Unauthorized"));
        self.refusal.clone().or(unauthorized)
    }
}

#[derive(Debug, Default)]
pub(crate) struct ImageStore {
    present: BTreeMap<ImageId, ImageRecord>,
    scripts: BTreeMap<String, FakeImage>,
    /// Images that nobody removed or scripted are present without a pull.
    pub(crate) all_present: bool,
    removed: BTreeSet<ImageId>,
    pub(crate) space: Option<ImageSpace>,
}

impl ImageStore {
    pub(crate) fn present(&self) -> Vec<ImageRecord> {
        self.present.values().cloned().collect()
    }

    pub(crate) fn script(&mut self, name: String, image: FakeImage) {
        self.scripts.insert(name, image);
    }

    pub(crate) fn insert(&mut self, record: ImageRecord) {
        self.removed.remove(&record.id);
        self.present.insert(record.id.clone(), record);
    }

    fn find(&self, name: &str) -> Option<&ImageRecord> {
        let found = self
            .present
            .get(&id_of(name))
            .or_else(|| self.present.get(&ImageId::from(name)));
        found.or_else(|| {
            self.present
                .values()
                .find(|image| image.tags.iter().chain(&image.digests).any(|known| known == name))
        })
    }

    fn look(&mut self, name: &str) -> Option<ImageRecord> {
        let known = self.removed.contains(&id_of(name)) || self.scripts.contains_key(name);
        if self.all_present && !known && self.find(name).is_none() {
            self.insert(record(name, DEFAULT_SIZE));
        }
        self.find(name).cloned()
    }

    /// What a container's status shows as its image: the digest, or the name where it is not known.
    pub(crate) fn reference(&self, name: &str) -> String {
        match self.find(name) {
            Some(image) => image.digests.first().cloned().unwrap_or_else(|| image.id.to_string()),
            None => name.to_owned(),
        }
    }
}

#[cfg(feature = "fake-cri")]
impl ImageStore {
    /// The id of an image by one of its names; empty where it is not present.
    pub(crate) fn id(&self, name: &str) -> String {
        self.find(name).map(|image| image.id.to_string()).unwrap_or_default()
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.present.values().map(|image| image.size_bytes).sum()
    }
}

/// An id that depends on nothing but the name, in the form of a digest.
fn id_of(name: &str) -> ImageId {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let random = SeededRandom::new(seed);
    let mut text = String::from("sha256:");
    for _ in 0..4 {
        text.push_str(&format!("{:016x}", random.next_u64()));
    }
    ImageId::new(text)
}

fn record(name: &str, size_bytes: u64) -> ImageRecord {
    let mut image = ImageRecord::new(id_of(name));
    let path = name.split('@').next().unwrap_or(name);
    let tag = path.rfind(':').filter(|colon| !path[*colon..].contains('/'));
    let repository = tag.map_or(path, |colon| &path[..colon]);
    if name.contains('@') {
        image.digests.push(name.to_owned());
    } else {
        image.tags.push(name.to_owned());
        image.digests.push(format!("{repository}@{}", image.id));
    }
    image.size_bytes = size_bytes;
    image
}

/// Whether the name can be that of an image at all.
fn check(name: &str) -> Result<(), RuntimeError> {
    let path = name.split('@').next().unwrap_or_default();
    let repository = path.rsplit_once('/').map_or(path, |(_, last)| last);
    let repository = repository.split(':').next().unwrap_or_default();
    let fine = !repository.is_empty()
        && !name.contains(char::is_whitespace)
        && !repository.contains(|c: char| c.is_ascii_uppercase());
    if fine {
        return Ok(());
    }
    Err(RuntimeError::Refused {
        message: format!("{name:?} is no image name"),
        reason: Some("InvalidImageName"),
    })
}

fn of_image(name: &str) -> Subject {
    Subject {
        image: Some(name.to_owned()),
        ..Subject::default()
    }
}

#[async_trait]
impl ImageService for FakeRuntime {
    async fn status(&self, image: &ImageRef, _handler: &str) -> Result<Option<ImageRecord>, RuntimeError> {
        self.read(Op::ImageStatus, of_image(&image.name), |state| {
            check(&image.name)?;
            Ok(state.images.look(&image.name))
        })
        .await
    }

    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError> {
        self.read(Op::ListImages, Subject::default(), |state| Ok(state.images.present()))
            .await
    }

    async fn used_by_others(&self) -> Result<BTreeSet<String>, RuntimeError> {
        self.read(Op::ListContainers, Subject::default(), |state| {
            let others = state.world.containers.values().filter(|container| !container.marked);
            Ok(others.map(|container| container.config.image.name.clone()).collect())
        })
        .await
    }

    async fn pull(&self, req: PullRequest<'_>, progress: &dyn PullProgress) -> Result<ImageId, RuntimeError> {
        let name = &req.image.name;
        let mut subject = of_image(name);
        subject.puller = req.auth.map(|auth| auth.username.clone());
        let mut passage = Passage::begin(self, Op::Pull, subject, None);
        passage.wait().await;
        let planned = passage.settle(|state, _, _| {
            check(name)?;
            Ok(state.images.scripts.get(name).cloned().unwrap_or_default())
        });
        let result = match planned {
            Err(error) => Err(error),
            Ok(image) => {
                progress.progress(0, Some(image.size_bytes));
                if !image.pull_latency.is_zero() {
                    time::sleep(image.pull_latency).await;
                }
                passage.settle(|state, _, _| match image.refusal_of(name, req.auth) {
                    Some(message) => Err(RuntimeError::Refused {
                        message,
                        reason: Some("ErrImagePull"),
                    }),
                    None => {
                        let record = record(name, image.size_bytes);
                        let id = record.id.clone();
                        state.images.insert(record);
                        progress.progress(image.size_bytes, Some(image.size_bytes));
                        Ok(id)
                    }
                })
            }
        };
        passage.finish(result)
    }

    async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        self.read(Op::RemoveImage, of_image(id.as_str()), |state| {
            state.images.present.remove(id);
            state.images.removed.insert(id.clone());
            Ok(())
        })
        .await
    }

    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.read(Op::Filesystems, Subject::default(), |state| {
            let mut found = ImageFilesystems::default();
            found.images.push(PathBuf::from("/var/lib/fake/images"));
            found.containers.push(PathBuf::from("/var/lib/fake/containers"));
            found.space = state.images.space;
            Ok(found)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::{check, record};

    #[test]
    fn a_record_has_the_names_of_its_image() {
        let image = record("registry:5000/app:1", 7);
        assert_eq!(image.tags, ["registry:5000/app:1"]);
        assert_eq!(image.digests, [format!("registry:5000/app@{}", image.id)]);
        let pinned = record("app@sha256:aa", 7);
        assert!(pinned.tags.is_empty());
        assert_eq!(pinned.digests, ["app@sha256:aa"]);
    }

    #[test]
    fn malformed_names_are_refused() {
        for name in ["", "app 1", "App:1", "registry/", "registry/:1"] {
            assert!(check(name).is_err(), "{name}");
        }
        for name in ["app", "registry.example:5000/team/app:V1", "app@sha256:aa"] {
            assert!(check(name).is_ok(), "{name}");
        }
    }
}
