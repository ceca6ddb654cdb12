use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use serde_json::json;

use super::at;
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observation::{ObservedContainer, ObservedSandbox, PodObservation};
use crate::pod::testing::record;
use crate::runtime::ContainerState;
use crate::status::{
    PodPhase, StartReason, StartReasons, StatusInput, StatusOverride, equal_for_publishing, final_status,
    generate_pod_status, pod_is_terminal,
};

#[derive(Clone, Debug)]
struct Look {
    containers: Vec<(usize, u32, ContainerState, i32)>,
    sandbox: bool,
    terminal: bool,
    failed_start: bool,
    evicted: bool,
    last: bool,
}

const NAMES: [&str; 4] = ["init", "side", "app", "boss"];

fn looks() -> impl Strategy<Value = Vec<Look>> {
    let state = prop_oneof![
        Just(ContainerState::Created),
        Just(ContainerState::Running),
        Just(ContainerState::Exited),
        Just(ContainerState::Unknown),
    ];
    let code = prop_oneof![Just(0), Just(1), Just(42)];
    let containers = vec((0..NAMES.len(), 0..3u32, state, code), 0..6);
    let rare = || proptest::bool::weighted(0.05);
    let look = (containers, any::<bool>(), rare(), any::<bool>(), rare(), rare()).prop_map(
        |(containers, sandbox, terminal, failed_start, evicted, last)| Look {
            containers,
            sandbox,
            terminal,
            failed_start,
            evicted,
            last,
        },
    );
    vec(look, 1..12)
}

fn observe(look: &Look) -> PodObservation {
    let mut observed = PodObservation::absent(PodUid::from("uid-1"));
    if look.sandbox {
        observed.sandboxes = vec![ObservedSandbox::ready(SandboxId::from("s"), 0, Timestamp::UNIX_EPOCH)];
    }
    let mut once = BTreeMap::new();
    for (name, attempt, state, code) in &look.containers {
        once.insert((*name, std::cmp::Reverse(*attempt)), (*state, *code));
    }
    for ((name, attempt), (state, code)) in once {
        let id = format!("{}-{}", NAMES[name], attempt.0);
        let mut container = ObservedContainer::new(ContainerId::from(id), NAMES[name], state, Timestamp::UNIX_EPOCH);
        container.attempt = attempt.0;
        container.restart_count = attempt.0;
        container.exit_code = code;
        observed.containers.push(container);
    }
    observed
}

fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten()
}

fn check_step(old: &PodStatus, new: &PodStatus, now: Timestamp) {
    if pod_is_terminal(old) {
        assert_eq!(old.phase, new.phase, "a final phase was left");
        assert_eq!(old.reason, new.reason);
    }
    for was in all(old) {
        let is = all(new).find(|status| status.name == was.name).unwrap();
        assert!(is.restart_count >= was.restart_count, "{} went back", was.name);
        assert!(is.restart_count <= was.restart_count + 3, "{} jumped", was.name);
    }
    for was in old.conditions.iter().flatten() {
        let is = new.conditions.iter().flatten().find(|c| c.type_ == was.type_).unwrap();
        if was.status == is.status {
            assert_eq!(was.last_transition_time, is.last_transition_time, "{}", was.type_);
        } else {
            assert_eq!(is.last_transition_time, Some(Time(now)), "{}", was.type_);
        }
    }
    assert_eq!(old.start_time, new.start_time);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn statuses_only_move_forward(
        looks in looks(),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let pod = record(json!({"spec": {"restartPolicy": policy,
            "initContainers": [
                {"name": "init", "image": "i"},
                {"name": "side", "image": "i", "restartPolicy": "Always"},
            ],
            "containers": [
                {"name": "app", "image": "i"},
                {"name": "boss", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [
                    {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
                ]},
            ]}}));
        let word = StatusOverride::new("Evicted", "low").with_disruption("low");
        let failed = StartReasons::from([("app".to_owned(), StartReason::new("CrashLoopBackOff", "x"))]);
        let none = StartReasons::new();
        let mut previous: Option<PodStatus> = None;
        for (second, look) in looks.iter().enumerate() {
            let now = at(i64::try_from(second).unwrap());
            let observed = observe(look);
            let empty = PodStatus::default();
            let mut input = StatusInput::new(&pod, &observed, previous.as_ref().unwrap_or(&empty), "rt", now);
            input.terminal = look.terminal;
            input.sandbox_needed = !look.sandbox;
            input.reasons = if look.failed_start { &failed } else { &none };
            input.status_override = look.evicted.then_some(&word);
            let mut made = generate_pod_status(&input);
            if let Some(old) = &previous {
                check_step(old, &made, now);
            }
            if look.last {
                let last = final_status(&pod, &made, now);
                assert!(PodPhase::of(&last).unwrap().is_terminal());
                check_step(&made, &last, now);
                made = last;
            }
            // The same look again says nothing new, unless it ended a restart of all containers.
            let restarts = |status: &PodStatus| {
                let mut conditions = status.conditions.iter().flatten();
                conditions.any(|c| c.type_ == "AllContainersRestarting" && c.status == "True")
            };
            if !look.last && !previous.as_ref().is_some_and(restarts) {
                let mut again = StatusInput::new(&pod, &observed, &made, "rt", now);
                (again.terminal, again.sandbox_needed) = (input.terminal, input.sandbox_needed);
                (again.reasons, again.status_override) = (input.reasons, input.status_override);
                let repeated = generate_pod_status(&again);
                let texts = [&made, &repeated].map(|status| serde_json::to_string(status).unwrap());
                assert!(equal_for_publishing(&made, &repeated), "{}\n{}", texts[0], texts[1]);
            }
            previous = Some(made);
        }
    }
}
