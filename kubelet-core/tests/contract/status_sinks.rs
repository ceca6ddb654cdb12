//! Sinks of statuses: a watch channel, lines of JSON, and one that is watched itself.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{JsonLinesSink, PodUid, SystemClock, WatchSink};
use kubelet_testing::CheckedStatusSink;
use kubelet_testing::contract::{StatusSinkFixture, now};
use serde_json::Value;

fn shown_by(sink: WatchSink) -> StatusSinkFixture {
    let shown = move |uid: PodUid| now(|| sink.get(&uid).map(|status| (*status).clone()));
    StatusSinkFixture::new().shown(shown).never_away().never_gone()
}

async fn watch() -> Option<(WatchSink, StatusSinkFixture)> {
    let sink = WatchSink::new();
    Some((sink.clone(), shown_by(sink)))
}

async fn checked() -> Option<(CheckedStatusSink<WatchSink>, StatusSinkFixture)> {
    let sink = WatchSink::new();
    Some((CheckedStatusSink::new(sink.clone()), shown_by(sink)))
}

/// A file on a disk that may be full.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<(Vec<u8>, bool)>>);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.0.lock().unwrap();
        if disk.1 {
            // Full in the middle of a line.
            let half = bytes.len() / 2;
            disk.0.extend_from_slice(&bytes[..half]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Disk {
    /// What a reader of lines makes of it, who leaves out those that are none.
    fn newest(&self, uid: &PodUid) -> Option<PodStatus> {
        let text = String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let newest = lines.rfind(|line| line["uid"] == uid.as_str())?;
        serde_json::from_value(newest.get("status")?.clone()).ok()
    }
}

async fn json_lines() -> Option<(JsonLinesSink<Disk>, StatusSinkFixture)> {
    let disk = Disk::default();
    let sink = JsonLinesSink::new(disk.clone(), Arc::new(SystemClock));
    let (down, up) = (disk.clone(), disk.clone());
    let fixture = StatusSinkFixture::new()
        .shown(move |uid| now(|| disk.newest(&uid)))
        .outage(
            move || now(|| down.0.lock().unwrap().1 = true),
            move || now(|| up.0.lock().unwrap().1 = false),
        )
        .never_gone();
    Some((sink, fixture))
}

mod of_a_watch_channel {
    kubelet_testing::status_sink_contract!(super::watch);
}

mod of_a_checked_sink {
    kubelet_testing::status_sink_contract!(super::checked);
}

mod of_json_lines {
    kubelet_testing::status_sink_contract!(super::json_lines);
}
