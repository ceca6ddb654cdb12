//! What reaches the person: events, log lines and the statuses of pods, on a terminal or as plain lines.

use std::io::{self, Write};

use kubelet_core::{Event, EventSink, EventSubject};
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How many lines may wait to be shown; what comes beyond that is dropped, so that nothing waits for a slow terminal.
const CAPACITY: usize = 4096;

/// Takes lines from anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Lines(mpsc::Sender<String>);

impl Lines {
    pub(crate) fn channel() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self(sender), receiver)
    }

    fn say(&self, line: String) {
        let _ = self.0.try_send(line);
    }
}

impl EventSink for Lines {
    fn record(&self, event: Event) {
        let about = match &event.subject {
            EventSubject::Pod { key, field_path, .. } => match field_path {
                Some(field) => format!("pod {key} {field}"),
                None => format!("pod {key}"),
            },
            EventSubject::Manifest(origin) => format!("manifest {origin}"),
            _ => "node".to_owned(),
        };
        self.say(format!(
            "{:7} {about}: {}: {}",
            event.event_type.as_str(),
            event.reason,
            event.message
        ));
    }
}

/// One line of a log on its way to the screen.
#[derive(Debug)]
pub(crate) struct LogLine {
    lines: Lines,
    text: Vec<u8>,
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.text);
        self.lines.say(text.trim_end().to_owned());
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = LogLine;

    fn make_writer(&self) -> LogLine {
        LogLine {
            lines: self.clone(),
            text: Vec::new(),
        }
    }
}

/// Sends what the libraries log to the screen: warnings, or what `RUST_LOG` asks for.
pub(crate) fn show_logs(lines: Lines) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(false)
        .with_writer(lines)
        .init();
}
