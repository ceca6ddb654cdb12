//! Bad manifests, and what stays in force instead.

use std::sync::Arc;

use super::{api, apply, bad, config_of, file, manifest, messages, said, snapshot};
use crate::ids::PodKey;
use crate::manifest::decode_pod;
use crate::source::{InvalidManifest, Origin, RawPod, SourceError, SourceItem};
use crate::state_dir::{MemoryDisk, StateDir};

const SOURCES: &[&str] = &["file", "http"];

#[tokio::test]
async fn the_last_good_version_stays_over_restarts_until_its_origin_is_gone() {
    let disk = MemoryDisk::new();
    let state = StateDir::simulated(&disk);
    let mut config = config_of(&state, SOURCES);
    let good = || vec![file("a", &manifest("a", "1")), file("b", &manifest("b", "1"))];
    apply(&mut config, "file", snapshot(good(), vec![])).await;
    let one_bad = |message| snapshot(vec![file("b", &manifest("b", "1"))], vec![bad("a", message)]);
    let changes = apply(&mut config, "file", one_bad("line 3: no")).await;
    assert!(changes.changes.is_empty());
    assert_eq!(
        messages(&changes),
        ["/m/a: line 3: no; the last good version stays in force"]
    );
    assert!(
        apply(&mut config, "file", one_bad("line 3: no"))
            .await
            .events
            .is_empty(),
        "told once"
    );
    assert_eq!(
        apply(&mut config, "file", one_bad("line 4: no")).await.events.len(),
        1,
        "told when it changes"
    );
    apply(&mut config, "file", snapshot(good(), vec![])).await;
    assert_eq!(
        apply(&mut config, "file", one_bad("line 4: no")).await.events.len(),
        1,
        "and when it comes back"
    );
    let uids = |config: &super::PodConfig| config.pods().map(|pod| pod.uid().clone()).collect::<Vec<_>>();
    let before = uids(&config);

    disk.crash();
    let mut config = config_of(&state, SOURCES);
    let changes = apply(&mut config, "file", one_bad("line 4: no")).await;
    assert_eq!(said(&changes), ["+a=1", "+b=1"]);
    assert!(changes.became_ready && changes.events.len() == 1);
    assert_eq!(uids(&config), before, "the same pods, which go on running");
    // Invalid by validation instead of decoding.
    let refused = || file("a", &manifest("a", " "));
    let changes = apply(&mut config, "file", snapshot(vec![refused()], vec![bad("b", "no")])).await;
    assert!(changes.changes.is_empty(), "{:?}", said(&changes));
    let changes = apply(&mut config, "file", snapshot(vec![], vec![bad("b", "no")])).await;
    assert_eq!(said(&changes), ["-a=1"]);
    assert_eq!(state.list("sources/file").await.unwrap().len(), 1);

    let mut config = config_of(&state, SOURCES);
    let changes = apply(&mut config, "file", snapshot(vec![refused()], vec![])).await;
    assert!(changes.changes.is_empty(), "its origin was gone in between");
    assert!(state.list("sources/file").await.unwrap().is_empty());
}

#[tokio::test]
async fn single_items_fall_back_too() {
    let state = StateDir::in_memory();
    let mut config = config_of(&state, SOURCES);
    let upsert = |image| SourceItem::Upsert(Box::new(file("a", &manifest("a", image))));
    apply(&mut config, "file", upsert("1")).await;
    assert!(
        apply(&mut config, "file", SourceItem::Invalid(bad("a", "no")))
            .await
            .changes
            .is_empty()
    );
    let mut config = config_of(&state, SOURCES);
    let changes = apply(&mut config, "file", SourceItem::Invalid(bad("a", "no"))).await;
    assert_eq!((said(&changes), changes.became_ready), (vec!["+a=1".to_owned()], false));
    assert!(apply(&mut config, "file", upsert(" ")).await.changes.is_empty());
    assert_eq!(said(&apply(&mut config, "file", upsert("2")).await), ["-a=1", "+a=2"]);
}

/// Ends the machine after each step of an update in turn; then the manifest is bad.
#[tokio::test]
async fn a_crash_at_any_moment_leaves_a_good_version_that_was_told_of() {
    let one = || snapshot(vec![file("a", &manifest("a", "1"))], vec![]);
    let two = || snapshot(vec![file("a", &manifest("a", "2"))], vec![]);
    for after in 0..12 {
        let disk = MemoryDisk::new();
        let state = StateDir::simulated(&disk);
        let mut config = config_of(&state, SOURCES);
        apply(&mut config, "file", one()).await;
        disk.crash_after(after);
        let told = apply(&mut config, "file", two()).await;
        assert_eq!(said(&told), ["-a=1", "+a=2"], "a broken disk stops no pod");
        disk.crash();
        let mut config = config_of(&state, SOURCES);
        let changes = apply(&mut config, "file", snapshot(vec![], vec![bad("a", "no")])).await;
        let found = said(&changes);
        assert!(found == ["+a=1"] || found == ["+a=2"], "{found:?} after {after}");
        assert!(after < 7 || found == ["+a=2"], "kept before it is told of");
    }
}

#[tokio::test]
async fn a_full_disk_stops_no_pod() {
    let disk = MemoryDisk::new();
    disk.fill();
    let mut config = config_of(&StateDir::simulated(&disk), SOURCES);
    let changes = apply(
        &mut config,
        "file",
        snapshot(vec![file("a", &manifest("a", "1"))], vec![]),
    )
    .await;
    assert_eq!(said(&changes), ["+a=1"]);
}

fn item(index: usize, name: &str, image: &str) -> RawPod {
    let mut raw = RawPod::new(decode_pod(manifest(name, image).as_bytes()).unwrap().pod);
    raw.text = Some(Arc::from(manifest(name, image).into_bytes()));
    raw.origin = Some(Origin::Url("http://x".into(), index));
    raw
}

#[tokio::test]
async fn pods_that_move_in_a_list_go_on_and_a_bad_one_keeps_its_name() {
    let mut config = config_of(&StateDir::in_memory(), SOURCES);
    let list = vec![item(0, "a", "1"), item(1, "b", "1"), item(2, "c", "1")];
    assert_eq!(
        said(&apply(&mut config, "http", snapshot(list, vec![])).await),
        ["+a=1", "+b=1", "+c=1"]
    );
    let origin = Origin::Url("http://x".into(), 0);
    let error = SourceError::invalid("http://x", "no");
    let invalid = InvalidManifest::new(origin.clone(), Some(PodKey::new("default", "b")), error.clone());
    let changes = apply(&mut config, "http", snapshot(vec![item(1, "c", "1")], vec![invalid])).await;
    assert_eq!(said(&changes), ["-a=1"], "b stays in force under its new place");
    let unnamed = InvalidManifest::new(origin, None, error);
    let changes = apply(
        &mut config,
        "http",
        snapshot(vec![item(1, "b", "1"), item(2, "c", "1")], vec![unnamed]),
    )
    .await;
    assert!(
        said(&changes).is_empty() && changes.events.is_empty(),
        "{:?} {:?}",
        said(&changes),
        changes.events
    );
}

#[tokio::test]
async fn pods_without_a_text_are_not_kept() {
    let state = StateDir::in_memory();
    let mut config = config_of(&state, &["api"]);
    apply(&mut config, "api", SourceItem::snapshot(vec![api("u", "a", |_| {})])).await;
    assert!(state.list("sources/api").await.unwrap().is_empty());
}
