//! Paths below a folder that somebody else may be writing to: whatever is done to the folder meanwhile, what is opened or
//! made lies within it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, open, openat, openat2};
use rustix::io::Errno;

use super::failure::{at, invalid, refused};

/// Kernels answer "try again" to a path with `..` while anything is renamed; and what a link led to may be gone by the
/// time it is opened.
const TRIES: usize = 16;

/// The elements of a relative path without `..`; `.` and empty ones are left out.
///
/// # Errors
/// If it is absolute, or has an element `..` or a NUL.
pub(crate) fn elements(relative: &Path) -> io::Result<Vec<OsString>> {
    let of = |component: Component<'_>| match component {
        Component::CurDir => None,
        Component::Normal(name) => Some(Ok(name.to_owned())),
        Component::ParentDir => Some(Err(refused(relative, "must not contain '..'"))),
        Component::RootDir | Component::Prefix(_) => Some(Err(refused(relative, "must be a relative path"))),
    };
    let elements: Vec<OsString> = relative.components().filter_map(of).collect::<io::Result<_>>()?;
    if elements.iter().any(|element| element.as_encoded_bytes().contains(&0)) {
        return Err(invalid("a path must not contain a NUL"));
    }
    Ok(elements)
}

/// Opens a folder itself, with `O_PATH`; a link in its place is an error.
pub(crate) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(root, flags, Mode::empty()).map_err(|error| at("cannot open", root, error))
}

/// Opens `relative` beneath `root` with `O_PATH`, whatever it is. No element may be a link.
pub(crate) fn open_strictly(root: BorrowedFd<'_>, relative: &Path) -> io::Result<OwnedFd> {
    let elements = elements(relative)?;
    let path: PathBuf = elements.iter().collect();
    let none = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let fail = |error: Errno| match error {
        Errno::LOOP => refused(relative, "must not contain a link"),
        error => at("cannot open", relative, error),
    };
    match open_beneath(root, &path, none) {
        Err(Errno::NOSYS | Errno::PERM) => walk(root, &elements).map_err(fail),
        opened => opened.map_err(fail),
    }
}

/// Opens `relative` beneath `root` with `O_PATH`, whatever it is. Links are followed as long as what they lead to, in the
/// end, lies within `root`. Source: `subpath_linux.go` of Kubernetes 1.36.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if it is not there.
pub(crate) fn open_within(root: &Path, relative: &Path) -> io::Result<OwnedFd> {
    let path: PathBuf = elements(relative)?.into_iter().collect();
    let fail = |error: Errno| at("cannot open", &root.join(&path), error);
    let real = root.canonicalize().map_err(|error| at("cannot resolve", root, error))?;
    let top = open_root(&real)?;
    // One call that follows links and never leaves the folder, not even on the way.
    match open_beneath(top.as_fd(), &path, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS) {
        // It leaves the folder on the way, or is absolute: it may come back. Also kernels before 5.6.
        Err(Errno::XDEV | Errno::LOOP | Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {
            open_resolved(&real, top.as_fd(), &path)
        }
        opened => opened.map_err(fail),
    }
}

/// Resolves first, and then opens without any link: what is put in between makes it fail, and not lead elsewhere.
fn open_resolved(real_root: &Path, root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let whole = real_root.join(path);
    let mut tries = 0;
    loop {
        tries += 1;
        let real = whole
            .canonicalize()
            .map_err(|error| at("cannot resolve", &whole, error))?;
        let inner = real
            .strip_prefix(real_root)
            .map_err(|_| refused(&whole, "leads out of its volume"))?;
        match open_strictly(root, inner) {
            // An update swapped a link and removed what it led to.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
            opened => return opened,
        }
    }
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    // An empty path is none to the kernel.
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut tries = 0;
    loop {
        tries += 1;
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => {}
            opened => return opened,
        }
    }
}

