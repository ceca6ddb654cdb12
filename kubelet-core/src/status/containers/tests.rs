use k8s_openapi::api::core::v1::{ContainerState as ApiState, ContainerStatus, PodStatus};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::ids::{ContainerId, PodUid};
use crate::observation::{ObservedContainer, PodObservation};
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::runtime::ContainerState;
use crate::status::{StartReason, StartReasons, StatusInput, generate_pod_status};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn seen(id: &str, name: &str, attempt: u32, state: ContainerState) -> ObservedContainer {
    let mut container = ObservedContainer::new(ContainerId::from(id), name, state, NOW);
    container.attempt = attempt;
    container.restart_count = attempt;
    container
}

fn exited(id: &str, name: &str, attempt: u32, code: i32) -> ObservedContainer {
    let mut container = seen(id, name, attempt, ContainerState::Exited);
    container.exit_code = code;
    container
}

fn observed(containers: Vec<ObservedContainer>) -> PodObservation {
    let mut observed = PodObservation::absent(PodUid::from("uid-1"));
    observed.containers = containers;
    observed
}

fn app(policy: &str) -> PodRecord {
    record(json!({"spec": {"restartPolicy": policy, "containers": [{"name": "app", "image": "img"}]}}))
}

fn with_init() -> PodRecord {
    record(json!({"spec": {
        "initContainers": [{"name": "init", "image": "img"}, {"name": "side", "image": "img", "restartPolicy": "Always"}],
        "containers": [{"name": "app", "image": "img"}],
    }}))
}

fn old(name: &str, count: i32, id: &str, state: &Value, last: &Value) -> ContainerStatus {
    serde_json::from_value(json!({"name": name, "image": "img", "imageID": "", "ready": false,
        "restartCount": count, "containerID": format!("rt://{id}"), "state": state, "lastState": last}))
    .unwrap()
}

fn running() -> Value {
    json!({"running": {}})
}

fn ended(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}

fn previous(regular: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        container_statuses: Some(regular),
        ..PodStatus::default()
    }
}

fn generate(pod: &PodRecord, observed: &PodObservation, previous: &PodStatus, reasons: &StartReasons) -> PodStatus {
    let mut input = StatusInput::new(pod, observed, previous, "rt", NOW);
    input.reasons = reasons;
    generate_pod_status(&input)
}

/// The only regular container.
fn only(pod: &PodRecord, containers: Vec<ObservedContainer>, before: &PodStatus) -> ContainerStatus {
    let status = generate(pod, &observed(containers), before, &StartReasons::new());
    status.container_statuses.unwrap().remove(0)
}

/// A state in short: `running`, `waiting <reason>`, or `<code> <reason>`.
fn short(state: Option<&ApiState>) -> String {
    let text = |reason: &Option<String>| reason.clone().unwrap_or_default();
    match state {
        Some(ApiState { running: Some(_), .. }) => "running".to_owned(),
        Some(ApiState { waiting: Some(w), .. }) => format!("waiting {}", text(&w.reason)).trim_end().to_owned(),
        Some(ApiState {
            terminated: Some(t), ..
        }) => format!("{} {}", t.exit_code, text(&t.reason)).trim_end().to_owned(),
        _ => String::new(),
    }
}

fn states(status: &ContainerStatus) -> (String, String, i32) {
    (
        short(status.state.as_ref()),
        short(status.last_state.as_ref()),
        status.restart_count,
    )
}

#[test]
fn each_state_of_the_runtime_has_one_of_the_api() {
    use ContainerState::{Created, Exited, Running, Unknown};
    let old_running = || previous(vec![old("app", 2, "a", &running(), &Value::Null)]);
    let lost = || previous(vec![old("app", 3, "a", &ended(137), &Value::Null)]);
    let unknown = "137 ContainerStatusUnknown";
    for (state, before, expected) in [
        (Running, PodStatus::default(), ("running", "", 0)),
        (Created, PodStatus::default(), ("waiting", "", 0)),
        (Exited, PodStatus::default(), ("0", "", 0)),
        (Unknown, PodStatus::default(), ("waiting", "", 0)),
        (Unknown, old_running(), (unknown, "", 3)),
        // Seen so again, it stays so and is not counted again.
        (Unknown, lost(), ("137", "", 3)),
    ] {
        let status = only(&app("Always"), vec![seen("a", "app", 0, state)], &before);
        let (now, last, count) = states(&status);
        assert_eq!((now.as_str(), last.as_str(), count), expected, "{state:?}");
        assert_eq!(status.container_id.as_deref(), Some("rt://a"));
        assert_eq!(
            (status.started, status.ready),
            (Some(state == Running), state == Running)
        );
    }
}

