//! Calls that must not wait: they are made on a thread of their own, so that one which does is found out.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// What a call answers on a thread without a tokio runtime, within `patience`. A thread that is stuck is left behind.
pub(crate) fn on_a_thread<T: Send + 'static>(
    what: &str,
    patience: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(call));
        // Nobody listens any more once it took too long.
        let _ = sender.send(outcome);
    });
    if let Err(error) = spawned {
        panic!("start a thread: {error}");
    }
    match receiver.recv_timeout(patience) {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(RecvTimeoutError::Timeout) => panic!("{what}: not within {patience:?}"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: the thread is gone"),
    }
}
