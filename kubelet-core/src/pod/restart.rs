//! Whether a container that ended is started again.

use k8s_openapi::api::core::v1::{ContainerRestartRule, PodSpec};

use super::{ContainerView, PodRecord};
use crate::observation::{ObservedContainer, PodObservation};
use crate::runtime::ContainerState;

/// When containers that ended are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RestartPolicy {
    /// Whatever the exit code.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Never.
    Never,
}

impl RestartPolicy {
    /// The policy of a text of the API; unknown ones and none count as `Always`.
    #[must_use]
    pub fn from_text(text: Option<&str>) -> Self {
        match text {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }

    /// The policy of a pod as a whole.
    #[must_use]
    pub fn of_pod(spec: &PodSpec) -> Self {
        Self::from_text(spec.restart_policy.as_deref())
    }

    /// The policy that applies to one container: its own, else the pod's.
    #[must_use]
    pub fn of_container(container: &ContainerView<'_>, pod: Self) -> Self {
        container.restart_policy().map_or(pod, |own| Self::from_text(Some(own)))
    }

    /// Whether a container that ended with this code is started again.
    #[must_use]
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The first rule that matches an exit code.
fn matching_rule<'a>(container: &ContainerView<'a>, exit_code: i32) -> Option<&'a ContainerRestartRule> {
    // Rules count only beside a restart policy of the container's own.
    container.restart_policy()?;
    container.restart_rules().iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_ref().is_some_and(|values| values.contains(&exit_code));
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

/// Whether a container that ended with `exit_code` is started again: by its rules, else by the policy that applies.
///
/// Source: kubelet 1.36, `kuberuntime_container.go`.
#[must_use]
pub fn should_restart_exited(container: &ContainerView<'_>, pod: RestartPolicy, exit_code: i32) -> bool {
    match matching_rule(container, exit_code) {
        Some(rule) => matches!(rule.action.as_str(), "Restart" | "RestartAllContainers"),
        None => RestartPolicy::of_container(container, pod).restarts(exit_code),
    }
}

/// Whether a container that was last seen so is to be started: not while its pod is being deleted, not while it runs,
/// always if it never ran, and by [`should_restart_exited`] once it has ended.
#[must_use]
pub fn should_restart(pod: &PodRecord, container: &ContainerView<'_>, last: Option<&ObservedContainer>) -> bool {
    if pod.is_deleted() {
        return false;
    }
    match last {
        None => true,
        Some(last) => match last.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => should_restart_exited(container, pod.facts().restart_policy, last.exit_code),
        },
    }
}

/// Whether a container's end asks that all containers of the pod be started anew, by a `RestartAllContainers` rule.
#[must_use]
pub fn restart_all_requested(pod: &PodRecord, observed: &PodObservation) -> bool {
    pod.facts().can_restart_all
        && pod.containers().any(|container| {
            observed
                .newest(container.name())
                .is_some_and(|last| asks_restart_all(&container, last))
        })
}

/// Whether this container's end asks that all containers of its pod be started anew.
pub(crate) fn asks_restart_all(container: &ContainerView<'_>, last: &ObservedContainer) -> bool {
    last.state == ContainerState::Exited
        && matching_rule(container, last.exit_code).is_some_and(|rule| rule.action == "RestartAllContainers")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{RestartPolicy, should_restart_exited};
    use crate::pod::testing::record;

    #[test]
    fn the_policy_table_of_the_api() {
        for (policy, zero, one) in [
            ("Always", true, true),
            ("OnFailure", false, true),
            ("Never", false, false),
        ] {
            let policy = RestartPolicy::from_text(Some(policy));
            assert_eq!((policy.restarts(0), policy.restarts(1)), (zero, one));
        }
    }

    #[test]
    fn rules_come_before_the_containers_policy_and_need_one() {
        let pod = |policy: Option<&str>| {
            let mut container = json!({"name": "a", "image": "i", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
            ]});
            if let Some(policy) = policy {
                container["restartPolicy"] = policy.into();
            }
            record(json!({"spec": {"restartPolicy": "Never", "containers": [container]}}))
        };
        let restarts = |pod: &crate::pod::PodRecord, code| {
            should_restart_exited(&pod.container("a").unwrap(), pod.facts().restart_policy, code)
        };
        let with = pod(Some("Never"));
        assert!(restarts(&with, 42));
        assert!(!restarts(&with, 1));
        assert!(!restarts(&pod(None), 42));
    }
}
