//! From a new pod to the runtime calls for it, beside so many others.

use std::time::Duration;

use kubelet_core::PodUid;
use kubelet_testing::{FakeRuntime, Op};
use tokio::time::Instant;

use crate::measure::{Row, middle_and_p99, real};
use crate::node::Node;
use crate::pods::{Weight, pod, pods};
use crate::sizes::Sizes;

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    for count in &sizes.pods {
        for threads in [1, 2] {
            let (sandbox, start) = react(*count, threads, sizes.samples);
            for (name, samples) in [("run_sandbox", sandbox), ("start_container", start)] {
                let (middle, p99) = middle_and_p99(samples);
                tell(Row::new(
                    format!("reaction: upsert to {name}, {threads} threads"),
                    *count,
                    format!("median {middle:.2?}, p99 {p99:.2?}"),
                ));
            }
        }
    }
}

fn react(count: usize, threads: usize, samples: usize) -> (Vec<Duration>, Vec<Duration>) {
    real(threads).block_on(async {
        let node = Node::with(Duration::from_secs(1), pods(Weight::Typical, 0, count)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (mut sandboxes, mut starts) = (Vec::new(), Vec::new());
        for number in count..count + samples {
            let pod = pod(Weight::Typical, number);
            let uid = PodUid::from(pod.metadata.uid.as_deref().expect("pods have one"));
            let begun = Instant::now();
            node.pods.upsert(pod).await.expect("the kubelet runs");
            // A period that shares no factor with the relist, so that all its phases are met.
            tokio::time::sleep(Duration::from_millis(23)).await;
            let started = first(&node.fake, &uid, Op::StartContainer).await;
            let made = first(&node.fake, &uid, Op::RunSandbox).await;
            let since = |at| (node.made + at).saturating_duration_since(begun);
            sandboxes.push(since(made));
            starts.push(since(started));
        }
        node.kill().await;
        (sandboxes, starts)
    })
}

/// When the first call of that kind for a pod began, by the fake's time. Waits until there is one.
async fn first(fake: &FakeRuntime, uid: &PodUid, op: Op) -> Duration {
    loop {
        let calls = fake.calls();
        let mut of_pod = calls.iter().filter(|call| call.subject.pod.as_ref() == Some(uid));
        if let Some(call) = of_pod.find(|call| call.op == op) {
            return call.at;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
