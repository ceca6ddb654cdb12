//! From runs of a probe to its result: a function of the runs alone.

use super::prober::ProbeKind;
use super::spec::ProbeSpec;

/// What the runs of one probe have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// The last outcome, and how often in a row it came.
    streak: Option<(bool, u32)>,
    result: Option<bool>,
}

impl Tally {
    /// With what was known before, of the same container.
    pub(super) fn with_result(result: Option<bool>) -> Self {
        Self { streak: None, result }
    }

    pub(super) fn result(&self) -> Option<bool> {
        self.result
    }

    /// Takes a run in. Says whether the result has changed.
    ///
    /// Source: kubelet 1.36, `prober/worker.go`.
    pub(super) fn count(&mut self, success: bool, spec: &ProbeSpec) -> bool {
        let times = match self.streak {
            Some((last, times)) if last == success => times.saturating_add(1),
            _ => 1,
        };
        self.streak = Some((success, times));
        let enough = if success {
            spec.success_threshold
        } else {
            spec.failure_threshold
        };
        if times < enough || self.result == Some(success) {
            return false;
        }
        self.result = Some(success);
        true
    }

    /// Whether the probe has said all that it can say of its container: one that is to be killed is, and one that came up
    /// once has come up.
    pub(super) fn is_final(&self, kind: ProbeKind) -> bool {
        match kind {
            ProbeKind::Startup => self.result.is_some(),
            ProbeKind::Liveness => self.result == Some(false),
            ProbeKind::Readiness => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{ProbeKind, ProbeSpec, Tally};

    fn spec(success_threshold: u32, failure_threshold: u32) -> ProbeSpec {
        ProbeSpec {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            success_threshold,
            failure_threshold,
        }
    }

    proptest! {
        #[test]
        fn a_result_changes_only_after_as_many_runs_in_a_row_as_its_threshold(
            runs in proptest::collection::vec(any::<bool>(), 0..60),
            success in 1_u32..4,
            failure in 1_u32..4,
            before in any::<Option<bool>>(),
        ) {
            let mut tally = Tally::with_result(before);
            for (index, run) in runs.iter().enumerate() {
                let had = tally.result();
                let changed = tally.count(*run, &spec(success, failure));
                let needed = if *run { success } else { failure } as usize;
                let in_a_row = runs[..=index].iter().rev().take_while(|r| *r == run).count();
                let expected = if in_a_row >= needed { Some(*run) } else { had };
                prop_assert_eq!(tally.result(), expected);
                prop_assert_eq!(changed, had != expected);
            }
        }
    }

    #[test]
    fn a_startup_probe_ends_with_its_first_result_and_a_liveness_probe_with_a_failure() {
        for (kind, after_success, after_failure) in [
            (ProbeKind::Startup, true, true),
            (ProbeKind::Liveness, false, true),
            (ProbeKind::Readiness, false, false),
        ] {
            assert!(!Tally::default().is_final(kind));
            assert_eq!(Tally::with_result(Some(true)).is_final(kind), after_success, "{kind}");
            assert_eq!(Tally::with_result(Some(false)).is_final(kind), after_failure, "{kind}");
        }
    }
}
