//! What is mounted where, as `/proc/self/mountinfo` tells it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::failure::at;

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The kernel gives the table in pieces, and one that changes in between may lack a line that was there all the time.
const READS: usize = 4;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountPoint {
    /// The number of the mount.
    pub id: u64,
    /// The number of the mount that it is mounted on.
    pub parent: u64,
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// What of the file system is mounted: a path within it, `/` for all of it.
    pub root: PathBuf,
    /// Where it is mounted. All links in it are resolved.
    pub target: PathBuf,
    /// The options of this mount, separated by commas.
    pub options: String,
    /// The group of peers that mounts below it are shared with, if it is shared.
    pub peer_group: Option<u64>,
    /// The type of the file system, such as `ext4` or `nfs4`.
    pub fs_type: String,
    /// What is mounted: a device, an export of a server, or any text.
    pub source: OsString,
    /// The options of the file system, the same at all of its mounts, separated by commas.
    pub super_options: String,
}

/// All mounts that this process sees, those that came later last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    points: Vec<MountPoint>,
}

impl MountTable {
    /// Reads the table of this process.
    ///
    /// # Errors
    /// If `/proc` is not there or cannot be read.
    pub fn read() -> io::Result<Self> {
        let read = || fs::read(MOUNTINFO).map_err(|error| at("cannot read", Path::new(MOUNTINFO), error));
        let mut bytes = read()?;
        for _ in 1..READS {
            let again = read()?;
            if again == bytes {
                break;
            }
            bytes = again;
        }
        Ok(Self::parse(&bytes))
    }

    /// The table in a text like `/proc/self/mountinfo`. Lines that are none are left out.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        text.split(|byte| *byte == b'\n').filter_map(point).collect()
    }

    /// All mounts, those that came later last.
    #[must_use]
    pub fn points(&self) -> &[MountPoint] {
        &self.points
    }

    /// What is mounted exactly there, the uppermost if several are. `path` is compared as it is: links in it have to be
    /// resolved.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&MountPoint> {
        self.points.iter().rev().find(|point| point.target == path)
    }

    /// Whether something is mounted exactly there.
    #[must_use]
    pub fn is_mount_point(&self, path: &Path) -> bool {
        self.at(path).is_some()
    }

    /// What is mounted below `path`, not at it, in the order in which it can be unmounted: deepest first, and of several
    /// at one place the uppermost first.
    #[must_use]
    pub fn below(&self, path: &Path) -> Vec<&MountPoint> {
        self.in_order(|target| target != path && target.starts_with(path))
    }

    /// What is mounted at `path` or below it, in the order in which it can be unmounted.
    #[must_use]
    pub fn at_or_below(&self, path: &Path) -> Vec<&MountPoint> {
        self.in_order(|target| target.starts_with(path))
    }

    /// Where else the folder or file at `path` is mounted: the same path of the same device.
    /// Source: mount-utils 1.36, `SearchMountPoints`.
    #[must_use]
    pub fn refs(&self, path: &Path) -> Vec<&MountPoint> {
        let Some(holder) = self.holder(path) else {
            return Vec::new();
        };
        let inner = path.strip_prefix(&holder.target).unwrap_or(Path::new(""));
        let root = if inner.as_os_str().is_empty() {
            holder.root.clone()
        } else {
            holder.root.join(inner)
        };
        self.points
            .iter()
            .filter(|point| point.device == holder.device && point.root == root && point.target != path)
            .collect()
    }

    /// The mount that `path` is on, itself or a folder above it.
    #[must_use]
    pub fn holder(&self, path: &Path) -> Option<&MountPoint> {
        let holds = |point: &&MountPoint| path.starts_with(&point.target);
        // Of those that hold it the deepest, and the last of them: it hides the others.
        let holders = self.points.iter().filter(holds);
        holders.max_by_key(|point| point.target.components().count())
    }

    fn in_order(&self, wanted: impl Fn(&Path) -> bool) -> Vec<&MountPoint> {
        let mut found: Vec<_> = self.points.iter().filter(|point| wanted(&point.target)).collect();
        found.reverse();
        // Stable: of one depth, what came later stays first.
        found.sort_by_key(|point| std::cmp::Reverse(point.target.components().count()));
        found
    }
}

impl FromIterator<MountPoint> for MountTable {
    fn from_iter<I: IntoIterator<Item = MountPoint>>(points: I) -> Self {
        Self {
            points: points.into_iter().collect(),
        }
    }
}

