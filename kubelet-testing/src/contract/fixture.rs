//! What a suite must be told about the implementation that it checks.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubelet_core::{
    ContainerConfig, ContainerRuntime, ImageRef, ImageService, PodKey, PodUid, PullRequest, RandomSource, RegistryAuth,
    SandboxConfig, SandboxId, Scope, SeededRandom, label,
};

use crate::ContainerBuilder;
use crate::contract::check::must;
use crate::contract::hook::{Hook, hook};

/// What a container of the suite runs.
#[derive(Clone, Debug)]
pub struct Workload {
    image: ImageRef,
    command: Vec<String>,
    args: Vec<String>,
}

impl Workload {
    /// The entry point of that image.
    pub fn image(name: impl Into<String>) -> Self {
        Self {
            image: ImageRef::new(name),
            command: Vec::new(),
            args: Vec::new(),
        }
    }

    /// With that command.
    #[must_use]
    pub fn command(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// With those arguments.
    #[must_use]
    pub fn args(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args = words.into_iter().map(Into::into).collect();
        self
    }

    /// Makes a container of a pod run it.
    pub(crate) fn shape(&self, container: ContainerBuilder) -> ContainerBuilder {
        let mut container = container.image(self.image.name.as_str());
        if !self.command.is_empty() {
            container = container.command(&self.command);
        }
        if !self.args.is_empty() {
            container = container.args(&self.args);
        }
        container
    }
}

/// A UID that no other pod has, in the form of a version 4 UUID, since some backends look closely.
pub(crate) fn random_uid() -> String {
    uid_of(&SeededRandom::from_process())
}

fn uid_of(random: &SeededRandom) -> String {
    let (a, b) = (random.next_u64(), random.next_u64());
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        (b >> 48) & 0xfff,
        b & 0xffff_ffff_ffff
    )
}

/// Commands for the suite to run in a container of the fixture's `forever` workload.
#[derive(Clone, Debug)]
pub struct ExecCommands {
    /// Ends with code 0.
    pub succeeds: Vec<String>,
    /// Ends with code 3.
    pub exits_with_3: Vec<String>,
    /// Runs for at least ten minutes.
    pub sleeps: Vec<String>,
}

impl ExecCommands {
    /// Commands for containers that have a shell.
    #[must_use]
    pub fn shell() -> Self {
        let sh = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        Self {
            succeeds: sh("exit 0"),
            exits_with_3: sh("exit 3"),
            sleeps: sh("sleep 600"),
        }
    }
}

/// A pod of its own for one test.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TestPod {
    /// Its identity, labels and log folder.
    pub sandbox: SandboxConfig,
}

impl TestPod {
    /// Its UID.
    #[must_use]
    pub fn uid(&self) -> &PodUid {
        &self.sandbox.pod_uid
    }

    /// The config of a container of this pod, with our mark and a log path.
    #[must_use]
    pub fn container(&self, name: &str, attempt: u32, runs: &Workload) -> ContainerConfig {
        let mut config = ContainerConfig::new(name, attempt, runs.image.clone());
        config.command.clone_from(&runs.command);
        config.args.clone_from(&runs.args);
        config.labels = self.sandbox.labels.clone();
        config.labels.insert(label::CONTAINER_NAME.to_owned(), name.to_owned());
        config.log_path = PathBuf::from(name).join(format!("{attempt}.log"));
        config
    }
}

/// Tells the suite of [`ContainerRuntime`] how to use the runtime that it checks.
pub struct RuntimeFixture {
    pub(crate) forever: Workload,
    pub(crate) exits: Box<dyn Fn(i32) -> Workload + Send + Sync>,
    pub(crate) ignores_term: Workload,
    pub(crate) unstartable: Option<Workload>,
    pub(crate) exec: Option<ExecCommands>,
    pub(crate) patience: Duration,
    pub(crate) outage: Option<(Hook, Hook)>,
    pub(crate) next_create_outlives: Option<Hook>,
    pub(crate) handler: String,
    not_shown: BTreeMap<&'static str, &'static str>,
    images: Option<Arc<dyn ImageService>>,
    shape: Box<dyn Fn(&mut SandboxConfig) + Send + Sync>,
    log_root: PathBuf,
    random: SeededRandom,
    made: Mutex<Made>,
}

/// What is to be cleaned up.
#[derive(Debug, Default)]
struct Made {
    pods: Vec<TestPod>,
    unmarked: Vec<SandboxId>,
}

