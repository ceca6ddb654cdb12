//! One run of a plugin.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// An answer that is longer is none.
const MAX_ANSWER: usize = 1 << 20;

/// How much of a plugin's complaints is kept.
const MAX_COMPLAINT: usize = 4096;

/// A program and what it is started with.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    /// These win over what it inherits.
    pub(super) env: Vec<(String, String)>,
}

/// What becomes of the complaints of a program that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Complaints {
    Told,
    /// They may quote what is secret in its input.
    Hidden,
}

impl fmt::Debug for Program {
    /// Arguments and environment may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Whether a file is there that can be run.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if found.permissions().mode() & 0o111 == 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not executable"));
        }
    }
    Ok(())
}

impl Program {
    /// Gives it a text and takes its answer; the error says what it complained of, if that may be told.
    ///
    /// # Cancellation
    /// A dropped run is killed, with all that it has started in its process group.
    pub(super) async fn run(&self, input: &[u8], complaints: Complaints) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.path);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", self.path.display()))?;
        let mut group = Group(child.id());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // One that answers without having read all has read enough.
                let _ = stdin.write_all(input).await;
            }
        };
        let (complaint, answer, ()) = tokio::join!(bounded(stderr, MAX_COMPLAINT), bounded(stdout, MAX_ANSWER), write);
        let status = child
            .wait()
            .await
            .map_err(|error| format!("cannot wait for it: {error}"))?;
        group.0 = None;
        let (answer, is_cut) = answer;
        if !status.success() {
            let complaint = String::from_utf8_lossy(&complaint.0);
            let complaint = complaint.trim();
            return Err(if complaint.is_empty() || complaints == Complaints::Hidden {
                format!("it ended with {status}")
            } else {
                format!("it ended with {status}: {complaint}")
            });
        }
        if is_cut {
            return Err(format!("its answer is longer than {MAX_ANSWER} bytes"));
        }
        Ok(answer)
    }
}

/// Reads all and keeps no more than `most`, so that the writer never waits; says whether something was dropped.
async fn bounded(pipe: Option<impl AsyncRead + Unpin>, most: usize) -> (Vec<u8>, bool) {
    let (mut kept, mut is_cut) = (Vec::new(), false);
    let Some(mut pipe) = pipe else {
        return (kept, is_cut);
    };
    let mut buffer = vec![0; 8192];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return (kept, is_cut),
            Ok(count) => {
                let room = most - kept.len();
                kept.extend_from_slice(&buffer[..count.min(room)]);
                is_cut |= count > room;
            }
        }
    }
}

/// The processes of a run that has not ended.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(pid) = self
            .0
            .and_then(|pid| rustix::process::Pid::from_raw(pid.try_into().ok()?))
        {
            // Its leader was not waited for, so that the number is still its own. It may have ended by itself.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}
