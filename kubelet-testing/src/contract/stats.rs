//! The promises of [`StatsProvider`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use kubelet_core::jiff::Timestamp;
use kubelet_core::{ContainerId, ContainerUsage, PodUid, StatsProvider, StatsScope, StatsSnapshot, error_chain};

use crate::contract::check::{eventually, within};
use crate::contract::hook::Given;

/// Tells the suite of [`StatsProvider`] what there is to measure.
pub struct StatsFixture {
    running: Vec<(PodUid, String)>,
    ended: Given<(PodUid, String)>,
    unmarked: Given<ContainerId>,
    patience: Duration,
}

impl fmt::Debug for StatsFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsFixture")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl StatsFixture {
    /// A fixture for a node on which these containers, by pod and name, run for as long as the suite does: one in each of two
    /// pods at least, without limits.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn new(running: impl IntoIterator<Item = (PodUid, String)>) -> Self {
        let running: Vec<_> = running.into_iter().collect();
        let two = running.iter().any(|(uid, _)| *uid != running[0].0);
        assert!(two, "the fixture needs running containers of two pods");
        Self {
            running,
            ended: Given::Unsaid,
            unmarked: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// A container, by pod and name, that has ended and is there. Without it that is not checked.
    #[must_use]
    pub fn ended(mut self, pod: PodUid, name: impl Into<String>) -> Self {
        self.ended = Given::Here((pod, name.into()));
        self
    }

    /// A container that runs and does not carry the mark of a kubelet. Without it that is not checked.
    #[must_use]
    pub fn unmarked(mut self, container: ContainerId) -> Self {
        self.unmarked = Given::Here(container);
        self
    }

    /// For a provider beside which nothing can run that it could tell of.
    #[must_use]
    pub fn nothing_unmarked(mut self) -> Self {
        self.unmarked = Given::Never;
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn collect(&self, provider: &dyn StatsProvider, want: &StatsScope) -> StatsSnapshot {
        match within("a look", self.patience, provider.collect(want)).await {
            Ok(snapshot) => snapshot,
            Err(error) => panic!("what is used by {want:?}: {}", error_chain(&error)),
        }
    }

    /// A look at everything that shows all that runs, with its usage: some measure it only now and then.
    async fn whole(&self, provider: &dyn StatsProvider) -> StatsSnapshot {
        let look = async || {
            let snapshot = self.collect(provider, &StatsScope::All).await;
            let is_whole = self.running.iter().all(|(uid, name)| {
                let of_it = |c: &&ContainerUsage| c.pod_uid == *uid && c.name == *name;
                snapshot
                    .containers
                    .iter()
                    .filter(of_it)
                    .any(|c| c.cpu.is_some() && c.memory.is_some())
            });
            is_whole.then_some(snapshot)
        };
        eventually("all that runs is told of", self.patience, look).await
    }
}

/// It tells only of pods that carry the mark of a kubelet, and of containers that run, of each once.
///
/// # Panics
/// If the promise is broken.
pub async fn only_what_is_marked_and_runs_is_told_of(provider: &dyn StatsProvider, fixture: &StatsFixture) {
    let promise = "only_what_is_marked_and_runs_is_told_of";
    let snapshot = fixture.whole(provider).await;
    let lacks = "the fixture has no container without the mark";
    if let Some(unmarked) = fixture.unmarked.or_skip(promise, lacks) {
        let told = snapshot.containers.iter().any(|container| container.id == *unmarked);
        assert!(!told, "{unmarked} has no mark, and is told of");
    }
    let lacks = "the fixture has no container that has ended";
    if let Some((uid, name)) = fixture.ended.or_skip(promise, lacks) {
        let told = snapshot.containers.iter().any(|c| c.pod_uid == *uid && c.name == *name);
        assert!(!told, "{name} of {uid} has ended, and is told of");
    }
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for container in &snapshot.containers {
        *times.entry(container.id.as_str()).or_default() += 1;
    }
    for pod in &snapshot.pods {
        *times.entry(pod.uid.as_str()).or_default() += 1;
    }
    if let Some((what, times)) = times.into_iter().find(|(_, times)| *times > 1) {
        panic!("{what} is told of {times} times in one answer");
    }
}

/// Asked for one pod it tells of no other; of a pod that is not there it tells nothing, which is no error.
///
/// # Panics
/// If the promise is broken.
pub async fn asked_for_one_pod_it_tells_of_no_other(provider: &dyn StatsProvider, fixture: &StatsFixture) {
    fixture.whole(provider).await;
    for (uid, name) in &fixture.running {
        let want = StatsScope::Pod(uid.clone());
        let snapshot = fixture.collect(provider, &want).await;
        let containers = snapshot.containers.iter().map(|container| &container.pod_uid);
        let other = containers
            .chain(snapshot.pods.iter().map(|pod| &pod.uid))
            .find(|of| *of != uid);
        assert!(other.is_none(), "asked for {uid} it tells of {other:?}");
        let told = snapshot.containers.iter().any(|container| container.name == *name);
        assert!(told, "asked for {uid} it does not tell of {name}");
    }
    let nobody = StatsScope::Pod(PodUid::from("no-such-pod"));
    let snapshot = fixture.collect(provider, &nobody).await;
    let nothing = StatsSnapshot::default();
    assert_eq!(snapshot, nothing, "asked for a pod that is not there");
}

/// What it does not know is absent, never zero.
///
/// # Panics
/// If the promise is broken.
pub async fn what_is_not_known_is_absent(provider: &dyn StatsProvider, fixture: &StatsFixture) {
    let snapshot = fixture.whole(provider).await;
    for (uid, name) in &fixture.running {
        let of_it = |c: &&ContainerUsage| c.pod_uid == *uid && c.name == *name;
        for container in snapshot.containers.iter().filter(of_it) {
            // A process that runs has used some of each.
            let memory = container.memory.as_ref();
            let counted = [
                (
                    "processor time",
                    container.cpu.as_ref().and_then(|cpu| cpu.usage_core_nanoseconds),
                ),
                ("the working set", memory.and_then(|memory| memory.working_set_bytes)),
                ("all memory", memory.and_then(|memory| memory.usage_bytes)),
                ("anonymous memory", memory.and_then(|memory| memory.rss_bytes)),
            ];
            for (what, value) in counted {
                assert_ne!(value, Some(0), "{what} of {name}, which runs");
            }
            let left = memory.and_then(|memory| memory.available_bytes);
            assert_eq!(left, None, "what is left of no limit, of {name}");
            let times = [container.cpu.as_ref().map(|cpu| cpu.at), memory.map(|memory| memory.at)];
            let untold = times.into_iter().flatten().any(|at| at <= Timestamp::UNIX_EPOCH);
            assert!(!untold, "usage of {name} without the time at which it was measured");
        }
    }
}

/// A counter of one container id never goes back.
///
/// # Panics
/// If the promise is broken.
pub async fn counters_never_go_back(provider: &dyn StatsProvider, fixture: &StatsFixture) {
    let mut highest: BTreeMap<(ContainerId, &str), u64> = BTreeMap::new();
    for round in 0..10 {
        let snapshot = match round % 2 {
            0 => fixture.whole(provider).await,
            _ => {
                let (uid, _) = &fixture.running[round % fixture.running.len()];
                fixture.collect(provider, &StatsScope::Pod(uid.clone())).await
            }
        };
        for container in snapshot.containers {
            let memory = container.memory.unwrap_or_default();
            let counters = [
                (
                    "processor time",
                    container.cpu.and_then(|cpu| cpu.usage_core_nanoseconds),
                ),
                ("page faults", memory.page_faults),
                ("major page faults", memory.major_page_faults),
            ];
            for (what, value) in counters {
                let Some(value) = value else { continue };
                let before = highest.entry((container.id.clone(), what)).or_default();
                assert!(
                    value >= *before,
                    "{what} of {} goes from {before} to {value}",
                    container.name
                );
                *before = value;
            }
        }
    }
}

/// It does not keep calls from each other: they may overlap.
///
/// # Panics
/// If the promise is broken.
pub async fn calls_may_overlap(provider: &dyn StatsProvider, fixture: &StatsFixture) {
    fixture.whole(provider).await;
    let calls = (0..12).map(|call| async move {
        let (uid, name) = &fixture.running[call % fixture.running.len()];
        let want = if call % 3 == 0 {
            StatsScope::All
        } else {
            StatsScope::Pod(uid.clone())
        };
        let snapshot = fixture.collect(provider, &want).await;
        let told = snapshot.containers.iter().any(|c| c.pod_uid == *uid && c.name == *name);
        assert!(told, "one of many calls does not tell of {name} of {uid}");
    });
    join_all(calls).await;
}

/// A call may be dropped at any time, and later ones are answered.
///
/// # Panics
/// If the promise is broken.
pub async fn a_call_may_be_dropped_at_any_time(provider: &dyn StatsProvider, fixture: &StatsFixture) {
    for polls in 0..4 {
        for want in [StatsScope::All, StatsScope::Pod(fixture.running[0].0.clone())] {
            let mut call = provider.collect(&want);
            for _ in 0..polls {
                if (&mut call).now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(call);
            let snapshot = fixture.collect(provider, &want).await;
            assert!(!snapshot.containers.is_empty(), "after a dropped call nothing is told");
        }
    }
}

/// Makes one `#[test]` of each promise of [`StatsProvider`], or one function of all.
///
/// Takes an async function without arguments that answers `Some((provider, fixture))` with a
/// [`StatsFixture`](crate::contract::StatsFixture), or nothing. It is called once per promise. The suite runs in real time.
#[macro_export]
macro_rules! stats_contract {
    ($make:path) => {
        $crate::stats_contract! { @promises each [$make] }
    };
    ($make:path, fn $name:ident) => {
        $crate::stats_contract! { @promises all [$make, $name] }
    };
    (@promises $form:ident $with:tt) => {
        $crate::stats_contract! { @$form $with
            a_call_may_be_dropped_at_any_time
            asked_for_one_pod_it_tells_of_no_other
            calls_may_overlap
            counters_never_go_back
            only_what_is_marked_and_runs_is_told_of
            what_is_not_known_is_absent
        }
    };
    (@each [$make:path] $($promise:ident)*) => {
        $crate::contract_tests! { $make, stats: $($promise)* }
    };
    (@all [$make:path, $name:ident] $($promise:ident)*) => {
        fn $name() { $(
            $crate::contract::check(stringify!($promise), $make, async |checked, fixture| {
                $crate::contract::stats::$promise(checked, fixture).await;
            });
        )* }
    };
}
