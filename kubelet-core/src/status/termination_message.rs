//! What a container left behind to say why it ended.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::reasons::reason;
use crate::observation::ObservedContainer;
use crate::runtime::ContainerState;

const MAX_FILE_BYTES: u64 = 4096;
const MAX_LOG_BYTES: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// Enough for 80 lines of which 2048 bytes are shown, and for the longest line that runtimes write in one piece.
const LOG_WINDOW_BYTES: u64 = 64 * 1024;
/// The messages of all containers of a pod together.
const MAX_POD_BYTES: usize = 12288;

/// Reads what an ended container left behind, and gives its whole message: the runtime's, then `: `, then the last
/// 4096 bytes of its termination message file, or, where that has none and the container asked for it and failed, the
/// last 80 lines and 2048 bytes of its log. Cut to the container's share of the 12288 bytes that a pod's messages may have.
///
/// Nothing if the container has not ended or left nothing. A file that cannot be read becomes the text of the message.
/// Blocks on file reads; call it on a blocking thread, once per fresh observation, since it starts from that one's message.
///
/// Source: kubelet 1.36, `kuberuntime_container.go` and `status_manager.go`.
#[must_use]
pub fn read_termination_message(container: &ObservedContainer, containers_in_pod: usize) -> Option<String> {
    if container.state != ContainerState::Exited {
        return None;
    }
    let text = read_text(container)?;
    let mut message = if container.message.is_empty() {
        text
    } else {
        format!("{}: {text}", container.message)
    };
    cut_to(&mut message, share_of_message(containers_in_pod));
    Some(message)
}

/// How long the message of one container may be, in bytes.
pub(super) fn share_of_message(containers_in_pod: usize) -> usize {
    MAX_POD_BYTES / containers_in_pod.max(1)
}

/// Keeps the head of a text: at most so many bytes, and no part of a character.
pub(super) fn cut_to(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
}

fn read_text(container: &ObservedContainer) -> Option<String> {
    if let Some(path) = &container.termination_message_path {
        match read_tail(path, MAX_FILE_BYTES) {
            Ok(tail) if !tail.bytes.is_empty() => return Some(lossy(&tail.bytes)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Some(format!("Error on reading termination log {}: {error}", path.display())),
        }
    }
    let falls_back =
        container.fallback_to_logs && container.exit_code != 0 && container.reason != reason::CONTAINER_CANNOT_RUN;
    let log = container.log_path.as_deref().filter(|_| falls_back)?;
    tail_of_log(log).filter(|text| !text.is_empty())
}

/// The last lines of a log, as its container wrote them.
fn tail_of_log(path: &Path) -> Option<String> {
    let tail = read_tail(path, LOG_WINDOW_BYTES)
        .inspect_err(|error| tracing::debug!(path = %path.display(), %error, "log of an ended container is unreadable"))
        .ok()?;
    let mut lines: Vec<&[u8]> = tail.bytes.split_inclusive(|byte| *byte == b'\n').collect();
    // The first line of a window lacks its beginning; without it there is enough, unless it is the only one.
    if !tail.whole && lines.len() > 1 {
        lines.remove(0);
    }
    let skip = lines.len().saturating_sub(MAX_LOG_LINES);
    let text: Vec<u8> = lines[skip..].iter().flat_map(|line| content(line)).copied().collect();
    Some(lossy(&text[text.len().saturating_sub(MAX_LOG_BYTES)..]))
}

/// What the container wrote, without time, stream and tag: `<time> <stream> <tag> <text>`. Source: the CRI log format.
fn content(line: &[u8]) -> &[u8] {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(b"stdout" | b"stderr"), Some(tag), Some(text)) => {
            // Tag `P`: the line goes on in the next one.
            if tag.starts_with(b"P") {
                text.strip_suffix(b"\n").unwrap_or(text)
            } else {
                text
            }
        }
        _ => line,
    }
}

