use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{StatusInput, generate_pod_status};
use crate::ids::{ContainerId, PodUid, SandboxId, SourceName};
use crate::observation::{ObservedContainer, ObservedSandbox, PodObservation};
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::runtime::{ContainerState, SandboxState};
use crate::source::SourceKind;
use crate::status::{StatusOverride, equal_for_publishing, final_status, rejected_status, waiting_status};

mod properties;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn pod(policy: &str) -> PodRecord {
    record(json!({"metadata": {"generation": 3},
        "spec": {"restartPolicy": policy, "containers": [{"name": "app", "image": "img"}]}}))
}

fn seen(state: ContainerState, code: i32) -> PodObservation {
    let mut container = ObservedContainer::new(ContainerId::from("a"), "app", state, NOW);
    container.exit_code = code;
    let mut observed = PodObservation::absent(PodUid::from("uid-1"));
    observed.containers = vec![container];
    observed.sandboxes = vec![ObservedSandbox::ready(SandboxId::from("s"), 0, NOW)];
    observed
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn condition(status: &PodStatus, kind: &str) -> Option<String> {
    let c = status.conditions.iter().flatten().find(|c| c.type_ == kind)?;
    let parts = [Some(c.status.clone()), c.reason.clone(), c.message.clone()];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(" | "))
}

#[test]
fn a_final_phase_before_or_at_the_source_stays() {
    let running = seen(ContainerState::Running, 0);
    let evicted = status(json!({"phase": "Failed", "reason": "Evicted", "message": "low"}));
    for observed in [&running, &seen(ContainerState::Exited, 0)] {
        let made = generate_pod_status(&StatusInput::new(&pod("Never"), observed, &evicted, "rt", NOW));
        assert_eq!(made.phase.as_deref(), Some("Failed"));
        assert_eq!(
            (made.reason.as_deref(), made.message.as_deref()),
            (Some("Evicted"), Some("low"))
        );
    }
    let in_api = pod("Never").with_api_status(Some(status(json!({"phase": "Succeeded"}))));
    let made = generate_pod_status(&StatusInput::new(&in_api, &running, &PodStatus::default(), "rt", NOW));
    assert_eq!(made.phase.as_deref(), Some("Succeeded"));
}

#[test]
fn reason_and_message_go_with_their_phase() {
    let before = status(json!({"phase": "Pending", "reason": "Slow", "message": "m"}));
    let pod = pod("Always");
    let waits = PodObservation::absent(PodUid::from("uid-1"));
    let made = generate_pod_status(&StatusInput::new(&pod, &waits, &before, "rt", NOW));
    assert_eq!(made.reason.as_deref(), Some("Slow"));
    let runs = seen(ContainerState::Running, 0);
    let made = generate_pod_status(&StatusInput::new(&pod, &runs, &before, "rt", NOW));
    assert_eq!((made.phase.as_deref(), made.reason), (Some("Running"), None));
}