#[test]
fn defaults_wait_for_creation_or_initialisation() {
    let status = only(&app("Always"), Vec::new(), &PodStatus::default());
    assert_eq!(states(&status).0, "waiting ContainerCreating");
    assert_eq!(status.image, "img");
    let status = only(&with_init(), Vec::new(), &PodStatus::default());
    assert_eq!(states(&status).0, "waiting PodInitializing");
    // Count and last state are inherited; a container that ended keeps its whole status.
    let before = previous(vec![old("app", 4, "a", &json!({"waiting": {}}), &ended(1))]);
    assert_eq!(
        states(&only(&app("Always"), Vec::new(), &before)),
        ("waiting ContainerCreating".to_owned(), "1".to_owned(), 4)
    );
    let before = previous(vec![old("app", 4, "a", &ended(7), &ended(1))]);
    assert_eq!(
        states(&only(&app("Always"), Vec::new(), &before)),
        ("7".to_owned(), "1".to_owned(), 4)
    );
}

#[test]
fn restart_counts_are_the_highest_known() {
    let running_b = |attempt| vec![seen("b", "app", attempt, ContainerState::Running)];
    let before = |count, state: &Value| previous(vec![old("app", count, "a", state, &Value::Null)]);
    for (containers, before, expected) in [
        (running_b(5), before(2, &running()), 5),
        (running_b(1), before(7, &running()), 7),
        // A new container after an end is a restart, also where its annotation lost the count.
        (running_b(0), before(7, &ended(1)), 8),
        (running_b(8), before(7, &ended(1)), 8),
        // The same container is none.
        (
            vec![seen("a", "app", 7, ContainerState::Running)],
            before(7, &ended(1)),
            7,
        ),
    ] {
        assert_eq!(only(&app("Always"), containers, &before).restart_count, expected);
    }
}

#[test]
fn the_last_state_is_that_of_the_container_before() {
    let pod = app("Always");
    // From a second record.
    let status = only(
        &pod,
        vec![seen("b", "app", 1, ContainerState::Running), exited("a", "app", 0, 3)],
        &PodStatus::default(),
    );
    assert_eq!(states(&status), ("running".to_owned(), "3".to_owned(), 1));
    // From the status before, where the record is gone.
    let before = previous(vec![old("app", 0, "a", &ended(4), &ended(9))]);
    let status = only(&pod, vec![seen("b", "app", 1, ContainerState::Running)], &before);
    assert_eq!(states(&status).1, "4");
    let before = previous(vec![old("app", 0, "b", &running(), &ended(9))]);
    let status = only(&pod, vec![seen("b", "app", 1, ContainerState::Running)], &before);
    assert_eq!(states(&status).1, "9");
}

#[test]
fn what_is_left_of_an_earlier_container_says_nothing_about_one_that_vanished() {
    let began = json!({"running": {"startedAt": "2024-01-01T00:00:10Z"}});
    let left = |finished: &str| {
        let mut left = exited("a", "app", 0, 0);
        left.finished_at = Some(finished.parse().unwrap());
        vec![left]
    };
    let earlier = "2024-01-01T00:00:09Z";
    let before = || previous(vec![old("app", 1, "b", &began, &Value::Null)]);
    let unknown = "137 ContainerStatusUnknown";
    // It does not run again, and did not succeed.
    let told = generate(&app("Never"), &observed(left(earlier)), &before(), &StartReasons::new());
    let status = &told.container_statuses.as_ref().unwrap()[0];
    assert_eq!(states(status), (unknown.to_owned(), String::new(), 1));
    let again = only(&app("Never"), left(earlier), &told);
    assert_eq!(again.state, status.state);
    // It runs again.
    let status = only(&app("Always"), left(earlier), &before());
    let waiting = "waiting ContainerCreating".to_owned();
    assert_eq!(states(&status), (waiting, unknown.to_owned(), 2));
    // One that ended later is the newer one.
    let status = only(&app("Never"), left("2024-01-01T00:00:11Z"), &before());
    assert_eq!(status.state.unwrap().terminated.unwrap().exit_code, 0);
}

