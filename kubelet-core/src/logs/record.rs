//! One record of a log: the container runtime interface's format, and Docker's.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

/// Which output a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl LogStream {
    /// `stdout` or `stderr`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        match name {
            "stdout" => Some(Self::Stdout),
            "stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// How a log file is written. A file has one format throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// `<RFC 3339 time> <stdout|stderr> <tag[:tag…]> <content>`.
    Cri,
    /// `{"log":"…","stream":"…","time":"…"}`.
    DockerJson,
}

/// One record: a line of a container's output, or a part of a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogRecord<'a> {
    /// When it was written.
    pub timestamp: Timestamp,
    /// The time as the file has it, with its own offset and precision.
    pub time_text: Cow<'a, str>,
    /// Where it came from.
    pub stream: LogStream,
    /// The output itself. It ends with a line feed unless the line goes on in the next record of
    /// the stream.
    pub content: Cow<'a, [u8]>,
}

/// Why a line is no record. The line is skipped, or, if it is the first, the file is no log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No time, or one that is not RFC 3339.
    #[error("the record starts with no time")]
    Time,
    /// Neither `stdout` nor `stderr`.
    #[error("the record names no stream")]
    Stream,
    /// Nothing after the stream.
    #[error("the record has no tag")]
    Tag,
    /// Not the JSON object that Docker writes.
    #[error("the record is no JSON log object")]
    Json,
}

impl LogFormat {
    /// Goes by the first line of a file.
    ///
    /// # Errors
    /// What the container runtime interface's format misses, if the line is in neither format.
    pub fn detect(line: &[u8]) -> Result<Self, RecordError> {
        match LogRecord::parse(Self::Cri, line) {
            Ok(_) => Ok(Self::Cri),
            Err(_) if LogRecord::parse(Self::DockerJson, line).is_ok() => Ok(Self::DockerJson),
            Err(err) => Err(err),
        }
    }
}

impl<'a> LogRecord<'a> {
    /// Reads one line of a file, with its line feed if it has one.
    ///
    /// Tolerant like upstream: fractions of a second may have any length, tags after the first are
    /// ignored, and any first tag but `P` (partial) means a full line.
    ///
    /// # Errors
    /// The part that is missing or malformed.
    pub fn parse(format: LogFormat, line: &'a [u8]) -> Result<Self, RecordError> {
        match format {
            LogFormat::Cri => Self::parse_cri(line),
            LogFormat::DockerJson => Self::parse_json(line),
        }
    }

    fn parse_cri(line: &'a [u8]) -> Result<Self, RecordError> {
        let (time, rest) = split_at_space(line).ok_or(RecordError::Time)?;
        let time_text = std::str::from_utf8(time).map_err(|_| RecordError::Time)?;
        let timestamp = time_text.parse().map_err(|_| RecordError::Time)?;
        let (stream, rest) = split_at_space(rest).ok_or(RecordError::Stream)?;
        let stream = std::str::from_utf8(stream)
            .ok()
            .and_then(LogStream::parse)
            .ok_or(RecordError::Stream)?;
        let (tags, content) = split_at_space(rest).ok_or(RecordError::Tag)?;
        let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        let content = if partial {
            content.strip_suffix(b"\n").unwrap_or(content)
        } else {
            content
        };
        Ok(Self {
            timestamp,
            time_text: Cow::Borrowed(time_text),
            stream,
            content: Cow::Borrowed(content),
        })
    }

