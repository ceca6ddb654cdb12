//! How the suite of volume managers reaches what they make.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CancellationToken, ContainerView, ContainerVolumes, PodRecord, PodUid, PodVolumes, SourceKind, SourceName,
    VolumeContext, VolumeError, VolumeManager, error_chain,
};

use crate::contract::check::within;
use crate::contract::hook::{Given, Hook, hook};

/// A pod with a volume that cannot be made.
#[derive(Clone, Debug)]
pub struct Unmakeable {
    pub(super) pod: Pod,
    pub(super) missing: Vec<String>,
    pub(super) others: Vec<String>,
}

impl Unmakeable {
    /// A pod whose volumes of the first names cannot be made, and of the second names can. There must be some of both.
    pub fn new(
        pod: Pod,
        missing: impl IntoIterator<Item = impl Into<String>>,
        others: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            pod,
            missing: missing.into_iter().map(Into::into).collect(),
            others: others.into_iter().map(Into::into).collect(),
        }
    }
}

/// Tells the suite of [`VolumeManager`] which pods to use, and how to reach their volumes past the trait.
pub struct VolumeFixture {
    context: VolumeContext,
    pods: Vec<Pod>,
    host_paths: Vec<PathBuf>,
    pub(super) next_life: Given<Hook<(), Arc<dyn VolumeManager>>>,
    pub(super) exists: Given<Hook<PathBuf, bool>>,
    pub(super) read: Given<Hook<PathBuf, Option<String>>>,
    pub(super) write: Given<Hook<(PathBuf, String), bool>>,
    pub(super) left: Given<Hook<PodUid, Vec<String>>>,
    pub(super) unmakeable: Given<Unmakeable>,
    pub(super) made: Given<Hook<(PodUid, String), bool>>,
    pub(super) mend: Given<Hook>,
    pub(super) block: Given<(Hook, Hook)>,
    pub(super) patience: Duration,
}

