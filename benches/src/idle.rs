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
    let hour = Duration::from_secs(sizes.idle_seconds);
    let seen = idle_hour(most, hour);
    tell(Row::new(
        format!("idle: {} s of simulated time", hour.as_secs()),
        most,
        format!(
            "{} calls but relists, {} status writes; {:.1} CPU-seconds, {:.1} to come up",
            seen.calls,
            seen.writes,
            seen.idle.as_secs_f64(),
            seen.up.as_secs_f64()
        ),
    ));
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

/// What an idle node did, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdleHour {
    /// Calls of the runtime that are no relists.
    pub calls: u64,
    /// Writes to the status sink.
    pub writes: u64,
    /// CPU time of the coming up.
    pub up: Duration,
    /// CPU time of the hour.
    pub idle: Duration,
}

/// Counts what happens in so much simulated time in which nothing is to be done. Relists come every 10 s, so that it is
/// over in time.
#[must_use]
pub fn idle_hour(count: usize, hour: Duration) -> IdleHour {
    simulated().block_on(async {
        let before = cpu_time();
        let node = Node::with(Duration::from_secs(10), pods(Weight::Small, 0, count)).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let (calls, writes, idle_from) = (node.calls_but_relists(), node.writes.count(), cpu_time());
        tokio::time::sleep(hour).await;
        let seen = IdleHour {
            calls: node.calls_but_relists() - calls,
            writes: node.writes.count() - writes,
            up: idle_from - before,
            idle: cpu_time() - idle_from,
        };
        node.kill().await;
        seen
    })
}
