//! What is to be done to a pod's containers: a pure function of the pod and of what was seen of it.

mod init;
mod prune;
mod regular;
mod restart_all;
mod sandbox;
mod view;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod shorthand;
#[cfg(test)]
mod table;

use k8s_openapi::jiff::Timestamp;

use crate::ids::{ContainerId, SandboxId};
use crate::observation::PodObservation;
use crate::pod::{ContainerKind, ContainerView, PodRecord};
use crate::probes::PodProbes;
use crate::runtime::ContainerState;

use init::Initialization;
use sandbox::SandboxNeed;
use view::View;

/// What a decision takes into account beside the pod and what was seen of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ActionInputs<'a> {
    /// The sandbox in which the pod's init containers are known to have done their work, from an earlier status. They
    /// are not run again in it, even where all records of them and of the regular containers are gone. To be
    /// forgotten when all containers are restarted.
    pub initialized_in: Option<&'a SandboxId>,
    /// Whether a restart of all containers has begun and its condition is still true.
    pub restarting_all: bool,
    /// What the probes of its containers have come to; nothing: they are taken for passed.
    pub probes: Option<&'a PodProbes>,
    /// Running containers that have to be started anew to get other resources.
    pub restart_to_resize: &'a [ContainerId],
    /// How many ended containers of each name stay, the newest; nothing: all. 1.
    pub dead_per_name: Option<u32>,
    /// Ended containers made after this stay too, and do not count.
    pub dead_made_after: Option<Timestamp>,
}

impl Default for ActionInputs<'_> {
    fn default() -> Self {
        Self {
            initialized_in: None,
            restarting_all: false,
            probes: None,
            restart_to_resize: &[],
            dead_per_name: Some(1),
            dead_made_after: None,
        }
    }
}

impl<'a> ActionInputs<'a> {
    /// Nothing is known beside the pod and what was seen of it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With the sandbox in which the pod is known to have been initialised.
    #[must_use]
    pub fn with_initialized_in(mut self, sandbox: &'a SandboxId) -> Self {
        self.initialized_in = Some(sandbox);
        self
    }

    /// With what the pod's probes have come to.
    #[must_use]
    pub fn with_probes(mut self, probes: &'a PodProbes) -> Self {
        self.probes = Some(probes);
        self
    }

    /// With containers that have to be started anew to get other resources.
    #[must_use]
    pub fn with_restart_to_resize(mut self, containers: &'a [ContainerId]) -> Self {
        self.restart_to_resize = containers;
        self
    }

    /// With a number of ended containers of each name that stay, and those made after a time.
    #[must_use]
    pub fn with_dead_kept(mut self, per_name: Option<u32>, made_after: Option<Timestamp>) -> Self {
        self.dead_per_name = per_name;
        self.dead_made_after = made_after;
        self
    }

    /// With a restart of all containers under way.
    #[must_use]
    pub fn with_restarting_all(mut self) -> Self {
        self.restarting_all = true;
        self
    }
}

/// What is to be done to a pod's containers. Carried out in the order of the fields. A stop, a reset or a sandbox that
/// fails ends the round; a removal that fails comes up again in the next one.
///
/// No container is both killed and left running, started twice, or started beside another of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodActions {
    /// All containers and all sandboxes of the pod are stopped; `kill` is empty then. Not set where nothing runs and
    /// no sandbox is ready, unless a sandbox is replaced: what is left of its network has to go.
    pub kill_pod: bool,
    /// Containers that are stopped, in this order.
    pub kill: Vec<KillAction>,
    /// A restart of all containers: nothing else is started meanwhile.
    pub reset: Vec<ResetAction>,
    /// Dead containers that nothing needs any more. Beside a new sandbox these are all init containers, also those
    /// that `kill_pod` has just stopped.
    pub remove_containers: Vec<ContainerId>,
    /// Sandboxes that hold nothing any more: stopped once more, then removed.
    pub remove_sandboxes: Vec<SandboxId>,
    /// The sandbox that containers are started in.
    pub sandbox: SandboxAction,
    /// Ephemeral containers to start. One that fails holds nothing up.
    pub ephemeral: Vec<StartAction>,
    /// Init containers to start, in order. A sidecar that fails holds nothing up, another one ends the round.
    pub init: Vec<StartAction>,
    /// Regular containers to start, in order. One that fails holds nothing up.
    pub regular: Vec<StartAction>,
}

/// What happens to a pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SandboxAction {
    /// There is none to start containers in, and none is made: the pod has nothing left to do.
    #[default]
    None,
    /// The one there is stays.
    Keep(SandboxId),
    /// One is made.
    Create {
        /// How many sandboxes of the pod came before it.
        attempt: u32,
        /// The one whose place it takes, where that is worth an event (`SandboxChanged`).
        replaces: Option<SandboxId>,
    },
}

