use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::stream::{BoxStream, StreamExt};
use proptest::prelude::{any, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::Ledger;
use crate::admission::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeFit, NodeView, Operation};
use crate::metrics::{MetricSet, MetricSource, MetricValue};
use crate::pod::PodRecord;
use crate::pod::testing::record;

fn node(cpu: &str) -> Arc<NodeView> {
    let mut node = NodeView::new("edge-7");
    node.allocatable.insert("cpu".into(), cpu.parse().unwrap());
    node.allocatable.insert("pods".into(), "100000".parse().unwrap());
    Arc::new(node)
}

fn ledger(cpu: &str) -> Ledger {
    Ledger::new(vec![Arc::new(NodeFit::default())], node(cpu))
}

fn pod_value(uid: &str, cpu: &str) -> Value {
    json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
    })
}

fn pod(uid: &str, cpu: &str) -> Arc<PodRecord> {
    Arc::new(record(pod_value(uid, cpu)))
}

fn reason(answer: &Admission) -> &str {
    match answer {
        Admission::Admit => "",
        Admission::Reject { reason, .. } | Admission::NotYet { reason, .. } => reason,
    }
}

fn admit(ledger: &Ledger, pod: &Arc<PodRecord>) -> String {
    reason(&ledger.admit(Operation::New, pod)).to_owned()
}

#[test]
fn a_rejected_pod_takes_nothing() {
    let ledger = ledger("1");
    assert_eq!(admit(&ledger, &pod("greedy", "1000000000000000m")), "OutOfcpu");
    assert_eq!(admit(&ledger, &pod("small", "20m")), "");
    assert_eq!(ledger.active().used()["cpu"].to_string(), "20m");
    let mut metrics = MetricSet::default();
    ledger.collect(&mut metrics);
    assert_eq!(
        metrics.get("kubelet_admission_rejections_total"),
        Some(&MetricValue::Counter(1))
    );
}

#[test]
fn finished_pods_take_nothing_after_a_restart() {
    let ledger = ledger("1");
    for index in 0..10 {
        let mut value = pod_value(&format!("done-{index}"), "900m");
        value["status"] = json!({"phase": if index % 2 == 0 { "Succeeded" } else { "Failed" }});
        assert_eq!(
            ledger.admit(Operation::Restored, &Arc::new(record(value))),
            Admission::Admit
        );
    }
    assert_eq!(
        ledger.admit(Operation::Restored, &pod("running", "900m")),
        Admission::Admit
    );
    assert_eq!(admit(&ledger, &pod("new", "100m")), "");
    assert_eq!(ledger.active().len(), 2);
}

#[test]
fn a_pod_that_is_in_is_asked_about_without_itself_and_replaced() {
    let ledger = ledger("1");
    assert_eq!(admit(&ledger, &pod("a", "800m")), "");
    assert_eq!(ledger.admit(Operation::Resize, &pod("a", "1")), Admission::Admit);
    assert_eq!(ledger.active().used()["cpu"].to_string(), "1");
    assert_eq!(reason(&ledger.admit(Operation::Resize, &pod("a", "1001m"))), "OutOfcpu");
    assert_eq!(ledger.active().used()["cpu"].to_string(), "1");
    assert!(ledger.replace(&pod("a", "5")) && !ledger.replace(&pod("b", "5")));
    assert_eq!(ledger.active().used()["cpu"].to_string(), "1");

    assert_eq!(admit(&ledger, &pod("b", "100m")), "OutOfcpu");
    let uid = pod("a", "1").uid().clone();
    assert_eq!((ledger.release(&uid), ledger.release(&uid)), (true, false));
    assert_eq!(admit(&ledger, &pod("b", "100m")), "");
}

#[test]
fn a_snapshot_stays_as_it_was_taken() {
    let ledger = ledger("1");
    admit(&ledger, &pod("a", "100m"));
    let before = ledger.active();
    admit(&ledger, &pod("b", "100m"));
    ledger.set_node(node("0"));
    assert_eq!((before.len(), ledger.active().len()), (1, 2));
    assert_eq!(admit(&ledger, &pod("c", "100m")), "OutOfcpu");
    assert_eq!(ledger.node().allocatable["cpu"].to_string(), "0");
}

/// Says what the pod's name says.
#[derive(Debug)]
struct AsNamed;

impl AdmitHandler for AsNamed {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        assert!(
            req.others.get(req.pod.uid()).is_none(),
            "a pod is not one of the others"
        );
        match &*req.pod.key().name {
            "later" => Admission::not_yet("Later", "not now"),
            "never" => Admission::reject("Never", "no"),
            "panic" => panic!("a fault of the handler"),
            _ => Admission::Admit,
        }
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        Some(futures::stream::iter([(), ()]).boxed())
    }
}

fn named(uid: &str, name: &str) -> Arc<PodRecord> {
    let mut value = pod_value(uid, "100m");
    value["metadata"]["name"] = json!(name);
    Arc::new(record(value))
}

