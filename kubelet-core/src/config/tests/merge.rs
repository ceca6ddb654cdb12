//! What comes of snapshots, changes and removals.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::time::advance;

use super::{annotation_of, api, apply, config, config_of, file, manifest, messages, origin, said, snapshot};
use crate::ids::PodUid;
use crate::runtime::annotation;
use crate::source::{RawPod, Removed, SourceError, SourceItem};
use crate::state_dir::StateDir;

fn created(second: i64) -> impl FnOnce(&mut RawPod) {
    move |raw| raw.pod.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()))
}

fn phase(phase: &str) -> impl FnOnce(&mut RawPod) {
    let phase = phase.to_owned();
    move |raw| raw.pod.status.get_or_insert_with(PodStatus::default).phase = Some(phase)
}

fn label(value: &str) -> impl FnOnce(&mut RawPod) {
    let value = value.to_owned();
    move |raw| {
        raw.pod
            .metadata
            .labels
            .get_or_insert_default()
            .insert("l".to_owned(), value);
    }
}

fn deleted(raw: &mut RawPod) {
    raw.pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    raw.pod.metadata.deletion_grace_period_seconds = Some(5);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_told_in_the_order_of_the_kubelet() {
    let mut config = config(&StateDir::in_memory());
    let first = ["gone", "change", "end", "status", "same"].map(|name| api(name, name, |_| {}));
    let changes = apply(&mut config, "api", SourceItem::snapshot(first.into())).await;
    assert_eq!(
        said(&changes),
        ["+change=i", "+end=i", "+gone=i", "+same=i", "+status=i"]
    );
    advance(Duration::from_secs(9)).await;
    let second = vec![
        api("status", "status", phase("Running")),
        api("end", "end", deleted),
        api("change", "change", label("x")),
        api("same", "same", |raw| {
            raw.pod.metadata.resource_version = Some("2".to_owned())
        }),
        api("a2", "a2", created(2)),
        api("b1", "b1", created(1)),
    ];
    let changes = apply(&mut config, "api", SourceItem::snapshot(second)).await;
    assert_eq!(
        said(&changes),
        ["-gone=i", "+b1=i", "+a2=i", "~change=i", "!end=i", "?status=i"]
    );
    assert!(!changes.became_ready, "it was before");
    let seen = |uid: &str| annotation_of(config.pod(&PodUid::from(uid)).unwrap(), annotation::CONFIG_SEEN);
    assert_eq!(
        seen("change"),
        "1970-01-01T00:00:00.000000000Z",
        "local annotations stay"
    );
    assert_eq!(seen("a2"), "1970-01-01T00:00:09.000000000Z");
    assert_eq!(
        config.pod(&PodUid::from("status")).unwrap().api_phase(),
        Some("Running")
    );
}

#[tokio::test]
async fn local_annotations_of_a_source_are_no_change() {
    let mut config = config(&StateDir::in_memory());
    apply(&mut config, "api", SourceItem::snapshot(vec![api("u", "a", |_| {})])).await;
    for (name, expected) in [
        (annotation::CONFIG_SEEN, 0),
        (annotation::CONFIG_SOURCE, 0),
        (annotation::CONFIG_HASH, 1),
    ] {
        let raw = api("u", "a", |raw| {
            raw.pod
                .metadata
                .annotations
                .get_or_insert_default()
                .insert(name.to_owned(), "x".to_owned());
        });
        let changes = apply(&mut config, "api", SourceItem::Upsert(Box::new(raw))).await;
        assert_eq!(changes.changes.len(), expected, "{name}");
    }
    let mirror = api("m", "m", |raw| {
        raw.pod
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(annotation::CONFIG_MIRROR.to_owned(), "x".to_owned());
    });
    let changes = apply(&mut config, "api", SourceItem::Upsert(Box::new(mirror))).await;
    assert!(changes.changes.is_empty(), "mirror pods are not run");
}

#[tokio::test]
async fn single_pods_come_change_and_go() {
    let mut config = config(&StateDir::in_memory());
    let upsert = |raw| SourceItem::Upsert(Box::new(raw));
    let changes = apply(&mut config, "api", upsert(api("u", "a", |_| {}))).await;
    assert_eq!((said(&changes), changes.became_ready), (vec!["+a=i".to_owned()], false));
    assert_eq!(
        said(&apply(&mut config, "api", upsert(api("u", "a", label("x")))).await),
        ["~a=i"]
    );
    assert!(said(&apply(&mut config, "api", upsert(api("u", "a", label("x")))).await).is_empty());
    assert_eq!(
        said(&apply(&mut config, "api", upsert(api("u", "b", label("x")))).await),
        ["-a=i", "+b=i"]
    );
    let remove = |uid: &str| SourceItem::Remove(Removed::Uid(PodUid::from(uid)));
    assert!(
        said(&apply(&mut config, "file", remove("u")).await).is_empty(),
        "of another source"
    );
    assert_eq!(said(&apply(&mut config, "api", remove("u")).await), ["-b=i"]);
    apply(&mut config, "file", upsert(file("a", &manifest("a", "1")))).await;
    let changes = apply(&mut config, "file", SourceItem::Remove(Removed::Origin(origin("a")))).await;
    assert_eq!(said(&changes), ["-a=1"]);
    assert!(
        apply(&mut config, "unknown", SourceItem::snapshot(vec![]))
            .await
            .changes
            .is_empty()
    );
}

#[tokio::test]
async fn only_a_live_snapshot_makes_ready_and_stops() {
    let mut config = config_of(&StateDir::in_memory(), &["file"]);
    let remembered = |pods| SourceItem::Snapshot {
        pods,
        invalid: Vec::new(),
        remembered: true,
    };
    let old = file("a", &manifest("a", "old"));
    let changes = apply(&mut config, "file", remembered(vec![old.clone()])).await;
    assert_eq!(
        (said(&changes), changes.became_ready),
        (vec!["+a=old".to_owned()], false)
    );
    let changes = apply(&mut config, "file", remembered(vec![file("b", &manifest("b", "old"))])).await;
    assert_eq!(said(&changes), ["+b=old"]);
    let trouble = SourceItem::Trouble(SourceError::unreadable("/m", "gone"));
    let changes = apply(&mut config, "file", trouble.clone()).await;
    assert!(changes.changes.is_empty() && !changes.became_ready && !config.all_ready());
    let changes = apply(
        &mut config,
        "file",
        snapshot(vec![file("a", &manifest("a", "new"))], vec![]),
    )
    .await;
    assert_eq!(
        said(&changes),
        ["-a=old", "-b=old", "+a=new"]
            .map(str::to_owned)
            .to_vec()
            .tap_sorted(&changes)
    );
    assert!(changes.became_ready && config.all_ready());
    let changes = apply(&mut config, "file", remembered(vec![old])).await;
    assert!(changes.changes.is_empty(), "what is remembered comes too late");
    assert!(apply(&mut config, "file", trouble).await.changes.is_empty() && config.all_ready());
    assert_eq!(
        said(&apply(&mut config, "file", snapshot(vec![], vec![])).await),
        ["-a=new"]
    );
}

/// Removals are sorted by UID, which for static pods is a hash.
trait TapSorted {
    fn tap_sorted(self, like: &super::ConfigChanges) -> Vec<String>;
}

impl TapSorted for Vec<String> {
    fn tap_sorted(mut self, like: &super::ConfigChanges) -> Vec<String> {
        let order = said(like);
        self.sort_by_key(|word| order.iter().position(|other| other == word));
        self
    }
}

#[tokio::test]
async fn an_edit_is_a_new_static_pod_unless_its_uid_is_fixed() {
    let mut config = config(&StateDir::in_memory());
    let fixed = |name: &str, image: &str| {
        manifest(name, image).replace(&format!("{{name: {name}}}"), &format!("{{name: {name}, uid: u}}"))
    };
    let both = |a: &str, b: String| snapshot(vec![file("a", &manifest("a", a)), file("b", &b)], vec![]);
    apply(&mut config, "file", both("1", fixed("b", "1"))).await;
    assert_eq!(
        said(&apply(&mut config, "file", both("2", fixed("b", "1"))).await),
        ["-a=1", "+a=2"]
    );
    assert_eq!(
        said(&apply(&mut config, "file", both("2", fixed("b", "2"))).await),
        ["~b=2"]
    );
    assert_eq!(
        said(&apply(&mut config, "file", both("2", fixed("c", "2"))).await),
        ["-b=2", "+c=2"]
    );
    // A fixed UID also follows its manifest to another file.
    let moved = snapshot(
        vec![file("a", &manifest("a", "2")), file("z", &fixed("c", "2"))],
        vec![],
    );
    let changes = apply(&mut config, "file", moved).await;
    assert!(
        said(&changes).is_empty() && messages(&changes).is_empty(),
        "{:?}",
        said(&changes)
    );
}

#[tokio::test]
async fn unchecked_pods_of_an_embedder_are_defaulted_and_validated() {
    let mut config = config(&StateDir::in_memory());
    let mine = |image: &str| {
        let mut raw = api("u", "a", |raw| raw.checked = false);
        raw.pod.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
        SourceItem::Upsert(Box::new(raw))
    };
    let changes = apply(&mut config, "api", mine("x")).await;
    assert_eq!(said(&changes), ["+a=x"]);
    let pod = config.pod(&PodUid::from("u")).unwrap();
    assert_eq!(pod.spec().restart_policy.as_deref(), Some("Always"));
    assert_eq!(pod.spec().node_name.as_deref(), Some("node-1"));
    assert_eq!(pod.key().to_string(), "default/a", "a managed pod keeps its name");
    let changes = apply(&mut config, "api", mine(" ")).await;
    assert!(changes.changes.is_empty() && config.pod(&PodUid::from("u")).is_some());
    assert!(
        messages(&changes)[0].ends_with("; the last good version stays in force"),
        "{:?}",
        messages(&changes)
    );
}
