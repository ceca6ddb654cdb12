//! The links to logs in one flat folder, which collectors of logs read.
//!
//! Source: kubelet 1.36, `kuberuntime_container.go`, `kuberuntime_gc.go`. Other agents may have links in the same folder: only
//! those into this agent's own folder of logs are touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Links `<dir>/<name>` to a log, if there is one, in place of what has that name.
pub(crate) fn link_log(dir: &Path, name: &str, log: &Path) -> io::Result<()> {
    if !log.exists() {
        return Ok(());
    }
    let link = dir.join(name);
    if fs::read_link(&link).is_ok_and(|target| target == log) {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(log, &link)
}

/// Removes a link, if it is one.
pub(crate) fn unlink_log(dir: &Path, name: &str) -> io::Result<()> {
    let link = dir.join(name);
    match fs::symlink_metadata(&link) {
        Ok(found) if found.is_symlink() => fs::remove_file(&link),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the links to logs below `logs` that are gone. One that is being rotated has its rotated parts beside it.
pub(crate) fn remove_dangling_links(dir: &Path, logs: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut outcome = Ok(());
    for entry in entries {
        let link = entry?.path();
        let Ok(target) = fs::read_link(&link) else { continue };
        if target.starts_with(logs) && is_gone(&target)? {
            outcome = outcome.and(fs::remove_file(&link));
        }
    }
    outcome
}

/// Whether neither a log nor one of its rotated parts is there.
fn is_gone(log: &Path) -> io::Result<bool> {
    if fs::symlink_metadata(log).is_ok() {
        return Ok(false);
    }
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(false);
    };
    let rotated = format!("{name}.");
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(!entries.any(|entry| {
            entry.is_ok_and(|entry| {
                entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| name.starts_with(&rotated))
            })
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The folder of links that belongs to a folder of logs where nothing else is said: `/var/log/containers` for
/// `/var/log/pods`, and so for any folder called `pods`.
pub(crate) fn default_links_dir(logs: &Path) -> Option<PathBuf> {
    (logs.file_name()? == "pods").then(|| logs.with_file_name("containers"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{default_links_dir, link_log, remove_dangling_links, unlink_log};

    #[test]
    fn a_link_is_made_where_there_is_a_log_and_replaces_what_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (links, log) = (root.path().join("containers"), root.path().join("0.log"));
        link_log(&links, "web.log", &log).unwrap();
        assert!(!links.exists());
        fs::write(&log, "text").unwrap();
        link_log(&links, "web.log", &log).unwrap();
        link_log(&links, "web.log", &log).unwrap();
        assert_eq!(fs::read_to_string(links.join("web.log")).unwrap(), "text");
        let other = root.path().join("1.log");
        fs::write(&other, "other").unwrap();
        link_log(&links, "web.log", &other).unwrap();
        assert_eq!(fs::read_to_string(links.join("web.log")).unwrap(), "other");
        unlink_log(&links, "web.log").unwrap();
        unlink_log(&links, "web.log").unwrap();
        assert_eq!(fs::read_dir(&links).unwrap().count(), 0);
    }

    #[test]
    fn only_links_to_own_logs_that_are_gone_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let (links, logs) = (root.path().join("containers"), root.path().join("pods"));
        remove_dangling_links(&links, &logs).unwrap();
        let folder = logs.join("default_web_u/app");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(&links).unwrap();
        fs::write(folder.join("0.log"), "").unwrap();
        fs::write(folder.join("2.log.20260102-030405"), "").unwrap();
        fs::write(links.join("a file"), "").unwrap();
        let targets = [
            ("there", folder.join("0.log")),
            ("gone", folder.join("1.log")),
            ("rotating", folder.join("2.log")),
            ("without-folder", logs.join("default_old_v/app/0.log")),
            ("of-another-agent", root.path().join("other/default_web_u/app/7.log")),
        ];
        for (name, target) in targets {
            std::os::unix::fs::symlink(target, links.join(name)).unwrap();
        }
        remove_dangling_links(&links, &logs).unwrap();
        let mut left: Vec<_> = fs::read_dir(&links)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a file", "of-another-agent", "rotating", "there"]);
        unlink_log(&links, "a file").unwrap();
        assert!(links.join("a file").exists());
    }

    #[test]
    fn the_folder_of_links_lies_beside_that_of_the_pods() {
        assert_eq!(
            default_links_dir(Path::new("/var/log/pods")).as_deref(),
            Some(Path::new("/var/log/containers"))
        );
        assert_eq!(default_links_dir(Path::new("/srv/agent/logs")), None);
    }
}
