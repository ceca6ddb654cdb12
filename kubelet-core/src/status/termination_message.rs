//! What a container left behind to say why it ended.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::reasons::reason;
use crate::logs::tail_of_log;
use crate::observation::ObservedContainer;
use crate::runtime::ContainerState;

const MAX_FILE_BYTES: u64 = 4096;
const MAX_LOG_BYTES: usize = 2048;
const MAX_LOG_LINES: u64 = 80;
/// The messages of all containers of a pod together.
const MAX_POD_BYTES: usize = 12288;

/// Reads what an ended container left behind, and gives its whole message: the runtime's, then `: `, then the last
/// 4096 bytes of its termination message file, or, where that has none and the container asked for it and failed, the
/// last 80 lines and 2048 bytes of its log. Cut to the container's share of the 12288 bytes that a pod's messages may have.
///
/// Nothing if the container has not ended or left nothing. A file that cannot be read becomes the text of the message.
/// To be called once per fresh observation, since it starts from that one's message.
///
/// Source: kubelet 1.36, `kuberuntime_container.go` and `status_manager.go`.
///
/// # Cancellation
/// A dropped call has no effect.
pub async fn read_termination_message(container: &ObservedContainer, containers_in_pod: usize) -> Option<String> {
    if container.state != ContainerState::Exited {
        return None;
    }
    let text = read_text(container).await?;
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

async fn read_text(container: &ObservedContainer) -> Option<String> {
    if let Some(path) = container.termination_message_path.clone() {
        let shown = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || read_tail(&path, MAX_FILE_BYTES)).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(tail) if !tail.is_empty() => return Some(lossy(&tail)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Some(format!("Error on reading termination log {shown}: {error}")),
        }
    }
    let falls_back =
        container.fallback_to_logs && container.exit_code != 0 && container.reason != reason::CONTAINER_CANNOT_RUN;
    let log = container.log_path.as_deref().filter(|_| falls_back)?;
    match tail_of_log(log, MAX_LOG_LINES, MAX_LOG_BYTES).await {
        Ok(text) => Some(text).filter(|text| !text.is_empty()),
        Err(error) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "log of an ended container is unreadable"
            );
            None
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    // A cut may have left the end of a character at the front.
    let start = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

fn read_tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(tail)
}

/// Opens a file that a container may have replaced: no link is followed, and no pipe is waited for.
fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
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

    #[tokio::test]
    async fn the_end_of_the_file_follows_the_runtimes_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        fs::write(&path, format!("{}{}", "x".repeat(5000), "tail")).unwrap();
        let mut container = ended(0);
        container.termination_message_path = Some(path);
        container.message = "oom".to_owned();
        let message = read_termination_message(&container, 1).await.unwrap();
        assert_eq!(message.len(), "oom: ".len() + 4096);
        assert!(message.starts_with("oom: xxx") && message.ends_with("tail"));
        assert_eq!(
            read_termination_message(&container, 12288 / 7).await.unwrap(),
            "oom: xx"
        );
        container.state = ContainerState::Running;
        assert_eq!(read_termination_message(&container, 1).await, None);
    }

    #[tokio::test]
    async fn the_log_stands_in_only_for_a_failed_container_without_a_message() {
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
        assert_eq!(read_termination_message(&container, 1).await, None, "not asked for");
        container.fallback_to_logs = true;
        assert_eq!(
            read_termination_message(&container, 1).await.as_deref(),
            Some("one\ntwo\n")
        );
        container.reason = "ContainerCannotRun".to_owned();
        assert_eq!(read_termination_message(&container, 1).await, None);
        container.reason.clear();
        container.exit_code = 0;
        assert_eq!(read_termination_message(&container, 1).await, None);
    }

    #[tokio::test]
    async fn of_a_long_log_the_last_lines_and_bytes_are_kept() {
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
        let message = read_termination_message(&container, 1).await.unwrap();
        assert_eq!(message.lines().count(), 80);
        assert!(message.starts_with("4920 short") && message.ends_with("4999 short\n"));
        write(100, &"x".repeat(300));
        assert_eq!(read_termination_message(&container, 1).await.unwrap().len(), 2048);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn what_is_no_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let link = dir.path().join("message");
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let mut container = ended(0);
        container.termination_message_path = Some(link.clone());
        let message = read_termination_message(&container, 1).await.unwrap();
        assert!(message.starts_with(&format!("Error on reading termination log {}: ", link.display())));
    }

    #[test]
    fn a_cut_keeps_whole_characters() {
        let mut text = "aé".to_owned();
        cut_to(&mut text, 2);
        assert_eq!(text, "a");
    }
}
