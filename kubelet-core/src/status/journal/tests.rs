use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use super::{Change, Journal, StatusChange, StatusReader};
use crate::ids::PodUid;
use crate::pod::testing::record;
use crate::status::StatusUpdate;

fn put(journal: &Journal, name: &str) -> u64 {
    let pod = record(json!({"metadata": {"uid": name}, "spec": {"containers": []}}));
    journal.modify(&PodUid::from(name), |_, next| {
        (
            Change::Put(StatusUpdate::new(Arc::new(pod), Arc::new(PodStatus::default()), next)),
            next,
        )
    })
}

fn read(reader: &mut StatusReader) -> Vec<(String, u64, bool)> {
    std::iter::from_fn(|| reader.try_next())
        .map(|change| {
            let update = change.update();
            let forgotten = matches!(change, StatusChange::Forgotten(_));
            (update.pod.uid().to_string(), update.version, forgotten)
        })
        .collect()
}

#[test]
fn a_reader_gets_the_newest_of_each_pod_and_then_what_changes() {
    let journal = Journal::default();
    put(&journal, "a");
    put(&journal, "b");
    put(&journal, "a");
    let mut reader = journal.reader();
    assert_eq!(
        read(&mut reader),
        [("b".to_owned(), 2, false), ("a".to_owned(), 3, false)]
    );
    put(&journal, "b");
    put(&journal, "b");
    assert_eq!(read(&mut reader), [("b".to_owned(), 5, false)]);
    assert!(read(&mut reader).is_empty());
}

#[test]
fn a_forgotten_pod_is_kept_until_all_readers_have_passed_it() {
    let journal = Journal::default();
    let (mut fast, slow) = (journal.reader(), journal.reader());
    put(&journal, "a");
    journal.forget(&PodUid::from("a"));
    assert!(journal.get(&PodUid::from("a")).is_none());
    assert_eq!(read(&mut fast), [("a".to_owned(), 1, true)]);
    assert_eq!(journal.lock().entries.len(), 1);
    drop(slow);
    let state = journal.lock();
    assert!(state.entries.is_empty() && state.changes.is_empty() && state.tombs.is_empty());
}

#[test]
fn without_readers_nothing_is_kept_of_a_forgotten_pod() {
    let journal = Journal::default();
    put(&journal, "a");
    journal.forget(&PodUid::from("a"));
    assert!(journal.lock().entries.is_empty());
    // The number of a change is never used again.
    assert_eq!(put(&journal, "a"), 3);
}

#[tokio::test]
async fn a_waiting_reader_is_woken_by_a_change() {
    let journal = Journal::default();
    let mut reader = journal.reader();
    let (change, _) = tokio::join!(reader.next(), async { put(&journal, "a") });
    assert_eq!(change.unwrap().update().version, 1);
    drop(journal);
    assert!(reader.next().await.is_none());
}
