//! Reads and follows the log of one container.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::assemble::{Assembler, Flow};
use super::error::LogError;
use super::file::LogFile;
use super::record::LogStream;
use super::watch::{RECHECK, Watch};

/// Bytes read from the file at once, and about the size of a chunk.
const READ_BYTES: usize = 32 * 1024;

/// A longer line is no record: runtimes split at a small fraction of this.
const MAX_LINE: usize = 1 << 20;

/// What of a log is shown. The default is everything there is, without times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogOptions {
    /// Wait for more until the container has ended.
    pub follow: bool,
    /// Start so many records before the end; a line that was split counts once per part. 0 shows
    /// nothing, or only what comes from now on. Without `follow` reading also ends after so many
    /// records.
    pub tail_lines: Option<u64>,
    /// Skip records older than this. Applied after `tail_lines`.
    pub since: Option<Timestamp>,
    /// End after exactly so many bytes, times included, even within a line.
    pub limit_bytes: Option<u64>,
    /// Begin each line with its time, nine digits of fraction, and a space.
    pub timestamps: bool,
    /// Only this output; none means both.
    pub stream: Option<LogStream>,
}

/// Tells a follower whether more can come.
#[async_trait]
pub trait LogLiveness: std::fmt::Debug + Send + Sync + 'static {
    /// Whether the container may still write. Asked at most once a second.
    ///
    /// Says yes when that is not known, as when the runtime does not answer: a wrong no ends the
    /// log too early.
    ///
    /// # Cancellation
    /// Dropped when the reader goes; nothing must depend on the answer.
    async fn still_running(&self) -> bool;
}

/// The [`LogLiveness`] of a container that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerEnded;

#[async_trait]
impl LogLiveness for ContainerEnded {
    async fn still_running(&self) -> bool {
        false
    }
}

/// Reads the log of one container, chunk by chunk.
///
/// Follows over rotation: when the name leads to another file, the old one is read to its end
/// first. Files that were rotated away before are not read. A file that shrinks is read again from
/// its start.
///
/// Needs a tokio runtime with time and, to follow on Linux, I/O enabled. Holds one open file, two
/// while it changes over.
#[derive(Debug)]
#[must_use = "a reader does nothing until it is asked for chunks"]
pub struct LogReader {
    path: PathBuf,
    follow: bool,
    liveness: Arc<dyn LogLiveness>,
    assembler: Assembler,
    file: LogFile,
    /// Bytes of `file` read so far, and those of them that are no whole line yet.
    offset: u64,
    buffer: Vec<u8>,
    /// Within a line that is too long to be a record.
    skipping: bool,
    watch: Option<Watch>,
    /// The file that has taken over the name, once it is in use.
    successor: Option<LogFile>,
    asked: Option<Instant>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    /// The container has ended: read the rest once.
    Finishing,
    Done,
}

impl LogReader {
    /// Opens the log at `path`, following links once, and finds the place to start.
    ///
    /// `liveness` is asked only when following.
    ///
    /// # Errors
    /// [`LogError::NotFound`] without a file, [`LogError::Io`] if it cannot be opened.
    pub async fn open(path: &Path, options: LogOptions, liveness: Arc<dyn LogLiveness>) -> Result<Self, LogError> {
        let resolved = tokio::fs::canonicalize(path)
            .await
            .map_err(|err| LogError::io("find", path, err))?;
        let file = LogFile::open(&resolved)
            .await
            .map_err(|err| LogError::io("open", path, err))?;
        let offset = match options.tail_lines {
            Some(lines) => file
                .tail_offset(lines)
                .await
                .map_err(|err| LogError::io("read", path, err))?,
            None => 0,
        };
        let follow = options.follow;
        let assembler = Assembler::new(options);
        let state = if assembler.is_done() {
            State::Done
        } else {
            State::Reading
        };
        Ok(Self {
            path: resolved,
            follow,
            liveness,
            assembler,
            file,
            offset,
            buffer: Vec::new(),
            skipping: false,
            watch: None,
            successor: None,
            asked: None,
            state,
        })
    }

