//! What the probes of a pod have come to.

use crate::ids::ContainerId;
use crate::observation::ObservedContainer;
use crate::pod::ContainerView;

use super::prober::ProbeKind;

/// What the probes of a pod's running containers have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodProbes {
    containers: Vec<ContainerProbes>,
}

/// What the probes of one running container have come to. Nothing: there is no such probe, or it has not come to anything yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerProbes {
    /// The container; of another one of its name these say nothing.
    pub id: ContainerId,
    /// Whether it has come up.
    pub startup: Option<bool>,
    /// Whether it can do its work.
    pub readiness: Option<bool>,
    /// Whether it is alive.
    pub liveness: Option<bool>,
}

impl ContainerProbes {
    /// A container whose probes have not come to anything.
    pub fn new(id: ContainerId) -> Self {
        Self {
            id,
            startup: None,
            readiness: None,
            liveness: None,
        }
    }

    /// What its probe of a kind has come to.
    #[must_use]
    pub fn get(&self, kind: ProbeKind) -> Option<bool> {
        match kind {
            ProbeKind::Startup => self.startup,
            ProbeKind::Readiness => self.readiness,
            ProbeKind::Liveness => self.liveness,
        }
    }

    pub(super) fn set(&mut self, kind: ProbeKind, result: Option<bool>) {
        match kind {
            ProbeKind::Startup => self.startup = result,
            ProbeKind::Readiness => self.readiness = result,
            ProbeKind::Liveness => self.liveness = result,
        }
    }
}

impl PodProbes {
    /// The probes of these containers.
    #[must_use]
    pub fn new(containers: Vec<ContainerProbes>) -> Self {
        Self { containers }
    }

    /// What a probe of a container has come to.
    #[must_use]
    pub fn get(&self, container: &ObservedContainer, kind: ProbeKind) -> Option<bool> {
        let of = self.containers.iter().find(|probes| probes.id == container.id)?;
        of.get(kind)
    }

    /// Whether a container has passed its probe of a kind, if it has one. Where nobody follows probes all are passed.
    pub(crate) fn passed(
        probes: Option<&Self>,
        view: &ContainerView<'_>,
        container: &ObservedContainer,
        kind: ProbeKind,
    ) -> bool {
        let Some(probes) = probes else { return true };
        view.probe(kind).is_none() || probes.get(container, kind) == Some(true)
    }
}
