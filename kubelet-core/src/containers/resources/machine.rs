//! What the machine's cgroups can do.

use std::fs;
use std::path::Path;

/// Read once. By default a machine of cgroup v1 without swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupFacts {
    /// Whether there is one hierarchy for everything. One beside others does not count.
    pub(crate) is_v2: bool,
    /// Whether swap can be limited.
    pub(crate) has_swap_controller: bool,
    /// How much swap there is.
    pub(crate) swap_bytes: u64,
}

impl CgroupFacts {
    /// Those of the machine whose `/proc` and `/sys` lie below `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let cgroups = root.join("sys/fs/cgroup");
        let is_v2 = cgroups.join("cgroup.controllers").exists();
        let swap_file = if is_v2 {
            let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
            let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
            cgroups.join(own).join("memory.swap.max")
        } else {
            cgroups.join("memory/memory.memsw.limit_in_bytes")
        };
        let memory = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let kib = memory.lines().find_map(|line| {
            let amount = line.strip_prefix("SwapTotal:")?.trim().strip_suffix("kB")?;
            amount.trim().parse::<u64>().ok()
        });
        Self {
            is_v2,
            has_swap_controller: swap_file.exists(),
            swap_bytes: kib.unwrap_or(0).saturating_mul(1024),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::CgroupFacts;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn version_and_swap_are_read_from_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(CgroupFacts::read(root), CgroupFacts::default());
        write(root, "proc/meminfo", "MemTotal: 8 kB\nSwapTotal:       4 kB\n");
        write(root, "proc/self/cgroup", "4:memory:/other\n0::/system.slice/agent\n");
        write(root, "sys/fs/cgroup/unified/cgroup.controllers", "");
        write(root, "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "1");
        let facts = |is_v2, has_swap_controller| CgroupFacts {
            is_v2,
            has_swap_controller,
            swap_bytes: 4096,
        };
        assert_eq!(
            CgroupFacts::read(root),
            facts(false, true),
            "the unified one is beside v1"
        );
        write(root, "sys/fs/cgroup/cgroup.controllers", "memory");
        assert_eq!(CgroupFacts::read(root), facts(true, false));
        write(root, "sys/fs/cgroup/system.slice/agent/memory.swap.max", "max");
        assert_eq!(CgroupFacts::read(root), facts(true, true));
    }
}
