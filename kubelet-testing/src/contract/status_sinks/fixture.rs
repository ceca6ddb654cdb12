//! What the suite must be told about a sink of statuses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{PodRecord, PodUid, SourceKind, SourceName, StatusUpdate};

use crate::PodBuilder;
use crate::contract::hook::{Given, Hook, hook};

/// Tells the suite of [`StatusSink`](kubelet_core::StatusSink) how to look at what the sink that it checks has told.
pub struct StatusSinkFixture {
    pub(crate) shown: Option<Hook<PodUid, Option<PodStatus>>>,
    pub(crate) outage: Given<(Hook, Hook)>,
    pub(crate) removed: Given<Hook<PodUid>>,
    pub(crate) patience: Duration,
    expected: Option<Hook<Arc<PodRecord>>>,
}

impl fmt::Debug for StatusSinkFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusSinkFixture")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for StatusSinkFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl StatusSinkFixture {
    /// A fixture for a sink whose other side cannot be looked at: only its answers are checked.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shown: None,
            outage: Given::Unsaid,
            removed: Given::Unsaid,
            patience: Duration::from_secs(20),
            expected: None,
        }
    }

    /// How to look up the newest status of a pod that the other side has; of a pod that left anything will do.
    #[must_use]
    pub fn shown<F>(mut self, shown: impl Fn(PodUid) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<PodStatus>> + Send + 'static,
    {
        self.shown = Some(hook(shown));
        self
    }

    /// What to do before the first status of a pod is told, such as making it known to the other side.
    #[must_use]
    pub fn expected<F>(mut self, expected: impl Fn(Arc<PodRecord>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.expected = Some(hook(expected));
        self
    }

    /// How to take the other side away, and bring it back. Without it that promise is skipped.
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

    /// For a sink whose other side is always there.
    #[must_use]
    pub fn never_away(mut self) -> Self {
        self.outage = Given::Never;
        self
    }

    /// How to remove a pod on the other side. Without it that promise is skipped.
    #[must_use]
    pub fn removed<F>(mut self, removed: impl Fn(PodUid) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.removed = Given::Here(hook(removed));
        self
    }

    /// For a sink whose other side removes no pods.
    #[must_use]
    pub fn never_gone(mut self) -> Self {
        self.removed = Given::Never;
        self
    }

    /// How long a call may take, and what was accepted to get there; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(crate) async fn pod(&self, name: &str) -> Told {
        let pod = PodBuilder::new(name)
            .container("app", |container| container.image("registry.example/contract:1"))
            .build();
        let record = match PodRecord::new(&pod, SourceName::from("contract"), SourceKind::Managed) {
            Ok(record) => Arc::new(record),
            Err(error) => panic!("make a pod: {error}"),
        };
        if let Some(expected) = &self.expected {
            expected(record.clone()).await;
        }
        Told(record)
    }
}

/// A pod of which the sink is told.
pub(crate) struct Told(Arc<PodRecord>);

impl Told {
    pub(crate) fn uid(&self) -> &PodUid {
        self.0.uid()
    }

    /// A version whose status says that.
    pub(crate) fn update(&self, version: u64, text: &str) -> StatusUpdate {
        let status = PodStatus {
            phase: Some("Running".to_owned()),
            message: Some(text.to_owned()),
            ..PodStatus::default()
        };
        StatusUpdate::new(self.0.clone(), Arc::new(status), version)
    }
}
