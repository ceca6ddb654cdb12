//! One thing after the other, and work that may wait for the kernel.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{CgroupError, PodUid};

use super::{CgroupManager, Shared, lock};
use crate::kill::Left;

/// The pause after the first pass of a removal that has left something; it is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// How often it is tried to end what does not: for about five seconds in all.
const PASSES: u32 = 25;
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What something is done about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Pod(PodUid),
    /// The share of the class of Burstable pods. Whoever has a pod's turn may wait for this one, and never the other way round.
    Burstable,
}

/// Something is done about a subject. It is held by the thread that does it too, also when nobody waits for it any more: what a call
/// that was dropped does to folders ends before the next one begins.
#[derive(Debug)]
pub(super) struct Turn {
    shared: Arc<Shared>,
    subject: Subject,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.shared.known).busy.remove(&self.subject);
        self.shared.done.notify_waiters();
    }
}

impl Turn {
    /// Does something on a thread that may wait for the kernel.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&Shared) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        let turn = self.clone();
        blocking(move || act(&turn.shared)).await
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, CgroupError> + Send + 'static,
) -> Result<T, CgroupError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(outcome) => outcome,
        Err(error) => Err(CgroupError::failed("work on cgroups", error)),
    }
}

impl CgroupManager {
    /// Waits until nothing is done about a subject.
    pub(super) async fn turn(&self, subject: Subject) -> Arc<Turn> {
        loop {
            let done = self.shared.done.notified();
            if lock(&self.shared.known).busy.insert(subject.clone()) {
                return Arc::new(Turn {
                    shared: self.shared.clone(),
                    subject,
                });
            }
            done.await;
        }
    }

    /// Does something about a pod again and again until it has left nothing, for a bounded time. Gives the turn in which it had not.
    pub(super) async fn until_gone(
        &self,
        uid: &PodUid,
        what: String,
        pass: impl Fn(&Shared) -> Result<Left, CgroupError> + Send + Sync + 'static,
    ) -> Result<Arc<Turn>, CgroupError> {
        let pass = Arc::new(pass);
        let mut pause = FIRST_PAUSE;
        for _ in 0..PASSES {
            let pass = pass.clone();
            let turn = self.turn(Subject::Pod(uid.clone())).await;
            if turn.blocking(move |shared| pass(shared)).await? == Left::Nothing {
                return Ok(turn);
            }
            drop(turn);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(CgroupError::Busy { what })
    }
}
