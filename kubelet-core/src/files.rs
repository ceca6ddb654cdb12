//! The files of pods on the node: folders, logs, termination messages. Small, blocking, and kept off async threads.

pub(crate) mod durable;
mod removal;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use self::removal::Removal;
use crate::ids::PodUid;
use crate::logs::LogLink;
use crate::observation::ObservedContainer;
use crate::status::read_termination_message;

/// Where the files of pods are, if anywhere: a simulated node has none, and every operation on them succeeds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFiles {
    /// On disk.
    Disk,
    /// Nowhere.
    Nowhere,
}

impl NodeFiles {
    async fn run<T: Send + 'static>(self, nowhere: T, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Self::Nowhere => nowhere,
            // A panic in the work leaves no answer; the one of a node without files is the harmless one.
            Self::Disk => tokio::task::spawn_blocking(work).await.unwrap_or(nowhere),
        }
    }

    /// Makes folders and their parents; the error names the folder.
    pub(crate) async fn make_dirs(self, dirs: Vec<PathBuf>) -> io::Result<()> {
        self.run(Ok(()), move || {
            for dir in dirs {
                std::fs::create_dir_all(&dir).map_err(|error| named(&dir, &error))?;
            }
            Ok(())
        })
        .await
    }

    /// Makes an empty file that everybody may write, and its folder.
    pub(crate) async fn make_open_file(self, path: PathBuf) -> io::Result<()> {
        self.run(Ok(()), move || {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).map_err(|error| named(dir, &error))?;
            }
            std::fs::write(&path, b"")
                .and_then(|()| open_to_all(&path))
                .map_err(|error| named(&path, &error))
        })
        .await
    }

    /// The text of a file, no more of it than `limit` bytes. Where there are no files it is empty.
    pub(crate) async fn read_text(self, path: PathBuf, limit: u64) -> io::Result<String> {
        self.run(Ok(String::new()), move || {
            let read = std::fs::File::open(&path).and_then(|file| {
                let mut bytes = Vec::new();
                file.take(limit).read_to_end(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            });
            read.map_err(|error| named(&path, &error))
        })
        .await
    }

    /// Writes a file that everybody may read, in place, so that what has it mounted sees the new text; its folder is made.
    pub(crate) async fn write_text(self, path: PathBuf, text: String) -> io::Result<()> {
        self.run(Ok(()), move || {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).map_err(|error| named(dir, &error))?;
            }
            std::fs::write(&path, text)
                .and_then(|()| readable_by_all(&path))
                .map_err(|error| named(&path, &error))
        })
        .await
    }

    /// The restart count that follows from a container's folder of logs. A folder that cannot be read tells nothing.
    pub(crate) async fn count_from_logs(self, dir: PathBuf) -> u32 {
        self.run(0, move || crate::logs::restart_count_from_log_dir(&dir).unwrap_or(0))
            .await
    }

    /// Removes a log and its rotated parts.
    pub(crate) async fn remove_logs(self, log: PathBuf) -> io::Result<()> {
        self.run(Ok(()), move || crate::logs::remove_logs(&log)).await
    }

    /// Links a log where collectors of logs look for it.
    pub(crate) async fn link_log(self, link: LogLink, log: PathBuf) -> io::Result<()> {
        let LogLink { dir, name } = link;
        self.run(Ok(()), move || {
            crate::logs::link_log(&dir, &name, &log).map_err(|error| named(&dir.join(&name), &error))
        })
        .await
    }

    /// Removes such a link.
    pub(crate) async fn unlink_log(self, link: LogLink) -> io::Result<()> {
        let LogLink { dir, name } = link;
        self.run(Ok(()), move || {
            crate::logs::unlink_log(&dir, &name).map_err(|error| named(&dir.join(&name), &error))
        })
        .await
    }

    /// Removes the links to logs that are gone.
    pub(crate) async fn remove_dangling_links(self, links: PathBuf, logs: PathBuf) -> io::Result<()> {
        self.run(Ok(()), move || {
            crate::logs::remove_dangling_links(&links, &logs).map_err(|error| named(&links, &error))
        })
        .await
    }

    /// Removes the logs of instances before that one from a container's folder of logs.
    pub(crate) async fn remove_logs_before(self, dir: PathBuf, first_kept: u32) -> io::Result<()> {
        self.run(Ok(()), move || crate::logs::remove_logs_before(&dir, first_kept))
            .await
    }

    /// What a container left as its termination message, after the runtime's own message.
    pub(crate) async fn termination_message(self, container: ObservedContainer, in_pod: usize) -> Option<String> {
        match self {
            Self::Nowhere => None,
            Self::Disk => read_termination_message(&container, in_pod).await,
        }
    }

    /// Removes what the engine made for a pod. A folder that holds more (a volume, say) stays whole, with an error.
    pub(crate) async fn remove_pod(self, pod_dir: PathBuf, logs: Option<PathBuf>) -> io::Result<()> {
        self.run(Ok(()), move || {
            let pod = Removal::of_pod(&pod_dir)?;
            // The pod's own folder last: as long as it is there, a later start knows that something is left.
            logs.map_or(Ok(()), |logs| remove_tree(&logs))?;
            pod.carry_out()
        })
        .await
    }

    /// The pods that have a folder in that one.
    pub(crate) async fn pods_with_folders(self, pods: PathBuf) -> io::Result<Vec<PodUid>> {
        self.run(Ok(Vec::new()), move || removal::pods_with_folders(&pods))
            .await
    }

    /// Removes the folders of pods of which nothing else is left, and those of their logs, as far as they hold only what
    /// the engine puts there. Gives what stays, and why.
    pub(crate) async fn sweep(self, pods: PathBuf, logs: PathBuf, uids: Vec<PodUid>) -> Vec<(PodUid, io::Error)> {
        self.run(Vec::new(), move || removal::sweep(&pods, &logs, &uids)).await
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Whoever a container runs as may read it.
#[cfg(unix)]
fn readable_by_all(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

/// Whoever a container runs as may write its termination message.
#[cfg(unix)]
fn open_to_all(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
}

/// Removes a tree of logs; a link in its place is removed itself, not what it points to.
fn remove_tree(dir: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(dir) {
        Ok(meta) if meta.is_dir() => ignore_missing(std::fs::remove_dir_all(dir)),
        Ok(_) => ignore_missing(std::fs::remove_file(dir)),
        Err(error) => ignore_missing(Err(error)),
    }
}

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::NodeFiles;

    #[tokio::test]
    async fn a_pods_folder_goes_only_if_nothing_else_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/u1");
        let files = NodeFiles::Disk;
        files
            .make_dirs(vec![pod.join("volumes"), pod.join("plugins")])
            .await
            .unwrap();
        files.make_open_file(pod.join("containers/app/0011")).await.unwrap();
        std::fs::create_dir(pod.join("volumes/precious")).unwrap();
        assert!(files.remove_pod(pod.clone(), None).await.is_err());
        assert!(pod.join("volumes/precious").exists());
        std::fs::remove_dir(pod.join("volumes/precious")).unwrap();
        files.remove_pod(pod.clone(), None).await.unwrap();
        assert!(!pod.exists());
    }
}
