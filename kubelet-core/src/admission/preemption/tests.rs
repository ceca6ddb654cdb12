use std::sync::Arc;

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::{collection, option};
use serde_json::{Value, json};

use super::{PODS, choose_victims, may_push_out};
use crate::admission::{ActivePods, Shortage};
use crate::ids::{PodUid, SourceName};
use crate::pod::PodRecord;
use crate::pod::testing::record;
use crate::quantity::Quantity;
use crate::source::SourceKind;

const CRITICAL: i32 = 2_000_000_000;

/// A pod of that class that asks for so many thousandths of a CPU and bytes.
fn pod(uid: &str, class: char, cpu: i64, memory: i64, priority: Option<i32>) -> Arc<PodRecord> {
    let amounts = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
    let resources = match class {
        'G' => json!({"requests": amounts, "limits": amounts}),
        'U' => json!({"requests": amounts}),
        _ => json!({}),
    };
    let mut spec: Value = json!({"containers": [{"name": "c", "resources": resources}]});
    if let Some(priority) = priority {
        spec["priority"] = json!(priority);
    }
    Arc::new(record(json!({"metadata": {"uid": uid}, "spec": spec})))
}

fn critical() -> Arc<PodRecord> {
    pod("critical", 'U', 1, 1, Some(CRITICAL))
}

fn missing(cpu: i64, memory: i64, pods: i64) -> Vec<Shortage> {
    let all = [(PODS, pods * 1000), ("cpu", cpu), ("memory", memory * 1000)];
    let short = all.into_iter().filter(|(_, milli)| *milli > 0);
    short
        .map(|(name, milli)| {
            let format = crate::quantity::QuantityFormat::DecimalSi;
            Shortage::new(name, Quantity::from_milli(milli, format))
        })
        .collect()
}

fn chosen(shortages: &[Shortage], pods: &[Arc<PodRecord>]) -> Result<String, String> {
    let active: ActivePods = pods.iter().cloned().collect();
    match choose_victims(&critical(), shortages, &active) {
        Ok(victims) => Ok(victims.iter().map(PodUid::as_str).collect::<Vec<_>>().join(" ")),
        Err(uncovered) => Err(uncovered.to_string()),
    }
}

#[test]
fn the_cheapest_go_and_of_them_the_nearest() {
    type Given = (&'static str, char, i64, i64);
    type Case<'a> = (&'a str, (i64, i64, i64), &'a [Given], &'a str);
    let table: &[Case<'_>] = &[
        (
            "a Burstable one before a Guaranteed one",
            (100, 0, 0),
            &[("g", 'G', 100, 1), ("u", 'U', 100, 1), ("b", 'B', 0, 0)],
            "u",
        ),
        (
            "a Guaranteed one only beside all others that help",
            (250, 0, 0),
            &[("g", 'G', 100, 1), ("u", 'U', 100, 1), ("v", 'U', 100, 1)],
            "g u v",
        ),
        (
            "one Guaranteed of two",
            (250, 0, 0),
            &[("g", 'G', 300, 1), ("h", 'G', 200, 1), ("u", 'U', 50, 1)],
            "h u",
        ),
        (
            "what a Guaranteed one leaves over spares the cheaper ones",
            (250, 0, 0),
            &[("g", 'G', 300, 1), ("u", 'U', 100, 1)],
            "g",
        ),
        (
            "the place of a pod: BestEffort is enough",
            (0, 0, 1),
            &[("g", 'G', 1, 1), ("u", 'U', 1, 1), ("b", 'B', 0, 0)],
            "b",
        ),
        (
            "the one that is enough, though it is larger",
            (100, 0, 0),
            &[("u", 'U', 60, 1), ("v", 'U', 60, 1), ("w", 'U', 900, 9)],
            "w",
        ),
        (
            "the nearest first",
            (100, 0, 0),
            &[("u", 'U', 30, 1), ("v", 'U', 60, 1), ("w", 'U', 50, 1)],
            "v w",
        ),
        (
            "of two alike the one with less memory, then with less CPU, then the first",
            (100, 0, 0),
            &[
                ("u", 'U', 110, 2),
                ("v", 'U', 300, 1),
                ("w", 'U', 200, 1),
                ("x", 'U', 200, 1),
            ],
            "w",
        ),
        (
            "each resource weighs by how much of it is missing",
            (100, 1_000_000, 0),
            &[("u", 'U', 90, 1), ("v", 'U', 1, 500_000), ("w", 'U', 10, 999_999)],
            "u w",
        ),
        (
            "one that later ones make needless stays",
            (100, 100, 0),
            &[("u", 'U', 80, 80), ("v", 'U', 100, 10), ("w", 'U', 10, 100)],
            "v w",
        ),
        ("nobody where nothing is missing", (0, 0, 0), &[("b", 'B', 0, 0)], ""),
    ];
    for (what, (cpu, memory, pods), given, expected) in table {
        let given: Vec<_> = given
            .iter()
            .map(|(uid, class, cpu, memory)| pod(uid, *class, *cpu, *memory, None))
            .collect();
        let got = chosen(&missing(*cpu, *memory, *pods), &given);
        assert_eq!(got.as_deref(), Ok(*expected), "{what}");
    }
}

