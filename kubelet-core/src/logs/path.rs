//! Where logs lie. Tools on the node depend on this layout, so it is upstream's to the letter.

use std::io;
use std::path::{Path, PathBuf};

use crate::ids::{ContainerId, PodKey};

/// Longest file name that common file systems take, in bytes.
const MAX_FILE_NAME: usize = 255;

/// The layout below one log root, upstream's default being `/var/log/pods`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPaths {
    root: PathBuf,
    /// Where the links to logs are, if anywhere.
    links: Option<PathBuf>,
}

/// A link to the log of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLink {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
}

impl LogPaths {
    /// Places logs below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            links: None,
        }
    }

    /// The same with a folder of links to all logs, upstream's being `/var/log/containers`.
    #[must_use]
    pub fn with_links(mut self, links: impl Into<PathBuf>) -> Self {
        self.links = Some(links.into());
        self
    }

    /// The directory of links to the logs of all containers, if there is one.
    pub fn links(&self) -> Option<&Path> {
        self.links.as_deref()
    }

    /// The link to the log of a container, if there are links.
    pub(crate) fn link(&self, pod: &PodKey, container: &str, id: &ContainerId) -> Option<LogLink> {
        Some(LogLink {
            dir: self.links.clone()?,
            name: container_log_link(&pod.name, &pod.namespace, container, id.as_str()),
        })
    }

    /// The directory that holds the log directories of all pods.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `<root>/<namespace>_<name>_<uid>`: the sandbox's log directory.
    pub fn pod_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.root.join(format!("{namespace}_{name}_{uid}"))
    }

    /// `<pod directory>/<container>`.
    pub fn container_dir(&self, namespace: &str, name: &str, uid: &str, container: &str) -> PathBuf {
        self.pod_dir(namespace, name, uid).join(container)
    }

    /// `<container directory>/<restart count>.log`.
    pub fn container_log(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        container: &str,
        restart_count: u32,
    ) -> PathBuf {
        self.pod_dir(namespace, name, uid)
            .join(container_log_name(container, restart_count))
    }
}

/// `<container>/<restart count>.log`: a container's log path, relative to its pod's log directory.
pub fn container_log_name(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// `<pod>_<namespace>_<container>-<container id>.log`: the name of the link in
/// `/var/log/containers`.
///
/// The part before `.log` is cut so that the name has at most 255 bytes.
pub fn container_log_link(pod: &str, namespace: &str, container: &str, container_id: &str) -> String {
    const SUFFIX: &str = ".log";
    let mut name = format!("{pod}_{namespace}_{container}-{container_id}");
    let mut end = name.len().min(MAX_FILE_NAME - SUFFIX.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name + SUFFIX
}

/// The pod UID in the name of a pod's log directory: what follows the last `_`, or all of it in the
/// layout before 1.14.
pub fn pod_uid_of_log_dir(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}

/// The restart count that a new container gets, going by the logs of earlier ones: one more than
/// the highest there is, 0 without any log or without the directory.
///
/// A file counts if its name starts with a number and `.log`; rotated files do too.
///
/// # Errors
/// When the directory exists and cannot be listed. Guessing 0 would overwrite the log of an earlier
/// container.
pub fn restart_count_from_log_dir(dir: &Path) -> io::Result<u32> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(err) => return Err(err),
    };
    let mut count = 0;
    for entry in entries {
        if let Some(earlier) = entry?.file_name().to_str().and_then(restart_count_of) {
            count = count.max(earlier.saturating_add(1));
        }
    }
    Ok(count)
}

/// Removes the logs of instances before `first_kept` from a container's log directory, rotated ones too: instances of
/// which nothing is left but their logs. A directory that is missing has none.
///
/// # Errors
/// The first that cannot be removed; the others are still tried.
pub(crate) fn remove_logs_before(dir: &Path, first_kept: u32) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err),
    };
    let mut outcome = Ok(());
    for entry in entries {
        let name = entry?.file_name();
        let is_older = name
            .to_str()
            .and_then(restart_count_of)
            .is_some_and(|of| of < first_kept);
        if is_older && let Err(err) = std::fs::remove_file(dir.join(name)) {
            outcome = outcome.and(Err(err));
        }
    }
    outcome
}

/// The number in `7.log`, `7.log.20260102-030405` and the like. Numbers that fit no restart count
/// are not ours.
fn restart_count_of(file_name: &str) -> Option<u32> {
    let (number, rest) = file_name.split_once(".log")?;
    let ours = number.bytes().all(|byte| byte.is_ascii_digit()) && (rest.is_empty() || rest.starts_with('.'));
    if ours { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::{
        LogPaths, container_log_link, pod_uid_of_log_dir, remove_logs_before, restart_count_from_log_dir,
        restart_count_of,
    };

    #[test]
    fn paths_follow_the_upstream_layout() {
        let paths = LogPaths::new("/var/log/pods");
        let log = paths.container_log("default", "web", "1234-5", "nginx", 3);
        assert_eq!(log.to_str().unwrap(), "/var/log/pods/default_web_1234-5/nginx/3.log");
        assert_eq!(
            log.parent().unwrap(),
            paths.container_dir("default", "web", "1234-5", "nginx")
        );
        assert_eq!(pod_uid_of_log_dir("default_web_1234-5"), "1234-5");
        assert_eq!(pod_uid_of_log_dir("1234-5"), "1234-5");
    }

    #[test]
    fn a_link_name_fits_a_file_name() {
        assert_eq!(
            container_log_link("web", "default", "nginx", "abc"),
            "web_default_nginx-abc.log"
        );
        let long = container_log_link(&"p".repeat(253), "default", "nginx", "abc");
        assert_eq!((long.len(), long.ends_with("p.log")), (255, true));
    }

    #[test]
    fn restart_counts_are_read_from_file_names() {
        for (name, want) in [
            ("0.log", Some(0)),
            ("12.log", Some(12)),
            ("007.log", Some(7)),
            ("3.log.20260102-030405", Some(3)),
            ("3.log.20260102-030405.gz", Some(3)),
            ("3.logs", None),
            ("a3.log", None),
            ("-3.log", None),
            (".log", None),
            ("3", None),
            ("99999999999.log", None),
        ] {
            assert_eq!(restart_count_of(name), want, "{name}");
        }
    }

    #[test]
    fn logs_of_instances_that_are_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        remove_logs_before(&dir.path().join("missing"), 7).unwrap();
        for name in [
            "2.log",
            "3.log.20260102-030405.gz",
            "10.log",
            "4.log",
            "4.log.20260102-030405",
            "1.txt",
            "x.log",
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        remove_logs_before(dir.path(), 4).unwrap();
        let left = std::fs::read_dir(dir.path()).unwrap();
        let mut left: Vec<_> = left
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["1.txt", "10.log", "4.log", "4.log.20260102-030405", "x.log"]);
    }

    #[test]
    fn the_next_restart_count_is_above_every_log() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(restart_count_from_log_dir(&dir.path().join("missing")).unwrap(), 0);
        assert_eq!(restart_count_from_log_dir(dir.path()).unwrap(), 0);
        for name in ["0.log", "2.log.20260102-030405.gz", "x.log"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(restart_count_from_log_dir(dir.path()).unwrap(), 3);
        restart_count_from_log_dir(&dir.path().join("0.log")).unwrap_err();
    }
}
