//! What was seen, as the decisions ask for it.

use super::{ActionInputs, ContainerKillCause, KillAction, StartAction};
use crate::ids::SandboxId;
use crate::observation::{ObservedContainer, PodObservation};
use crate::pod::{ContainerView, PodRecord, RestartPolicy};
use crate::probes::{PodProbes, ProbeKind};
use crate::runtime::ContainerState;

/// A pod, what was seen of it, and the sandbox that stays, if one does.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) pod: &'a PodRecord,
    pub(super) observed: &'a PodObservation,
    pub(super) now: &'a ActionInputs<'a>,
    present: Option<&'a SandboxId>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        pod: &'a PodRecord,
        observed: &'a PodObservation,
        now: &'a ActionInputs<'a>,
        present: Option<&'a SandboxId>,
    ) -> Self {
        Self {
            pod,
            observed,
            now,
            present,
        }
    }

    /// The sandbox that stays.
    pub(super) fn present(&self) -> Option<&'a SandboxId> {
        self.present
    }

    /// Whether a name is that of an init container.
    pub(super) fn is_init(&self, name: &str) -> bool {
        self.pod
            .facts()
            .container(name)
            .is_some_and(|facts| facts.kind.is_init())
    }

    /// Whether a container is known to belong to the sandbox that stays.
    pub(super) fn is_here(&self, seen: &ObservedContainer) -> bool {
        self.present.is_some() && seen.sandbox_id.as_ref() == self.present
    }

    /// Whether a container is known to belong to another sandbox than the one that stays.
    pub(super) fn is_elsewhere(&self, seen: &ObservedContainer) -> bool {
        self.present
            .is_some_and(|present| seen.sandbox_id.as_ref().is_some_and(|id| id != present))
    }

    /// Whether the pod's init containers have done their work in the sandbox that stays.
    ///
    /// Any trace of a regular container in it is proof: the dead init containers may have been collected meanwhile.
    pub(super) fn is_initialized(&self) -> bool {
        let known = self.now.initialized_in.is_some() && self.now.initialized_in == self.present;
        known
            || ContainerView::regular(self.pod.spec()).any(|container| {
                self.observed.of_name(container.name()).any(|seen| {
                    let alive = matches!(seen.state, ContainerState::Created | ContainerState::Running);
                    // Where the sandbox is not told, an ended one may be from before a reboot.
                    self.is_here(seen) || (alive && seen.sandbox_id.is_none())
                })
            })
    }

    /// The container of a name that decides what happens: the newest that runs in the sandbox that stays, else the
    /// newest. An init container of another sandbox decides nothing: it has its work to do again.
    pub(super) fn last(&self, container: &ContainerView<'a>) -> Option<&'a ObservedContainer> {
        let of_name = || self.observed.of_name(container.name());
        of_name()
            .find(|seen| seen.is_running() && !self.is_elsewhere(seen))
            .or_else(|| of_name().find(|seen| !container.kind().is_init() || !self.is_elsewhere(seen)))
    }

    /// Stops what runs of a name, or may run, beside the container that decides; and that one too if it runs in
    /// another sandbox.
    pub(super) fn strays(&self, container: &ContainerView<'a>) -> Vec<KillAction> {
        let last = self.last(container).map(|seen| &seen.id);
        self.observed
            .of_name(container.name())
            .filter_map(|seen| match seen.state {
                ContainerState::Running if last != Some(&seen.id) || self.is_elsewhere(seen) => Some(kill(
                    seen,
                    ContainerKillCause::Superfluous,
                    format!("Stopping container {}", seen.name),
                )),
                ContainerState::Unknown if last != Some(&seen.id) => Some(kill_unknown(container, seen)),
                _ => None,
            })
            .collect()
    }

    /// Stops what runs, or may run, under a name that is not in the spec: the pod was changed while it ran.
    pub(super) fn strangers(&self) -> Vec<KillAction> {
        let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
        self.observed
            .containers
            .iter()
            .filter(|seen| may_run(seen.state) && self.pod.facts().container(&seen.name).is_none())
            .map(|seen| {
                let message = format!("Stopping container {}", seen.name);
                kill(seen, ContainerKillCause::Superfluous, message)
            })
            .collect()
    }

    /// Whether a container's definition is another than the one it was made with. Where that one is not told, it is
    /// taken for the same: what is not known restarts nothing.
    pub(super) fn definition_changed(&self, seen: &ObservedContainer) -> bool {
        match (seen.hash, self.pod.facts().container(&seen.name)) {
            (Some(hash), Some(facts)) => hash != facts.hash,
            _ => false,
        }
    }

    /// The probe for which a container that runs is to be stopped, as a cause and as a word.
    pub(super) fn failed_probe(&self, seen: &ObservedContainer) -> Option<(ContainerKillCause, &'static str)> {
        let failed = |kind| self.now.probes.and_then(|probes| probes.get(seen, kind)) == Some(false);
        if failed(ProbeKind::Liveness) {
            Some((ContainerKillCause::Liveness, "liveness"))
        } else if failed(ProbeKind::Startup) {
            Some((ContainerKillCause::Startup, "startup"))
        } else {
            None
        }
    }

    /// The stop of a container that is started anew to get other resources.
    pub(super) fn resize_restart(&self, seen: &ObservedContainer) -> Option<KillAction> {
        let message = || format!("Container {} resize requires restart", seen.name);
        let restarts = self.now.restart_to_resize.contains(&seen.id);
        restarts.then(|| kill(seen, ContainerKillCause::Resize, message()))
    }

    /// Whether a sidecar that runs has come up, so that the next one may start.
    pub(super) fn has_come_up(&self, container: &ContainerView<'_>, seen: &ObservedContainer) -> bool {
        PodProbes::passed(self.now.probes, container, seen, ProbeKind::Startup)
    }

    /// Whether a container that has failed is started again by policy alone, without its rules.
    pub(super) fn restarts_by_policy(&self, container: &ContainerView<'_>) -> bool {
        RestartPolicy::of_container(container, self.pod.facts().restart_policy) != RestartPolicy::Never
    }

    /// The order to start a container: the one that was made and never started if it is the newest, of the present
    /// definition and in the sandbox that stays; else a new one.
    pub(super) fn start(&self, container: &ContainerView<'_>) -> StartAction {
        let expected = self.pod.facts().container(container.name()).map(|facts| facts.hash);
        StartAction {
            name: container.name().to_owned(),
            adopt: self
                .observed
                .newest(container.name())
                .filter(|seen| seen.state == ContainerState::Created && self.is_here(seen))
                .filter(|seen| seen.hash.is_some() && seen.hash == expected)
                .map(|seen| seen.id.clone()),
        }
    }
}

/// The order to stop a container.
pub(super) fn kill(seen: &ObservedContainer, cause: ContainerKillCause, message: String) -> KillAction {
    KillAction {
        id: seen.id.clone(),
        name: seen.name.clone(),
        message,
        cause,
    }
}

/// The order to stop a container that may run.
pub(super) fn kill_unknown(container: &ContainerView<'_>, seen: &ObservedContainer) -> KillAction {
    let what = if container.kind().is_init() {
        "Init container"
    } else {
        "Container"
    };
    kill(
        seen,
        ContainerKillCause::UnknownState,
        format!("{what} is in \"unknown\" state, try killing it before restart"),
    )
}