#[test]
fn nobody_goes_where_all_together_are_not_enough() {
    let pods = [
        pod("u", 'U', 100, 1, None),
        pod("g", 'G', 100, 5, None),
        pod("x", 'U', 900, 900, Some(CRITICAL)),
    ];
    assert_eq!(
        chosen(&missing(1201, 3, 9), &pods).unwrap_err(),
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to \
         preempt: no set of running pods found to reclaim resources: [(res: pods, q: 7), (res: cpu, q: 1001), ]"
    );
}

#[test]
fn who_may_push_out_whom() {
    let of = |priority| pod("p", 'U', 1, 1, priority);
    let static_pod = |priority: Option<i32>| {
        let spec = match priority {
            Some(priority) => json!({"containers": [], "priority": priority}),
            None => json!({"containers": []}),
        };
        let value = json!({"metadata": {"uid": "s", "name": "s", "namespace": "default"}, "spec": spec});
        PodRecord::new(
            &serde_json::from_value(value).unwrap(),
            SourceName::from("file"),
            SourceKind::Static,
        )
        .unwrap()
    };
    for (one, other, expected) in [
        (of(Some(CRITICAL)), of(None), true),
        (of(Some(CRITICAL)), of(Some(CRITICAL - 1)), true),
        (of(Some(CRITICAL)), of(Some(CRITICAL)), false),
        (of(Some(CRITICAL + 1000)), of(Some(CRITICAL)), true),
        (of(Some(CRITICAL)), of(Some(CRITICAL + 1000)), false),
        (of(Some(CRITICAL - 1)), of(Some(0)), false),
        (of(None), of(None), false),
        (static_pod(None).into(), of(Some(CRITICAL - 1)), true),
        (static_pod(None).into(), of(Some(CRITICAL)), false),
        (static_pod(None).into(), static_pod(None).into(), false),
        (static_pod(Some(1)).into(), static_pod(Some(0)).into(), true),
        (of(Some(CRITICAL)), static_pod(None).into(), false),
        (of(Some(CRITICAL)), static_pod(Some(5)).into(), true),
    ] {
        let told = |pod: &PodRecord| (pod.is_static(), pod.spec().priority);
        assert_eq!(
            may_push_out(&one, &other),
            expected,
            "{:?} {:?}",
            told(&one),
            told(&other)
        );
    }
}

fn arbitrary_pods() -> impl Strategy<Value = Vec<Arc<PodRecord>>> {
    let class = (0usize..3).prop_map(|at| ['G', 'U', 'B'][at]);
    let priority = option::of(proptest::sample::select(vec![0, CRITICAL - 1, CRITICAL, CRITICAL + 1]));
    let pod = (class, 0i64..50, 0i64..50, priority);
    collection::vec(pod, 0..12).prop_map(|pods| {
        let numbered = pods.into_iter().enumerate();
        numbered
            .map(|(at, (class, cpu, memory, priority))| self::pod(&format!("u{at:02}"), class, cpu, memory, priority))
            .collect()
    })
}

proptest! {
    #[test]
    fn victims_suffice_and_none_of_them_is_needless(
        pods in arbitrary_pods(),
        (cpu, memory, count) in (0i64..200, 0i64..200, 0i64..5),
        seed in any::<u64>(),
    ) {
        let shortages = missing(cpu, memory, count);
        let active: ActivePods = pods.iter().cloned().collect();
        let frees = |uids: &[PodUid]| {
            let sum = |name: &str| {
                let held = uids.iter().filter_map(|uid| active.held_by(uid, name));
                held.fold(Quantity::ZERO, |sum, held| sum.saturating_add(held))
            };
            let uncovered = |short: &&Shortage| match short.resource.as_str() {
                PODS => short.missing.value() > uids.len() as i64,
                name => short.missing > sum(name),
            };
            !shortages.iter().any(|short| uncovered(&short))
        };
        let may_go: Vec<PodUid> = pods
            .iter()
            .filter(|pod| may_push_out(&critical(), pod))
            .map(|pod| pod.uid().clone())
            .collect();
        let result = choose_victims(&critical(), &shortages, &active);
        prop_assert_eq!(result.is_ok(), frees(&may_go));

        let mut shuffled = pods.clone();
        for at in (1..shuffled.len()).rev() {
            shuffled.swap(at, (seed.rotate_left(at as u32) % (at as u64 + 1)) as usize);
        }
        let again = choose_victims(&critical(), &shortages, &shuffled.into_iter().collect());
        prop_assert_eq!(&again, &result);

        let Ok(victims) = result else { return Ok(()) };
        prop_assert!(victims.iter().all(|victim| may_go.contains(victim)));
        prop_assert!(frees(&victims));
        for needed in &victims {
            let rest: Vec<PodUid> = victims.iter().filter(|uid| *uid != needed).cloned().collect();
            prop_assert!(!frees(&rest), "{needed} is needless");
        }
    }
}
