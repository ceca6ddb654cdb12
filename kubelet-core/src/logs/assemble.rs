//! From the lines of a log file to what a reader is shown. Pure: no file, no clock.

use super::reader::LogOptions;
use super::record::{LogFormat, LogRecord, RecordError};

/// So many lines at the start of a log may be damaged (a crash or a full disk tears records) before
/// it counts as no log.
const MAX_DAMAGED_START: u32 = 16;

/// Whether reading goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    More,
    /// A limit was reached; nothing more is shown.
    Done,
}

/// Picks records, marks them with times and cuts them at the limits.
#[derive(Debug)]
pub(super) struct Assembler {
    options: LogOptions,
    format: Option<LogFormat>,
    damaged: u32,
    first_damage: Option<RecordError>,
    /// The last thing shown ended a line. Shared by both streams, as they share one output.
    at_line_start: bool,
    bytes_left: Option<u64>,
    records_left: Option<u64>,
}

impl Assembler {
    pub(super) fn new(options: LogOptions) -> Self {
        Self {
            format: None,
            damaged: 0,
            first_damage: None,
            at_line_start: true,
            bytes_left: options.limit_bytes,
            // While following, the tail is only where to start.
            records_left: options.tail_lines.filter(|_| !options.follow),
            options,
        }
    }

    /// Whether a limit of nothing was asked for.
    pub(super) fn is_done(&self) -> bool {
        self.bytes_left == Some(0) || self.records_left == Some(0)
    }

    /// Takes one line, with its line feed if it has one, and appends what is shown of it.
    ///
    /// # Errors
    /// When the beginning of the file is in no known format. Later lines that are no records are
    /// skipped.
    pub(super) fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<Flow, RecordError> {
        let parsed = match self.format {
            Some(format) => LogRecord::parse(format, line),
            None => LogFormat::detect(line).and_then(|format| {
                self.format = Some(format);
                LogRecord::parse(format, line)
            }),
        };
        match parsed {
            Ok(record) => Ok(self.record(&record, out)),
            Err(why) => {
                self.damaged = self.damaged.saturating_add(1);
                self.first_damage.get_or_insert(why);
                match self.format {
                    None if self.damaged >= MAX_DAMAGED_START => self.end().map(|()| Flow::Done),
                    _ => {
                        tracing::debug!(error = %why, "skipping a line of a log that is no record");
                        Ok(Flow::More)
                    }
                }
            }
        }
    }

    /// Says at the end of a file whether it was a log.
    ///
    /// # Errors
    /// When there were lines, and none was a record.
    pub(super) fn end(&self) -> Result<(), RecordError> {
        match (self.format, self.first_damage) {
            (None, Some(why)) => Err(why),
            _ => Ok(()),
        }
    }

    fn record(&mut self, record: &LogRecord<'_>, out: &mut Vec<u8>) -> Flow {
        // A tail counts records of the file, shown or not.
        if let Some(left) = &mut self.records_left {
            *left = left.saturating_sub(1);
        }
        let wanted = self.options.since.is_none_or(|since| record.timestamp >= since)
            && self.options.stream.is_none_or(|stream| record.stream == stream);
        if wanted && !record.content.is_empty() {
            if self.options.timestamps && self.at_line_start {
                self.show(record.shown_time().as_bytes(), out);
                self.show(b" ", out);
            }
            self.show(&record.content, out);
            self.at_line_start = record.content.ends_with(b"\n");
        }
        if self.is_done() { Flow::Done } else { Flow::More }
    }

    fn show(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let shown = match &mut self.bytes_left {
            None => bytes,
            Some(left) => {
                let len = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= len as u64;
                &bytes[..len]
            }
        };
        out.extend_from_slice(shown);
    }
}

#[cfg(test)]
mod tests {
    use super::{Assembler, Flow};
    use crate::logs::{LogOptions, LogStream};

    const LOG: &str = "2026-01-01T00:00:01Z stdout F one\n\
                       2026-01-01T00:00:02Z stdout P tw\n\
                       2026-01-01T00:00:03Z stderr F oops\n\
                       not a record\n\
                       2026-01-01T00:00:04Z stdout F o\n";

    fn shown(log: &str, set: impl FnOnce(&mut LogOptions)) -> String {
        let mut options = LogOptions::default();
        set(&mut options);
        let mut assembler = Assembler::new(options);
        let mut out = Vec::new();
        for line in log.split_inclusive('\n') {
            if assembler.is_done() || assembler.line(line.as_bytes(), &mut out).unwrap() == Flow::Done {
                break;
            }
        }
        assembler.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn partial_records_form_lines() {
        assert_eq!(shown(LOG, |_| {}), "one\ntwoops\no\n");
        assert_eq!(
            shown(LOG, |options| options.stream = Some(LogStream::Stdout)),
            "one\ntwo\n"
        );
        assert_eq!(shown(LOG, |options| options.stream = Some(LogStream::Stderr)), "oops\n");
    }

    #[test]
    fn times_stand_at_line_starts_only() {
        assert_eq!(
            shown(LOG, |options| options.timestamps = true),
            "2026-01-01T00:00:01.000000000Z one\n2026-01-01T00:00:02.000000000Z twoops\n2026-01-01T00:00:04.000000000Z o\n"
        );
    }

    #[test]
    fn limits_cut_exactly() {
        assert_eq!(shown(LOG, |options| options.limit_bytes = Some(5)), "one\nt");
        assert_eq!(shown(LOG, |options| options.limit_bytes = Some(0)), "");
        let set = |options: &mut LogOptions| {
            options.limit_bytes = Some(33);
            options.timestamps = true;
        };
        assert_eq!(shown(LOG, set), "2026-01-01T00:00:01.000000000Z on");
        assert_eq!(shown(LOG, |options| options.tail_lines = Some(2)), "one\ntw");
        assert_eq!(
            shown(LOG, |options| options.since =
                Some("2026-01-01T00:00:03Z".parse().unwrap())),
            "oops\no\n"
        );
    }

    #[test]
    fn damage_at_the_start_is_forgiven_and_other_files_are_not() {
        let set = |_: &mut LogOptions| {};
        assert_eq!(shown(&format!("torn\n{LOG}"), set), shown(LOG, set));
        let mut assembler = Assembler::new(LogOptions::default());
        assert_eq!(assembler.line(b"hello\n", &mut Vec::new()), Ok(Flow::More));
        assembler.end().unwrap_err();
        for _ in 0..14 {
            assembler.line(b"hello\n", &mut Vec::new()).unwrap();
        }
        assembler.line(b"hello\n", &mut Vec::new()).unwrap_err();
    }
}
