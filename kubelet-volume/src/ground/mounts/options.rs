//! Options of mounts.

use rustix::mount::MountFlags;

/// How something is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Nothing can be written through this mount (`ro`).
    pub read_only: bool,
    /// Programs do not run as their owner (`nosuid`).
    pub no_suid: bool,
    /// Device files are none (`nodev`).
    pub no_dev: bool,
    /// No program is run from it (`noexec`).
    pub no_exec: bool,
    /// Times of reading are not kept (`noatime`).
    pub no_atime: bool,
    /// Times of reading folders are not kept (`nodiratime`).
    pub no_dir_atime: bool,
    /// Times of reading are kept where they matter (`relatime`); the kernel's own choice.
    pub relatime: bool,
    /// All times of reading are kept (`strictatime`).
    pub strict_atime: bool,
    /// Writes wait for the disk (`sync`).
    pub sync: bool,
    /// Changes of folders wait for the disk (`dirsync`).
    pub dir_sync: bool,
    /// With a bind, mounts below the source come along (`rbind`).
    pub recursive: bool,
    /// All else, in the order given: options of the file system, and those for programs (`_netdev`). A bind has none.
    pub data: Vec<String>,
}

impl MountOptions {
    /// Nothing but read-only.
    #[must_use]
    pub fn read_only() -> Self {
        Self {
            read_only: true,
            ..Self::default()
        }
    }

    /// Options as a PersistentVolume's `mountOptions` name them; each may be several, separated by commas outside of
    /// quotes. A later one takes an earlier one back (`ro`, `rw`). What is not known stays in [`MountOptions::data`].
    #[must_use]
    pub fn parse<S: AsRef<str>>(options: impl IntoIterator<Item = S>) -> Self {
        let mut parsed = Self::default();
        for several in options {
            for option in split(several.as_ref()) {
                parsed.take(option);
            }
        }
        parsed
    }

    fn take(&mut self, option: &str) {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.no_suid = true,
            "suid" => self.no_suid = false,
            "nodev" => self.no_dev = true,
            "dev" => self.no_dev = false,
            "noexec" => self.no_exec = true,
            "exec" => self.no_exec = false,
            "noatime" => (self.no_atime, self.relatime, self.strict_atime) = (true, false, false),
            "atime" => self.no_atime = false,
            "nodiratime" => self.no_dir_atime = true,
            "diratime" => self.no_dir_atime = false,
            "relatime" => (self.relatime, self.no_atime, self.strict_atime) = (true, false, false),
            "norelatime" => self.relatime = false,
            "strictatime" => (self.strict_atime, self.relatime, self.no_atime) = (true, false, false),
            "nostrictatime" => self.strict_atime = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dir_sync = true,
            "rbind" => self.recursive = true,
            // What is bound is said by the call.
            "" | "bind" | "defaults" => {}
            other => self.data.push(other.to_owned()),
        }
    }

    /// Flags of one mount, which a bind may change too.
    pub(super) fn bind_flags(&self) -> MountFlags {
        self.flags() - (MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC)
    }

    pub(super) fn flags(&self) -> MountFlags {
        let named = self.named();
        named.filter(|(set, ..)| *set).map(|(.., flag)| flag).collect()
    }

    fn named(&self) -> impl Iterator<Item = (bool, &'static str, MountFlags)> + use<> {
        [
            (self.read_only, "ro", MountFlags::RDONLY),
            (self.no_suid, "nosuid", MountFlags::NOSUID),
            (self.no_dev, "nodev", MountFlags::NODEV),
            (self.no_exec, "noexec", MountFlags::NOEXEC),
            (self.no_atime, "noatime", MountFlags::NOATIME),
            (self.no_dir_atime, "nodiratime", MountFlags::NODIRATIME),
            (self.relatime, "relatime", MountFlags::RELATIME),
            (self.strict_atime, "strictatime", MountFlags::STRICTATIME),
            (self.sync, "sync", MountFlags::SYNCHRONOUS),
            (self.dir_sync, "dirsync", MountFlags::DIRSYNC),
        ]
        .into_iter()
    }

    /// Options of the file system, for the kernel: without those that only programs understand.
    pub(super) fn kernel_data(&self, data: &str) -> String {
        let for_programs = |option: &str| {
            matches!(
                option,
                "_netdev" | "nofail" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group"
            ) || option.starts_with("x-")
                || option.starts_with("X-")
                || option.starts_with("comment=")
        };
        let own = self
            .data
            .iter()
            .map(String::as_str)
            .filter(|option| !for_programs(option));
        own.chain(split(data)).collect::<Vec<_>>().join(",")
    }

    /// All of it, as the `mount` program takes it after `-o`.
    pub(super) fn program_text(&self, data: &str) -> String {
        let flags = self.named().filter(|(set, ..)| *set).map(|(_, name, _)| name);
        let own = self.data.iter().map(String::as_str);
        flags.chain(own).chain(split(data)).collect::<Vec<_>>().join(",")
    }
}

/// The parts between commas; not at those within quotes, which labels of SELinux have.
fn split(options: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    options
        .split(move |letter| {
            quoted ^= letter == '"';
            letter == ',' && !quoted
        })
        .map(str::trim)
        .filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use rustix::mount::MountFlags;

    use super::MountOptions;

    #[test]
    fn known_options_are_flags_and_the_others_stay() {
        let options = MountOptions::parse([
            "ro,noatime",
            "rw",
            "nosuid",
            "nfsvers=4.1",
            "hard",
            "_netdev",
            "relatime",
        ]);
        assert!(!options.read_only && options.no_suid && options.relatime && !options.no_atime);
        assert_eq!(options.data, ["nfsvers=4.1", "hard", "_netdev"]);
        assert_eq!(options.flags(), MountFlags::NOSUID | MountFlags::RELATIME);
        assert_eq!(options.kernel_data("size=4,mode=1"), "nfsvers=4.1,hard,size=4,mode=1");
        assert_eq!(options.program_text(""), "nosuid,relatime,nfsvers=4.1,hard,_netdev");
        assert_eq!(MountOptions::parse(["defaults", "", "bind"]), MountOptions::default());
    }

    #[test]
    fn commas_in_quotes_part_nothing() {
        let options = MountOptions::parse([r#"context="a:b:s0:c1,c2",sync"#]);
        assert_eq!(options.data, [r#"context="a:b:s0:c1,c2""#]);
        assert!(options.sync);
        assert_eq!(options.bind_flags(), MountFlags::empty());
    }
}
