//! The phase of a pod: the one-word summary of its containers.

use std::fmt;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus};

use super::reasons::reason;
use crate::pod::{ContainerKind, ContainerView, PodRecord, should_restart_exited};

/// Where a pod stands as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PodPhase {
    /// Accepted; not all containers have been started yet.
    Pending,
    /// All containers have been started, and one runs or will run again.
    Running,
    /// All containers ended with code 0 and none will run again.
    Succeeded,
    /// All containers ended, one of them badly, and none will run again.
    Failed,
}

impl PodPhase {
    /// The text of the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// The phase that a status says; nothing where it says none, or one that is not known here.
    #[must_use]
    pub fn of(status: &PodStatus) -> Option<Self> {
        match status.phase.as_deref()? {
            "Pending" => Some(Self::Pending),
            "Running" => Some(Self::Running),
            "Succeeded" => Some(Self::Succeeded),
            "Failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Whether a pod never leaves it.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a status says that its pod will never run again.
#[must_use]
pub fn pod_is_terminal(status: &PodStatus) -> bool {
    PodPhase::of(status).is_some_and(PodPhase::is_terminal)
}

/// What decides on a phase beside the container statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PhaseFacts {
    /// All containers are stopped for good, whatever their policies say.
    pub(super) terminal: bool,
    /// A regular container is in the sandbox in use.
    pub(super) regular_in_sandbox: bool,
}

#[derive(Debug, Default)]
struct Counts {
    pending_init: u32,
    failed_final: u32,
    pending_sidecars: u32,
    unknown: u32,
    waiting: u32,
    running: u32,
    stopped: u32,
    succeeded: u32,
    /// Stopped ones that will not run again.
    stopped_final: u32,
}

/// The phase that follows from container statuses alone, without regard to the phase before.
///
/// Source: kubelet 1.36, `kubelet_pods.go`.
pub(super) fn compute_phase(
    pod: &PodRecord,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    facts: PhaseFacts,
) -> PodPhase {
    let mut counts = Counts::default();
    for container in pod.containers() {
        let list = if container.kind().is_init() { init } else { regular };
        let status = list.iter().find(|status| status.name == container.name());
        match container.kind() {
            ContainerKind::Init => counts.init(pod, &container, status),
            ContainerKind::Sidecar => counts.sidecar(status),
            ContainerKind::Regular => counts.regular(pod, &container, status),
            ContainerKind::Ephemeral => {}
        }
    }
    counts.phase(pod.is_static(), facts)
}

impl Counts {
    fn init(&mut self, pod: &PodRecord, container: &ContainerView<'_>, status: Option<&ContainerStatus>) {
        match Seen::of(status) {
            Seen::Terminated(end) | Seen::WaitingAgain(end) => {
                if end.exit_code != 0 && is_final(pod, container, end) {
                    self.failed_final += 1;
                }
            }
            Seen::Nothing | Seen::Running | Seen::Waiting => self.pending_init += 1,
        }
    }

    fn sidecar(&mut self, status: Option<&ContainerStatus>) {
        match Seen::of(status) {
            Seen::Nothing => self.unknown += 1,
            Seen::Running => {
                self.running += 1;
                if status.and_then(|status| status.started) != Some(true) {
                    self.pending_sidecars += 1;
                }
            }
            Seen::Waiting => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            // An ended sidecar says nothing about the pod's work.
            Seen::Terminated(_) | Seen::WaitingAgain(_) => {}
        }
    }

    fn regular(&mut self, pod: &PodRecord, container: &ContainerView<'_>, status: Option<&ContainerStatus>) {
        match Seen::of(status) {
            Seen::Nothing => self.unknown += 1,
            Seen::Running => self.running += 1,
            Seen::Waiting => self.waiting += 1,
            Seen::Terminated(end) => {
                self.stopped += 1;
                self.succeeded += u32::from(end.exit_code == 0);
                self.stopped_final += u32::from(is_final(pod, container, end));
            }
            Seen::WaitingAgain(end) => {
                self.stopped += 1;
                self.stopped_final += u32::from(is_final(pod, container, end));
            }
        }
    }

    fn phase(&self, is_static: bool, facts: PhaseFacts) -> PodPhase {
        let all_done = || {
            if self.stopped == self.succeeded {
                PodPhase::Succeeded
            } else {
                PodPhase::Failed
            }
        };
        if self.failed_final > 0 {
            PodPhase::Failed
        } else if self.pending_init > 0 || (self.pending_sidecars > 0 && !facts.regular_in_sandbox) || self.waiting > 0
        {
            PodPhase::Pending
        } else if self.running > 0 && self.unknown == 0 {
            PodPhase::Running
        } else if self.running == 0 && self.stopped > 0 && self.unknown == 0 {
            if facts.terminal && !is_static {
                all_done()
            } else if self.stopped != self.stopped_final {
                PodPhase::Running
            } else {
                all_done()
            }
        } else {
            PodPhase::Pending
        }
    }
}

enum Seen<'a> {
    Nothing,
    Running,
    Waiting,
    /// Waits and ended before.
    WaitingAgain(&'a ContainerStateTerminated),
    Terminated(&'a ContainerStateTerminated),
}

impl<'a> Seen<'a> {
    fn of(status: Option<&'a ContainerStatus>) -> Self {
        let Some(status) = status else { return Self::Nothing };
        match &status.state {
            Some(ContainerState { running: Some(_), .. }) => Self::Running,
            Some(ContainerState {
                terminated: Some(end), ..
            }) => Self::Terminated(end),
            // The API takes an empty state for waiting.
            _ => match status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
                Some(end) => Self::WaitingAgain(end),
                None => Self::Waiting,
            },
        }
    }
}

fn is_final(pod: &PodRecord, container: &ContainerView<'_>, end: &ContainerStateTerminated) -> bool {
    end.reason.as_deref() != Some(reason::RESTARTING_ALL_CONTAINERS)
        && !should_restart_exited(container, pod.facts().restart_policy, end.exit_code)
}

#[cfg(test)]
mod tests;
