//! The promises of [`PodCgroups`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use kubelet_core::{
    CgroupContext, CgroupDriver, CgroupError, LinuxResources, NodeLimits, NodeSettings, NodeView, PodCgroups,
    PodLimits, PodRecord, PodUid, ResourceSettings, SourceKind, SourceName, error_chain,
};

use crate::contract::check::within;
use crate::contract::hook::{Given, Hook, hook};
use crate::pods::PodBuilder;

/// Tells whether a process that the fixture started still runs.
type IsAlive = Box<dyn Fn() -> bool + Send + Sync>;

/// Tells the suite of [`PodCgroups`] how to reach the cgroups past the trait.
pub struct CgroupFixture {
    context: CgroupContext,
    next_life: Given<Hook<(), Arc<dyn PodCgroups>>>,
    process: Given<Hook<PodUid, IsAlive>>,
    stranger: Given<Hook<(), PodUid>>,
    lost: Given<Hook<PodUid>>,
    patience: Duration,
}

impl fmt::Debug for CgroupFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CgroupFixture")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Default for CgroupFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl CgroupFixture {
    /// A fixture for cgroups that were not opened yet, on a machine with none of their pods.
    #[must_use]
    pub fn new() -> Self {
        Self {
            context: CgroupContext::new(CgroupDriver::Cgroupfs, "the suite"),
            next_life: Given::Unsaid,
            process: Given::Unsaid,
            stranger: Given::Unsaid,
            lost: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// With another driver than plain folders.
    #[must_use]
    pub fn driver(mut self, driver: CgroupDriver) -> Self {
        self.context.driver = driver;
        self
    }

    /// Gives others over the same cgroups, as the agent's next life has them. Without it lives are not checked.
    #[must_use]
    pub fn next_life<F>(mut self, make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Arc<dyn PodCgroups>> + Send + 'static,
    {
        self.next_life = Given::Here(hook(move |()| make()));
        self
    }

    /// Starts a process in the cgroup of a pod, and gives what tells whether it runs. Without it that is not checked.
    #[must_use]
    pub fn process<F, A>(mut self, start: impl Fn(PodUid) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = A> + Send + 'static,
        A: Fn() -> bool + Send + Sync + 'static,
    {
        self.process = Given::Here(hook(move |uid| start(uid).map(|alive| Box::new(alive) as IsAlive)));
        self
    }

    /// Makes the cgroup of a pod of another owner, beside those of the suite. Without it that is not checked.
    #[must_use]
    pub fn stranger<F>(mut self, make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = PodUid> + Send + 'static,
    {
        self.stranger = Given::Here(hook(move |()| make()));
        self
    }

    /// Removes the empty cgroup of a pod, or a part of it, past the trait. Without it that is not checked.
    #[must_use]
    pub fn lost<F>(mut self, lose: impl Fn(PodUid) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.lost = Given::Here(hook(lose));
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn ok<T>(&self, what: &str, call: impl Future<Output = Result<T, CgroupError>>) -> T {
        match within(what, self.patience, call).await {
            Ok(value) => value,
            Err(error) => panic!("{what}: {}", error_chain(&error)),
        }
    }

    async fn open(&self, cgroups: &dyn PodCgroups) {
        self.ok("open", cgroups.open(&self.context)).await;
        let node = NodeLimits::of(&NodeSettings::default(), &NodeView::new("node-1"));
        self.ok("enforce", cgroups.enforce(&node)).await;
    }

    async fn apply(&self, cgroups: &dyn PodCgroups, pod: &PodRecord) {
        self.ok("apply", cgroups.apply(pod, &limits(pod))).await;
    }

    async fn exists(&self, cgroups: &dyn PodCgroups, pod: &PodRecord) -> bool {
        self.ok("exists", cgroups.exists(pod)).await
    }

    async fn list(&self, cgroups: &dyn PodCgroups) -> BTreeSet<PodUid> {
        self.ok("list", cgroups.list()).await.into_iter().collect()
    }

    async fn destroy(&self, cgroups: &dyn PodCgroups, uid: &PodUid) {
        self.ok("destroy", cgroups.destroy(uid)).await;
    }

    /// Another one over the same cgroups, not opened yet; nothing where the fixture cannot give any.
    async fn live_again(&self, promise: &str) -> Option<Arc<dyn PodCgroups>> {
        let next_life = self.next_life.or_skip(promise, "the fixture has no next life")?;
        Some(next_life(()).await)
    }
}

/// Amounts by resource.
type Amounts = [(&'static str, &'static str)];

/// A pod of each class, and a second one of the last.
fn pods() -> Vec<PodRecord> {
    let shapes: [(&str, &Amounts, &Amounts); 4] = [
        (
            "suite-guaranteed",
            &[("cpu", "250m"), ("memory", "64Mi")],
            &[("cpu", "250m"), ("memory", "64Mi")],
        ),
        ("suite-burstable", &[("cpu", "100m")], &[]),
        ("suite-besteffort", &[], &[]),
        ("suite-other", &[], &[]),
    ];
    shapes
        .into_iter()
        .map(|(name, requests, limits)| record(name, requests, limits))
        .collect()
}

fn record(name: &str, requests: &Amounts, limits: &Amounts) -> PodRecord {
    let shape = |mut container: crate::pods::ContainerBuilder| {
        for (resource, amount) in requests {
            container = container.request(resource, amount);
        }
        for (resource, amount) in limits {
            container = container.limit(resource, amount);
        }
        container
    };
    let pod = PodBuilder::new(name)
        .uid(format!("{name}-0a1b"))
        .container("app", shape)
        .build();
    match PodRecord::new(&pod, SourceName::from("api"), SourceKind::Managed) {
        Ok(record) => record,
        Err(error) => panic!("a pod of the suite: {error}"),
    }
}

fn limits(pod: &PodRecord) -> PodLimits {
    let node = NodeView::new("node-1");
    PodLimits::of(pod.spec(), pod.facts().qos, &ResourceSettings::default(), &node)
}

/// Before `open` has succeeded nothing is made: what would be fails.
///
/// # Panics
/// If the promise is broken.
pub async fn nothing_is_made_before_open(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    let pods = pods();
    for pod in &pods {
        let applied = within("apply", fixture.patience, cgroups.apply(pod, &limits(pod))).await;
        assert!(applied.is_err(), "the cgroup of a pod is made before open");
        let none = LinuxResources::default();
        let made = within("container", fixture.patience, cgroups.container(pod, "app", &none)).await;
        assert!(made.is_err(), "the cgroup of a container is made before open");
    }
    fixture.open(cgroups).await;
    for pod in &pods {
        assert!(!fixture.exists(cgroups, pod).await, "{} is there after open", pod.key());
    }
}

/// `open` may be repeated, also in a later life, and leaves what is there as it is.
///
/// # Panics
/// If the promise is broken.
pub async fn open_may_be_repeated(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    fixture.open(cgroups).await;
    let pods = pods();
    for pod in &pods {
        fixture.apply(cgroups, pod).await;
    }
    fixture.open(cgroups).await;
    for pod in &pods {
        assert!(
            fixture.exists(cgroups, pod).await,
            "{} is gone after another open",
            pod.key()
        );
    }
    if let Some(later) = fixture.live_again("open_may_be_repeated").await {
        fixture.open(&*later).await;
        for pod in &pods {
            assert!(
                fixture.exists(&*later, pod).await,
                "{} is gone after open in a later life",
                pod.key()
            );
        }
    }
    for pod in &pods {
        fixture.destroy(cgroups, pod.uid()).await;
    }
}

/// The parent of a pod does not change while the pod is on the node, and no two pods have the same.
///
/// # Panics
/// If the promise is broken.
pub async fn each_pod_has_its_parent(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    fixture.open(cgroups).await;
    let pods = pods();
    let parents: Vec<String> = pods.iter().map(|pod| cgroups.parent(pod)).collect();
    let different: BTreeSet<&String> = parents.iter().collect();
    assert_eq!(different.len(), pods.len(), "two pods have one parent: {parents:?}");
    assert!(!different.contains(&String::new()), "a pod has no parent");
    for pod in &pods {
        fixture.apply(cgroups, pod).await;
    }
    fixture.open(cgroups).await;
    let later = fixture.live_again("each_pod_has_its_parent").await;
    if let Some(later) = &later {
        fixture.open(&**later).await;
    }
    for (pod, parent) in pods.iter().zip(&parents) {
        assert_eq!(cgroups.parent(pod), *parent, "the parent of {} changed", pod.key());
        if let Some(later) = &later {
            assert_eq!(
                later.parent(pod),
                *parent,
                "the parent of {} changed in a later life",
                pod.key()
            );
        }
        fixture.destroy(cgroups, pod.uid()).await;
    }
}

/// `apply` makes what is missing of a pod's cgroup, and may be repeated; `exists` tells whether all of it is there.
///
/// # Panics
/// If the promise is broken.
pub async fn apply_makes_what_is_missing(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    fixture.open(cgroups).await;
    for pod in &pods() {
        assert!(
            !fixture.exists(cgroups, pod).await,
            "{} is there before apply",
            pod.key()
        );
        for _ in 0..2 {
            fixture.apply(cgroups, pod).await;
            assert!(
                fixture.exists(cgroups, pod).await,
                "{} is not there after apply",
                pod.key()
            );
        }
        let lacks = "the fixture cannot lose a cgroup";
        if let Some(lose) = fixture.lost.or_skip("apply_makes_what_is_missing", lacks) {
            lose(pod.uid().clone()).await;
            assert!(
                !fixture.exists(cgroups, pod).await,
                "{} was lost, and is there",
                pod.key()
            );
            fixture.apply(cgroups, pod).await;
            assert!(
                fixture.exists(cgroups, pod).await,
                "{} was lost, and is not made anew",
                pod.key()
            );
        }
        fixture.destroy(cgroups, pod.uid()).await;
    }
}

/// The cgroup of a container is made inside of that of its pod, which is made if need be, and goes with it.
///
/// # Panics
/// If the promise is broken.
pub async fn containers_are_inside_of_their_pods(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    fixture.open(cgroups).await;
    let mut limits = LinuxResources::default();
    limits.cpu_shares = 512;
    for pod in &pods() {
        let app = fixture.ok("container", cgroups.container(pod, "app", &limits)).await;
        assert!(
            fixture.exists(cgroups, pod).await,
            "a container is there without its pod {}",
            pod.key()
        );
        fixture.apply(cgroups, pod).await;
        let again = fixture.ok("container", cgroups.container(pod, "app", &limits)).await;
        assert_eq!(app, again, "a container has another cgroup when it is asked for again");
        let other = fixture.ok("container", cgroups.container(pod, "other", &limits)).await;
        assert!(!app.folders.is_empty(), "the cgroup of a container has no folders");
        for folder in &app.folders {
            assert!(
                !other.folders.contains(folder),
                "two containers share {}",
                folder.display()
            );
        }
        fixture.destroy(cgroups, pod.uid()).await;
        for folder in app.folders.iter().chain(&other.folders) {
            assert!(!folder.exists(), "{} is there after its pod", folder.display());
        }
    }
}

/// `list` tells of the pods whose cgroups its owner made, in an earlier life too, and of no others.
///
/// # Panics
/// If the promise is broken.
pub async fn list_tells_of_own_pods(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    let promise = "list_tells_of_own_pods";
    fixture.open(cgroups).await;
    let pods = pods();
    assert_eq!(
        fixture.list(cgroups).await,
        BTreeSet::new(),
        "pods are listed where there are none"
    );
    for pod in &pods {
        fixture.apply(cgroups, pod).await;
    }
    let lacks = "the fixture has no pod of another owner";
    let stranger = match fixture.stranger.or_skip(promise, lacks) {
        Some(make) => Some(make(()).await),
        None => None,
    };
    let mut all: BTreeSet<PodUid> = pods.iter().map(|pod| pod.uid().clone()).collect();
    let listed = fixture.list(cgroups).await;
    if let Some(stranger) = &stranger {
        assert!(!listed.contains(stranger), "a pod of another owner is listed");
    }
    assert_eq!(listed, all, "what is listed");
    let later = fixture.live_again(promise).await;
    if let Some(later) = &later {
        fixture.open(&**later).await;
        assert_eq!(fixture.list(&**later).await, all, "what is listed in a later life");
    }
    for pod in &pods {
        fixture.destroy(cgroups, pod.uid()).await;
        all.remove(pod.uid());
        assert_eq!(
            fixture.list(cgroups).await,
            all,
            "what is listed after {} is gone",
            pod.key()
        );
    }
}

/// `destroy` ends what still runs in the cgroup of a pod, and removes all of it.
///
/// # Panics
/// If the promise is broken.
pub async fn destroy_ends_what_runs(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    let promise = "destroy_ends_what_runs";
    fixture.open(cgroups).await;
    for pod in &pods() {
        fixture.apply(cgroups, pod).await;
        fixture
            .ok("container", cgroups.container(pod, "app", &LinuxResources::default()))
            .await;
        let lacks = "the fixture starts no processes";
        let alive = match fixture.process.or_skip(promise, lacks) {
            Some(start) => Some(start(pod.uid().clone()).await),
            None => None,
        };
        assert!(alive.as_ref().is_none_or(|alive| alive()), "the fixture's process runs");
        fixture.destroy(cgroups, pod.uid()).await;
        assert!(
            alive.is_none_or(|alive| !alive()),
            "a process of {} runs after destroy",
            pod.key()
        );
        assert!(
            !fixture.exists(cgroups, pod).await,
            "{} is there after destroy",
            pod.key()
        );
        let listed = fixture.list(cgroups).await;
        assert!(!listed.contains(pod.uid()), "{} is listed after destroy", pod.key());
    }
}

/// Destroying what is not there succeeds.
///
/// # Panics
/// If the promise is broken.
pub async fn destroying_nothing_succeeds(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    fixture.open(cgroups).await;
    for pod in &pods() {
        fixture.destroy(cgroups, pod.uid()).await;
        fixture.apply(cgroups, pod).await;
        for _ in 0..2 {
            fixture.destroy(cgroups, pod.uid()).await;
        }
    }
}

/// Calls about different pods may overlap.
///
/// # Panics
/// If the promise is broken.
pub async fn calls_about_different_pods_may_overlap(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    fixture.open(cgroups).await;
    let requests = [("cpu", "10m")];
    let pods: Vec<PodRecord> = (0..16)
        .map(|number| {
            record(
                &format!("suite-many-{number}"),
                if number % 2 == 0 { &requests } else { &[] },
                &[],
            )
        })
        .collect();
    let lives = pods.iter().map(|pod| async {
        for _ in 0..3 {
            fixture.apply(cgroups, pod).await;
            assert!(
                fixture.exists(cgroups, pod).await,
                "{} is not there, among others",
                pod.key()
            );
            fixture
                .ok("container", cgroups.container(pod, "app", &LinuxResources::default()))
                .await;
            assert!(
                fixture.list(cgroups).await.contains(pod.uid()),
                "{} is not listed, among others",
                pod.key()
            );
            fixture.destroy(cgroups, pod.uid()).await;
            assert!(
                !fixture.exists(cgroups, pod).await,
                "{} is there, among others",
                pod.key()
            );
        }
    });
    join_all(lives).await;
}

/// A call that was dropped may be repeated.
///
/// # Panics
/// If the promise is broken.
pub async fn a_dropped_call_may_be_repeated(cgroups: &dyn PodCgroups, fixture: &CgroupFixture) {
    for polls in 0..4 {
        drop_after(polls, cgroups.open(&fixture.context)).await;
        fixture.open(cgroups).await;
        for pod in &pods() {
            drop_after(polls, cgroups.apply(pod, &limits(pod))).await;
            fixture.apply(cgroups, pod).await;
            assert!(
                fixture.exists(cgroups, pod).await,
                "{} is not there after a dropped call",
                pod.key()
            );
            drop_after(polls, cgroups.destroy(pod.uid())).await;
            fixture.destroy(cgroups, pod.uid()).await;
            assert!(
                !fixture.exists(cgroups, pod).await,
                "{} is there after a dropped call",
                pod.key()
            );
        }
    }
}

/// Polls a call that often, and drops it.
async fn drop_after<T>(polls: u32, mut call: impl Future<Output = T> + Unpin) {
    for _ in 0..polls {
        if (&mut call).now_or_never().is_some() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Makes one `#[test]` of each promise of [`PodCgroups`].
///
/// Takes an async function without arguments that answers `Some((cgroups, fixture))` with a
/// [`CgroupFixture`](crate::contract::CgroupFixture), or nothing. It is called once per promise. The suite runs in real time.
///
/// ```
/// # mod example {
/// use std::sync::Arc;
///
/// use kubelet_testing::FakeCgroups;
/// use kubelet_testing::contract::{CgroupFixture, now};
///
/// async fn mine() -> Option<(FakeCgroups, CgroupFixture)> {
///     let cgroups = FakeCgroups::new();
///     let next = cgroups.clone();
///     let fixture = CgroupFixture::new().next_life(move || now(|| Arc::new(next.next_life()) as _));
///     Some((cgroups, fixture))
/// }
///
/// kubelet_testing::cgroup_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! cgroup_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, cgroups:
            a_dropped_call_may_be_repeated
            apply_makes_what_is_missing
            calls_about_different_pods_may_overlap
            containers_are_inside_of_their_pods
            destroy_ends_what_runs
            destroying_nothing_succeeds
            each_pod_has_its_parent
            list_tells_of_own_pods
            nothing_is_made_before_open
            open_may_be_repeated
        }
    };
}
