//! Statuses as lines of JSON.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PodStatus;
use serde::Serialize;

use crate::clock::Clock;
use crate::ids::PodUid;
use crate::pod::PodRecord;
use crate::status::{Published, StatusSink, StatusUpdate};

/// When a line that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Writes each version of a status as one line of JSON, and one when a pod leaves the node.
///
/// ```json
/// {"time":"2026-01-01T00:00:00Z","namespace":"default","name":"web","uid":"…","phase":"Running","version":7,"finished":false,"status":{…}}
/// {"time":"2026-01-01T00:00:09Z","uid":"…","forgotten":true}
/// ```
///
/// Lines are written and flushed one after another on a blocking thread, so that a slow writer holds up only this sink. A
/// line that cannot be written is logged and written again after 10 seconds, with the newest version then. What was written
/// of it by then stays, as a line that is no JSON.
pub struct JsonLinesSink<W> {
    lines: Arc<Mutex<Lines<W>>>,
    clock: Arc<dyn Clock>,
}

struct Lines<W> {
    writer: W,
    /// The last line may have been cut off in the middle.
    torn: bool,
}

impl<W: Write> Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if std::mem::replace(&mut self.torn, true) {
            self.writer.write_all(b"\n")?;
        }
        self.writer.write_all(line)?;
        self.writer.flush()?;
        self.torn = false;
        Ok(())
    }
}

impl<W> fmt::Debug for JsonLinesSink<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLinesSink").finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    namespace: &'a str,
    name: &'a str,
    uid: &'a PodUid,
    phase: Option<&'a str>,
    version: u64,
    finished: bool,
    status: &'a PodStatus,
}

#[derive(Serialize)]
struct Farewell<'a> {
    time: String,
    uid: &'a PodUid,
    forgotten: bool,
}

impl<W: Write + Send + 'static> JsonLinesSink<W> {
    /// Writes to `writer`, with times from `clock`.
    pub fn new(writer: W, clock: Arc<dyn Clock>) -> Self {
        Self {
            lines: Arc::new(Mutex::new(Lines { writer, torn: false })),
            clock,
        }
    }

    fn time(&self) -> String {
        self.clock.now().to_string()
    }

    async fn write(&self, line: Result<Vec<u8>, serde_json::Error>) -> io::Result<()> {
        let mut line = line?;
        line.push(b'\n');
        let lines = self.lines.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.write(&line)
        });
        written.await.map_err(io::Error::other)?
    }
}

fn not_written(pod: Option<&PodRecord>, uid: &PodUid, error: &io::Error) {
    let pod = pod.map(|pod| pod.key().to_string());
    tracing::warn!(pod, pod_uid = %uid, error = error as &dyn std::error::Error, "status line not written");
}

#[async_trait]
impl<W: Write + Send + 'static> StatusSink for JsonLinesSink<W> {
    async fn publish(&self, update: &StatusUpdate) -> Published {
        let key = update.pod.key();
        let line = serde_json::to_vec(&Line {
            time: self.time(),
            namespace: &key.namespace,
            name: &key.name,
            uid: update.pod.uid(),
            phase: update.status.phase.as_deref(),
            version: update.version,
            finished: update.finished,
            status: &update.status,
        });
        match self.write(line).await {
            Ok(()) => Published::Accepted,
            Err(error) => {
                not_written(Some(&update.pod), update.pod.uid(), &error);
                Published::Retry(RETRY)
            }
        }
    }

    async fn forget(&self, uid: &PodUid) {
        let line = serde_json::to_vec(&Farewell {
            time: self.time(),
            uid,
            forgotten: true,
        });
        if let Err(error) = self.write(line).await {
            not_written(None, uid, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::PodStatus;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::JsonLinesSink;
    use crate::clock::TokioClock;
    use crate::pod::testing::record;
    use crate::status::{Published, StatusSink, StatusUpdate};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn update() -> StatusUpdate {
        let pod = record(json!({"spec": {"containers": []}}));
        let status = PodStatus {
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        };
        StatusUpdate::new(Arc::new(pod), Arc::new(status), 7)
    }

    #[tokio::test(start_paused = true)]
    async fn each_version_is_one_line() {
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let (written, update) = (Shared::default(), update());
        let sink = JsonLinesSink::new(written.clone(), clock.clone());
        assert_eq!(sink.publish(&update).await, Published::Accepted);
        sink.forget(update.pod.uid()).await;
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &mut lines {
            assert!(
                line.as_object_mut()
                    .unwrap()
                    .remove("time")
                    .unwrap()
                    .as_str()
                    .unwrap()
                    .starts_with("1970")
            );
        }
        assert_eq!(
            lines,
            [
                json!({"namespace": "default", "name": "pod", "uid": "uid-1", "phase": "Running", "version": 7,
                    "finished": false, "status": {"phase": "Running"}}),
                json!({"uid": "uid-1", "forgotten": true}),
            ]
        );
        let sink = JsonLinesSink::new(Full, clock);
        assert!(matches!(sink.publish(&update).await, Published::Retry(_)));
    }
}