impl fmt::Debug for RuntimeFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeFixture")
            .field("forever", &self.forever)
            .field("log_root", &self.log_root)
            .finish_non_exhaustive()
    }
}

impl RuntimeFixture {
    /// A fixture whose pods log below `log_root`, a folder that exists or can be made.
    ///
    /// - `forever` runs until it is asked to stop, and then ends within the patience.
    /// - `exits` makes a workload that ends at once with the given code.
    /// - `ignores_term` runs until it is killed.
    pub fn new(
        log_root: impl Into<PathBuf>,
        forever: Workload,
        exits: impl Fn(i32) -> Workload + Send + Sync + 'static,
        ignores_term: Workload,
    ) -> Self {
        Self {
            forever,
            exits: Box::new(exits),
            ignores_term,
            unstartable: None,
            exec: None,
            patience: Duration::from_secs(20),
            outage: None,
            next_create_outlives: None,
            handler: String::new(),
            not_shown: BTreeMap::new(),
            images: None,
            shape: Box::new(|_| {}),
            log_root: log_root.into(),
            random: SeededRandom::from_process(),
            made: Mutex::default(),
        }
    }

    /// Where the workloads' images are pulled from before a container is created. Without it they must be present.
    #[must_use]
    pub fn images(mut self, images: impl ImageService) -> Self {
        self.images = Some(Arc::new(images));
        self
    }

    /// A workload that can be created but not started. Without it that promise is skipped.
    #[must_use]
    pub fn unstartable(mut self, workload: Workload) -> Self {
        self.unstartable = Some(workload);
        self
    }

    /// Commands to run in a container. Without them the promises about exec are skipped.
    #[must_use]
    pub fn exec(mut self, commands: ExecCommands) -> Self {
        self.exec = Some(commands);
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The runtime handler of all sandboxes; the default one by default.
    #[must_use]
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handler = handler.into();
        self
    }

    /// Changes each sandbox config before it is used, for example to share the host's network.
    #[must_use]
    pub fn sandbox(mut self, shape: impl Fn(&mut SandboxConfig) + Send + Sync + 'static) -> Self {
        self.shape = Box::new(shape);
        self
    }

    /// How to make the runtime unreachable, and reachable again. Without it that promise is skipped.
    #[must_use]
    pub fn outage<D, U>(
        mut self,
        down: impl Fn() -> D + Send + Sync + 'static,
        up: impl Fn() -> U + Send + Sync + 'static,
    ) -> Self
    where
        D: Future<Output = ()> + Send + 'static,
        U: Future<Output = ()> + Send + 'static,
    {
        self.outage = Some((hook(move |()| down()), hook(move |()| up())));
        self
    }

    /// How to let the next `create_container` outlive its deadline, so that it fails as uncertain and happens later.
    /// Without it that promise is skipped.
    #[must_use]
    pub fn next_create_outlives<F>(mut self, arrange: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.next_create_outlives = Some(hook(move |()| arrange()));
        self
    }

    /// A promise, by the name of its check, that cannot be shown on this runtime, and why. It is skipped, also where
    /// everything else is required.
    #[must_use]
    pub fn not_shown(mut self, promise: &'static str, why: &'static str) -> Self {
        self.not_shown.insert(promise, why);
        self
    }

