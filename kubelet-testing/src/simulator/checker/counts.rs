//! Attempts only grow.

use tokio::time::Instant;

use super::{Checker, Instance};
use crate::simulator::Invariant;

impl Checker {
    /// A container that is made has a higher number than all of its name that the runtime still has a record of, and no
    /// lower one than the restart count that was told of it in this life of its pod.
    ///
    /// Where the records are gone and no count was told yet, a number may come again: nothing of it is left then.
    pub(super) fn check_attempt(&mut self, at: Instant, instance: &Instance) {
        let before = self
            .of_pod(&instance.pod)
            .filter(|(_, other)| other.name == instance.name && other.gone.is_none())
            .map(|(_, other)| other.attempt)
            .max();
        let told = self
            .books
            .get(&instance.pod)
            .and_then(|book| book.told.count(&instance.name));
        let what = match (before, told) {
            (Some(before), _) if before >= instance.attempt => format!("after attempt {before}"),
            (_, Some(told)) if told > i64::from(instance.attempt) => format!("after {told} restarts were told"),
            _ => return,
        };
        let what = format!(
            "attempt {} of {} of pod {} {what}",
            instance.attempt, instance.name, instance.pod
        );
        self.breach(at, Invariant::RestartCount, what);
    }
}
