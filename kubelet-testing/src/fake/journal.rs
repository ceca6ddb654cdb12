//! What happened in the world of the fake, in order: for whoever checks a caller against it.

use kubelet_core::{PodKey, PodUid, SandboxId};
use tokio::time::Instant;

use crate::fake::call::{Op, Subject};

/// Who made something happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The process ended by itself.
    Itself,
    /// A container that was asked to stop stopped, or its grace was over.
    Stop,
    /// A call of the caller that stops or removes at once.
    Caller,
    /// A fault.
    Fault,
}

/// One thing that happened. Containers and sandboxes are named by their numbers.
#[derive(Clone, Debug)]
pub(crate) enum Happened {
    /// A call that changes something, or an exec, began.
    Call {
        op: Op,
        subject: Subject,
    },
    /// A command in a container ended: well, badly or not in time. Not noted where nobody can tell.
    Execed {
        container: u64,
        command: Vec<String>,
        success: bool,
    },
    /// The caller of a call that makes or starts something was told that its outcome is unknown.
    Unknown {
        op: Op,
        subject: Subject,
    },
    /// A list was begun, of one pod or of all.
    Look {
        pod: Option<PodUid>,
    },
    /// `late`: by a call whose caller did not hear its end.
    SandboxMade {
        sandbox: u64,
        pod: PodUid,
        key: PodKey,
        attempt: u32,
        late: bool,
    },
    SandboxDown {
        sandbox: u64,
        pod: PodUid,
        by: By,
    },
    SandboxGone {
        sandbox: u64,
        pod: PodUid,
        by: By,
    },
    Made {
        container: u64,
        sandbox: SandboxId,
        pod: PodUid,
        name: String,
        attempt: u32,
        image: String,
    },
    /// `late`: by a call whose caller did not hear its end.
    Started {
        container: u64,
        late: bool,
    },
    /// It is asked to stop, and killed at `kill` at the latest.
    Stopping {
        container: u64,
        kill: Option<Instant>,
    },
    Ended {
        container: u64,
        code: i32,
        by: By,
    },
    Gone {
        container: u64,
        by: By,
    },
    /// The whole machine started anew.
    Reboot,
    /// Something became of the volumes of a pod, which are no part of the runtime.
    Volumes {
        pod: PodUid,
        change: VolumeChange,
    },
}

/// What became of the volumes of a pod.
#[derive(Clone, Debug)]
pub(crate) enum VolumeChange {
    /// All are there.
    Mounted,
    /// Why not all are there, or not all up to date.
    NotMounted(String),
    /// From now on they may be gone.
    Unmounting,
    Unmounted,
    /// Why some may still be there.
    NotUnmounted(String),
    /// They are gone without a wish.
    Lost,
}

impl VolumeChange {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Mounted => "mounted",
            Self::NotMounted(_) => "not mounted",
            Self::Unmounting => "unmounting",
            Self::Unmounted => "unmounted",
            Self::NotUnmounted(_) => "not unmounted",
            Self::Lost => "lost",
        }
    }
}

/// The record, if anybody wants one.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    entries: Option<Vec<(Instant, Happened)>>,
    /// What is still to be told to those who listen to events, if anybody does.
    feed: Option<Vec<(Instant, Happened)>>,
    /// Whether a call is being carried out, and whether its caller has left it.
    pub(crate) calling: bool,
    pub(crate) late: bool,
}

impl Journal {
    pub(crate) fn keep(&mut self) {
        self.entries.get_or_insert_default();
    }

    pub(crate) fn note(&mut self, at: Instant, happened: impl FnOnce() -> Happened) {
        match (&mut self.entries, &mut self.feed) {
            (None, None) => {}
            (Some(entries), None) => entries.push((at, happened())),
            (None, Some(feed)) => feed.push((at, happened())),
            (Some(entries), Some(feed)) => {
                let happened = happened();
                feed.push((at, happened.clone()));
                entries.push((at, happened));
            }
        }
    }

    pub(crate) fn take(&mut self) -> Vec<(Instant, Happened)> {
        self.entries.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Who is at work, where nothing says otherwise.
    pub(crate) fn hand(&self) -> By {
        if self.calling { By::Caller } else { By::Fault }
    }
}

#[cfg(feature = "fake-cri")]
impl Journal {
    /// Begins to keep what is to be told, or ends it.
    pub(crate) fn feed(&mut self, wanted: bool) {
        self.feed = wanted.then(|| self.feed.take().unwrap_or_default());
    }

    pub(crate) fn take_feed(&mut self) -> Vec<(Instant, Happened)> {
        self.feed.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
