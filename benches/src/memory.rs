//! Memory per idle pod: what the kubelet holds at two sizes, and the slope between them.

use std::process::Command;
use std::time::Duration;

use crate::alloc::live_bytes;
use crate::measure::{Row, resident_bytes, simulated};
use crate::node::Node;
use crate::pods::{Weight, bytes_of_copy, pods};
use crate::sizes::Sizes;

/// Bytes with so many idle pods.
struct Held {
    /// By the kubelet alone: what is freed when it is dropped.
    kubelet: usize,
    /// By the process, the fake included.
    process: usize,
    resident: usize,
}

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    let (few, many) = (sizes.pods[0], sizes.pods[1]);
    let per_pod = |few_bytes: usize, many_bytes: usize| (many_bytes.saturating_sub(few_bytes)) / (many - few);
    for weight in [Weight::Small, Weight::Typical] {
        let name = weight.name();
        let copy = bytes_of_copy(weight);
        let (at_few, at_many) = (hold(weight, few), hold(weight, many));
        let live = per_pod(at_few.kubelet, at_many.kubelet);
        tell(Row::new(
            format!("memory: {name} pod, live bytes of the kubelet"),
            many,
            format!(
                "{live} B a pod, copy {copy} B, beside it {} B",
                i64::try_from(live).unwrap_or(i64::MAX) - i64::try_from(copy).unwrap_or(0)
            ),
        ));
        if sizes.processes {
            let (few_resident, many_resident) = (ask_process(weight, few), ask_process(weight, many));
            tell(Row::new(
                format!("memory: {name} pod, resident set with the fake"),
                many,
                format!(
                    "{} B a pod, where {} B are live with the fake",
                    per_pod(few_resident, many_resident),
                    per_pod(at_few.process, at_many.process)
                ),
            ));
        }
    }
    tell(Row::new(
        "memory: kubelet without pods, live bytes",
        0,
        format!("{} B", hold(Weight::Small, 0).kubelet),
    ));
}

/// Runs `<weight> <pods>` in this process, for the resident set that follows; bytes.
#[must_use]
pub fn resident_after(weight: &str, count: usize) -> usize {
    let weight = [Weight::Small, Weight::Typical]
        .into_iter()
        .find(|known| known.name() == weight)
        .expect("a known weight");
    hold(weight, count).resident
}

fn ask_process(weight: Weight, count: usize) -> usize {
    let itself = std::env::current_exe().expect("this program's own path");
    let output = Command::new(itself)
        .args(["--resident", weight.name(), &count.to_string()])
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().expect("a number")
}

fn hold(weight: Weight, count: usize) -> Held {
    simulated().block_on(async {
        let node = Node::with(Duration::from_secs(1), pods(weight, 0, count)).await;
        // Long enough for every pod to be synced again.
        tokio::time::sleep(Duration::from_secs(200)).await;
        let (process, resident) = (live_bytes(), resident_bytes());
        let fake = node.kill().await;
        let kubelet = process - live_bytes();
        drop(fake);
        Held {
            kubelet,
            process,
            resident,
        }
    })
}