#[test]
fn an_override_fails_the_pod_and_lasts() {
    let pod = pod("Always");
    let runs = seen(ContainerState::Running, 0);
    let word = StatusOverride::new("Evicted", "low").with_disruption("low on memory");
    let before = PodStatus::default();
    let mut input = StatusInput::new(&pod, &runs, &before, "rt", NOW);
    input.status_override = Some(&word);
    let first = generate_pod_status(&input);
    let expected = "True | TerminationByKubelet | low on memory";
    assert_eq!(
        (first.phase.as_deref(), first.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
    assert_eq!(condition(&first, "DisruptionTarget").as_deref(), Some(expected));
    assert_eq!(condition(&first, "Ready").as_deref(), Some("False | PodFailed"));
    let ended = seen(ContainerState::Exited, 0);
    let second = generate_pod_status(&StatusInput::new(&pod, &ended, &first, "rt", NOW));
    assert_eq!(
        (second.phase.as_deref(), second.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
    assert_eq!(condition(&second, "DisruptionTarget").as_deref(), Some(expected));
}

#[test]
fn a_pod_past_its_deadline_has_failed() {
    let pod = record(json!({"spec": {"activeDeadlineSeconds": 10, "containers": [{"name": "app", "image": "i"}]}}));
    let runs = seen(ContainerState::Running, 0);
    let before = status(json!({"phase": "Running", "startTime": "1970-01-01T00:00:00Z"}));
    let made = generate_pod_status(&StatusInput::new(&pod, &runs, &before, "rt", at(9)));
    assert_eq!(made.phase.as_deref(), Some("Running"));
    let made = generate_pod_status(&StatusInput::new(&pod, &runs, &made, "rt", at(10)));
    assert_eq!(
        (made.phase.as_deref(), made.reason.as_deref()),
        (Some("Failed"), Some("DeadlineExceeded"))
    );
}

#[test]
fn a_pod_whose_status_was_lost_has_started_when_its_oldest_sandbox_was_made() {
    let (pod, mut runs) = (pod("Always"), seen(ContainerState::Running, 0));
    let start = |runs: &PodObservation, before: &PodStatus| {
        let made = generate_pod_status(&StatusInput::new(&pod, runs, before, "rt", at(100)));
        made.start_time.unwrap().0
    };
    let sandbox = |attempt, made| ObservedSandbox::ready(SandboxId::from("s"), attempt, at(made));
    runs.sandboxes = vec![sandbox(1, 60), sandbox(0, 40)];
    assert_eq!(start(&runs, &PodStatus::default()), at(40));
    let before = status(json!({"startTime": "1970-01-01T00:00:50Z"}));
    assert_eq!(start(&runs, &before), at(50));
    // The runtime's clock may run ahead.
    runs.sandboxes = vec![sandbox(0, 200)];
    assert_eq!(start(&runs, &PodStatus::default()), at(100));
}

#[test]
fn class_start_and_generation_are_told() {
    let pod = pod("Always");
    let (mut runs, before) = (seen(ContainerState::Running, 0), PodStatus::default());
    runs.sandboxes.clear();
    let late = at(100) + SignedDuration::from_millis(700);
    let first = generate_pod_status(&StatusInput::new(&pod, &runs, &before, "rt", late));
    assert_eq!(first.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(first.start_time.as_ref().unwrap().0, at(100));
    assert_eq!(first.observed_generation, Some(3));
    let ready = first
        .conditions
        .as_ref()
        .unwrap()
        .iter()
        .find(|c| c.type_ == "Ready")
        .unwrap();
    assert_eq!(
        (
            ready.observed_generation,
            ready.last_transition_time.as_ref().unwrap().0
        ),
        (Some(3), at(100))
    );
    let second = generate_pod_status(&StatusInput::new(&pod, &runs, &first, "rt", at(200)));
    assert_eq!(second, first);
}

#[test]
fn addresses_are_one_per_family() {
    let ips = |list: &[&str]| {
        list.iter()
            .map(|ip| ip.parse().unwrap())
            .collect::<Vec<std::net::IpAddr>>()
    };
    let pod = pod("Always");
    let before = PodStatus::default();
    let mut runs = seen(ContainerState::Running, 0);
    runs.ips = ips(&["10.0.0.1", "10.0.0.2", "fd00::1"]);
    let host = ips(&["192.0.2.1", "fd01::1", "192.0.2.2"]);
    let mut input = StatusInput::new(&pod, &runs, &before, "rt", NOW);
    input.host_ips = &host;
    let made = generate_pod_status(&input);
    let listed: Vec<String> = made.pod_ips.clone().unwrap().into_iter().map(|ip| ip.ip).collect();
    assert_eq!(listed, ["10.0.0.1", "fd00::1"]);
    assert_eq!(
        (made.pod_ip.as_deref(), made.host_ip.as_deref()),
        (Some("10.0.0.1"), Some("192.0.2.1"))
    );
    assert_eq!(made.host_ips.as_ref().unwrap().len(), 2);
    // A pod that ended keeps its address; one with a living sandbox has that one's.
    let mut ended = seen(ContainerState::Exited, 0);
    let fresh = generate_pod_status(&StatusInput::new(&pod, &ended, &made, "rt", NOW));
    assert_eq!(fresh.pod_ip, None);
    ended.sandboxes[0].state = SandboxState::NotReady;
    let kept = generate_pod_status(&StatusInput::new(&pod, &ended, &made, "rt", NOW));
    assert_eq!(kept.pod_ip.as_deref(), Some("10.0.0.1"));

    let shared: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"hostNetwork": true, "containers": [{"name": "app", "image": "i"}]},
    }))
    .unwrap();
    let shared = PodRecord::new(&shared, SourceName::from("file"), SourceKind::Static).unwrap();
    input.pod = &shared;
    assert_eq!(generate_pod_status(&input).pod_ip.as_deref(), Some("192.0.2.1"));
}

#[test]
fn conditions_of_others_are_kept_and_ours_made_anew() {
    let pod = pod("Always").with_api_status(Some(status(json!({"conditions": [
        {"type": "x/mine", "status": "True"}, {"type": "Ready", "status": "Unknown"},
    ]}))));
    let (runs, before) = (seen(ContainerState::Running, 0), PodStatus::default());
    let mut input = StatusInput::new(&pod, &runs, &before, "rt", NOW);
    input.sandbox_needed = true;
    let made = generate_pod_status(&input);
    let kinds: Vec<&str> = made.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "x/mine",
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled"
        ]
    );
    assert_eq!(condition(&made, "Ready").as_deref(), Some("True"));
    assert_eq!(condition(&made, "PodReadyToStartContainers").as_deref(), Some("False"));
    assert_eq!(condition(&made, "PodScheduled").as_deref(), Some("True"));
}