fn point(line: &[u8]) -> Option<MountPoint> {
    // Exactly one space between fields: a source may be empty.
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = device(fields.next()?)?;
    let root = path(fields.next()?)?;
    let target = path(fields.next()?)?;
    let options = text(fields.next()?);
    let mut peer_group = None;
    loop {
        match fields.next()? {
            b"-" => break,
            tag => peer_group = tag.strip_prefix(b"shared:").and_then(number).or(peer_group),
        }
    }
    let fs_type = text(fields.next()?);
    let source = OsString::from_vec(unescaped(fields.next()?));
    let super_options = fields.next().map(text).unwrap_or_default();
    Some(MountPoint {
        id,
        parent,
        device,
        root,
        target,
        options,
        peer_group,
        fs_type,
        source,
        super_options,
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<(u32, u32)> {
    let colon = field.iter().position(|byte| *byte == b':')?;
    Some((number(&field[..colon])?, number(&field[colon + 1..])?))
}

/// Some file systems name a root that is no path (`net:[4026531840]`): kept, so that the mount is known of.
fn path(field: &[u8]) -> Option<PathBuf> {
    let bytes = unescaped(field);
    (!bytes.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&bytes)))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(field)).into_owned()
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match (first, octal(after)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = digits.get(..3)?;
    let mut value = 0_u16;
    for digit in digits {
        if !(b'0'..=b'7').contains(digit) {
            return None;
        }
        value = value * 8 + u16::from(digit - b'0');
    }
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::{ProptestConfig, any};
    use proptest::{collection, prop_assert_eq, proptest};

    use super::MountTable;

    const TABLE: &[u8] = b"\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
28 27 0:25 / /pods rw shared:7 master:1 - tmpfs tmpfs rw,size=4k
40 28 254:0 /data\\040x/a /pods/u/vol\\134ume rw,nosuid shared:9 - ext4 /dev/vda rw
41 40 0:40 / /pods/u/vol\\134ume/deep ro propagate_from:2 - nfs4 server:/ex\\011port rw
junk

42 28 no:device / /x rw - tmpfs tmpfs rw
43 28 0:41 / /pods/short rw
44 28 0:4 net:[4026531840] /run/netns rw - nsfs nsfs rw
45 28 0:50 / /pods/u/vol\\134ume rw - tmpfs  rw
46 28 254:0 /data\\040x/a /elsewhere rw - ext4 /dev/vda";

    #[test]
    fn lines_are_read_and_junk_is_left_out() {
        let table = MountTable::parse(TABLE);
        let ids: Vec<_> = table.points().iter().map(|point| point.id).collect();
        assert_eq!(ids, [27, 28, 40, 41, 44, 45, 46]);
        let bound = &table.points()[2];
        assert_eq!((bound.device, bound.parent, bound.peer_group), ((254, 0), 28, Some(9)));
        assert_eq!(
            (bound.root.as_path(), bound.target.as_path()),
            (Path::new("/data x/a"), Path::new("/pods/u/vol\\ume"))
        );
        assert_eq!((bound.options.as_str(), bound.fs_type.as_str()), ("rw,nosuid", "ext4"));
        assert_eq!(table.points()[3].source, "server:/ex\tport");
        assert_eq!(table.points()[3].peer_group, None);
        assert_eq!(
            (
                table.points()[5].source.as_os_str(),
                table.points()[5].super_options.as_str()
            ),
            ("".as_ref(), "rw")
        );
    }

    #[test]
    fn what_is_mounted_somewhere_is_found_uppermost_first() {
        let table = MountTable::parse(TABLE);
        let volume = Path::new("/pods/u/vol\\ume");
        assert_eq!(table.at(volume).map(|point| point.id), Some(45));
        assert!(table.is_mount_point(Path::new("/")) && !table.is_mount_point(Path::new("/pods/u")));
        let ids = |points: Vec<&super::MountPoint>| points.iter().map(|point| point.id).collect::<Vec<_>>();
        assert_eq!(ids(table.below(Path::new("/pods"))), [41, 45, 40]);
        assert_eq!(ids(table.at_or_below(Path::new("/pods"))), [41, 45, 40, 28]);
        // A name that only begins alike is not below.
        assert!(table.below(Path::new("/po")).is_empty());
        assert!(table.below(Path::new("/pods/u/vol")).is_empty());
    }

    #[test]
    fn the_other_mounts_of_a_folder_are_found() {
        let table = MountTable::parse(TABLE);
        let refs = |path: &str| -> Vec<_> { table.refs(Path::new(path)).iter().map(|point| point.id).collect() };
        assert_eq!(refs("/data x/a"), [40, 46]);
        assert_eq!(refs("/elsewhere"), [40]);
        assert!(refs("/data x/b").is_empty());
        assert!(refs("relative").is_empty());
    }

    #[test]
    fn the_own_table_has_a_root() {
        let table = MountTable::read().unwrap();
        assert!(table.is_mount_point(Path::new("/")) && table.is_mount_point(Path::new("/proc")));
    }

    fn escaped(bytes: &[u8]) -> Vec<u8> {
        let special = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\\');
        let one = |byte: &u8| {
            if special(byte) {
                format!("\\{byte:03o}").into_bytes()
            } else {
                vec![*byte]
            }
        };
        bytes.iter().flat_map(one).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_makes_it_panic(text in collection::vec(any::<u8>(), 0..400)) {
            let _ = MountTable::parse(&text);
        }

        #[test]
        fn pieces_of_lines_do_not_either(cut in 0..TABLE.len(), length in 0..80_usize, junk in any::<u8>()) {
            let mut text = TABLE.to_vec();
            text.drain(cut..(cut + length).min(TABLE.len()));
            text.insert(cut.min(text.len()), junk);
            let _ = MountTable::parse(&text);
        }

        #[test]
        fn every_name_comes_back(name in collection::vec(1..=255_u8, 1..40)) {
            use std::os::unix::ffi::OsStrExt as _;
            let mut line = b"1 0 8:1 / /".to_vec();
            line.extend(escaped(&name));
            line.extend(b" rw - ext4 /dev/sda rw");
            let table = MountTable::parse(&line);
            prop_assert_eq!(&table.points()[0].target.as_os_str().as_bytes()[1..], &name[..]);
        }
    }
}