/// As a folder first: only so is something mounted that waits for its first use.
fn folder_or_file(mut open: impl FnMut(OFlags) -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<OwnedFd> {
    match open(OFlags::DIRECTORY) {
        Err(Errno::NOTDIR) => open(OFlags::empty()),
        opened => opened,
    }
}

/// For kernels without `openat2`: element by element.
fn walk(root: BorrowedFd<'_>, elements: &[OsString]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut opened = openat(root, ".", flags | OFlags::DIRECTORY, Mode::empty())?;
    for element in elements {
        opened = folder_or_file(|kind| openat(&opened, element, flags | kind, Mode::empty()))?;
        if FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
    }
    Ok(opened)
}

/// Makes a folder beneath `root`, and those above it that are missing, with exactly `mode` whatever the umask is. Folders
/// that are there stay as they are, and may be reached through links as in [`open_within`]; what is made is never below a
/// link that was put there meanwhile. Gives the folder, opened with `O_PATH`.
///
/// # Errors
/// If what is there is no folder, or leads out of `root`.
pub(crate) fn safe_make_dirs(root: &Path, relative: &Path, mode: u32) -> io::Result<OwnedFd> {
    let elements = elements(relative)?;
    let whole = root.join(relative);
    let (mut parent, there) = deepest(root, &elements)?;
    for element in &elements[there..] {
        parent = make(parent.as_fd(), element, Mode::from_raw_mode(mode))
            .map_err(|error| at("cannot make folder", &whole, error))?;
    }
    let found = fstat(&parent).map_err(|error| at("cannot look at", &whole, error))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(refused(&whole, "is no folder"));
    }
    Ok(parent)
}

/// Opens as much of the path as is there. Tells how many elements these are.
fn deepest(root: &Path, elements: &[OsString]) -> io::Result<(OwnedFd, usize)> {
    for count in (1..=elements.len()).rev() {
        let path: PathBuf = elements[..count].iter().collect();
        match open_within(root, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok((opened?, count)),
        }
    }
    Ok((open_within(root, Path::new(""))?, 0))
}

