use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

use super::{PhaseFacts, PodPhase, compute_phase};
use crate::ids::SourceName;
use crate::pod::{PodRecord, testing};
use crate::source::SourceKind;

const NO: PhaseFacts = PhaseFacts {
    terminal: false,
    regular_in_sandbox: false,
};
const TERMINAL: PhaseFacts = PhaseFacts { terminal: true, ..NO };
const IN_SANDBOX: PhaseFacts = PhaseFacts {
    regular_in_sandbox: true,
    ..NO
};

/// `R` running and started, `r` running only, `W` waiting, `0`/`1` ended with that code, `w0`/`w1` waiting after such an
/// end, `x` ended because all containers restart, `-` no status.
fn status(name: &str, text: &str) -> Option<ContainerStatus> {
    let end = |code: i32| json!({"terminated": {"exitCode": code}});
    let (state, last) = match text {
        "R" | "r" => (json!({"running": {}}), Value::Null),
        "W" => (json!({"waiting": {}}), Value::Null),
        "0" => (end(0), Value::Null),
        "1" => (end(1), Value::Null),
        "w0" => (json!({"waiting": {}}), end(0)),
        "w1" => (json!({"waiting": {}}), end(1)),
        "x" => (
            json!({"waiting": {}}),
            json!({"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}}),
        ),
        _ => return None,
    };
    let value = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "started": text == "R", "state": state, "lastState": last});
    Some(serde_json::from_value(value).unwrap())
}

fn pod(policy: &str, init: &[Value], regular: usize) -> Pod {
    let regular: Vec<Value> = (0..regular)
        .map(|i| json!({"name": format!("c{i}"), "image": "i"}))
        .collect();
    let record = testing::record(json!({
        "spec": {"restartPolicy": policy, "initContainers": init, "containers": regular},
    }));
    record.pod().clone()
}

fn managed(pod: &Pod) -> PodRecord {
    PodRecord::new(pod, SourceName::from("api"), SourceKind::Managed).unwrap()
}

fn regular(texts: &[&str]) -> Vec<ContainerStatus> {
    texts
        .iter()
        .enumerate()
        .filter_map(|(i, text)| status(&format!("c{i}"), text))
        .collect()
}

#[test]
fn regular_containers_decide_by_policy_and_code() {
    use PodPhase::{Failed, Pending, Running, Succeeded};
    // Per row: statuses, then the phase under Always, OnFailure, Never; then the same with all stopped for good.
    let rows: [(&[&str], [PodPhase; 3], [PodPhase; 3]); 10] = [
        (&["W"], [Pending; 3], [Pending; 3]),
        (&["R"], [Running; 3], [Running; 3]),
        (&["R", "W"], [Pending; 3], [Pending; 3]),
        (&["R", "-"], [Pending; 3], [Pending; 3]),
        (&["R", "1"], [Running; 3], [Running; 3]),
        (&["0"], [Running, Succeeded, Succeeded], [Succeeded; 3]),
        (&["1"], [Running, Running, Failed], [Failed; 3]),
        (&["0", "1"], [Running, Running, Failed], [Failed; 3]),
        (&["0", "w0"], [Running, Failed, Failed], [Failed; 3]),
        (&["w1"], [Running, Running, Failed], [Failed; 3]),
    ];
    for (texts, phases, terminal) in rows {
        for (i, policy) in ["Always", "OnFailure", "Never"].into_iter().enumerate() {
            let pod = managed(&pod(policy, &[], texts.len()));
            let list = regular(texts);
            assert_eq!(compute_phase(&pod, &[], &list, NO), phases[i], "{texts:?} {policy}");
            assert_eq!(
                compute_phase(&pod, &[], &list, TERMINAL),
                terminal[i],
                "{texts:?} {policy}"
            );
        }
    }
    assert_eq!(compute_phase(&managed(&pod("Always", &[], 1)), &[], &[], NO), Pending);
}

#[test]
fn static_pods_do_not_end_for_having_been_stopped() {
    let pod = pod("Always", &[], 1);
    let pod = PodRecord::new(&pod, SourceName::from("file"), SourceKind::Static).unwrap();
    assert_eq!(compute_phase(&pod, &[], &regular(&["0"]), TERMINAL), PodPhase::Running);
}

#[test]
fn init_containers_hold_a_pod_pending_until_they_fail_for_good() {
    use PodPhase::{Failed, Pending};
    for (text, phases) in [
        ("-", [Pending; 3]),
        ("W", [Pending; 3]),
        ("R", [Pending; 3]),
        ("0", [Pending; 3]),
        ("1", [Pending, Pending, Failed]),
        ("w1", [Pending, Pending, Failed]),
        ("x", [Pending; 3]),
    ] {
        for (i, policy) in ["Always", "OnFailure", "Never"].into_iter().enumerate() {
            let pod = managed(&pod(policy, &[json!({"name": "i", "image": "i"})], 1));
            let init: Vec<_> = status("i", text).into_iter().collect();
            assert_eq!(
                compute_phase(&pod, &init, &regular(&["W"]), NO),
                phases[i],
                "{text} {policy}"
            );
        }
    }
}

#[test]
fn sidecars_count_as_running_but_not_as_work() {
    use PodPhase::{Pending, Running, Succeeded};
    let sidecar = json!({"name": "s", "image": "i", "restartPolicy": "Always"});
    for (side, app, facts, expected) in [
        ("-", "R", NO, Pending),
        ("r", "R", NO, Pending),
        ("r", "R", IN_SANDBOX, Running),
        ("W", "R", IN_SANDBOX, Pending),
        ("R", "W", NO, Pending),
        ("R", "0", NO, Running),
        ("1", "0", NO, Succeeded),
        ("w1", "R", NO, Running),
    ] {
        let pod = managed(&pod("Never", std::slice::from_ref(&sidecar), 1));
        let init: Vec<_> = status("s", side).into_iter().collect();
        assert_eq!(
            compute_phase(&pod, &init, &regular(&[app]), facts),
            expected,
            "{side} {app}"
        );
    }
}

#[test]
fn a_restart_of_all_containers_is_no_failure() {
    let pod = managed(&pod("Never", &[], 2));
    assert_eq!(compute_phase(&pod, &[], &regular(&["x", "1"]), NO), PodPhase::Running);
}