    fn parse_json(line: &'a [u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Docker {
            #[serde(default)]
            log: String,
            #[serde(default)]
            stream: String,
            time: String,
        }
        let Docker { log, stream, time } = serde_json::from_slice(line).map_err(|_| RecordError::Json)?;
        Ok(Self {
            timestamp: time.parse().map_err(|_| RecordError::Time)?,
            time_text: Cow::Owned(time),
            stream: LogStream::parse(&stream).ok_or(RecordError::Stream)?,
            content: Cow::Owned(log.into_bytes()),
        })
    }

    /// The time in the form that log readers are shown: always nine digits of fraction, the offset
    /// as in the file.
    pub(super) fn shown_time(&self) -> String {
        let text = self.time_text.as_ref();
        // `2006-01-02T15:04:05`; whatever has another shape is shown in UTC.
        let parts = text
            .get(..19)
            .zip(text.get(19..))
            .filter(|(seconds, _)| seconds.as_bytes().get(10) == Some(&b'T'));
        let Some((seconds, rest)) = parts else {
            return format!("{:.9}", self.timestamp);
        };
        let (fraction, offset) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())),
            None => ("", rest),
        };
        let offset = match offset {
            "z" | "+00:00" | "-00:00" => "Z",
            offset => offset,
        };
        let fraction = fraction.get(..9).unwrap_or(fraction);
        format!("{seconds}.{fraction:0<9}{offset}")
    }
}

fn split_at_space(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::{LogFormat, LogRecord, LogStream, RecordError};

    #[test]
    fn records_are_read_in_both_formats() {
        for (line, format, stream, content) in [
            (
                "2016-10-06T00:17:09.669794202Z stdout F hello\n",
                LogFormat::Cri,
                LogStream::Stdout,
                "hello\n",
            ),
            (
                "2016-10-06T00:17:09Z stderr P hel\n",
                LogFormat::Cri,
                LogStream::Stderr,
                "hel",
            ),
            (
                "2016-10-06T02:17:09.1+02:00 stderr P:X:Y hel lo\n",
                LogFormat::Cri,
                LogStream::Stderr,
                "hel lo",
            ),
            (
                "2016-10-06T00:17:09Z stdout F:P x",
                LogFormat::Cri,
                LogStream::Stdout,
                "x",
            ),
            (
                "2016-10-06T00:17:09Z stdout F \n",
                LogFormat::Cri,
                LogStream::Stdout,
                "\n",
            ),
            (
                "2016-10-06T00:17:09Z stdout TAG  x\n",
                LogFormat::Cri,
                LogStream::Stdout,
                " x\n",
            ),
            (
                "{\"log\":\"hi\\n\",\"stream\":\"stderr\",\"time\":\"2016-10-06T00:17:09.5Z\",\"attrs\":{}}\n",
                LogFormat::DockerJson,
                LogStream::Stderr,
                "hi\n",
            ),
        ] {
            assert_eq!(LogFormat::detect(line.as_bytes()), Ok(format), "{line}");
            let record = LogRecord::parse(format, line.as_bytes()).unwrap();
            assert_eq!(
                (record.stream, &*record.content),
                (stream, content.as_bytes()),
                "{line}"
            );
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for (line, want) in [
            ("", RecordError::Time),
            ("\n", RecordError::Time),
            ("hello world\n", RecordError::Time),
            ("2016-10-06T00:17:09Z\n", RecordError::Time),
            ("2016-10-06T00:17:09Z stdin F x\n", RecordError::Stream),
            ("2016-10-06T00:17:09Z stdout\n", RecordError::Stream),
            ("2016-10-06T00:17:09Z stdout F\n", RecordError::Tag),
            ("{\"log\":\"x\"}\n", RecordError::Time),
        ] {
            assert_eq!(LogFormat::detect(line.as_bytes()), Err(want), "{line:?}");
        }
    }

    #[test]
    fn times_are_shown_with_nine_digits_and_their_offset() {
        for (time, want) in [
            ("2016-10-06T00:17:09.669794202Z", "2016-10-06T00:17:09.669794202Z"),
            ("2016-10-06T00:17:09.5Z", "2016-10-06T00:17:09.500000000Z"),
            ("2016-10-06T00:17:09Z", "2016-10-06T00:17:09.000000000Z"),
            ("2016-10-06T02:17:09.25+02:00", "2016-10-06T02:17:09.250000000+02:00"),
            ("2016-10-06T00:17:09+00:00", "2016-10-06T00:17:09.000000000Z"),
        ] {
            let line = format!("{time} stdout F x\n");
            assert_eq!(
                LogRecord::parse(LogFormat::Cri, line.as_bytes()).unwrap().shown_time(),
                want
            );
        }
    }
}
