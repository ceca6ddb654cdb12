//! Giving a volume to its pod's group, which may take long.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kubelet_core::{Event, EventSink, EventSubject, EventType};
use tokio::time::Instant;

use crate::ground::ownership::{self, Group, Watch};
use crate::plugin::SetUp;

/// Who is told if it takes long.
#[derive(Debug)]
pub(super) struct Teller {
    events: Arc<dyn EventSink>,
    subject: EventSubject,
}

impl Teller {
    pub(super) fn new(cx: &SetUp<'_>) -> Self {
        Self {
            events: cx.node.context.events.clone(),
            subject: EventSubject::pod(cx.pod),
        }
    }

    pub(super) fn warn(&self, reason: &'static str, message: String) {
        let event = Event::new(self.subject.clone(), EventType::Warning, reason, message);
        self.events.record(event);
    }

    /// Gives all of a volume to a group.
    ///
    /// Source of the event: kubelet 1.36, `volume_linux.go`.
    pub(super) fn give(&self, dir: &Path, group: Group, given_up: &AtomicBool) -> io::Result<()> {
        let began = Instant::now();
        let mut tell = |entries: u64, after: Duration| {
            let message = format!(
                "Setting volume ownership for {} is taking longer than expected ({entries} files so far, {} s): consider \
                 fsGroupChangePolicy OnRootMismatch, which skips volumes that have their group already",
                dir.display(),
                after.as_secs()
            );
            self.warn("VolumePermissionChangeInProgress", message);
        };
        let mut watch = Watch {
            cancelled: given_up,
            elapsed: &|| began.elapsed(),
            progress: &mut tell,
        };
        ownership::apply(dir, group, &mut watch).map(drop)
    }
}
