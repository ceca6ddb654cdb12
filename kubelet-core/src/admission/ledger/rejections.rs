//! Rejections by reason.

use std::collections::BTreeMap;

use crate::metrics::{MetricSet, MetricValue};

/// The reasons that are told apart. Others share a label, since a metric must not grow with what pods ask for.
///
/// Source: kubelet 1.36, `allocation_manager.go`; `PartMissing` is this kubelet's own.
const KNOWN_REASONS: &[&str] = &[
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    super::super::absent::PART_MISSING,
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
];

#[derive(Debug, Default)]
pub(super) struct Rejections(BTreeMap<&'static str, u64>);

impl Rejections {
    pub(super) fn count(&mut self, reason: &str) {
        *self.0.entry(label(reason)).or_default() += 1;
    }

    pub(super) fn collect(&self, metrics: &mut MetricSet) {
        for (reason, count) in &self.0 {
            metrics.add(
                "kubelet_admission_rejections_total",
                "Pods that this node refused, by reason.",
                &[("reason", reason)],
                MetricValue::Counter(*count),
            );
        }
    }
}

fn label(reason: &str) -> &'static str {
    match KNOWN_REASONS.iter().find(|known| **known == reason) {
        Some(known) => known,
        None if reason.starts_with("OutOf") => "OutOfExtendedResources",
        None => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::{Rejections, label};
    use crate::metrics::MetricSet;

    #[test]
    fn labels_are_a_closed_set() {
        for (reason, expected) in [
            ("OutOfcpu", "OutOfcpu"),
            ("OutOfexample.com/gpu", "OutOfExtendedResources"),
            ("PartMissing", "PartMissing"),
            ("NodePorts", "Other"),
            ("TeamQuotaSpent", "Other"),
        ] {
            assert_eq!(label(reason), expected);
        }
    }

    #[test]
    fn a_reason_that_never_occurred_has_no_sample() {
        let (mut rejections, mut metrics) = (Rejections::default(), MetricSet::default());
        rejections.count("OutOfcpu");
        rejections.count("OutOfcpu");
        rejections.collect(&mut metrics);
        let texts: Vec<_> = metrics
            .samples()
            .iter()
            .map(|s| format!("{} {:?} {:?}", s.name, s.labels, s.value))
            .collect();
        assert_eq!(
            texts,
            [r#"kubelet_admission_rejections_total [("reason", "OutOfcpu")] Counter(2)"#]
        );
    }
}
