//! Whether two statuses say the same.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::conditions::is_written_here;

/// Whether publishing `b` after `a` would say nothing new: conditions are compared by status, reason and message and only
/// where the kubelet writes them, and what others write into a status (resource claims, their own conditions) is left out.
///
/// Source: kubelet 1.36, `status_manager.go`.
#[must_use]
pub fn equal_for_publishing(a: &PodStatus, b: &PodStatus) -> bool {
    own_conditions(a) == own_conditions(b) && without_foreign(a) == without_foreign(b)
}

type Said<'a> = (&'a str, &'a str, &'a str, &'a str);

fn own_conditions(status: &PodStatus) -> Vec<Said<'_>> {
    let mut list: Vec<Said<'_>> = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| is_written_here(&condition.type_))
        .map(said)
        .collect();
    list.sort_unstable();
    list
}

fn said(condition: &PodCondition) -> Said<'_> {
    (
        condition.type_.as_str(),
        condition.status.as_str(),
        condition.reason.as_deref().unwrap_or_default(),
        condition.message.as_deref().unwrap_or_default(),
    )
}

fn without_foreign(status: &PodStatus) -> PodStatus {
    PodStatus {
        conditions: None,
        resource_claim_statuses: None,
        extended_resource_claim_status: None,
        ..status.clone()
    }
}
