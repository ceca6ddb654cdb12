//! Admission: may this pod run here, now?

mod absent;
mod active;
mod ledger;
mod machine;
mod node;
mod node_fit;
mod ports;
mod preemption;
mod settings;
mod sysctls;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use futures::stream::BoxStream;

use crate::pod::PodRecord;
use crate::quantity::Quantity;

pub(crate) use absent::PART_MISSING;
pub use absent::{Abilities, AbsentParts};
pub use active::ActivePods;
pub(crate) use ledger::Decision;
pub use ledger::Ledger;
pub use machine::{MachineError, MachineInfo};
pub use node::NodeView;
pub(crate) use node_fit::NO_STRICT_GROUPS;
pub use node_fit::{NodeFit, node_selector_matches};
pub use settings::NodeSettings;
pub(crate) use sysctls::{Sysctls, kernel_version, sysctl_name};

/// The occasion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// The pod is new here.
    New,
    /// The pod was here before the agent started, or before it was asked about, and runs: what it holds it has.
    Restored,
    /// The pod runs and wants other resources.
    Resize,
}

/// The answer of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admission {
    /// It may run.
    Admit,
    /// It never may: its phase becomes `Failed`.
    Reject {
        /// One CamelCase word, such as `OutOfcpu`.
        reason: Cow<'static, str>,
        /// A sentence.
        message: String,
    },
    /// Not now: asked again when a handler's [`AdmitHandler::changes`] fires or something is freed. Reserves nothing.
    NotYet {
        /// One CamelCase word.
        reason: Cow<'static, str>,
        /// A sentence.
        message: String,
    },
}

impl Admission {
    /// A rejection.
    pub fn reject(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Reject {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A postponement.
    pub fn not_yet(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::NotYet {
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// What a pod lacks of one resource beside the others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Which one: `cpu`, `pods`, `example.com/gpu`.
    pub resource: String,
    /// What others would have to give up: more than nothing.
    pub missing: Quantity,
}

impl Shortage {
    /// A shortage of a resource.
    pub fn new(resource: impl Into<String>, missing: Quantity) -> Self {
        Self {
            resource: resource.into(),
            missing,
        }
    }
}

/// A request for admission.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AdmitRequest<'a> {
    /// The occasion.
    pub operation: Operation,
    /// The pod.
    pub pod: &'a Arc<PodRecord>,
    /// The admitted pods that are not terminated, without this one.
    pub others: &'a ActivePods,
    /// The node.
    pub node: &'a NodeView,
}

impl<'a> AdmitRequest<'a> {
    /// A request, as the [`Ledger`] makes it. `others` must not have the pod itself.
    #[must_use]
    pub fn new(operation: Operation, pod: &'a Arc<PodRecord>, others: &'a ActivePods, node: &'a NodeView) -> Self {
        Self {
            operation,
            pod,
            others,
            node,
        }
    }
}

/// May this pod run here? Handlers form a chain; the first answer that is not [`Admission::Admit`] counts.
///
/// Handlers are asked while the [`Ledger`] is locked: one that calls it, or takes a lock that others hold for long, holds
/// up all pods. What an admitted pod holds is counted by the ledger, among the `others` of the next request.
///
/// # Contract
/// - `admit` does not wait, and may be asked by any thread, by several at once.
/// - `admit` keeps nothing of what it was asked.
/// - The same request gets the same answer until `changes` fires, whatever else is asked in between.
/// - What it does not admit it answers with one CamelCase word and a sentence.
/// - [`Admission::NotYet`] reserves nothing: later pods are admitted meanwhile.
/// - A pod that it admits when it is new it admits as a restored one too, beside the same others on the same node.
/// - `changes` fires when pods that were told [`Admission::NotYet`] are to be asked about again.
///
/// # Examples
/// A node that keeps pods off its own network:
///
/// ```
/// use std::sync::Arc;
///
/// use kubelet_core::{Admission, AdmitHandler, AdmitRequest, Ledger, NodeFit, NodeView};
///
/// #[derive(Debug)]
/// struct NoHostNetwork;
///
/// impl AdmitHandler for NoHostNetwork {
///     fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
///         if req.pod.facts().host_network {
///             Admission::reject("HostNetworkForbidden", "pods may not share this node's network")
///         } else {
///             Admission::Admit
///         }
///     }
/// }
///
/// let handlers: Vec<Arc<dyn AdmitHandler>> = vec![Arc::new(NoHostNetwork), Arc::new(NodeFit::default())];
/// let ledger = Ledger::new(handlers, Arc::new(NodeView::new("edge-7")));
/// # assert!(ledger.active().is_empty());
/// ```
pub trait AdmitHandler: fmt::Debug + Send + Sync + 'static {
    /// Answers one request.
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission;

    /// What is missing where a shortage of resources is all that this handler has against a pod; nothing where it admits the
    /// pod, or refuses it for another reason too. Asked only about a critical pod that it has rejected: others may be pushed
    /// out for it.
    ///
    /// By default nothing: nobody is pushed out for what only this handler knows of.
    fn shortages(&self, req: &AdmitRequest<'_>) -> Vec<Shortage> {
        let _ = req;
        Vec::new()
    }

    /// Fires when pods that were told [`Admission::NotYet`] are to be asked again. Called once per run. Gaps may be
    /// coalesced; the end of the stream means: never again.
    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
impl<T: AdmitHandler + ?Sized> AdmitHandler for Arc<T> {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        (**self).admit(req)
    }
    fn shortages(&self, req: &AdmitRequest<'_>) -> Vec<Shortage> {
        (**self).shortages(req)
    }
    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        (**self).changes()
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn AdmitHandler) = |_| {};
