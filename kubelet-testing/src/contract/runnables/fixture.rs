//! How the suite deals with a part.

use std::fmt;
use std::time::Duration;

use kubelet_core::{Kubelet, KubeletBuilder, StateDir, WholePods};

use crate::FakeProvider;
use crate::contract::hook::{Given, Hook, hook};

/// Tells the suite of [`Runnable`](kubelet_core::Runnable) what it may expect of the part that it checks.
pub struct RunnableFixture {
    pub(super) kubelet: Box<dyn Fn() -> KubeletBuilder + Send + Sync>,
    pub(super) works: Given<Hook<(), bool>>,
    pub(super) fails: Given<Hook>,
    pub(super) patience: Duration,
}

impl fmt::Debug for RunnableFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnableFixture")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for RunnableFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl RunnableFixture {
    /// For a part in a kubelet without pods and without files. It does not say what makes the part fail: that promise is
    /// skipped.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kubelet: Box::new(|| {
                Kubelet::builder("node-1", WholePods::new(FakeProvider::new())).state_only(StateDir::in_memory())
            }),
            works: Given::Unsaid,
            fails: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// The kubelet whose context the part is given, for a part that needs its files or its pods. The suite adds one source.
    #[must_use]
    pub fn kubelet(mut self, kubelet: impl Fn() -> KubeletBuilder + Send + Sync + 'static) -> Self {
        self.kubelet = Box::new(kubelet);
        self
    }

    /// How to find out whether the part is at work. By default it is given a few turns.
    #[must_use]
    pub fn works<F>(mut self, works: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.works = Given::Here(hook(move |()| works()));
        self
    }

    /// What makes the part fail once while it works: its `run` returns an error. It is called once for each failure.
    #[must_use]
    pub fn fails<F>(mut self, fail: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.fails = Given::Here(hook(move |()| fail()));
        self
    }

    /// For a part whose `run` never returns an error.
    #[must_use]
    pub fn never_fails(mut self) -> Self {
        self.fails = Given::Never;
        self
    }

    /// How long the part may take to begin its work, to fail, and to return once it is stopped; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}