/// A container that is stopped while its pod goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KillAction {
    /// The container.
    pub id: ContainerId,
    /// Its name in the pod's spec.
    pub name: String,
    /// What the event `Killing` says.
    pub message: String,
    /// Why, which tells how much time it gets.
    pub cause: ContainerKillCause,
}

/// Why a container is stopped while its pod goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ContainerKillCause {
    /// It runs beside another of its name, or in a sandbox that was replaced.
    Superfluous,
    /// Its image changed.
    DefinitionChanged,
    /// Its liveness probe has failed.
    Liveness,
    /// Its startup probe has failed.
    Startup,
    /// It gets other resources only by a start anew.
    Resize,
    /// The runtime cannot tell how it is; it has to be down before another of its name starts.
    UnknownState,
}

/// A container that is cleared away by a restart of all containers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResetAction {
    /// Its name in the pod's spec.
    pub name: String,
    /// The one that runs, or may run: stopped without grace and without its hook, with the message `killing`.
    pub running: Option<ContainerId>,
    /// All containers of the name: then removed. Their logs stay.
    pub remove: Vec<ContainerId>,
}

/// A container that is started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartAction {
    /// Its name in the pod's spec.
    pub name: String,
    /// One that was already made and never started: it is started, and no other is made.
    pub adopt: Option<ContainerId>,
}

impl PodActions {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.kill_pod
            && !matches!(self.sandbox, SandboxAction::Create { .. })
            && self.kill.is_empty()
            && self.reset.is_empty()
            && self.remove_containers.is_empty()
            && self.remove_sandboxes.is_empty()
            && self.starts().next().is_none()
    }

    /// All containers to start, in order.
    pub fn starts(&self) -> impl Iterator<Item = &StartAction> {
        self.ephemeral.iter().chain(&self.init).chain(&self.regular)
    }

    /// The pod has nothing left to do: what still runs of it (sidecars, the sandbox) is stopped.
    fn end(observed: &PodObservation) -> Self {
        Self {
            kill_pod: !observed.is_down(),
            ..Self::default()
        }
    }
}

/// Decides what is to be done to a pod's containers. Total and deterministic; called for pods that are not ending, of a
/// pod that is being deleted it starts nothing.
///
/// Source: kubelet 1.36, `kuberuntime_manager.go`. On purpose other than there:
/// - a container that was made and never started is started if it fits, and removed if not, instead of being left beside
///   a second one;
/// - records tell which sandbox they belong to: init containers run again in a new sandbox, and only there;
/// - of one name at most one container runs, and none outside the pod's present sandbox;
/// - a new sandbox is only made for containers that would also be restarted in the old one;
/// - dead containers and sandboxes go as soon as newer ones take their place, not at the next garbage collection.
#[must_use]
pub fn compute_pod_actions(pod: &PodRecord, observed: &PodObservation, now: &ActionInputs<'_>) -> PodActions {
    let need = sandbox::need(pod, observed);
    let present = match &need {
        SandboxNeed::Keep(id) => Some(*id),
        SandboxNeed::Create { .. } => None,
    };
    let view = View::new(pod, observed, now, present);
    if let Some(actions) = restart_all::decide(&view) {
        return actions;
    }
    let mut actions = match need {
        SandboxNeed::Keep(id) => in_present_sandbox(&view, id),
        SandboxNeed::Create { attempt, replaces } => sandbox::create(&view, attempt, replaces.cloned()),
    };
    if pod.is_deleted() {
        actions.ephemeral.clear();
        actions.init.clear();
        actions.regular.clear();
    }
    prune::fill(&view, &mut actions);
    actions
}

fn in_present_sandbox(view: &View<'_>, sandbox: &SandboxId) -> PodActions {
    let mut actions = PodActions {
        sandbox: SandboxAction::Keep(sandbox.clone()),
        ..PodActions::default()
    };
    actions.kill.extend(view.strangers());
    for container in view.pod.containers() {
        actions.kill.extend(view.strays(&container));
    }
    ephemeral(view, &mut actions);
    let going_on = match init::decide(view, &mut actions) {
        Initialization::Done => regular::decide(view, &mut actions),
        Initialization::Pending => true,
        Initialization::Failed => false,
    };
    if going_on {
        actions
    } else {
        // Also what was collected so far: a sidecar that is started again would keep the pod alive.
        PodActions::end(view.observed)
    }
}

/// Ephemeral containers are started once, even before the pod is initialised.
fn ephemeral(view: &View<'_>, actions: &mut PodActions) {
    let spec = view.pod.spec();
    for container in ContainerView::all(spec).filter(|c| c.kind() == ContainerKind::Ephemeral) {
        let never_ran = view
            .observed
            .of_name(container.name())
            .all(|seen| seen.state == ContainerState::Created);
        if never_ran {
            actions.ephemeral.push(view.start(&container));
        }
    }
}
