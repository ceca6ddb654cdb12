//! The record of what was asked of the fake.

use std::collections::VecDeque;
use std::time::Duration;

use kubelet_core::{ContainerId, PodUid, RuntimeError, SandboxId};

/// A call of [`ContainerRuntime`](kubelet_core::ContainerRuntime) or [`ImageService`](kubelet_core::ImageService).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Op {
    /// `info`
    Info,
    /// `list_sandboxes`
    ListSandboxes,
    /// `list_containers`
    ListContainers,
    /// `sandbox_status`
    SandboxStatus,
    /// `container_status`
    ContainerStatus,
    /// `run_sandbox`
    RunSandbox,
    /// `stop_sandbox`
    StopSandbox,
    /// `remove_sandbox`
    RemoveSandbox,
    /// `create_container`
    CreateContainer,
    /// `start_container`
    StartContainer,
    /// `stop_container`
    StopContainer,
    /// `remove_container`
    RemoveContainer,
    /// `exec`
    Exec,
    /// `update_resources` of a container
    UpdateResources,
    /// `update_resources` of a sandbox
    UpdateSandbox,
    /// `reopen_log`
    ReopenLog,
    /// `events`
    Events,
    /// `ImageService::status`
    ImageStatus,
    /// `ImageService::list`
    ListImages,
    /// `pull`
    Pull,
    /// `ImageService::remove`
    RemoveImage,
    /// `filesystems`
    Filesystems,
}

impl Op {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Filesystems as usize + 1;

    /// Its name in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::ListSandboxes => "list_sandboxes",
            Self::ListContainers => "list_containers",
            Self::SandboxStatus => "sandbox_status",
            Self::ContainerStatus => "container_status",
            Self::RunSandbox => "run_sandbox",
            Self::StopSandbox => "stop_sandbox",
            Self::RemoveSandbox => "remove_sandbox",
            Self::CreateContainer => "create_container",
            Self::StartContainer => "start_container",
            Self::StopContainer => "stop_container",
            Self::RemoveContainer => "remove_container",
            Self::Exec => "exec",
            Self::UpdateResources => "update_resources",
            Self::UpdateSandbox => "update_sandbox",
            Self::ReopenLog => "reopen_log",
            Self::Events => "events",
            Self::ImageStatus => "image_status",
            Self::ListImages => "list_images",
            Self::Pull => "pull",
            Self::RemoveImage => "remove_image",
            Self::Filesystems => "filesystems",
        }
    }

    /// Whether it changes something outside the image store.
    #[must_use]
    pub const fn changes_pods(self) -> bool {
        matches!(
            self,
            Self::RunSandbox
                | Self::StopSandbox
                | Self::RemoveSandbox
                | Self::CreateContainer
                | Self::StartContainer
                | Self::StopContainer
                | Self::RemoveContainer
                | Self::UpdateResources
                | Self::UpdateSandbox
        )
    }

    /// Whether it must not overlap another of its kind on one container or, for `run_sandbox`, on one pod.
    pub(crate) const fn is_exclusive(self) -> bool {
        matches!(
            self,
            Self::RunSandbox
                | Self::CreateContainer
                | Self::StartContainer
                | Self::RemoveContainer
                | Self::UpdateResources
                | Self::UpdateSandbox
        )
    }
}

/// What a call was about. Ids that the fake does not know leave pod and name empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject {
    /// The pod; absent too for a list of everything.
    pub pod: Option<PodUid>,
    /// The container's name.
    pub container: Option<String>,
    /// The attempt of the container or the sandbox.
    pub attempt: Option<u32>,
    /// The sandbox.
    pub sandbox_id: Option<SandboxId>,
    /// The container.
    pub container_id: Option<ContainerId>,
    /// The grace of a stop.
    pub grace: Option<Duration>,
    /// The command of an exec.
    pub command: Vec<String>,
    /// The image, as its name or id was given.
    pub image: Option<String>,
    /// Whose credentials a pull shows.
    pub puller: Option<String>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It has not ended.
    Pending,
    /// It succeeded.
    Done,
    /// It failed.
    Failed(ErrorKind),
    /// Its future was dropped.
    Dropped,
}

