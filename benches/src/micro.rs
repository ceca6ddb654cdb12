//! Single decisions.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{
    ActionInputs, Admission, AdmitHandler, Ledger, NodeFit, Operation, PodConfig, PodObservation, PodRecord, RawPod,
    SourceItem, SourceKind, SourceName, StateDir, StatusInput, SystemClock, compute_pod_actions, generate_pod_status,
};

use crate::measure::{Row, cpu_time, simulated};
use crate::node::{self, Node};
use crate::pods::{Weight, pod, pods};
use crate::sizes::Sizes;

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    decisions(sizes, tell);
    for count in &sizes.pods {
        admission(*count, tell);
        mux(*count, tell);
        asking(*count, sizes.repeats / 100 + 1, tell);
    }
}

fn each(times: usize, mut work: impl FnMut()) -> Duration {
    let before = cpu_time();
    for _ in 0..times {
        work();
    }
    (cpu_time() - before) / u32::try_from(times).expect("few")
}

fn record(number: usize) -> Arc<PodRecord> {
    let pod = pod(Weight::Typical, number);
    Arc::new(PodRecord::new(&pod, SourceName::from("api"), SourceKind::Managed).expect("a good pod"))
}

fn decisions(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    let (record, observed, status) = simulated().block_on(async {
        let node = Node::with(Duration::from_secs(1), vec![pod(Weight::Typical, 0)]).await;
        let snapshot = node.handle.pods().pop().expect("one pod");
        let observed = node.handle.observed(snapshot.pod.uid()).expect("it was seen");
        let status = snapshot.status.expect("it runs");
        node.kill().await;
        (snapshot.pod, observed, status)
    });
    let (observed, status): (&PodObservation, &PodStatus) = (&observed, &status);
    let inputs = ActionInputs::new();
    let took = each(sizes.repeats, || {
        std::hint::black_box(compute_pod_actions(&record, observed, &inputs));
    });
    tell(Row::new(
        "micro: compute_pod_actions, settled",
        1,
        format!("{took:.1?}"),
    ));
    let input = StatusInput::new(&record, observed, status, "fake", Timestamp::UNIX_EPOCH);
    let took = each(sizes.repeats, || {
        std::hint::black_box(generate_pod_status(&input));
    });
    tell(Row::new(
        "micro: generate_pod_status, running",
        1,
        format!("{took:.1?}"),
    ));
    let raw = pod(Weight::Typical, 0);
    let took = each(sizes.repeats, || {
        let record = PodRecord::new(&raw, SourceName::from("api"), SourceKind::Managed);
        std::hint::black_box(record.is_ok());
    });
    tell(Row::new("micro: pod to record", 1, format!("{took:.1?}")));
}

fn admission(count: usize, tell: &mut dyn FnMut(Row)) {
    let handlers: Vec<Arc<dyn AdmitHandler>> = vec![Arc::new(NodeFit::default())];
    let ledger = Ledger::new(handlers, Arc::new(node::view()));
    let records: Vec<_> = (0..count).map(record).collect();
    for record in &records {
        assert_eq!(ledger.admit(Operation::New, record), Admission::Admit);
    }
    let more: Vec<_> = (count..count + 100).map(record).collect();
    let mut more = more.iter();
    let took = each(100, || {
        if let Some(record) = more.next() {
            ledger.admit(Operation::New, record);
        }
    });
    tell(Row::new("micro: admission of one more", count, format!("{took:.1?}")));
}

fn mux(count: usize, tell: &mut dyn FnMut(Row)) {
    let name = SourceName::from("api");
    let sources = [(name.clone(), SourceKind::Managed)];
    let clock = Arc::new(SystemClock);
    let mut config = PodConfig::new("node-1", clock, StateDir::in_memory(), Arc::new(|_| false), &sources);
    let pods = pods(Weight::Typical, 0, count);
    simulated().block_on(async {
        let before = cpu_time();
        for pod in pods {
            let changes = config
                .apply(&name, SourceItem::Upsert(Box::new(RawPod::new(pod))))
                .await;
            assert_eq!(changes.changes.len(), 1);
        }
        let took = (cpu_time() - before) / u32::try_from(count).expect("few");
        tell(Row::new(
            "micro: mux, a new pod, mean from none to all",
            count,
            format!("{took:.1?}"),
        ));
        let before = cpu_time();
        for number in 0..count {
            let mut pod = pod(Weight::Typical, number);
            pod.metadata
                .labels
                .get_or_insert_default()
                .insert("v".to_owned(), "2".to_owned());
            let changes = config
                .apply(&name, SourceItem::Upsert(Box::new(RawPod::new(pod))))
                .await;
            assert_eq!(changes.changes.len(), 1);
        }
        let took = (cpu_time() - before) / u32::try_from(count).expect("few");
        tell(Row::new(
            "micro: mux, a changed pod, with its decoding",
            count,
            format!("{took:.1?}"),
        ));
    });
}

/// What it costs to ask the handle.
fn asking(count: usize, times: usize, tell: &mut dyn FnMut(Row)) {
    simulated().block_on(async {
        let node = Node::with(Duration::from_secs(1), pods(Weight::Small, 0, count)).await;
        let uid = node.handle.pods().pop().expect("some pod").pod.uid().clone();
        let all = each(times, || {
            std::hint::black_box(node.handle.pods());
        });
        let one = each(times, || {
            std::hint::black_box(node.handle.pod(&uid));
        });
        tell(Row::new(
            "micro: handle, all pods and one pod",
            count,
            format!("{all:.1?} and {one:.1?}"),
        ));
        node.kill().await;
    });
}
