//! Writes records. Synchronous, for the small process that holds a container's pipes.

use std::io::{self, Write};

use k8s_openapi::jiff::Timestamp;

use super::record::LogStream;

/// Longest content of one record in bytes; longer lines go on in further records.
///
/// Source: containerd 2 and CRI-O, whose default line limit is 16 KiB.
pub const MAX_RECORD_CONTENT: usize = 16 * 1024;

/// Turns the output of a container into records of the container runtime interface's log format.
///
/// A line is held back until its line feed, or [`MAX_RECORD_CONTENT`] bytes, have come, so that the
/// two streams do not cut each other's lines apart. Every call hands whole records to the file in
/// one write.
#[derive(Debug)]
#[must_use = "lines that have not ended are lost without `finish`"]
pub struct LogWriter<W> {
    out: W,
    stdout: Pending,
    stderr: Pending,
    /// The file ends within a record, after a write that failed.
    torn: bool,
}

/// The beginning of a line, and when its first byte came.
#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    since: Option<Timestamp>,
}

impl<W: Write> LogWriter<W> {
    /// Writes to `out`, which should be a file opened for appending.
    pub fn new(out: W) -> Self {
        Self {
            out,
            stdout: Pending::default(),
            stderr: Pending::default(),
            torn: false,
        }
    }

    /// Takes output that arrived at `now`.
    ///
    /// # Errors
    /// What the file says. The records of this call are lost then, and the next successful call
    /// starts on a new line, so that a full disk costs records and never the format.
    pub fn write(&mut self, stream: LogStream, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let mut records = Vec::new();
        let pending = self.pending(stream);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            pending.take(stream, piece, now, &mut records);
        }
        self.put(&records)
    }

    /// Writes the beginnings of lines that have not ended, as partial records. What follows
    /// continues them.
    ///
    /// Called when a stream has been quiet (a prompt without a line feed should show), and by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn flush_partial(&mut self, now: Timestamp) -> io::Result<()> {
        let mut records = Vec::new();
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            let pending = self.pending(stream);
            if !pending.bytes.is_empty() {
                let content = std::mem::take(&mut pending.bytes);
                push_record(&mut records, pending.since.take().unwrap_or(now), stream, 'P', &content);
            }
        }
        self.put(&records)
    }

    /// Ends the log once both streams have ended. A last line without line feed stays without one
    /// when it is read.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(mut self, now: Timestamp) -> io::Result<()> {
        self.flush_partial(now)?;
        self.out.flush()
    }

    /// Goes on in another file, after the log was rotated, and gives back the old one. Held back
    /// beginnings of lines go to the new file.
    pub fn reopen(&mut self, out: W) -> W {
        self.torn = false;
        std::mem::replace(&mut self.out, out)
    }

    fn pending(&mut self, stream: LogStream) -> &mut Pending {
        match stream {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr => &mut self.stderr,
        }
    }

    fn put(&mut self, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        if self.torn {
            self.put_all(b"\n")?;
        }
        self.put_all(records)
    }

    /// Like `write_all`, but knows after an error whether the file ends within a line.
    fn put_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.out.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    self.torn = bytes[taken - 1] != b'\n';
                    bytes = &bytes[taken..];
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }
}

impl Pending {
    /// Takes bytes that hold no line feed but at their end.
    fn take(&mut self, stream: LogStream, piece: &[u8], now: Timestamp, records: &mut Vec<u8>) {
        let (mut content, full) = match piece.strip_suffix(b"\n") {
            Some(content) => (content, true),
            None => (piece, false),
        };
        loop {
            let room = MAX_RECORD_CONTENT - self.bytes.len();
            if content.len() <= room {
                break;
            }
            let (now_full, rest) = content.split_at(room);
            self.bytes.extend_from_slice(now_full);
            push_record(records, self.since.take().unwrap_or(now), stream, 'P', &self.bytes);
            self.bytes.clear();
            content = rest;
        }
        self.bytes.extend_from_slice(content);
        if full {
            push_record(records, self.since.take().unwrap_or(now), stream, 'F', &self.bytes);
            self.bytes.clear();
        } else if !self.bytes.is_empty() {
            self.since.get_or_insert(now);
        }
    }
}

fn push_record(records: &mut Vec<u8>, at: Timestamp, stream: LogStream, tag: char, content: &[u8]) {
    records.extend_from_slice(format!("{at:.9} {} {tag} ", stream.as_str()).as_bytes());
    records.extend_from_slice(content);
    records.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use k8s_openapi::jiff::Timestamp;

    use super::{LogWriter, MAX_RECORD_CONTENT};
    use crate::logs::LogStream::{Stderr, Stdout};

    const T0: &str = "2026-01-02T03:04:05.000000000Z";

    fn at(nanosecond: i32) -> Timestamp {
        Timestamp::new(1_767_323_045, nanosecond).unwrap()
    }

    fn written(write: impl FnOnce(&mut LogWriter<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        let mut writer = LogWriter::new(&mut out);
        write(&mut writer);
        writer.finish(at(9)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_become_records() {
        let text = written(|writer| writer.write(Stdout, b"a\n\nb b\n", at(0)).unwrap());
        assert_eq!(text, format!("{T0} stdout F a\n{T0} stdout F \n{T0} stdout F b b\n"));
    }

    #[test]
    fn streams_keep_their_lines_apart() {
        let text = written(|writer| {
            writer.write(Stdout, b"one ", at(0)).unwrap();
            writer.write(Stderr, b"oops\n", at(1)).unwrap();
            writer.write(Stdout, b"line\nrest", at(2)).unwrap();
        });
        assert_eq!(
            text,
            "2026-01-02T03:04:05.000000001Z stderr F oops\n2026-01-02T03:04:05.000000000Z stdout F one line\n\
             2026-01-02T03:04:05.000000002Z stdout P rest\n"
        );
    }

    #[test]
    fn long_lines_are_split() {
        for (extra, tags) in [
            (0, "F"),
            (1, "PF"),
            (MAX_RECORD_CONTENT, "PF"),
            (MAX_RECORD_CONTENT + 1, "PPF"),
        ] {
            let line = "x".repeat(MAX_RECORD_CONTENT + extra) + "\n";
            let text = written(|writer| writer.write(Stdout, line.as_bytes(), at(0)).unwrap());
            let got: String = text.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
            assert_eq!(got, tags, "{extra}");
            assert!(
                text.lines()
                    .all(|line| line.rsplit(' ').next().unwrap().len() <= MAX_RECORD_CONTENT)
            );
        }
    }

    #[test]
    fn a_failed_write_does_not_spoil_the_next_record() {
        /// Takes a few bytes, then is full until it is emptied.
        struct Full(Vec<u8>, usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let taken = bytes.len().min(self.1);
                self.1 -= taken;
                self.0.extend_from_slice(&bytes[..taken]);
                if taken == 0 {
                    Err(io::ErrorKind::StorageFull.into())
                } else {
                    Ok(taken)
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = LogWriter::new(Full(Vec::new(), 10));
        writer.write(Stdout, b"lost\n", at(0)).unwrap_err();
        writer.out.1 = 1000;
        writer.write(Stdout, b"kept\n", at(0)).unwrap();
        let text = String::from_utf8(writer.reopen(Full(Vec::new(), 0)).0).unwrap();
        assert_eq!(text, format!("2026-01-02\n{T0} stdout F kept\n"));
    }
}
