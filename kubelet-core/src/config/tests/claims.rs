//! Several pods of one name.

use std::collections::{BTreeMap, BTreeSet};

use super::{PodChange, api, apply, config, config_of, file, manifest, messages, origin, said, snapshot};
use crate::ids::PodUid;
use crate::source::{Removed, SourceItem};
use crate::state_dir::StateDir;

#[tokio::test]
async fn within_a_source_the_first_origin_wins_whatever_came_first() {
    let (one, two) = (file("1", &manifest("x", "1")), file("2", &manifest("x", "2")));
    let mut config = config(&StateDir::in_memory());
    let changes = apply(&mut config, "file", snapshot(vec![two.clone(), one.clone()], vec![])).await;
    assert_eq!(said(&changes), ["+x=1"]);
    let message = messages(&changes)[0];
    assert!(
        message.starts_with("Error validating pod x-node-1_default("),
        "{message}"
    );
    assert!(
        message.ends_with(") from file due to duplicate pod name \"x-node-1\", ignoring"),
        "{message}"
    );
    let changes = apply(&mut config, "file", snapshot(vec![one.clone(), two.clone()], vec![])).await;
    assert!(
        changes.events.is_empty() && changes.changes.is_empty(),
        "it is said once"
    );
    assert_eq!(
        said(&apply(&mut config, "file", snapshot(vec![two.clone()], vec![])).await),
        ["-x=1", "+x=2"]
    );
    let changes = apply(&mut config, "file", snapshot(vec![one, two], vec![])).await;
    assert_eq!(
        (said(&changes), changes.events.len()),
        (vec!["-x=2".to_owned(), "+x=1".to_owned()], 1)
    );
}

#[tokio::test]
async fn between_sources_the_one_that_is_there_wins_until_it_goes() {
    let of_file = || snapshot(vec![file("1", &manifest("x", "file"))], vec![]);
    let of_http = || snapshot(vec![file("2", &manifest("x", "http"))], vec![]);
    for (first, second) in [("file", "http"), ("http", "file")] {
        let mut config = config_of(&StateDir::in_memory(), &["file", "http"]);
        let item = |source: &str| if source == "file" { of_file() } else { of_http() };
        apply(&mut config, first, item(first)).await;
        let changes = apply(&mut config, second, item(second)).await;
        assert!(changes.changes.is_empty() && changes.events.len() == 1 && changes.became_ready);
        let changes = apply(&mut config, first, snapshot(vec![], vec![])).await;
        assert_eq!(said(&changes), [format!("-x={first}"), format!("+x={second}")]);
        assert!(changes.events.is_empty());
    }
}

#[tokio::test]
async fn pods_without_origins_win_by_arrival_and_uids_are_unique() {
    let mut config = config(&StateDir::in_memory());
    let upsert = |uid: &str, name: &str| SourceItem::Upsert(Box::new(api(uid, name, |_| {})));
    apply(&mut config, "api", upsert("z", "x")).await;
    let changes = apply(&mut config, "api", upsert("a", "x")).await;
    assert!(changes.changes.is_empty() && changes.events.len() == 1);
    let changes = apply(&mut config, "api", SourceItem::Remove(Removed::Uid(PodUid::from("z")))).await;
    assert_eq!(said(&changes), ["-x=i", "+x=i"]);
    let fixed = manifest("q", "1").replace("{name: q}", "{name: q, uid: a}");
    let changes = apply(&mut config, "file", snapshot(vec![file("q", &fixed)], vec![])).await;
    assert!(said(&changes).is_empty(), "who is there keeps its UID too");
    assert!(messages(&changes)[0].ends_with("due to duplicate pod UID \"a\", ignoring"));
}

/// A pod that nobody disputes takes a short way. It must come out as the long one would have it.
#[tokio::test]
async fn what_changes_one_pod_is_what_settling_all_would_do() {
    let random = crate::clock::SeededRandom::new(7);
    let below = |limit: u64| crate::clock::RandomSource::next_u64(&random) % limit;
    for _ in 0..50 {
        let mut config = config_of(&StateDir::in_memory(), &["file", "api"]);
        let mut shown = BTreeMap::new();
        for _ in 0..40 {
            let source = if below(2) == 0 { "file" } else { "api" };
            let place = format!("{}", below(4));
            let item = if below(4) == 0 && source == "file" {
                SourceItem::Remove(Removed::Origin(origin(&place)))
            } else if below(4) == 0 {
                let uid = format!("{source}-pod-{}-{}", below(5), below(2));
                SourceItem::Remove(Removed::Uid(PodUid::from(uid)))
            } else {
                let name = format!("pod-{}", below(5));
                // A UID keeps its name and its source, as the contract of sources has it.
                let uid = format!("{source}-{name}-{}", below(2));
                let pod = api(&uid, &name, |raw| {
                    raw.origin = (source == "file").then(|| origin(&place));
                    raw.pod.metadata.labels = Some([("v".to_owned(), below(3).to_string())].into());
                });
                SourceItem::Upsert(Box::new(pod))
            };
            for change in apply(&mut config, source, item).await.changes {
                match change {
                    PodChange::Remove(pod) => assert!(shown.remove(pod.uid()).is_some()),
                    PodChange::Add(pod) => assert!(shown.insert(pod.uid().clone(), pod).is_none()),
                    PodChange::Update { new, .. } | PodChange::Delete(new) | PodChange::Reconcile(new) => {
                        assert!(shown.insert(new.uid().clone(), new).is_some());
                    }
                }
            }
            let mut events = Vec::new();
            let left = config.settle(&mut events);
            assert!(left.is_empty() && events.is_empty(), "{left:?} {events:?}");
            let pods: Vec<_> = config.pods().collect();
            assert!(pods.iter().map(|pod| pod.uid()).eq(shown.keys()));
            assert!(pods.iter().zip(shown.values()).all(|(a, b)| a.key() == b.key()));
            let names: BTreeSet<_> = pods.iter().map(|pod| pod.key()).collect();
            assert_eq!(names.len(), pods.len());
        }
    }
}
