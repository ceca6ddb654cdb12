use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use serde_json::{Value, json};

use super::{Parts, Verdict, containers_ready, initialized, ready, restarting};
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::status::PodPhase;

fn pod() -> PodRecord {
    record(json!({"spec": {
        "initContainers": [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}],
        "readinessGates": [{"conditionType": "x/one"}, {"conditionType": "x/two"}],
    }}))
}

fn status(name: &str, state: &Value, ready: bool, started: bool) -> ContainerStatus {
    serde_json::from_value(json!({"name": name, "image": "", "imageID": "", "restartCount": 0,
        "ready": ready, "started": started, "state": state}))
    .unwrap()
}

fn waiting(name: &str) -> ContainerStatus {
    status(name, &json!({"waiting": {}}), false, false)
}

fn running(name: &str) -> ContainerStatus {
    status(name, &json!({"running": {}}), true, true)
}

fn done(name: &str) -> ContainerStatus {
    status(name, &json!({"terminated": {"exitCode": 0}}), true, false)
}

fn text(verdict: &Verdict) -> String {
    let parts = [
        Some(verdict.status.to_string()),
        verdict.reason.map(str::to_owned),
        verdict.message.clone(),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" | ")
}

/// Init and regular statuses, phase, whether it was true before, and what is said.
type InitializedRow<'a> = (Vec<ContainerStatus>, &'a [ContainerStatus], PodPhase, bool, &'a str);

#[test]
fn initialized_rows() {
    let pod = pod();
    let both = |i, s| vec![i, s];
    let idle = [waiting("a"), waiting("b")];
    let rows: [InitializedRow<'_>; 8] = [
        (
            vec![],
            &[],
            PodPhase::Pending,
            false,
            "false | UnknownContainerStatuses",
        ),
        (both(done("i"), running("s")), &idle, PodPhase::Pending, false, "true"),
        (
            both(done("i"), done("s")),
            &idle,
            PodPhase::Succeeded,
            false,
            "true | PodCompleted",
        ),
        (
            both(waiting("i"), waiting("s")),
            &[running("a")],
            PodPhase::Running,
            false,
            "true",
        ),
        (
            both(waiting("i"), waiting("s")),
            &[done("a")],
            PodPhase::Running,
            false,
            "true",
        ),
        (
            both(waiting("i"), waiting("s")),
            &idle,
            PodPhase::Pending,
            false,
            "false | ContainersNotInitialized | containers with incomplete status: [i s]",
        ),
        (
            vec![waiting("s")],
            &idle,
            PodPhase::Pending,
            false,
            "false | ContainersNotInitialized | containers with unknown status: [i], \
             containers with incomplete status: [s]",
        ),
        (both(waiting("i"), waiting("s")), &idle, PodPhase::Pending, true, "true"),
    ];
    for (init, regular, phase, was_true, expected) in rows {
        let parts = Parts {
            resources: None,
            pod: &pod,
            phase,
            init: &init,
            regular,
        };
        assert_eq!(text(&initialized(parts, was_true)), expected);
    }
}

#[test]
fn containers_ready_rows() {
    let pod = pod();
    let side = [done("i"), running("s")];
    let rows: [(&[ContainerStatus], &[ContainerStatus], PodPhase, &str); 7] = [
        (&[], &[], PodPhase::Pending, "false | UnknownContainerStatuses"),
        (&side, &[running("a"), running("b")], PodPhase::Running, "true"),
        (
            &side,
            &[done("a"), done("b")],
            PodPhase::Succeeded,
            "false | PodCompleted",
        ),
        (
            &side,
            &[running("a"), running("b")],
            PodPhase::Failed,
            "false | PodFailed",
        ),
        (
            &side,
            &[waiting("a"), running("b")],
            PodPhase::Pending,
            "false | ContainersNotReady | containers with unready status: [a]",
        ),
        (
            &[done("i"), waiting("s")],
            &[waiting("a")],
            PodPhase::Pending,
            "false | ContainersNotReady | containers with unknown status: [b], containers with unready status: [s a]",
        ),
        (
            &side,
            &[done("a")],
            PodPhase::Succeeded,
            "false | ContainersNotReady | containers with unknown status: [b]",
        ),
    ];
    for (init, regular, phase, expected) in rows {
        let parts = Parts {
            resources: None,
            pod: &pod,
            phase,
            init,
            regular,
        };
        assert_eq!(text(&containers_ready(parts)), expected);
    }
}

#[test]
fn readiness_waits_for_its_gates() {
    let pod = pod();
    let status: PodStatus = serde_json::from_value(json!({"conditions": [
        {"type": "x/one", "status": "False"},
    ]}))
    .unwrap();
    let list = status.conditions.unwrap();
    assert_eq!(
        text(&ready(&pod, &Verdict::TRUE, &list)),
        "false | ReadinessGatesNotReady | the status of pod readiness gate \"x/one\" is not \"True\", but False, \
         corresponding condition of pod readiness gate \"x/two\" does not exist."
    );
    let not = Verdict::because(false, "ContainersNotReady");
    assert_eq!(ready(&pod, &not, &list), not);
    let open: Vec<_> = ["x/one", "x/two"]
        .into_iter()
        .map(|name| Verdict::TRUE.condition(name, None))
        .collect();
    assert_eq!(ready(&pod, &Verdict::TRUE, &open), Verdict::TRUE);
}

#[test]
fn restarting_all_rows() {
    for (phase, asked, expected) in [
        (PodPhase::Succeeded, true, "false | PodCompleted"),
        (PodPhase::Failed, true, "false | PodFailed"),
        (
            PodPhase::Running,
            true,
            "true | RestartAllContainersStarted | container exited with restart policy rule",
        ),
        (PodPhase::Running, false, "false"),
    ] {
        assert_eq!(text(&restarting(phase, asked)), expected);
    }
}
