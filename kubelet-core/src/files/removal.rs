//! The folders of a pod as the engine lays them out: looked through as a whole before anything of them goes, so that a
//! folder which holds anything else stays as it is.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::{ignore_missing, named};
use crate::ids::PodUid;

/// Longest UID that is taken for one, in bytes.
const MAX_UID: usize = 128;

/// What is to be removed: files, and folders with those above before those below.
#[derive(Debug)]
pub(super) struct Removal {
    /// The device that everything has to be on.
    device: u64,
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Removal {
    /// All of a pod's folder. Volumes may be mounted in it: it stays if there is anything where they are.
    pub(super) fn of_pod(dir: &Path) -> io::Result<Self> {
        let mut removal = Self::below(dir)?;
        for (name, path) in removal.folder(dir)? {
            match name.as_str() {
                "containers" => {
                    for (_, container) in removal.folder(&path)? {
                        for (_, file) in removal.folder(&container)? {
                            removal.file(file)?;
                        }
                    }
                }
                "volumes" | "plugins" => {
                    if !removal.folder(&path)?.is_empty() {
                        return Err(stays(&path, "is not empty, and what is in it may be mounted"));
                    }
                }
                "etc-hosts" | "userns" | ".userns.tmp" => removal.file(path)?,
                _ => return Err(stays(&path, "was not put there by the engine")),
            }
        }
        Ok(removal)
    }

    /// All of a pod's folder of logs.
    pub(super) fn of_logs(dir: &Path) -> io::Result<Self> {
        let mut removal = Self::below(dir)?;
        for (_, container) in removal.folder(dir)? {
            for (_, log) in removal.folder(&container)? {
                removal.file(log)?;
            }
        }
        Ok(removal)
    }

    fn below(dir: &Path) -> io::Result<Self> {
        let above = dir.parent().unwrap_or(dir);
        let device = match fs::metadata(above) {
            Ok(found) => device(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(named(above, &error)),
        };
        Ok(Self {
            device,
            files: Vec::new(),
            folders: Vec::new(),
        })
    }

    /// Takes a folder in, and gives what is in it: nothing if it is not there.
    fn folder(&mut self, dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
        let found = match fs::symlink_metadata(dir) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(named(dir, &error)),
        };
        // A link is no folder: what it points to belongs to somebody else.
        if !found.is_dir() {
            return Err(stays(dir, "is no folder"));
        }
        if device(&found) != self.device || is_mounted(dir)? {
            return Err(stays(dir, "is mounted"));
        }
        self.folders.push(dir.to_owned());
        let mut inside = Vec::new();
        for entry in fs::read_dir(dir).map_err(|error| named(dir, &error))? {
            let entry = entry.map_err(|error| named(dir, &error))?;
            match entry.file_name().into_string() {
                Ok(name) => inside.push((name, entry.path())),
                Err(_) => return Err(stays(&entry.path(), "was not put there by the engine")),
            }
        }
        Ok(inside)
    }

    fn file(&mut self, path: PathBuf) -> io::Result<()> {
        let found = fs::symlink_metadata(&path).map_err(|error| named(&path, &error))?;
        // Of a link only the link itself goes.
        if found.is_file() || found.is_symlink() {
            self.files.push(path);
            return Ok(());
        }
        Err(stays(&path, "is no file"))
    }

    /// Removes all of it.
    pub(super) fn carry_out(self) -> io::Result<()> {
        for file in &self.files {
            ignore_missing(fs::remove_file(file)).map_err(|error| named(file, &error))?;
        }
        for folder in self.folders.iter().rev() {
            ignore_missing(fs::remove_dir(folder)).map_err(|error| named(folder, &error))?;
        }
        Ok(())
    }
}

fn stays(path: &Path, why: &str) -> io::Error {
    io::Error::other(format!("{} {why}", path.display()))
}

fn device(found: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::dev(found)
}

/// Whether something is mounted there, be it of the same device. Kernels before 5.8 do not say; the device has to do
/// then.
#[cfg(target_os = "linux")]
fn is_mounted(dir: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    match statx(CWD, dir, flags, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(rustix::io::Errno::NOSYS) => Ok(false),
        Err(error) => Err(named(dir, &error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
fn is_mounted(_dir: &Path) -> io::Result<bool> {
    Ok(false)
}

/// The pods that have a folder, by the names of the folders.
pub(super) fn pods_with_folders(pods: &Path) -> io::Result<Vec<PodUid>> {
    let mut uids: Vec<PodUid> = folders_in(pods)?
        .filter(|name| is_like_a_uid(name))
        .map(PodUid::from)
        .collect();
    uids.sort_unstable();
    Ok(uids)
}

/// Removes the folders of pods and of their logs. Gives what stays, and why.
pub(super) fn sweep(pods: &Path, logs: &Path, uids: &[PodUid]) -> Vec<(PodUid, io::Error)> {
    let mut of_uid: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let listed = folders_in(logs);
    for name in listed.into_iter().flatten() {
        if let Some(uid) = uid_of_logs(&name) {
            of_uid.entry(uid.to_owned()).or_default().push(logs.join(&name));
        }
    }
    let sweep_one = |uid: &PodUid| -> io::Result<()> {
        if !is_like_a_uid(uid.as_str()) {
            return Ok(());
        }
        let pod = Removal::of_pod(&pods.join(uid.as_str()))?;
        let logs = of_uid.get(uid.as_str()).into_iter().flatten();
        let logs = logs.map(|dir| Removal::of_logs(dir)).collect::<io::Result<Vec<_>>>()?;
        // The pod's own folder last: it is what tells of the others.
        logs.into_iter().chain([pod]).try_for_each(Removal::carry_out)
    };
    uids.iter()
        .filter_map(|uid| Some((uid.clone(), sweep_one(uid).err()?)))
        .collect()
}

/// The names of the folders in a folder, without links; none if it is not there.
fn folders_in(dir: &Path) -> io::Result<impl Iterator<Item = String>> {
    let list = match fs::read_dir(dir) {
        Ok(list) => Some(list),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(named(dir, &error)),
    };
    Ok(list
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok()))
}

/// Whether that can be a UID, and is no name that somebody else hides.
fn is_like_a_uid(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_UID).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

/// The UID in `<namespace>_<name>_<uid>`; neither of the others has an underscore.
fn uid_of_logs(name: &str) -> Option<&str> {
    let mut parts = name.splitn(3, '_');
    let (namespace, pod) = (parts.next()?, parts.next()?);
    parts.next().filter(|_| !namespace.is_empty() && !pod.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::{is_mounted, pods_with_folders, sweep, uid_of_logs};
    use crate::ids::PodUid;

    struct Place {
        _dir: tempfile::TempDir,
        pods: PathBuf,
        logs: PathBuf,
        elsewhere: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let below = |name: &str| dir.path().join(name);
            let place = Self {
                pods: below("pods"),
                logs: below("logs"),
                elsewhere: below("elsewhere"),
                _dir: dir,
            };
            fs::create_dir_all(&place.elsewhere).unwrap();
            fs::write(place.elsewhere.join("precious"), "x").unwrap();
            place
        }

        /// The folders that a pod has while it runs.
        fn pod(&self, uid: &str) -> PathBuf {
            let pod = self.pods.join(uid);
            for dir in ["volumes", "plugins", "containers/app"] {
                fs::create_dir_all(pod.join(dir)).unwrap();
            }
            fs::write(pod.join("containers/app/0a1b2c3d"), "bye").unwrap();
            fs::write(pod.join("etc-hosts"), "").unwrap();
            let logs = self.logs_of(uid);
            fs::create_dir_all(logs.join("app")).unwrap();
            fs::write(logs.join("app/0.log"), "hello").unwrap();
            pod
        }

        fn logs_of(&self, uid: &str) -> PathBuf {
            self.logs.join(format!("ns_web_{uid}"))
        }

        /// Why each of these pods stays.
        fn sweep(&self, uids: &[&str]) -> Vec<String> {
            let uids: Vec<PodUid> = uids.iter().map(|uid| PodUid::from(*uid)).collect();
            let kept = sweep(&self.pods, &self.logs, &uids);
            kept.into_iter().map(|(_, why)| why.to_string()).collect()
        }
    }

    #[test]
    fn only_the_folders_of_the_pods_that_were_named_go() {
        let place = Place::new();
        let (gone, kept) = (place.pod("u-1"), place.pod("u-2"));
        assert!(place.sweep(&["u-1", "u-3", "..", ".git"]).is_empty());
        assert!(!gone.exists() && !place.logs_of("u-1").exists());
        assert!(kept.join("etc-hosts").exists() && place.logs_of("u-2").join("app/0.log").exists());
        assert!(place.pods.exists() && place.logs.exists());
    }

    #[test]
    fn a_pod_with_a_volume_or_with_anything_unknown_stays_whole() {
        for dir in ["volumes/csi/data", "plugins/x", "stranger", "containers/app/folder"] {
            let place = Place::new();
            let pod = place.pod("u");
            fs::create_dir_all(pod.join(dir)).unwrap();
            let kept = place.sweep(&["u"]);
            assert_eq!(kept.len(), 1, "{dir}");
            assert!(pod.join("containers/app/0a1b2c3d").exists(), "{dir}");
            assert!(place.logs_of("u").join("app/0.log").exists(), "{dir}");
        }
        let place = Place::new();
        let pod = place.pod("u");
        fs::create_dir_all(place.logs_of("u").join("app/folder")).unwrap();
        assert_eq!(place.sweep(&["u"]).len(), 1);
        assert!(pod.join("etc-hosts").exists());
    }

    #[test]
    fn no_link_is_followed() {
        for link in ["containers", "containers/app", "volumes"] {
            let place = Place::new();
            let pod = place.pod("u");
            fs::remove_dir_all(pod.join(link)).unwrap();
            symlink(&place.elsewhere, pod.join(link)).unwrap();
            assert_eq!(place.sweep(&["u"]).len(), 1, "{link}");
            assert!(place.elsewhere.join("precious").exists(), "{link}");
        }
        let place = Place::new();
        fs::create_dir_all(&place.pods).unwrap();
        fs::create_dir_all(&place.logs).unwrap();
        symlink(&place.elsewhere, place.pods.join("u")).unwrap();
        symlink(&place.elsewhere, place.logs_of("v")).unwrap();
        assert!(pods_with_folders(&place.pods).unwrap().is_empty());
        assert_eq!(place.sweep(&["u", "v"]).len(), 1);
        assert!(place.elsewhere.join("precious").exists());
        // A link among the files goes, and not what it points to.
        let pod = place.pod("w");
        symlink(place.elsewhere.join("precious"), pod.join("containers/app/link")).unwrap();
        assert!(place.sweep(&["w"]).is_empty());
        assert!(!pod.exists() && place.elsewhere.join("precious").exists());
    }

    #[test]
    fn names_that_are_no_uid_are_not_ours() {
        let place = Place::new();
        for name in ["u-1", "lost and found", ".hidden", "a:b"] {
            fs::create_dir_all(place.pods.join(name)).unwrap();
        }
        fs::write(place.pods.join("file"), "").unwrap();
        assert_eq!(pods_with_folders(&place.pods).unwrap(), [PodUid::from("u-1")]);
        assert!(pods_with_folders(&place.elsewhere.join("none")).unwrap().is_empty());
        assert_eq!(uid_of_logs("ns_web_u_1"), Some("u_1"));
        for name in ["web", "ns_web", "_web_u", "ns__u"] {
            assert_eq!(uid_of_logs(name), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_mount_is_known_for_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(dir.path()).unwrap());
    }
}