#[test]
fn waiting_reserves_nothing_unless_the_containers_run() {
    let ledger = Ledger::new(vec![Arc::new(AsNamed)], node("1"));
    let pod = named("a", "later");
    assert_eq!(
        ledger.admit(Operation::New, &pod),
        Admission::not_yet("Later", "not now")
    );
    assert!(ledger.active().is_empty());
    assert_eq!(reason(&ledger.admit(Operation::Restored, &pod)), "Later");
    assert_eq!(ledger.active().used()["cpu"].to_string(), "100m");
    assert_eq!(reason(&ledger.admit(Operation::New, &pod)), "Later");
    assert_eq!(ledger.active().len(), 1, "what it holds it has");
}

#[test]
fn the_first_answer_that_is_no_consent_counts() {
    let ledger = Ledger::new(vec![Arc::new(AsNamed), Arc::new(NodeFit::default())], node("0"));
    assert_eq!(admit(&ledger, &named("a", "never")), "Never");
    assert_eq!(admit(&ledger, &named("a", "fine")), "OutOfcpu");
}

#[test]
fn a_handler_that_panics_leaves_the_ledger_as_it_was() {
    let ledger = Ledger::new(vec![Arc::new(AsNamed)], node("1"));
    assert_eq!(admit(&ledger, &named("a", "fine")), "");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        ledger.admit(Operation::Resize, &named("a", "panic"))
    }));
    assert!(panicked.is_err());
    assert_eq!(ledger.active().used()["cpu"].to_string(), "100m");
    assert_eq!(admit(&ledger, &named("b", "fine")), "");
}

#[tokio::test]
async fn changes_of_all_handlers_are_one_stream() {
    let handlers: Vec<Arc<dyn AdmitHandler>> = vec![Arc::new(AsNamed), Arc::new(NodeFit::default()), Arc::new(AsNamed)];
    assert_eq!(Ledger::new(handlers, node("1")).changes().count().await, 4);
    assert_eq!(ledger("1").changes().count().await, 0);
}

#[test]
fn of_two_pods_for_one_port_the_first_asked_about_gets_it() {
    let wanting = |uid: &str| {
        Arc::new(record(json!({
            "metadata": {"uid": uid},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
        })))
    };
    for _ in 0..100 {
        for (first, second) in [("a", "b"), ("b", "a")] {
            let ledger = ledger("1");
            assert_eq!(admit(&ledger, &wanting(first)), "");
            assert_eq!(admit(&ledger, &wanting(second)), "NodePorts");
            assert!(ledger.release(wanting(first).uid()));
            assert_eq!(admit(&ledger, &wanting(second)), "");
        }
    }
}

#[test]
fn room_is_kept_for_the_critical_pod_that_it_is_made_for() {
    let critical = |uid: &str, cpu: &str| {
        let mut value = pod_value(uid, cpu);
        value["spec"]["priority"] = json!(2_000_000_000);
        Arc::new(record(value))
    };
    let ledger = ledger("1");
    assert_eq!(admit(&ledger, &pod("a", "600m")), "");
    assert_eq!(admit(&ledger, &pod("b", "400m")), "");
    let urgent = critical("urgent", "500m");
    assert_eq!(admit(&ledger, &urgent), "OutOfcpu", "asked for an answer alone");
    let first = ledger.admit_or_preempt(Operation::New, &urgent);
    assert!(matches!(first.answer, Admission::NotYet { .. }), "{first:?}");
    let a = pod("a", "600m").uid().clone();
    assert_eq!((&first.victims, &first.awaited), (&vec![a.clone()], &vec![a.clone()]));
    assert!(!ledger.holds(urgent.uid()));
    // Asked again it waits for the same.
    let again = ledger.admit_or_preempt(Operation::New, &urgent);
    assert_eq!((again.victims.len(), &again.awaited), (0, &vec![a.clone()]));
    let late = ledger.admit(Operation::New, &pod("late", "200m"));
    assert!(matches!(late, Admission::Reject { .. }), "{late:?}");
    let other = ledger.admit_or_preempt(Operation::New, &critical("other", "600m"));
    assert_eq!(
        reason(&other.answer),
        "UnexpectedAdmissionError",
        "only 500m can be had: {other:?}"
    );

    assert!(ledger.release(&a));
    assert_eq!(
        ledger.admit_or_preempt(Operation::New, &urgent).answer,
        Admission::Admit
    );
    assert!(ledger.holds(urgent.uid()) && !ledger.give_up_on(&a, urgent.uid()));
    assert_eq!(ledger.active().used()["cpu"].to_string(), "900m");
    assert_eq!(admit(&ledger, &pod("late", "100m")), "");
    let mut metrics = MetricSet::default();
    ledger.collect(&mut metrics);
    assert_eq!(metrics.get("kubelet_preemptions"), Some(&MetricValue::Counter(1)));
}

proptest! {
    #[test]
    fn what_is_held_is_the_sum_and_never_more_than_there_is(
        steps in proptest::collection::vec((0u8..6, 1u32..800, any::<bool>()), 0..60),
    ) {
        let ledger = ledger("1");
        for (uid, cpu, stays) in steps {
            let pod = pod(&format!("u{uid}"), &format!("{cpu}m"));
            if stays {
                ledger.admit(Operation::New, &pod);
            } else {
                ledger.release(pod.uid());
            }
            let active = ledger.active();
            let fresh: ActivePods = active.iter().cloned().collect();
            prop_assert_eq!(active.used(), fresh.used());
            let most = "1".parse().unwrap();
            prop_assert_eq!(active.used().get("cpu").is_none_or(|used| *used <= most), true);
        }
    }
}