    /// The next piece of output, never empty; `None` at the end. After an error there is nothing
    /// more.
    ///
    /// # Errors
    /// [`LogError::Format`] if the file is no log, [`LogError::Io`] if it cannot be read.
    ///
    /// # Cancellation
    /// Cancel-safe: no output is lost or repeated when the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Bytes, LogError>> {
        match self.try_next().await {
            Ok(chunk) => chunk.map(Ok),
            Err(err) => {
                self.state = State::Done;
                Some(Err(err))
            }
        }
    }

    /// The same as a stream; an error item is the last.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, LogError>> + Send + 'static {
        futures::stream::unfold(self, |mut reader| async move {
            reader.next().await.map(|item| (item, reader))
        })
    }

    async fn try_next(&mut self) -> Result<Option<Bytes>, LogError> {
        // Each await stands alone: what it brings is stored before the next one, so a dropped call
        // loses nothing.
        while self.state != State::Done {
            let bytes = self
                .file
                .read_at(self.offset, READ_BYTES)
                .await
                .map_err(|err| self.io("read", err))?;
            if !bytes.is_empty() {
                self.offset += bytes.len() as u64;
                self.buffer.extend_from_slice(&bytes);
                if let Some(chunk) = self.take_lines()? {
                    return Ok(Some(chunk));
                }
            } else if let Some(chunk) = self.at_end().await? {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// At the end of the file: changes over, finishes, or waits.
    async fn at_end(&mut self) -> Result<Option<Bytes>, LogError> {
        if !self.follow {
            return self.finish();
        }
        if self.watch.is_none() {
            // Watch first and look again after, or what is written in between would wait a second.
            self.watch = self.path.parent().map(Watch::new);
            return Ok(None);
        }
        if let Some(next) = self.successor.take() {
            // The old file was read to its end after its successor came into use: nothing can
            // follow.
            let rest = self.take_rest()?;
            self.file = next;
            self.offset = 0;
            return Ok(rest);
        }
        if self.look_for_successor().await? {
            return Ok(None);
        }
        if self.file.len().await.map_err(|err| self.io("look at", err))? < self.offset {
            // Cut short in place, by some rotation that copies and truncates.
            self.offset = 0;
            self.buffer.clear();
            return Ok(None);
        }
        if self.state == State::Finishing {
            return self.finish();
        }
        if self.asked.is_none_or(|asked| asked.elapsed() >= RECHECK) {
            let running = self.liveness.still_running().await;
            self.asked = Some(Instant::now());
            if !running {
                self.state = State::Finishing;
                return Ok(None);
            }
        }
        if let Some(watch) = &mut self.watch {
            watch.changed().await;
        }
        Ok(None)
    }

    /// Looks whether another file has taken over. True if the old one should be read once more
    /// before changing over.
    ///
    /// An empty file is not in use: its writer may still be between creating it and turning away
    /// from the old one.
    async fn look_for_successor(&mut self) -> Result<bool, LogError> {
        let file = match LogFile::open(&self.path).await {
            Ok(file) if file.is_same(&self.file) => return Ok(false),
            Ok(file) => file,
            // Moved away, and the new file is not there yet; or the log is being removed.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(err) => return Err(self.io("reopen", err)),
        };
        if file.len().await.map_err(|err| self.io("look at", err))? == 0 {
            return Ok(false);
        }
        self.successor = Some(file);
        Ok(true)
    }

    fn finish(&mut self) -> Result<Option<Bytes>, LogError> {
        self.state = State::Done;
        let rest = self.take_rest()?;
        match self.assembler.end() {
            Ok(()) => Ok(rest),
            Err(source) => Err(LogError::Format {
                path: self.path.clone(),
                source,
            }),
        }
    }

    /// Shows the whole lines in the buffer.
    fn take_lines(&mut self) -> Result<Option<Bytes>, LogError> {
        let Some(end) = self.buffer.iter().rposition(|byte| *byte == b'\n') else {
            if self.buffer.len() > MAX_LINE {
                self.buffer.clear();
                self.skipping = true;
            }
            return Ok(None);
        };
        let tail = self.buffer.split_off(end + 1);
        let lines = std::mem::replace(&mut self.buffer, tail);
        self.show(&lines)
    }

    /// Shows a last record that is not complete and never will be.
    fn take_rest(&mut self) -> Result<Option<Bytes>, LogError> {
        let rest = std::mem::take(&mut self.buffer);
        let shown = if rest.is_empty() { Ok(None) } else { self.show(&rest) };
        self.skipping = false;
        shown
    }

    fn show(&mut self, lines: &[u8]) -> Result<Option<Bytes>, LogError> {
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            match self.assembler.line(line, &mut out) {
                Ok(Flow::More) => {}
                Ok(Flow::Done) => {
                    self.state = State::Done;
                    break;
                }
                Err(source) => {
                    return Err(LogError::Format {
                        path: self.path.clone(),
                        source,
                    });
                }
            }
        }
        Ok(Some(Bytes::from(out)).filter(|chunk| !chunk.is_empty()))
    }

    fn io(&self, op: &'static str, source: std::io::Error) -> LogError {
        LogError::io(op, &self.path, source)
    }
}

/// The end of a log as text: at most `max_lines` records, and of those the last `max_bytes` bytes.
///
/// The termination message of a failed container that left none takes 80 lines and 2048 bytes.
/// Bytes that are no UTF-8 are replaced, which may make the text longer.
///
/// Source: kubelet 1.36, `kuberuntime_container.go` (`readLastStringFromContainerLogs`).
///
/// # Errors
/// As [`LogReader::open`] and [`LogReader::next`].
pub async fn tail_of_log(path: &Path, max_lines: u64, max_bytes: usize) -> Result<String, LogError> {
    let options = LogOptions {
        tail_lines: Some(max_lines),
        ..LogOptions::default()
    };
    let mut reader = LogReader::open(path, options, Arc::new(ContainerEnded)).await?;
    let mut tail = Vec::new();
    while let Some(chunk) = reader.next().await {
        tail.extend_from_slice(&chunk?);
        tail.drain(..tail.len().saturating_sub(max_bytes));
    }
    // The cut may have gone through a character.
    let start = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    Ok(String::from_utf8_lossy(&tail[start..]).into_owned())
}