fn lossy(bytes: &[u8]) -> String {
    // A cut may have left the end of a character at the front.
    let start = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

struct Tail {
    bytes: Vec<u8>,
    /// There is nothing before it.
    whole: bool,
}

fn read_tail(path: &Path, bytes: u64) -> io::Result<Tail> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(bytes);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(Tail {
        bytes: tail,
        whole: start == 0,
    })
}

/// Opens a file that a container may have replaced: no link is followed out of its folder, and no pipe is waited for.
fn open_regular(path: &Path) -> io::Result<File> {
    let named = fs::symlink_metadata(path)?;
    if !named.file_type().is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != (named.dev(), named.ino()) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "replaced while it was opened"));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use k8s_openapi::jiff::Timestamp;

    use super::{cut_to, read_termination_message};
    use crate::ids::ContainerId;
    use crate::observation::ObservedContainer;
    use crate::runtime::ContainerState;

    fn ended(exit_code: i32) -> ObservedContainer {
        let mut container = ObservedContainer::new(
            ContainerId::from("c"),
            "app",
            ContainerState::Exited,
            Timestamp::UNIX_EPOCH,
        );
        container.exit_code = exit_code;
        container
    }

    #[test]
    fn the_end_of_the_file_follows_the_runtimes_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        fs::write(&path, format!("{}{}", "x".repeat(5000), "tail")).unwrap();
        let mut container = ended(0);
        container.termination_message_path = Some(path);
        container.message = "oom".to_owned();
        let message = read_termination_message(&container, 1).unwrap();
        assert_eq!(message.len(), "oom: ".len() + 4096);
        assert!(message.starts_with("oom: xxx") && message.ends_with("tail"));
        assert_eq!(read_termination_message(&container, 12288 / 7).unwrap(), "oom: xx");
        container.state = ContainerState::Running;
        assert_eq!(read_termination_message(&container, 1), None);
    }

    #[test]
    fn the_log_stands_in_only_for_a_failed_container_without_a_message() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        fs::write(
            &log,
            "2024-01-01T00:00:00Z stdout F one\n2024-01-01T00:00:00Z stderr P tw\n2024-01-01T00:00:00Z stderr F o\n",
        )
        .unwrap();
        let mut container = ended(1);
        container.log_path = Some(log);
        container.termination_message_path = Some(dir.path().join("absent"));
        assert_eq!(read_termination_message(&container, 1), None, "not asked for");
        container.fallback_to_logs = true;
        assert_eq!(read_termination_message(&container, 1).as_deref(), Some("one\ntwo\n"));
        container.reason = "ContainerCannotRun".to_owned();
        assert_eq!(read_termination_message(&container, 1), None);
        container.reason.clear();
        container.exit_code = 0;
        assert_eq!(read_termination_message(&container, 1), None);
    }

    #[test]
    fn of_a_long_log_the_last_lines_and_bytes_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let write = |lines: usize, text: &str| {
            let line = |i: usize| format!("2024-01-01T00:00:00.000000000Z stdout F {i:04} {text}\n");
            fs::write(&log, (0..lines).map(line).collect::<String>()).unwrap();
        };
        let mut container = ended(1);
        container.log_path = Some(log.clone());
        container.fallback_to_logs = true;
        write(5000, "short");
        let message = read_termination_message(&container, 1).unwrap();
        assert_eq!(message.lines().count(), 80);
        assert!(message.starts_with("4920 short") && message.ends_with("4999 short\n"));
        write(100, &"x".repeat(300));
        assert_eq!(read_termination_message(&container, 1).unwrap().len(), 2048);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let link = dir.path().join("message");
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let mut container = ended(0);
        container.termination_message_path = Some(link.clone());
        assert_eq!(
            read_termination_message(&container, 1).unwrap(),
            format!(
                "Error on reading termination log {}: not a regular file",
                link.display()
            )
        );
    }

    #[test]
    fn a_cut_keeps_whole_characters() {
        let mut text = "aé".to_owned();
        cut_to(&mut text, 2);
        assert_eq!(text, "a");
    }
}
