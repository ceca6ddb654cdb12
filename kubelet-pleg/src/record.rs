//! What is remembered of a pod between two looks.

use kubelet_core::{ContainerRecord, ContainerState, SandboxRecord, SandboxState, Seq};

use crate::fingerprint::Fingerprint;

/// How often an inspection may answer otherwise than the list before the two are left to disagree.
const INSPECTIONS_PER_DISPUTE: u8 = 2;

/// What the newest list about a pod showed, and what the cache holds of it. Small: there is one for each pod.
#[derive(Debug)]
pub(crate) struct Record {
    /// When the newest list about it began.
    pub(crate) at: Seq,
    /// Whether that list showed nothing of it.
    pub(crate) absent: bool,
    /// What that list counted.
    pub(crate) tally: Tally,
    /// What the last good inspection showed, and so what the cache holds.
    shown: Fingerprint,
    /// A list that an inspection contradicted, and how often.
    disputed: Option<(Fingerprint, u8)>,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            at: Seq::default(),
            absent: true,
            tally: Tally::default(),
            shown: Fingerprint::EMPTY,
            disputed: None,
        }
    }
}

impl Record {
    /// Whether a list with this fingerprint says nothing that the cache does not hold.
    pub(crate) fn shows(&self, listed: Fingerprint) -> bool {
        self.shown == listed || self.disputed == Some((listed, INSPECTIONS_PER_DISPUTE))
    }

    /// An inspection of what was `listed` has shown this.
    ///
    /// A container may end, or go, between the list and its status. The record then follows the status, so that the next
    /// list, which says the same, is no change. Where the lists insist on what no status confirms, asking again helps
    /// once (a hiccup would otherwise stay in the cache) and not for ever.
    pub(crate) fn inspected(&mut self, listed: Fingerprint, shown: Fingerprint) {
        self.disputed = match self.disputed {
            _ if listed == shown => None,
            Some((before, times)) if before == listed => Some((listed, times.saturating_add(1))),
            _ => Some((listed, 1)),
        };
        if let Some((_, times)) = &mut self.disputed {
            *times = (*times).min(INSPECTIONS_PER_DISPUTE);
        }
        self.shown = shown;
    }

    /// The pod is gone, and the cache knows.
    pub(crate) fn gone(&mut self) {
        self.shown = Fingerprint::EMPTY;
        self.disputed = None;
    }

    /// Whether the cache holds nothing of it.
    pub(crate) fn shows_nothing(&self) -> bool {
        self.shown == Fingerprint::EMPTY
    }
}

/// The states that metrics count, in the order of [`Tally::containers`].
pub(crate) const CONTAINER_STATES: [&str; 4] = ["created", "exited", "running", "unknown"];

/// What of one pod counts in metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Whether a sandbox is ready.
    pub(crate) running: bool,
    /// Its containers by state.
    pub(crate) containers: [u16; CONTAINER_STATES.len()],
}

impl Tally {
    pub(crate) fn of(sandboxes: &[SandboxRecord], containers: &[ContainerRecord]) -> Self {
        let mut tally = Self {
            running: sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready),
            ..Self::default()
        };
        for container in containers {
            let state = match container.state {
                ContainerState::Created => 0,
                ContainerState::Exited => 1,
                ContainerState::Running => 2,
                _ => 3,
            };
            tally.containers[state] = tally.containers[state].saturating_add(1);
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use kubelet_core::jiff::Timestamp;
    use kubelet_core::{PodUid, SandboxId, SandboxRecord, SandboxState};

    use super::Record;
    use crate::fingerprint::Fingerprint;

    fn of(state: SandboxState) -> Fingerprint {
        let record = SandboxRecord::new(SandboxId::from("s"), PodUid::from("u"), 0, state, Timestamp::UNIX_EPOCH);
        Fingerprint::of_records(&[record], &[])
    }

    #[test]
    fn a_status_newer_than_its_list_is_no_change_for_the_next_list() {
        let mut record = Record::default();
        let (ready, ended) = (of(SandboxState::Ready), of(SandboxState::NotReady));
        record.inspected(ready, ended);
        assert!(record.shows(ended));
        assert!(!record.shows(ready), "the list is asked about once more");
    }

    #[test]
    fn a_list_that_no_status_confirms_is_asked_about_twice() {
        let mut record = Record::default();
        let (ready, ended) = (of(SandboxState::Ready), of(SandboxState::NotReady));
        record.inspected(ready, ended);
        record.inspected(ready, ended);
        assert!(record.shows(ready));
        record.inspected(ready, ended);
        assert!(record.shows(ready), "however often it is asked for");
        record.inspected(ready, ready);
        assert!(!record.shows(ended), "agreement ends the dispute");
    }
}