#[test]
fn rejected_and_waiting_pods_say_why() {
    let pod = pod("Always");
    let rejected = rejected_status(&pod, "OutOfcpu", "no room", at(5));
    assert_eq!(
        (rejected.phase.as_deref(), rejected.reason.as_deref()),
        (Some("Failed"), Some("OutOfcpu"))
    );
    assert_eq!(rejected.message.as_deref(), Some("Pod was rejected: no room"));
    assert_eq!((rejected.start_time.unwrap().0, rejected.conditions), (at(5), None));

    let waits = waiting_status(&pod, "WaitingForDevice", "one is missing", at(5));
    assert_eq!(
        (waits.phase.as_deref(), waits.reason.as_deref()),
        (Some("Pending"), None)
    );
    assert_eq!(condition(&waits, "PodScheduled").as_deref(), Some("True"));
    let container = &waits.container_statuses.as_ref().unwrap()[0];
    let state = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(
        (state.reason.as_deref(), state.message.as_deref()),
        (Some("WaitingForDevice"), Some("one is missing"))
    );
}

#[test]
fn the_last_status_has_only_ended_containers() {
    let spec = |policy: &str| {
        record(json!({"spec": {"restartPolicy": policy,
            "initContainers": [{"name": "i1", "image": "i"}, {"name": "i2", "image": "i"}],
            "containers": [{"name": "app", "image": "i"}]}}))
    };
    let container = |name: &str, state: &Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let (waits, ends) = (json!({"waiting": {}}), json!({"terminated": {"exitCode": 0}}));
    let code = |status: &PodStatus, init: bool, i: usize| {
        let list = if init {
            &status.init_container_statuses
        } else {
            &status.container_statuses
        };
        let state = list.as_ref().unwrap()[i].state.clone().unwrap();
        state.terminated.map(|end| end.exit_code)
    };
    // Never initialised: only the first init container had its turn.
    let before = status(json!({"phase": "Pending",
        "initContainerStatuses": [container("i1", &waits), container("i2", &waits)],
        "containerStatuses": [container("app", &waits)]}));
    let last = final_status(&spec("Always"), &before, NOW);
    assert_eq!(
        (code(&last, true, 0), code(&last, true, 1), code(&last, false, 0)),
        (Some(137), None, None)
    );
    assert_eq!(last.phase.as_deref(), Some("Failed"));
    // Initialised: the regular container may have run.
    let before = status(json!({"phase": "Succeeded",
        "conditions": [{"type": "Ready", "status": "True"}],
        "initContainerStatuses": [container("i1", &ends), container("i2", &ends)],
        "containerStatuses": [container("app", &waits)]}));
    let last = final_status(&spec("Always"), &before, NOW);
    assert_eq!((code(&last, true, 1), code(&last, false, 0)), (Some(0), Some(137)));
    assert_eq!(last.phase.as_deref(), Some("Succeeded"));
    assert_eq!(condition(&last, "Ready").as_deref(), Some("False | PodCompleted"));

    let fixed = PodRecord::new(pod("Always").pod(), SourceName::from("file"), SourceKind::Static).unwrap();
    let last = final_status(&fixed, &status(json!({"phase": "Running"})), NOW);
    assert_eq!(last.phase.as_deref(), Some("Running"));
}

#[test]
fn only_what_the_kubelet_says_counts_for_equality() {
    let base = json!({"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z"},
    ]});
    let with = |change: &dyn Fn(&mut Value)| {
        let mut value = base.clone();
        change(&mut value);
        equal_for_publishing(&status(base.clone()), &status(value))
    };
    assert!(with(&|_| {}));
    assert!(with(
        &|v| v["conditions"][0]["lastTransitionTime"] = "2024-01-02T00:00:00Z".into()
    ));
    assert!(with(&|v| v["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "x/y", "status": "True"}))));
    assert!(with(&|v| v["resourceClaimStatuses"] = json!([{"name": "c"}])));
    assert!(!with(&|v| v["conditions"][0]["status"] = "False".into()));
    assert!(!with(&|v| v["conditions"][0]["message"] = "why".into()));
    assert!(!with(&|v| v["conditions"] = json!([])));
    assert!(!with(&|v| v["phase"] = "Failed".into()));
}
