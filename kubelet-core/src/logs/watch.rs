//! Wakes a follower when its directory changes, and once a second anyhow: notifications get lost.

use std::path::Path;
use std::time::Duration;

/// Longest time between two looks at a log.
///
/// Source: kubelet 1.36, `cri-client/pkg/logs/logs.go` (`stateCheckPeriod`).
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// A directory under watch. Without notifications (no such system call, no watches left) only time
/// wakes.
#[derive(Debug)]
pub(super) struct Watch {
    #[cfg(target_os = "linux")]
    events: Option<inotify::EventStream<Vec<u8>>>,
}

impl Watch {
    pub(super) fn new(dir: &Path) -> Self {
        #[cfg(target_os = "linux")]
        {
            let events = linux::open(dir)
                .inspect_err(|err| {
                    tracing::debug!(
                        error = err as &dyn std::error::Error,
                        ?dir,
                        "log directory cannot be watched"
                    );
                })
                .ok();
            Self { events }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = dir;
            Self {}
        }
    }

    /// Returns when something happened in the directory, or after [`RECHECK`].
    ///
    /// Cancel-safe: at worst a notification is forgotten, and the next look comes within
    /// [`RECHECK`].
    pub(super) async fn changed(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(events) = &mut self.events {
            let outcome = tokio::time::timeout(RECHECK, linux::next(events)).await;
            if matches!(outcome, Ok(Err(_))) {
                self.events = None;
            }
            return;
        }
        tokio::time::sleep(RECHECK).await;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::path::Path;

    use futures::{FutureExt as _, StreamExt as _};
    use inotify::{EventStream, Inotify, WatchMask};

    pub(super) fn open(dir: &Path) -> io::Result<EventStream<Vec<u8>>> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::MODIFY
            | WatchMask::ATTRIB
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO;
        inotify.watches().add(dir, mask)?;
        inotify.into_event_stream(vec![0; 4096])
    }

    /// Waits for one notification and takes all that came with it: any of them means "look again".
    pub(super) async fn next(events: &mut EventStream<Vec<u8>>) -> io::Result<()> {
        let mut event = events.next().await;
        loop {
            match event {
                Some(Ok(_)) => {}
                Some(Err(err)) => return Err(err),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            match events.next().now_or_never() {
                Some(next) => event = next,
                None => return Ok(()),
            }
        }
    }
}