fn make(parent: BorrowedFd<'_>, name: &OsString, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match mkdirat(parent, name, mode) {
        // Somebody else's: it stays as it is. A link that leads nowhere is no folder.
        Err(Errno::EXIST) => openat(parent, name, flags | OFlags::PATH, Mode::empty()),
        Err(error) => Err(error),
        Ok(()) => {
            let opened = openat(parent, name, flags | OFlags::RDONLY, Mode::empty())?;
            // The umask took some of it, and a call to make a folder may leave out the upper bits.
            fchmod(&opened, mode)?;
            Ok(opened)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::io;
    use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    use super::{elements, open_resolved, open_root, open_strictly, open_within, safe_make_dirs, walk};
    use crate::ground::mounts::testing::Place;

    fn leads_to(opened: &OwnedFd) -> PathBuf {
        fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap()
    }

    fn volume() -> (Place, PathBuf) {
        let place = Place::without_mounts();
        let root = place.dir("volume");
        place.dir("volume/..first/nested");
        fs::write(root.join("..first/key"), "value").unwrap();
        symlink("..first", root.join("..data")).unwrap();
        symlink("..data/key", root.join("key")).unwrap();
        symlink("/etc", root.join("out")).unwrap();
        symlink("../volume/..first", root.join("out-and-in")).unwrap();
        symlink(root.join("..first"), root.join("absolute")).unwrap();
        symlink("../elsewhere", root.join("beside")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("none", root.join("dangling")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        place.dir("elsewhere");
        (place, root)
    }

    #[test]
    fn links_that_stay_within_are_followed_and_others_are_not() {
        let (_place, root) = volume();
        let within = |path: &str| open_within(&root, Path::new(path)).map(|fd| leads_to(&fd));
        for (path, real) in [
            ("key", "..first/key"),
            ("..data/key", "..first/key"),
            ("./..data//nested/", "..first/nested"),
            ("out-and-in/key", "..first/key"),
            ("absolute/key", "..first/key"),
            ("", ""),
            (".", ""),
        ] {
            assert_eq!(within(path).unwrap(), root.join(real), "{path}");
        }
        for path in ["out", "out/passwd", "beside", "loop", "magic/etc", "magic"] {
            let error = within(path).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{path}: {error}");
        }
        for path in ["none", "dangling", "..first/none"] {
            assert_eq!(within(path).unwrap_err().kind(), io::ErrorKind::NotFound, "{path}");
        }
        for path in ["..", "a/../b", "/etc", "../volume/key"] {
            assert!(within(path).is_err(), "{path}");
        }
        assert!(elements(Path::new("a\0b")).is_err());
    }

    #[test]
    fn resolving_first_has_the_same_outcome() {
        let (_place, root) = volume();
        let top = open_root(&root).unwrap();
        let resolved = |path: &str| open_resolved(&root, top.as_fd(), Path::new(path));
        for path in ["key", "out-and-in/key", "absolute/key", ""] {
            assert!(resolved(path).is_ok(), "{path}");
        }
        for path in ["out", "beside", "loop", "none", "magic/etc"] {
            assert!(resolved(path).is_err(), "{path}");
        }
    }

    #[test]
    fn no_link_at_all_is_opened_strictly() {
        let (_place, root) = volume();
        let top = open_root(&root).unwrap();
        let strictly = |path: &str| open_strictly(top.as_fd(), Path::new(path));
        assert!(strictly("..first/key").is_ok() && strictly("").is_ok());
        for path in ["key", "..data", "..data/nested", "out"] {
            assert!(strictly(path).unwrap_err().to_string().contains("link"), "{path}");
        }
        let by_hand = |path: &str| {
            let elements: Vec<OsString> = elements(Path::new(path)).unwrap();
            walk(top.as_fd(), &elements)
        };
        assert!(by_hand("..first/key").is_ok() && by_hand("").is_ok());
        assert_eq!(by_hand("key").unwrap_err(), Errno::LOOP);
        assert_eq!(by_hand("..data/key").unwrap_err(), Errno::LOOP);
        assert_eq!(by_hand("none").unwrap_err(), Errno::NOENT);
        assert!(open_root(&root.join("..data")).is_err());
    }

    #[test]
    fn folders_are_made_with_their_exact_mode() {
        let (place, root) = volume();
        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        fs::set_permissions(root.join("..first"), fs::Permissions::from_mode(0o701)).unwrap();
        safe_make_dirs(&root, Path::new("..data/a/b"), 0o2777).unwrap();
        assert_eq!((mode("..first/a"), mode("..first/a/b")), (0o2777, 0o2777));
        safe_make_dirs(&root, Path::new("..data/a/b"), 0o700).unwrap();
        assert_eq!((mode("..first"), mode("..first/a/b")), (0o701, 0o2777));
        safe_make_dirs(&root, Path::new(""), 0o700).unwrap();
        for path in ["beside/x", "out/x", "dangling/x", "dangling", "key", "key/x", "../x"] {
            assert!(safe_make_dirs(&root, Path::new(path), 0o755).is_err(), "{path}");
        }
        assert!(!place.path("elsewhere/x").exists() && !root.join("none").exists());
    }

    #[test]
    fn nobody_who_swaps_folders_for_links_leads_it_out() {
        let place = Place::without_mounts();
        let (root, secret) = (place.dir("volume"), place.dir("secret"));
        place.dir("volume/dir");
        place.dir("secret/x");
        symlink(&secret, root.join("link")).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                let (dir, link) = (root.join("dir"), root.join("link"));
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let mut outcomes = [0, 0];
            for round in 0..2000 {
                let path = PathBuf::from(format!("dir/x/{round}"));
                let made = safe_make_dirs(&root, &path, 0o755);
                outcomes[usize::from(made.is_ok())] += 1;
                let opened = open_within(&root, Path::new("dir/x"));
                for fd in [made, opened].into_iter().flatten() {
                    assert!(leads_to(&fd).starts_with(&root), "{:?}", leads_to(&fd));
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(outcomes[1] > 0, "{outcomes:?}");
        });
        assert_eq!(fs::read_dir(secret.join("x")).unwrap().count(), 0);
    }
}
