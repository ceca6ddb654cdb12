//! What a status may say after what was said before.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::jiff::Timestamp;

use super::conditions::keep_transition_times;
use super::normalize::{each_container, normalize, time};
use super::phase::pod_is_terminal;
use crate::pod::{ContainerKind, ContainerView, PodRecord, RestartPolicy, should_restart_exited};

/// The first container that ended, may not be started again, and is said not to have ended.
///
/// Source: kubelet 1.36, `status_manager.go`. Other than there an init container that succeeded may run again, as it does
/// in a new sandbox.
pub(super) fn illegal_restart<'a>(pod: &'a PodRecord, old: &PodStatus, new: &PodStatus) -> Option<&'a str> {
    if pod.facts().restart_policy == RestartPolicy::Always || pod.facts().can_restart_all {
        return None;
    }
    let is_illegal = |container: &ContainerView<'_>| {
        let (was, is) = match container.kind() {
            ContainerKind::Init => (&old.init_container_statuses, &new.init_container_statuses),
            ContainerKind::Regular => (&old.container_statuses, &new.container_statuses),
            ContainerKind::Sidecar | ContainerKind::Ephemeral => return false,
        };
        let Some(code) = find(was, container.name()).and_then(exit_code) else {
            return false;
        };
        let may_restart = should_restart_exited(container, pod.facts().restart_policy, code)
            || (container.kind() == ContainerKind::Init && code == 0);
        !may_restart && find(is, container.name()).is_some_and(|status| exit_code(status).is_none())
    };
    pod.containers().find(is_illegal).map(|container| container.name())
}

/// Makes a status continue the one before: a final phase stays, counts and generations do not go back, the start time does
/// not change, and conditions keep the time of their last change.
pub(super) fn continue_from(old: &PodStatus, new: &mut PodStatus, pod: &PodRecord, now: Timestamp) {
    if pod_is_terminal(old) && old.phase != new.phase {
        new.phase.clone_from(&old.phase);
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
    let start = old.start_time.clone().or_else(|| new.start_time.take());
    new.start_time = start.or_else(|| Some(time(now)));
    new.observed_generation = new.observed_generation.max(old.observed_generation);
    let counts: Vec<(String, i32)> = [
        &old.init_container_statuses,
        &old.container_statuses,
        &old.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .map(|status| (status.name.clone(), status.restart_count))
    .collect();
    // Names are unique over all containers of a pod.
    for status in each_container(new) {
        if let Some((_, count)) = counts.iter().find(|(name, _)| *name == status.name) {
            status.restart_count = status.restart_count.max(*count);
        }
    }
    if let Some(conditions) = &mut new.conditions {
        keep_transition_times(conditions, old, now);
    }
    normalize(new, pod);
}

fn find<'a>(list: &'a Option<Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    list.iter().flatten().find(|status| status.name == name)
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodStatus;
    use serde_json::{Value, json};

    use super::illegal_restart;
    use crate::pod::testing::record;

    fn status(list: &str, state: &Value) -> PodStatus {
        serde_json::from_value(json!({list: [
            {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]}))
        .unwrap()
    }

    #[test]
    fn who_has_ended_for_good_does_not_run_again() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let running = json!({"running": {}});
        for (policy, init, code, illegal) in [
            ("Always", false, 0, false),
            ("OnFailure", false, 0, true),
            ("OnFailure", false, 1, false),
            ("Never", false, 0, true),
            ("Never", false, 1, true),
            ("Never", true, 1, true),
            ("Never", true, 0, false),
            ("OnFailure", true, 1, false),
        ] {
            let container = json!([{"name": "c", "image": "i"}]);
            let (spec, list) = if init {
                (
                    json!({"restartPolicy": policy, "initContainers": container, "containers": []}),
                    "initContainerStatuses",
                )
            } else {
                (
                    json!({"restartPolicy": policy, "containers": container}),
                    "containerStatuses",
                )
            };
            let pod = record(json!({"spec": spec}));
            let found = illegal_restart(&pod, &status(list, &ended(code)), &status(list, &running));
            assert_eq!(found.is_some(), illegal, "{policy} {init} {code}");
            assert_eq!(
                illegal_restart(&pod, &status(list, &ended(code)), &status(list, &ended(code))),
                None
            );
        }
    }
}
