//! Refuses pods that need a part which this node was built without.

mod needs;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::{Admission, AdmitHandler, AdmitRequest};
use crate::objects::{ObjectKind, ObjectSource};

/// The reason of a refusal.
pub(crate) const PART_MISSING: &str = "PartMissing";

/// What this node can do beyond running containers. By default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// Volumes of any type. Those that are images need no part, but a runtime that can mount them.
    pub volumes: bool,
    /// Probes that run a command in the container.
    pub exec_probes: bool,
    /// HTTP, TCP and gRPC probes.
    pub network_probes: bool,
    /// HTTP requests as lifecycle hooks. Hooks that run a command or sleep need no part.
    pub http_hooks: bool,
    /// Extended resources by device plugins. Where there are none, what the node lists as allocatable still counts.
    pub devices: bool,
    /// Dynamic resource allocation.
    pub resource_claims: bool,
    /// Tokens of service accounts, for volumes.
    pub tokens: bool,
    /// The kinds of objects that some object source serves.
    pub objects: BTreeSet<ObjectKind>,
}

impl Abilities {
    /// Adds the kinds that `source` serves.
    #[must_use]
    pub fn with_source(mut self, source: &dyn ObjectSource) -> Self {
        let served = ObjectKind::ALL.iter().filter(|kind| source.serves(**kind));
        self.objects.extend(served);
        self
    }
}

/// Refuses, with the reason `PartMissing`, a pod that would otherwise start without something that it asks for, and
/// names the part that would give it.
///
/// What a pod only asks for if it is there, such as an optional secret, is no need; nor is what an ephemeral container
/// asks for, since it comes later. A resize is never refused.
#[derive(Clone, Debug, Default)]
pub struct AbsentParts {
    abilities: Abilities,
}

impl AbsentParts {
    /// A handler for a node with these abilities.
    #[must_use]
    pub fn new(abilities: Abilities) -> Self {
        Self { abilities }
    }
}

impl AdmitHandler for AbsentParts {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        if req.operation == super::Operation::Resize {
            return Admission::Admit;
        }
        let unmet: Vec<_> = needs::unmet(req.pod, &self.abilities, req.node)
            .iter()
            .map(ToString::to_string)
            .collect();
        if unmet.is_empty() {
            Admission::Admit
        } else {
            Admission::reject(PART_MISSING, unmet.join("; "))
        }
    }
}