    /// Why a promise is not shown.
    pub(crate) fn why_not_shown(&self, promise: &str) -> Option<&'static str> {
        self.not_shown.get(promise).copied()
    }

    /// A pod that no other test has, whose log folders exist.
    ///
    /// # Panics
    /// If its folders cannot be made.
    pub fn pod(&self) -> TestPod {
        let uid = uid_of(&self.random);
        let name = format!("contract-{}", &uid[..8]);
        let namespace = "kubelet-contract";
        let key = PodKey::new(namespace, name.as_str());
        let mut sandbox = SandboxConfig::new(PodUid::new(uid.as_str()), key, 0);
        sandbox.labels = BTreeMap::from([
            (label::POD_UID.to_owned(), uid.clone()),
            (label::POD_NAME.to_owned(), name.clone()),
            (label::POD_NAMESPACE.to_owned(), namespace.to_owned()),
        ]);
        sandbox.hostname.clone_from(&name);
        sandbox.log_directory = self.log_root.join(format!("{namespace}_{name}_{uid}"));
        (self.shape)(&mut sandbox);
        let pod = TestPod { sandbox };
        self.made().pods.push(pod.clone());
        pod
    }

    /// Removes what the tests made with this fixture, as far as the runtime answers.
    pub async fn clean_up(&self, runtime: &dyn ContainerRuntime) {
        let made = std::mem::take(&mut *self.made());
        for pod in made.pods {
            for sandbox in runtime.list_sandboxes(Scope::Pod(pod.uid())).await.unwrap_or_default() {
                self.sweep(runtime, &sandbox.id).await;
            }
            for left in runtime.list_containers(Scope::Pod(pod.uid())).await.unwrap_or_default() {
                let _ = runtime.remove_container(&left.id).await;
            }
            let _ = fs::remove_dir_all(&pod.sandbox.log_directory);
        }
        for sandbox in made.unmarked {
            self.sweep(runtime, &sandbox).await;
        }
    }

    /// Has a sandbox removed at the end that no list shows.
    pub(crate) fn note_unmarked(&self, id: SandboxId) {
        self.made().unmarked.push(id);
    }

    /// Makes the log folder of a container, as its creator must.
    pub(crate) fn prepare_log(&self, pod: &TestPod, config: &ContainerConfig) {
        let file = pod.sandbox.log_directory.join(&config.log_path);
        if let Some(folder) = file.parent()
            && let Err(error) = fs::create_dir_all(folder)
        {
            panic!("make the log folder {}: {error}", folder.display());
        }
    }

    pub(crate) async fn pull(&self, image: &ImageRef) {
        if let Some(images) = &self.images {
            must(
                &format!("pull {image}"),
                images
                    .pull(PullRequest::new(image), &kubelet_core::IgnoreProgress)
                    .await,
            );
        }
    }

    async fn sweep(&self, runtime: &dyn ContainerRuntime, id: &SandboxId) {
        // Best effort: a runtime that fails here has failed its promise already.
        let _ = runtime.stop_sandbox(id).await;
        let _ = runtime.remove_sandbox(id).await;
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the suite of [`ImageService`] which images it may use.
pub struct ImageFixture {
    pub(crate) image: ImageRef,
    pub(crate) other: ImageRef,
    pub(crate) missing: ImageRef,
    pub(crate) auth: Option<RegistryAuth>,
    pub(crate) slow: Option<(ImageRef, Duration)>,
    pub(crate) outage: Option<(Hook, Hook)>,
    pub(crate) patience: Duration,
}

impl fmt::Debug for ImageFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFixture")
            .field("image", &self.image)
            .field("other", &self.other)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

impl ImageFixture {
    /// A fixture with two images that can be pulled, and that the suite removes, and one that no registry has.
    #[must_use]
    pub fn new(image: ImageRef, other: ImageRef, missing: ImageRef) -> Self {
        Self {
            image,
            other,
            missing,
            auth: None,
            slow: None,
            outage: None,
            patience: Duration::from_secs(60),
        }
    }

    /// All pulls show these credentials, without which the registry gives none of the images. Without them that promise is
    /// skipped.
    #[must_use]
    pub fn auth(mut self, auth: RegistryAuth) -> Self {
        self.auth = Some(auth);
        self
    }

    /// A third image whose pull takes about that long, and at least a second. Without it that promise is skipped.
    #[must_use]
    pub fn slow(mut self, image: ImageRef, takes: Duration) -> Self {
        self.slow = Some((image, takes));
        self
    }

    /// As [`RuntimeFixture::outage`].
    #[must_use]
    pub fn outage<D, U>(
        mut self,
        down: impl Fn() -> D + Send + Sync + 'static,
        up: impl Fn() -> U + Send + Sync + 'static,
    ) -> Self
    where
        D: Future<Output = ()> + Send + 'static,
        U: Future<Output = ()> + Send + 'static,
    {
        self.outage = Some((hook(move |()| down()), hook(move |()| up())));
        self
    }

    /// How long a pull may take; 60 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Removes the images of the suite, as far as the service answers.
    pub async fn clean_up(&self, images: &dyn ImageService) {
        let slow = self.slow.as_ref().map(|(image, _)| image);
        for image in [&self.image, &self.other].into_iter().chain(slow) {
            if let Ok(Some(found)) = images.status(image, "").await {
                let _ = images.remove(&found.id).await;
            }
        }
    }
}