#[test]
fn a_container_that_vanished_while_it_ran_is_counted_once() {
    let pod = app("Always");
    let before = previous(vec![old("app", 2, "a", &running(), &Value::Null)]);
    let first = generate(&pod, &observed(Vec::new()), &before, &StartReasons::new());
    let status = &first.container_statuses.as_ref().unwrap()[0];
    assert_eq!(
        states(status),
        (
            "waiting ContainerCreating".to_owned(),
            "137 ContainerStatusUnknown".to_owned(),
            3
        )
    );
    let message = status
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap()
        .message
        .as_deref();
    assert_eq!(
        message,
        Some("The container could not be located when the pod was deleted.  The container used to be Running")
    );
    let again = only(&pod, Vec::new(), &first);
    assert_eq!(states(&again).2, 3);
    let deleted = record(json!({
        "metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "app", "image": "img"}]},
    }));
    assert_eq!(only(&deleted, Vec::new(), &before).restart_count, 2);
}

#[test]
fn an_init_container_without_record_is_done_once_the_pod_is_initialised() {
    let pod = with_init();
    let of = |containers: Vec<ObservedContainer>| {
        let status = generate(&pod, &observed(containers), &PodStatus::default(), &StartReasons::new());
        status.init_container_statuses.unwrap()
    };
    let init = of(vec![seen("a", "app", 0, ContainerState::Running)]);
    assert_eq!(states(&init[0]).0, "0 Completed");
    assert!(init[0].ready);
    assert_eq!(states(&init[1]).0, "waiting PodInitializing", "sidecars never are");
    assert_eq!(states(&of(Vec::new())[0]).0, "waiting PodInitializing");
}

#[test]
fn a_failed_start_is_shown_over_the_state() {
    let mut reasons = StartReasons::new();
    for name in ["app", "init"] {
        reasons.insert(name.to_owned(), StartReason::new("CrashLoopBackOff", "back-off 10s"));
    }
    let of = |pod: &PodRecord, containers: Vec<ObservedContainer>| {
        let status = generate(pod, &observed(containers), &PodStatus::default(), &reasons);
        states(&status.container_statuses.unwrap()[0])
    };
    let held = "waiting CrashLoopBackOff".to_owned();
    for (policy, containers, expected) in [
        (
            "Always",
            vec![exited("a", "app", 1, 3)],
            (held.clone(), "3".to_owned(), 1),
        ),
        ("Always", Vec::new(), (held.clone(), String::new(), 0)),
        (
            "Always",
            vec![seen("a", "app", 0, ContainerState::Created)],
            (held.clone(), String::new(), 0),
        ),
        (
            "Never",
            vec![exited("a", "app", 1, 3)],
            ("3".to_owned(), String::new(), 1),
        ),
        (
            "OnFailure",
            vec![exited("a", "app", 1, 0)],
            ("0".to_owned(), String::new(), 1),
        ),
        (
            "Always",
            vec![seen("a", "app", 0, ContainerState::Running)],
            ("running".to_owned(), String::new(), 0),
        ),
    ] {
        assert_eq!(of(&app(policy), containers), expected, "{policy}");
    }
    // An init container that succeeded is not to be started.
    let status = generate(
        &with_init(),
        &observed(vec![exited("i", "init", 0, 0)]),
        &PodStatus::default(),
        &reasons,
    );
    assert_eq!(states(&status.init_container_statuses.unwrap()[0]).0, "0");
    // Without an entry the end itself is shown, once.
    let waited = previous(vec![old(
        "app",
        1,
        "a",
        &json!({"waiting": {}}),
        &json!(
            {"terminated": {"exitCode": 3, "containerID": "rt://a"}}
        ),
    )]);
    let status = only(&app("Always"), vec![exited("a", "app", 1, 3)], &waited);
    assert_eq!(states(&status), ("3".to_owned(), String::new(), 1));
}

#[test]
fn every_reason_of_a_failed_start_is_shown_as_it_is() {
    use crate::status::reason as r;
    for reason in [
        r::ERR_IMAGE_PULL,
        r::IMAGE_PULL_BACK_OFF,
        r::ERR_IMAGE_NEVER_PULL,
        r::INVALID_IMAGE_NAME,
        r::IMAGE_INSPECT_ERROR,
        r::REGISTRY_UNAVAILABLE,
        r::SIGNATURE_VALIDATION_FAILED,
        r::CREATE_POD_SANDBOX_ERROR,
        r::CREATE_CONTAINER_CONFIG_ERROR,
        r::PRE_CREATE_HOOK_ERROR,
        r::CREATE_CONTAINER_ERROR,
        r::PRE_START_HOOK_ERROR,
        r::RUN_CONTAINER_ERROR,
        r::POST_START_HOOK_ERROR,
        r::CRASH_LOOP_BACK_OFF,
    ] {
        let reasons = StartReasons::from([("app".to_owned(), StartReason::new(reason, "why"))]);
        let status = generate(&app("Always"), &observed(Vec::new()), &PodStatus::default(), &reasons);
        let state = status
            .container_statuses
            .unwrap()
            .remove(0)
            .state
            .unwrap()
            .waiting
            .unwrap();
        assert_eq!(
            (state.reason.as_deref(), state.message.as_deref()),
            (Some(reason), Some("why"))
        );
    }
}

