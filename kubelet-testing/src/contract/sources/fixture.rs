//! What the suite must be told about a source of pods.

use std::fmt;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;

use crate::PodBuilder;
use crate::contract::hook::{Given, Hook, hook};

/// Tells the suite of [`PodSource`](kubelet_core::PodSource) how to change what the source that it checks wishes for.
pub struct SourceFixture {
    pub(crate) set: Hook<Vec<Pod>>,
    pub(crate) one_pod: bool,
    pub(crate) outage: Given<(Hook, Hook)>,
    pub(crate) spoil: Given<Hook>,
    pub(crate) patience: Duration,
}

impl fmt::Debug for SourceFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceFixture")
            .field("one_pod", &self.one_pod)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl SourceFixture {
    /// A fixture whose `set` makes those pods, and no others, what the source is to wish for.
    ///
    /// The pods have names, a namespace, UIDs, and one container; what changes of a pod is the tag of its image. Where
    /// something else gives UIDs, those of the suite may be replaced.
    pub fn new<F>(set: impl Fn(Vec<Pod>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            set: hook(set),
            one_pod: false,
            outage: Given::Unsaid,
            spoil: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// For a source that always has exactly one pod.
    #[must_use]
    pub fn one_pod(mut self) -> Self {
        self.one_pod = true;
        self
    }

    /// How to make what the source reads unreadable, and readable again. Without it that promise is skipped.
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

    /// For a source that reads nothing which could be unreadable.
    #[must_use]
    pub fn always_readable(mut self) -> Self {
        self.outage = Given::Never;
        self
    }

    /// How to put something that is no pod beside the pods of the last `set`, or in the place of a source's only pod,
    /// until the next `set`. Without it that promise is skipped.
    #[must_use]
    pub fn spoil<F>(mut self, spoil: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spoil = Given::Here(hook(move |()| spoil()));
        self
    }

    /// For a source into which nothing can be put but pods.
    #[must_use]
    pub fn only_pods(mut self) -> Self {
        self.spoil = Given::Never;
        self
    }

    /// How long the source may take to see a change; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(crate) async fn set(&self, pods: &[Wished]) {
        (self.set)(pods.iter().map(Wished::pod).collect()).await;
    }
}

/// A pod that the suite wishes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wished {
    pub(crate) name: &'static str,
    /// The tag of its image.
    pub(crate) tag: u8,
    /// A later pod of that name is another one.
    pub(crate) life: u8,
}

/// A pod of its first life.
pub(crate) fn wished(name: &'static str, tag: u8) -> Wished {
    Wished { name, tag, life: 1 }
}

impl Wished {
    fn pod(&self) -> Pod {
        let letters = self.name.bytes().fold(0_u32, |sum, byte| (sum << 8) | u32::from(byte));
        // In the form of a version 4 UUID, since an API server may be behind it.
        let uid = format!("{letters:08x}-0000-4000-8000-{:012x}", self.life);
        let image = format!("registry.example/contract:{}", self.tag);
        PodBuilder::new(self.name)
            .uid(uid)
            .container("app", |container| container.image(image))
            .build()
    }

    pub(crate) fn image(&self) -> String {
        format!("registry.example/contract:{}", self.tag)
    }
}