/// The variant of a [`RuntimeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`RuntimeError::NotFound`]
    NotFound,
    /// [`RuntimeError::Unavailable`]
    Unavailable,
    /// [`RuntimeError::Uncertain`]
    Uncertain,
    /// [`RuntimeError::Taken`]
    Taken,
    /// [`RuntimeError::Busy`]
    Busy,
    /// [`RuntimeError::Refused`]
    Refused,
    /// [`RuntimeError::Unsupported`]
    Unsupported,
    /// A variant that this version does not know.
    Other,
}

impl ErrorKind {
    /// The variant of an error.
    #[must_use]
    pub fn of(error: &RuntimeError) -> Self {
        match error {
            RuntimeError::NotFound { .. } => Self::NotFound,
            RuntimeError::Unavailable { .. } => Self::Unavailable,
            RuntimeError::Uncertain { .. } => Self::Uncertain,
            RuntimeError::Taken { .. } => Self::Taken,
            RuntimeError::Busy { .. } => Self::Busy,
            RuntimeError::Refused { .. } => Self::Refused,
            RuntimeError::Unsupported { .. } => Self::Unsupported,
            _ => Self::Other,
        }
    }
}

/// One recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// When it began, since the fake was made.
    pub at: Duration,
    /// When it ended.
    pub ended: Option<Duration>,
    /// What was called.
    pub op: Op,
    /// On what.
    pub subject: Subject,
    /// How it ended.
    pub outcome: Outcome,
}

/// The newest calls, and counters of all.
#[derive(Debug)]
pub(crate) struct CallLog {
    kept: VecDeque<Call>,
    limit: usize,
    first: u64,
    counts: [u64; Op::COUNT],
    running: [u64; Op::COUNT],
}

impl CallLog {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            limit,
            first: 0,
            counts: [0; Op::COUNT],
            running: [0; Op::COUNT],
        }
    }

    /// Notes that a call begins. The number names it to [`CallLog::end`].
    pub(crate) fn begin(&mut self, at: Duration, op: Op, subject: Subject) -> u64 {
        self.counts[op as usize] += 1;
        self.running[op as usize] += 1;
        let number = self.first + self.kept.len() as u64;
        if self.limit == 0 {
            return number;
        }
        if self.kept.len() == self.limit {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(Call {
            at,
            ended: None,
            op,
            subject,
            outcome: Outcome::Pending,
        });
        number
    }

    pub(crate) fn end(&mut self, number: u64, at: Duration, op: Op, outcome: Outcome) {
        self.running[op as usize] -= 1;
        let index = number.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
        if let Some(call) = index.and_then(|i| self.kept.get_mut(i)) {
            call.ended = Some(at);
            call.outcome = outcome;
        }
    }

    pub(crate) fn kept(&self) -> Vec<Call> {
        self.kept.iter().cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        self.first += self.kept.len() as u64;
        self.kept.clear();
        self.counts = [0; Op::COUNT];
    }

    pub(crate) fn count(&self, op: Op) -> u64 {
        self.counts[op as usize]
    }

    pub(crate) fn running(&self, op: Op) -> u64 {
        self.running[op as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CallLog, Op, Outcome, Subject};

    #[test]
    fn a_full_log_forgets_the_oldest_call_and_goes_on_counting() {
        let mut log = CallLog::new(2);
        let numbers: Vec<u64> = (0..3)
            .map(|i| log.begin(Duration::from_secs(i), Op::Info, Subject::default()))
            .collect();
        for number in numbers {
            log.end(number, Duration::from_secs(9), Op::Info, Outcome::Done);
        }
        let kept = log.kept();
        assert_eq!(kept.len(), 2);
        assert!(kept.iter().all(|call| call.outcome == Outcome::Done));
        assert_eq!(kept[0].at, Duration::from_secs(1));
        assert_eq!((log.count(Op::Info), log.running(Op::Info)), (3, 0));
    }
}
