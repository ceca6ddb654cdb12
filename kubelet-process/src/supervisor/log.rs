//! Writes a container's log in the CRI format.
//!
//! `<RFC 3339 time> <stdout|stderr> <F|P> <content>`; `P` marks a piece of a line that goes on in the next record.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use kubelet_core::Clock;

/// Longer lines are cut. Source: what CRI runtimes do by default.
const LINE_LIMIT_BYTES: usize = 16 << 10;

/// A stream of a container's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The log of one container. Without a path, output is read and dropped.
#[derive(Debug)]
pub(crate) struct LogWriter<C> {
    path: Option<PathBuf>,
    file: Option<File>,
    clock: C,
    stdout_rest: Vec<u8>,
    stderr_rest: Vec<u8>,
}

impl<C: Clock> LogWriter<C> {
    pub(crate) fn open(path: Option<PathBuf>, clock: C) -> io::Result<Self> {
        let mut writer = Self {
            path,
            file: None,
            clock,
            stdout_rest: Vec::new(),
            stderr_rest: Vec::new(),
        };
        writer.reopen()?;
        Ok(writer)
    }

    /// Opens the path anew; on failure the file that was open is kept.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        self.file = Some(OpenOptions::new().append(true).create(true).mode(0o640).open(path)?);
        Ok(())
    }

    /// Takes output as it was read. A line without its end is kept until that comes, or the limit is reached.
    ///
    /// # Errors
    /// The log could not be written: this output is lost, later output is tried again.
    pub(crate) fn write(&mut self, stream: Stream, mut output: &[u8]) -> io::Result<()> {
        let mut rest = std::mem::take(self.rest(stream));
        let mut records = Vec::with_capacity(output.len() + 64);
        while !output.is_empty() {
            let room = LINE_LIMIT_BYTES - rest.len();
            let end = output.iter().take(room + 1).position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let (line, after) = output.split_at(end);
                self.record(&mut records, stream, "F", &rest, line);
                rest.clear();
                output = after.get(1..).unwrap_or_default();
            } else if output.len() > room {
                // More follows, so that this is really only a part.
                let (line, after) = output.split_at(room);
                self.record(&mut records, stream, "P", &rest, line);
                rest.clear();
                output = after;
            } else {
                rest.extend_from_slice(output);
                output = &[];
            }
        }
        if rest.is_empty() {
            // Most streams end their lines: keeps the memory of an idle supervisor small.
            rest = Vec::new();
        }
        *self.rest(stream) = rest;
        self.put(&records)
    }

    /// Writes what is left of a last line without an end.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let mut records = Vec::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(self.rest(stream));
            if !rest.is_empty() {
                // The reader takes `P` for "no newline yet", which is what happened. Source: conmon.
                self.record(&mut records, stream, "P", &rest, &[]);
            }
        }
        self.put(&records)
    }

    fn rest(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Stdout => &mut self.stdout_rest,
            Stream::Stderr => &mut self.stderr_rest,
        }
    }

    fn record(&self, records: &mut Vec<u8>, stream: Stream, tag: &str, rest: &[u8], line: &[u8]) {
        if self.path.is_none() {
            return;
        }
        let head = format!("{:.9} {} {tag} ", self.clock.now(), stream.name());
        records.extend_from_slice(head.as_bytes());
        records.extend_from_slice(rest);
        records.extend_from_slice(line);
        records.push(b'\n');
    }

    fn put(&mut self, records: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) if !records.is_empty() => file.write_all(records),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kubelet_core::{Clock, jiff::Timestamp};

    use super::{LINE_LIMIT_BYTES, LogWriter, Stream};

    #[derive(Debug)]
    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            "2026-01-02T03:04:05.5Z".parse().unwrap()
        }
    }

    fn written(writes: &[(Stream, &[u8])]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app/0.log");
        let mut log = LogWriter::open(Some(path.clone()), Fixed).unwrap();
        for (stream, output) in writes {
            log.write(*stream, output).unwrap();
        }
        log.finish().unwrap();
        std::fs::read_to_string(path)
            .unwrap()
            .replace("2026-01-02T03:04:05.500000000Z ", "")
    }

    #[test]
    fn each_line_is_one_record_and_streams_do_not_mix() {
        let log = written(&[
            (Stream::Stdout, b"one\ntw"),
            (Stream::Stderr, b"oops\n"),
            (Stream::Stdout, b"o\n\nlast"),
        ]);
        assert_eq!(
            log,
            "stdout F one\nstderr F oops\nstdout F two\nstdout F \nstdout P last\n"
        );
    }

    #[test]
    fn a_line_of_the_limit_is_whole_and_a_longer_one_is_cut() {
        let exact = vec![b'x'; LINE_LIMIT_BYTES];
        let log = written(&[(Stream::Stdout, &exact), (Stream::Stdout, b"\n")]);
        assert_eq!(log, format!("stdout F {}\n", "x".repeat(LINE_LIMIT_BYTES)));
        let log = written(&[(Stream::Stdout, &exact), (Stream::Stdout, b"yz\n")]);
        assert_eq!(log, format!("stdout P {}\nstdout F yz\n", "x".repeat(LINE_LIMIT_BYTES)));
    }
}
