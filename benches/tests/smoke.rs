//! Tries all measurements at sizes at which they mean nothing, and tests what is counted and not timed.

use std::time::Duration;

use kubelet_benches::{Sizes, idle_hour, run};

#[test]
fn everything_can_be_measured() {
    let mut rows = 0;
    run(&Sizes::smoke(), &[], |_| rows += 1);
    assert!(rows > 20, "{rows} rows");
}

#[test]
fn volumes_can_be_measured_by_themselves() {
    let mut rows = Vec::new();
    run(&Sizes::smoke(), &["volumes".to_owned()], |row| {
        rows.push(row.to_string())
    });
    assert_eq!(rows.len(), 5);
    let is_told = |what: &str| rows.iter().any(|row| row.contains(what));
    // What tells of the pod itself, two of the ten, is put together at each sync, and nothing else is.
    assert!(is_told("2 volumes of ten looked at"), "{rows:?}");
}

#[test]
fn ten_thousand_idle_pods_make_no_calls_but_relists_and_no_status_writes_in_an_hour() {
    let seen = idle_hour(10_000, Duration::from_secs(3_600));
    assert_eq!((seen.calls, seen.writes), (0, 0));
}
