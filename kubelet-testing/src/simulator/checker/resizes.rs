//! Other resources that pods wait for, and what they were granted.

use std::collections::BTreeMap;

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_core::{PodUid, Quantity};

/// Told that it has to wait.
const DEFERRED: &str = "deferred";
/// Granted after that.
const GRANTED: &str = "granted after a wait";

/// The CPU in a list, in thousandths.
pub(crate) fn milli(list: Option<&BTreeMap<String, ApiQuantity>>) -> Option<i64> {
    let amount: Quantity = list?.get("cpu")?.0.parse().ok()?;
    Some(amount.milli_value())
}

/// The CPU that all containers of a pod were granted together, in thousandths.
pub(crate) fn granted(status: &PodStatus) -> i64 {
    let containers = status.container_statuses.iter().flatten();
    containers
        .filter_map(|told| milli(told.allocated_resources.as_ref()))
        .sum()
}

/// Why a pod was not granted what it asks for, as it was told.
pub(crate) fn pending(status: &PodStatus) -> Option<&str> {
    let mut conditions = status.conditions.iter().flatten();
    let pending = conditions.find(|condition| condition.type_ == "PodResizePending")?;
    Some(pending.reason.as_deref().unwrap_or_default())
}

/// What was told of resizes.
#[derive(Debug, Default)]
pub(crate) struct Resizes {
    /// Pods that wait, with what they were granted before.
    waiting: BTreeMap<PodUid, i64>,
    counts: BTreeMap<&'static str, u64>,
}

impl Resizes {
    pub(super) fn told(&mut self, uid: &PodUid, status: &PodStatus) {
        let granted = granted(status);
        if pending(status) == Some("Deferred") {
            if self.waiting.insert(uid.clone(), granted).is_none() {
                *self.counts.entry(DEFERRED).or_default() += 1;
            }
        } else if self.waiting.remove(uid).is_some_and(|before| granted > before) {
            *self.counts.entry(GRANTED).or_default() += 1;
        }
    }

    pub(crate) fn counts(self) -> BTreeMap<&'static str, u64> {
        self.counts
    }
}
