//! Many pods at once: how long until all run, and how much processor time that takes, the fake's own included.

use std::time::Duration;

use tokio::time::Instant;

use crate::measure::{Row, cpu_time, real};
use crate::node::Node;
use crate::pods::{Weight, pods};
use crate::sizes::Sizes;

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    for count in &sizes.pods[1..] {
        for threads in [1, 2] {
            for (name, at_once) in [("one snapshot", true), ("one by one", false)] {
                let (took, cpu) = bring_up(*count, threads, at_once);
                tell(Row::new(
                    format!("burst: two containers each, {name}, {threads} threads"),
                    *count,
                    format!(
                        "{:.2} s, {:.2} CPU-seconds with the fake",
                        took.as_secs_f64(),
                        cpu.as_secs_f64()
                    ),
                ));
            }
        }
    }
}

fn bring_up(count: usize, threads: usize, at_once: bool) -> (Duration, Duration) {
    let pods = pods(Weight::Typical, 0, count);
    real(threads).block_on(async {
        let node = Node::with(Duration::from_secs(1), Vec::new()).await;
        let (begun, before) = (Instant::now(), cpu_time());
        if at_once {
            node.pods.set(pods).await.expect("the kubelet runs");
        } else {
            for pod in pods {
                node.pods.upsert(pod).await.expect("the kubelet runs");
            }
        }
        node.until_running(count).await;
        let took = (begun.elapsed(), cpu_time() - before);
        node.kill().await;
        took
    })
}
