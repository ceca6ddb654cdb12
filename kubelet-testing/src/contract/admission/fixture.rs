//! What the suite must be told about an admission handler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation, PodRecord, SourceKind, SourceName,
};

use crate::contract::hook::{Given, Hook, hook};
use crate::contract::thread::on_a_thread;

/// Tells the suite of [`AdmitHandler`] what the handler that it checks says to which pods.
pub struct AdmitFixture {
    pub(crate) node: Arc<NodeView>,
    pub(crate) admitted: Arc<PodRecord>,
    pub(crate) rejected: Given<Arc<PodRecord>>,
    pub(crate) held_back: Given<(Arc<PodRecord>, Hook)>,
    pub(crate) others: Arc<ActivePods>,
    pub(crate) patience: Duration,
    kind: SourceKind,
}

impl fmt::Debug for AdmitFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmitFixture")
            .field("node", &self.node)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl AdmitFixture {
    /// A fixture for a node on which the handler admits that pod.
    ///
    /// # Panics
    /// If the pod lacks a name or a UID.
    #[must_use]
    pub fn new(node: NodeView, admitted: &Pod) -> Self {
        let kind = SourceKind::Managed;
        Self {
            node: Arc::new(node),
            admitted: record(admitted, kind),
            rejected: Given::Unsaid,
            held_back: Given::Unsaid,
            others: Arc::default(),
            patience: Duration::from_secs(20),
            kind,
        }
    }

    /// A pod that the handler rejects. Without it that is not checked.
    ///
    /// # Panics
    /// If the pod lacks a name or a UID.
    #[must_use]
    pub fn rejected(mut self, pod: &Pod) -> Self {
        self.rejected = Given::Here(record(pod, self.kind));
        self
    }

    /// For a handler that never rejects.
    #[must_use]
    pub fn never_rejects(mut self) -> Self {
        self.rejected = Given::Never;
        self
    }

    /// A pod that the handler holds back with [`Admission::NotYet`], and how to make it admit the pod from then on.
    /// Without it those promises are skipped.
    ///
    /// # Panics
    /// If the pod lacks a name or a UID.
    #[must_use]
    pub fn held_back<F>(mut self, pod: &Pod, let_in: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.held_back = Given::Here((record(pod, self.kind), hook(move |()| let_in())));
        self
    }

    /// For a handler that never holds back.
    #[must_use]
    pub fn never_holds_back(mut self) -> Self {
        self.held_back = Given::Never;
        self
    }

    /// Pods that are active meanwhile.
    ///
    /// # Panics
    /// If one of them lacks a name or a UID.
    #[must_use]
    pub fn others<'a>(mut self, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut others = ActivePods::new();
        for pod in pods {
            others.insert(record(pod, self.kind));
        }
        self.others = Arc::new(others);
        self
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The answer to one request, which must not take long.
    pub(crate) fn ask(&self, handler: &Arc<dyn AdmitHandler>, operation: Operation, pod: &Arc<PodRecord>) -> Admission {
        let (handler, pod) = (handler.clone(), pod.clone());
        let (others, node) = (self.others.clone(), self.node.clone());
        on_a_thread("an answer", self.patience, move || {
            handler.admit(&AdmitRequest::new(operation, &pod, &others, &node))
        })
    }
}

fn record(pod: &Pod, kind: SourceKind) -> Arc<PodRecord> {
    match PodRecord::new(pod, SourceName::from("contract"), kind) {
        Ok(record) => Arc::new(record),
        Err(error) => panic!("a pod of the fixture: {error}"),
    }
}
