//! What does not fit, and how it is told.

use std::borrow::Cow;
use std::fmt;

use crate::quantity::Quantity;

/// One thing that keeps a pod from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FitFailure {
    Insufficient(Insufficient),
    NodeAffinity,
    NodeName,
    NodePorts,
    TaintToleration,
}

/// A resource that does not suffice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Insufficient {
    pub(super) resource: String,
    /// Thousandths of a CPU; whole units of all else.
    pub(super) requested: i64,
    pub(super) used: i64,
    pub(super) capacity: i64,
    /// What is missing, exactly.
    pub(super) missing: Quantity,
}

impl FitFailure {
    pub(super) fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::Insufficient(shortage) => format!("OutOf{}", shortage.resource).into(),
            Self::NodeAffinity => "NodeAffinity".into(),
            Self::NodeName => "NodeName".into(),
            Self::NodePorts => "NodePorts".into(),
            Self::TaintToleration => "TaintToleration".into(),
        }
    }
}

impl fmt::Display for FitFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = match self {
            Self::Insufficient(Insufficient {
                resource,
                requested,
                used,
                capacity,
                ..
            }) => {
                return write!(
                    f,
                    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
                     capacity: {capacity}"
                );
            }
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::NodeName => "node(s) didn't match the requested node name",
            Self::NodePorts => "node(s) didn't have free ports for the requested pod ports",
            Self::TaintToleration => "node(s) had taints that the pod didn't tolerate",
        };
        write!(f, "Predicate {} failed: {detail}", self.reason())
    }
}
