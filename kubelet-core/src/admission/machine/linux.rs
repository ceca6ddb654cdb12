//! Reading a Linux machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::{MachineError, MachineInfo};

pub(super) fn read_machine(root: &Path, root_dir: &Path) -> Result<MachineInfo, MachineError> {
    Ok(MachineInfo {
        cpus: count_cpus(&root.join("proc/stat"))?,
        memory_bytes: read_memory(&root.join("proc/meminfo"))?,
        huge_pages: read_huge_pages(&root.join("sys/kernel/mm/hugepages"))?,
        storage_bytes: measure_file_system(root_dir)?,
        max_pids: read_max_pids(&root.join("proc/sys/kernel")),
    })
}

fn read(path: &Path) -> Result<String, MachineError> {
    fs::read_to_string(path).map_err(|source| MachineError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Counts the lines `cpu0`, `cpu1` and so on, which look the same on every architecture, unlike `/proc/cpuinfo`.
fn count_cpus(path: &Path) -> Result<u64, MachineError> {
    let text = read(path)?;
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    match text.lines().filter(is_cpu).count() {
        0 => Err(MachineError::Missing {
            path: path.to_owned(),
            what: "processors",
        }),
        count => Ok(u64::try_from(count).unwrap_or(u64::MAX)),
    }
}

fn read_memory(path: &Path) -> Result<u64, MachineError> {
    let text = read(path)?;
    text.lines()
        .find_map(|line| {
            let amount = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
            amount.trim().parse::<u64>().ok()?.checked_mul(1024)
        })
        .ok_or_else(|| MachineError::Missing {
            path: path.to_owned(),
            what: "MemTotal",
        })
}

/// The lesser of two bounds, as far as they can be read. Source: kubelet 1.36, `stats/pidlimit/pidlimit_linux.go`.
fn read_max_pids(dir: &Path) -> u64 {
    let bounds = ["pid_max", "threads-max"].map(|name| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok());
    bounds.into_iter().flatten().min().unwrap_or(0)
}

/// A kernel without huge pages has no such directory.
fn read_huge_pages(dir: &Path) -> Result<BTreeMap<u64, u64>, MachineError> {
    let failed = |path: &Path, source| MachineError::Read {
        path: path.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.map_err(|error| failed(dir, error))?,
    };
    let mut pages = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed(dir, error))?;
        let name = entry.file_name();
        let size = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"))
            .and_then(|size| size.parse::<u64>().ok()?.checked_mul(1024));
        let Some(size) = size else { continue };
        let path = entry.path().join("nr_hugepages");
        let count = read(&path)?
            .trim()
            .parse()
            .map_err(|_| MachineError::Missing { path, what: "number" })?;
        pages.insert(size, count);
    }
    Ok(pages)
}

fn measure_file_system(dir: &Path) -> Result<u64, MachineError> {
    let stat = rustix::fs::statvfs(dir).map_err(|error| MachineError::Read {
        path: dir.to_owned(),
        source: error.into(),
    })?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use crate::admission::{MachineError, MachineInfo};

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_machine_is_read_below_the_given_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "proc/stat", "cpu  1 2\ncpu0 1 2\ncpu1 1 2\ncpu11 1 2\nintr 5\n");
        write(root, "proc/meminfo", "MemTotal:        4 kB\nMemFree:  1 kB\n");
        write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        let machine = MachineInfo::read(root, root).unwrap();
        assert_eq!((machine.cpus, machine.memory_bytes), (3, 4096));
        assert_eq!(machine.huge_pages, BTreeMap::from([(2 << 20, 3)]));
        assert!(machine.storage_bytes > 0);
    }

    #[test]
    fn an_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let error = MachineInfo::read(root, root).unwrap_err();
        assert_eq!(error.to_string(), format!("read {}", root.join("proc/stat").display()));
        write(root, "proc/stat", "cpu0\n");
        write(root, "proc/meminfo", "MemTotal: many kB\n");
        let error = MachineInfo::read(root, root).unwrap_err();
        assert!(
            matches!(error, MachineError::Missing { what: "MemTotal", .. }),
            "{error}"
        );
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = MachineInfo::read(Path::new("/"), &std::env::temp_dir()).unwrap();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0, "{machine:?}");
    }
}