#[test]
fn a_restart_of_all_counts_each_container_once() {
    let pod = record(json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": "app", "image": "img"},
        {"name": "boss", "image": "img", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
        ]},
    ]}}));
    let none = StartReasons::new();
    let before = previous(vec![
        old("app", 1, "a", &running(), &Value::Null),
        old("boss", 0, "b", &running(), &Value::Null),
    ]);
    let condition = |status: &PodStatus| {
        let list = status.conditions.clone().unwrap();
        list.into_iter()
            .find(|c| c.type_ == "AllContainersRestarting")
            .unwrap()
            .status
    };
    // The trigger has ended and the other one is removed already.
    let first = generate(&pod, &observed(vec![exited("b", "boss", 0, 42)]), &before, &none);
    let of = |status: &PodStatus, i: usize| states(&status.container_statuses.as_ref().unwrap()[i]);
    let removed = |count| {
        (
            "waiting ContainerCreating".to_owned(),
            "137 RestartingAllContainers".to_owned(),
            count,
        )
    };
    assert_eq!(of(&first, 0), removed(2));
    assert_eq!(of(&first, 1).0, "42");
    assert_eq!(
        (condition(&first).as_str(), first.phase.as_deref()),
        ("True", Some("Running"))
    );
    // All are removed: the restart can begin.
    let second = generate(&pod, &observed(Vec::new()), &first, &none);
    assert_eq!((of(&second, 0), of(&second, 1)), (removed(2), removed(1)));
    assert_eq!(
        (condition(&second).as_str(), second.phase.as_deref()),
        ("False", Some("Running"))
    );
    let third = generate(&pod, &observed(Vec::new()), &second, &none);
    assert_eq!(of(&third, 0), removed(2));
}

#[test]
fn lists_are_in_order_and_messages_have_their_share() {
    let pod = record(json!({"spec": {
        "initContainers": [{"name": "z", "image": "i"}, {"name": "y", "image": "i"}],
        "containers": [{"name": "b", "image": "i"}, {"name": "a", "image": "i"}],
    }}));
    let mut end = exited("1", "b", 0, 1);
    end.message = "m".repeat(5000);
    let status = generate(&pod, &observed(vec![end]), &PodStatus::default(), &StartReasons::new());
    let names = |list: &Option<Vec<ContainerStatus>>| -> Vec<String> {
        list.iter().flatten().map(|status| status.name.clone()).collect()
    };
    assert_eq!(names(&status.init_container_statuses), ["z", "y"]);
    assert_eq!(names(&status.container_statuses), ["a", "b"]);
    let message = &status.container_statuses.as_ref().unwrap()[1]
        .state
        .as_ref()
        .unwrap()
        .terminated;
    assert_eq!(message.as_ref().unwrap().message.as_ref().unwrap().len(), 12288 / 4);
}

#[test]
fn of_a_pod_stopped_for_good_the_ends_are_shown() {
    let pod = app("Always");
    let reasons = StartReasons::from([("app".to_owned(), StartReason::new("CrashLoopBackOff", "x"))]);
    let (seen, before) = (observed(vec![exited("a", "app", 1, 3)]), PodStatus::default());
    let mut input = StatusInput::new(&pod, &seen, &before, "rt", NOW);
    input.reasons = &reasons;
    input.terminal = true;
    let status = generate_pod_status(&input);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(states(&status.container_statuses.unwrap()[0]).0, "3");
}

#[test]
fn a_program_that_outlived_a_child_killed_for_memory_ended_by_what_ended_it() {
    for (code, told) in [(137, "OOMKilled"), (143, "Error"), (1, "Error"), (0, "OOMKilled")] {
        let mut end = exited("a", "app", 0, code);
        end.reason = "OOMKilled".to_owned();
        let status = only(&app("Never"), vec![end], &PodStatus::default());
        let ended = status.state.unwrap().terminated.unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (code, Some(told)));
    }
}
