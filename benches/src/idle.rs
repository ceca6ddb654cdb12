//! What an idle node costs.

use std::time::Duration;

use crate::measure::{Row, cpu_time, real, simulated};
use crate::node::Node;
use crate::pods::{Weight, pods};
use crate::sizes::Sizes;

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    for count in &sizes.pods[..2] {
        for seconds in [1, 60] {
            let share = simulated().block_on(share_of_core(
                *count,
                Duration::from_secs(seconds),
                Duration::from_secs(300),
            ));
            tell(Row::new(
                format!("idle: simulated, relist every {seconds} s"),
                *count,
                format!("{:.3} % of a core with the fake", share * 100.0),
            ));
        }
        let watch = Duration::from_secs(sizes.watch_seconds);
        let share = real(1).block_on(share_of_core(*count, Duration::from_secs(1), watch));
        tell(Row::new(
            "idle: real time, relist every 1 s",
            *count,
            format!("{:.3} % of a core with the fake", share * 100.0),
        ));
    }
    let most = sizes.pods.last().copied().expect("at least two");
    simulated().block_on(idle_hour(most, Duration::from_secs(sizes.idle_seconds), tell));
}

async fn share_of_core(count: usize, period: Duration, watch: Duration) -> f64 {
    let node = Node::with(period, pods(Weight::Typical, 0, count)).await;
    tokio::time::sleep(Duration::from_secs(3).min(watch)).await;
    let before = cpu_time();
    tokio::time::sleep(watch).await;
    let share = (cpu_time() - before).as_secs_f64() / watch.as_secs_f64();
    node.kill().await;
    share
}

/// Counts what happens while nothing is to be done. Relists come every 10 s, so that it is over in time.
async fn idle_hour(count: usize, hour: Duration, tell: &mut dyn FnMut(Row)) {
    let before = cpu_time();
    let node = Node::with(Duration::from_secs(10), pods(Weight::Small, 0, count)).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let (calls, writes, idle_from) = (node.calls_but_relists(), node.writes.count(), cpu_time());
    tokio::time::sleep(hour).await;
    let (calls, writes) = (node.calls_but_relists() - calls, node.writes.count() - writes);
    tell(Row::new(
        format!("idle: {} s of simulated time", hour.as_secs()),
        count,
        format!(
            "{calls} calls but relists, {writes} status writes; {:.1} CPU-seconds, {:.1} to come up",
            (cpu_time() - idle_from).as_secs_f64(),
            (idle_from - before).as_secs_f64()
        ),
    ));
    node.kill().await;
}