impl fmt::Debug for VolumeFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeFixture")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl VolumeFixture {
    /// A fixture for a manager that was not opened yet, with what it is opened with, and for pods with volumes, two at least: each of
    /// its own UID, and with volumes that can be made at once. The suite mounts and unmounts them.
    pub fn new(context: VolumeContext, pods: impl IntoIterator<Item = Pod>) -> Self {
        Self {
            context,
            pods: pods.into_iter().collect(),
            host_paths: Vec::new(),
            next_life: Given::Unsaid,
            exists: Given::Unsaid,
            read: Given::Unsaid,
            write: Given::Unsaid,
            left: Given::Unsaid,
            unmakeable: Given::Unsaid,
            made: Given::Unsaid,
            mend: Given::Unsaid,
            block: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// Volumes are on disk: the suite looks at them and writes into them there, below the folder that the manager is opened with, whose
    /// path must have no links in it. What is left of a pod is what keeps the engine from removing the pod's folder.
    #[must_use]
    pub fn on_disk(self) -> Self {
        let (left, made) = (self.pods_dir(), self.pods_dir());
        self.exists(|path| std::future::ready(path.exists()))
            .read(|path| std::future::ready(fs::read_to_string(path).ok()))
            .write(|path, text| std::future::ready(fs::write(path, text).is_ok()))
            .left(move |uid| std::future::ready(left_on_disk(&left.join(uid.as_str()))))
            .made(move |uid, volume| std::future::ready(is_on_disk(&made.join(uid.as_str()), &volume)))
    }

    /// Gives others over the same volumes, as the agent's next life has them. Without it lives are not checked.
    #[must_use]
    pub fn next_life<F>(mut self, make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Arc<dyn VolumeManager>> + Send + 'static,
    {
        self.next_life = Given::Here(hook(move |()| make()));
        self
    }

    /// Tells whether something is at a place. Without it that is not checked.
    #[must_use]
    pub fn exists<F>(mut self, look: impl Fn(PathBuf) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.exists = Given::Here(hook(look));
        self
    }

    /// Reads a file of a volume, by its path on the host.
    #[must_use]
    pub fn read<F>(mut self, read: impl Fn(PathBuf) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        self.read = Given::Here(hook(read));
        self
    }

    /// Writes a file into a volume, by its path on the host, and says whether that worked. Only asked for volumes that can be
    /// written. Without it what is written is not checked.
    #[must_use]
    pub fn write<F>(mut self, write: impl Fn(PathBuf, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.write = Given::Here(hook(move |(path, text)| write(path, text)));
        self
    }

    /// Tells what is left of a pod's volumes: mounts and folders. Without it that is not checked.
    #[must_use]
    pub fn left<F>(mut self, look: impl Fn(PodUid) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        self.left = Given::Here(hook(look));
        self
    }

    /// A pod with a volume that cannot be made. Without it that is not checked.
    #[must_use]
    pub fn unmakeable(mut self, pod: Unmakeable) -> Self {
        self.unmakeable = Given::Here(pod);
        self
    }

    /// All volumes of the manager can be made at once, so that none keeps a pod waiting.
    #[must_use]
    pub fn never_waits(mut self) -> Self {
        self.unmakeable = Given::Never;
        self
    }

    /// Tells whether the pod has a volume of that name. Without it that is not checked.
    #[must_use]
    pub fn made<F>(mut self, look: impl Fn(PodUid, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.made = Given::Here(hook(move |(uid, volume)| look(uid, volume)));
        self
    }

    /// Lets the volume be made that could not be made; the suite tries again until it is. Without it that is not checked.
    #[must_use]
    pub fn mend<F>(mut self, mend: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.mend = Given::Here(hook(move |()| mend()));
        self
    }

    /// Lets `mount` and `unmount` hang, and takes that back. Without it only calls are checked that are told to stop before they begin.
    #[must_use]
    pub fn block<B, F>(
        mut self,
        block: impl Fn() -> B + Send + Sync + 'static,
        free: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        B: Future<Output = ()> + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.block = Given::Here((hook(move |()| block()), hook(move |()| free())));
        self
    }

    /// Nothing that the manager does can hang.
    #[must_use]
    pub fn never_hangs(mut self) -> Self {
        self.block = Given::Never;
        self
    }

    /// A path of the host that the pods name by way of something else, such as a claim.
    #[must_use]
    pub fn host_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.host_paths.push(path.into());
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn pods_dir(&self) -> PathBuf {
        self.context.root_dir.join("pods")
    }

    /// Opens a manager, and gives the pods to use with it.
    pub(super) fn open(&self, manager: &dyn VolumeManager) -> Vec<Arc<PodRecord>> {
        manager.open(self.context.clone());
        let pods: Vec<_> = self.pods.iter().map(record).collect();
        assert!(pods.len() > 1, "the fixture has two pods at least");
        pods
    }

    /// Another one over the same volumes, opened; nothing where the fixture cannot give any.
    pub(super) async fn live_again(&self, promise: &str) -> Option<Arc<dyn VolumeManager>> {
        let next_life = self.next_life.or_skip(promise, "the fixture has no next life")?;
        let later = next_life(()).await;
        later.open(self.context.clone());
        Some(later)
    }

    pub(super) async fn ok<T>(&self, what: &str, call: impl Future<Output = Result<T, VolumeError>>) -> T {
        match within(what, self.patience, call).await {
            Ok(value) => value,
            Err(error) => panic!("{what}: {}", error_chain(&error)),
        }
    }

    pub(super) async fn mount(&self, manager: &dyn VolumeManager, pod: &Arc<PodRecord>) -> PodVolumes {
        let what = format!("mount of {}", pod.key());
        self.ok(&what, manager.mount(pod, &CancellationToken::new())).await
    }

    pub(super) async fn unmount(&self, manager: &dyn VolumeManager, uid: &PodUid) {
        let what = format!("unmount of {uid:?}");
        self.ok(&what, manager.unmount(uid, &CancellationToken::new())).await;
    }

    /// What each container of a pod is given.
    pub(super) async fn given<'a>(
        &self,
        manager: &dyn VolumeManager,
        pod: &'a PodRecord,
    ) -> Vec<(ContainerView<'a>, ContainerVolumes)> {
        let mut given = Vec::new();
        for view in pod.containers() {
            let what = format!("the volumes of container {} of {}", view.name(), pod.key());
            let env = view
                .env()
                .iter()
                .map(|var| (var.name.clone(), var.value.clone().unwrap_or_default()));
            let env = Env::from_iter(env);
            let volumes = self.ok(&what, manager.container(pod, view.name(), &env)).await;
            given.push((view, volumes));
        }
        given
    }

    /// Where a pod's containers find volumes, also those that are devices; each place once.
    pub(super) async fn places(&self, manager: &dyn VolumeManager, pod: &PodRecord) -> Vec<PathBuf> {
        let mut places = BTreeSet::new();
        for (_, volumes) in self.given(manager, pod).await {
            places.extend(volumes.places.into_iter().map(|place| place.host_path));
            places.extend(volumes.devices.into_iter().map(|device| device.host_path));
        }
        places.into_iter().collect()
    }

    /// Writes a file into each volume of a pod that can be written, and gives where.
    pub(super) async fn write_all(&self, promise: &str, manager: &dyn VolumeManager, pod: &PodRecord) -> Vec<PathBuf> {
        let mut written = Vec::new();
        let Some(write) = self.write.or_skip(promise, "the fixture writes no files") else {
            return written;
        };
        for (_, volumes) in self.given(manager, pod).await {
            for place in volumes.places.into_iter().filter(|place| !place.read_only) {
                let file = place.host_path.join("kubelet-testing-suite");
                let text = format!("of {}", pod.key());
                assert!(
                    write((file.clone(), text)).await,
                    "{} cannot be written",
                    file.display()
                );
                written.push(file);
            }
        }
        written
    }

    /// Checks that what was written is there.
    pub(super) async fn find(&self, pod: &PodRecord, written: &[PathBuf], when: &str) {
        let Some(read) = self.read.here() else { return };
        for file in written {
            let text = read(file.clone()).await;
            let expected = format!("of {}", pod.key());
            assert_eq!(text, Some(expected), "{} is lost {when}", file.display());
        }
    }

    /// Checks that all places of a pod are there.
    pub(super) async fn look(&self, promise: &str, manager: &dyn VolumeManager, pod: &PodRecord, when: &str) {
        let Some(exists) = self.exists.or_skip(promise, "the fixture cannot look at places") else {
            return;
        };
        for place in self.places(manager, pod).await {
            assert!(exists(place.clone()).await, "{} is not there {when}", place.display());
        }
    }

    /// Checks that nothing is left of a pod.
    pub(super) async fn find_nothing(&self, promise: &str, uid: &PodUid, when: &str) {
        if let Some(left) = self.left.or_skip(promise, "the fixture cannot tell what is left") {
            let left = left(uid.clone()).await;
            assert!(left.is_empty(), "of {uid} is left {when}: {left:?}");
        }
    }

    /// Checks that a place is where it may be.
    pub(super) fn check_place(&self, pod: &PodRecord, place: &Path) {
        let own = self.pods_dir().join(pod.uid().as_str());
        let volumes = pod.spec().volumes.iter().flatten();
        let named = volumes.filter_map(|volume| volume.host_path.as_ref().map(|host| PathBuf::from(&host.path)));
        let is_inside = named
            .chain(self.host_paths.iter().cloned())
            .chain([own])
            .any(|top| place.starts_with(top));
        let leaves = place.components().any(|part| part == Component::ParentDir);
        assert!(
            is_inside && !leaves && place.is_absolute(),
            "a place of {} is elsewhere: {}",
            pod.key(),
            place.display()
        );
    }
}

pub(super) fn record(pod: &Pod) -> Arc<PodRecord> {
    match PodRecord::new(pod, SourceName::from("api"), SourceKind::Managed) {
        Ok(record) => Arc::new(record),
        Err(error) => panic!("a pod of the fixture: {error}"),
    }
}

/// What keeps the engine from removing a pod's folder: mounts, and all that it did not put there itself.
fn left_on_disk(pod: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut left: Vec<String> = places
        .filter(|place| Path::new(place).starts_with(pod))
        .map(|place| format!("a mount at {place}"))
        .collect();
    for (name, path) in inside(pod) {
        match name.as_str() {
            "containers" | "etc-hosts" | "userns" => {}
            "volumes" | "plugins" => left.extend(inside(&path).into_iter().map(|(_, path)| path.display().to_string())),
            _ => left.push(path.display().to_string()),
        }
    }
    left
}

/// Whether a volume of that name is in a pod's folder.
fn is_on_disk(pod: &Path, volume: &str) -> bool {
    let kinds = ["volumes", "volumeDevices"]
        .into_iter()
        .flat_map(|kind| inside(&pod.join(kind)));
    kinds
        .into_iter()
        .any(|(_, plugin)| fs::symlink_metadata(plugin.join(volume)).is_ok())
}

/// What is in a folder; nothing if there is none.
fn inside(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("look into {}: {error}", folder.display()),
    };
    let entries = entries.map(|entry| match entry {
        Ok(entry) => (entry.file_name().to_string_lossy().into_owned(), entry.path()),
        Err(error) => panic!("look into {}: {error}", folder.display()),
    });
    entries.collect()
}

/// A path as the kernel writes it: blanks and the like are octal numbers.
fn unescape(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (code, part.get(3..)) {
            (Some(code), Some(rest)) => {
                text.push(char::from(code));
                text.push_str(rest);
            }
            _ => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{is_on_disk, left_on_disk, unescape};

    #[test]
    fn what_the_engine_makes_is_not_left_and_what_volumes_are_is() {
        let dir = std::env::temp_dir().join(format!("kubelet-testing-left-{}", std::process::id()));
        let pod = dir.join("u1");
        fs::create_dir_all(pod.join("containers/app")).unwrap();
        fs::create_dir_all(pod.join("volumes")).unwrap();
        fs::create_dir_all(pod.join("plugins")).unwrap();
        fs::write(pod.join("etc-hosts"), "").unwrap();
        assert!(left_on_disk(&pod).is_empty());
        assert!(left_on_disk(&dir.join("u2")).is_empty());
        fs::create_dir_all(pod.join("volumes/kubernetes.io~empty-dir/data")).unwrap();
        fs::create_dir_all(pod.join("volume-subpaths/data")).unwrap();
        assert_eq!(left_on_disk(&pod).len(), 2);
        assert!(is_on_disk(&pod, "data") && !is_on_disk(&pod, "other"));
        fs::remove_dir_all(&dir).unwrap();
        assert!(!left_on_disk("/proc".as_ref()).is_empty());
        assert_eq!(unescape(r"/a\040b\134c\9"), r"/a b\c\9");
    }
}
