//! What the suite must be told about a whole-pod backend.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{PodProvider, PodRecord, PodUid, ResolvedPod, SourceKind, SourceName};

use crate::PodBuilder;
use crate::contract::fixture::{Workload, random_uid};
use crate::contract::hook::{Given, Hook, hook};

/// Tells the suite of [`PodProvider`] how to use the backend that it checks.
pub struct ProviderFixture {
    pub(crate) forever: Workload,
    pub(crate) exits: Given<Box<dyn Fn(i32) -> Workload + Send + Sync>>,
    pub(crate) ignores_term: Given<Workload>,
    pub(crate) outage: Given<(Hook, Hook)>,
    pub(crate) foreign: Given<Hook<Pod, PodUid>>,
    pub(crate) hints: bool,
    pub(crate) patience: Duration,
    shape: Box<dyn Fn(&mut Pod) + Send + Sync>,
    made: Mutex<Vec<PodUid>>,
}

impl fmt::Debug for ProviderFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderFixture")
            .field("forever", &self.forever)
            .field("hints", &self.hints)
            .finish_non_exhaustive()
    }
}

impl ProviderFixture {
    /// A fixture whose `forever` runs until it is asked to stop, and then ends within the patience.
    pub fn new(forever: Workload) -> Self {
        Self {
            forever,
            exits: Given::Unsaid,
            ignores_term: Given::Unsaid,
            outage: Given::Unsaid,
            foreign: Given::Unsaid,
            hints: false,
            patience: Duration::from_secs(20),
            shape: Box::new(|_| {}),
            made: Mutex::default(),
        }
    }

    /// Makes a workload that ends at once with the given code. Without it the promises about ends are skipped.
    #[must_use]
    pub fn exits(mut self, exits: impl Fn(i32) -> Workload + Send + Sync + 'static) -> Self {
        self.exits = Given::Here(Box::new(exits));
        self
    }

    /// For a backend in which nothing ends by itself.
    #[must_use]
    pub fn never_exits(mut self) -> Self {
        self.exits = Given::Never;
        self
    }

    /// A workload that runs until it is killed. Without it the promises about grace are skipped.
    #[must_use]
    pub fn ignores_term(mut self, workload: Workload) -> Self {
        self.ignores_term = Given::Here(workload);
        self
    }

    /// For a backend in which nothing can withstand its end, so that grace is of no matter.
    #[must_use]
    pub fn ends_at_once(mut self) -> Self {
        self.ignores_term = Given::Never;
        self
    }

    /// How to make the backend unreachable, and reachable again. Without it that promise is skipped.
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
        self.outage = Given::Here((hook(move |()| down()), hook(move |()| up())));
        self
    }

    /// For a backend that always answers.
    #[must_use]
    pub fn always_answers(mut self) -> Self {
        self.outage = Given::Never;
        self
    }

    /// How to make a pod as somebody else would, without the mark of this provider; the answer is its UID there. Without
    /// it that promise is skipped.
    #[must_use]
    pub fn foreign<F>(mut self, make: impl Fn(Pod) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = PodUid> + Send + 'static,
    {
        self.foreign = Given::Here(hook(make));
        self
    }

    /// For a backend that nobody else uses.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.foreign = Given::Never;
        self
    }

    /// For a provider whose `changes` give a hint when a pod ends by itself.
    #[must_use]
    pub fn hints(mut self) -> Self {
        self.hints = true;
        self
    }

    /// Changes each pod before it is used.
    #[must_use]
    pub fn pod_shape(mut self, shape: impl Fn(&mut Pod) + Send + Sync + 'static) -> Self {
        self.shape = Box::new(shape);
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A pod that no other test has, with one container `app`.
    pub(crate) fn manifest(&self, runs: &Workload) -> Pod {
        let uid = random_uid();
        let mut pod = PodBuilder::new(format!("contract-{}", &uid[..8]))
            .uid(uid)
            .restart_policy("Never")
            .container("app", |container| runs.shape(container))
            .build();
        (self.shape)(&mut pod);
        pod
    }

    /// The same, as a provider gets it.
    pub(crate) fn pod(&self, runs: &Workload) -> ResolvedPod {
        let pod = self.manifest(runs);
        let record = match PodRecord::new(&pod, SourceName::from("contract"), SourceKind::Managed) {
            Ok(record) => Arc::new(record),
            Err(error) => panic!("make a pod: {error}"),
        };
        self.made().push(record.uid().clone());
        ResolvedPod::new(record)
    }

    /// Removes the pods of the suite, as far as the provider answers.
    pub async fn clean_up(&self, provider: &dyn PodProvider) {
        let made = std::mem::take(&mut *self.made());
        for uid in made {
            // Best effort: once to end it, and once more to have what has ended removed.
            for _ in 0..2 {
                let delete = provider.delete(&uid, Duration::ZERO);
                let _ = tokio::time::timeout(self.patience, delete).await;
            }
        }
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<PodUid>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
