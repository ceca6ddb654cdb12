//! What is used, as the files of a cgroup tell it.
//!
//! Source: kubelet 1.36, `stats/helper.go`, and cAdvisor's readers of cgroups.

use std::collections::BTreeMap;
use std::path::Path;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{CpuUsage, MemoryUsage, Pressure, PressureShare, PressureStalls, SwapUsage};

use crate::files;
use crate::tree::{Tree, Version};

/// A limit above this is none.
const UNLIMITED: u64 = 1 << 62;

/// Reads one cgroup.
pub(crate) struct Reader<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) path: &'a Path,
    pub(crate) at: Timestamp,
}

impl Reader<'_> {
    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        self.tree.read(self.path, controller, file)?.trim().parse().ok()
    }

    /// A file of lines with a name and a number each.
    fn table(&self, controller: &str, file: &str) -> BTreeMap<String, u64> {
        let text = self.tree.read(self.path, controller, file).unwrap_or_default();
        let line = |line: &str| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.trim().parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// Processor time.
    pub(crate) fn cpu(&self) -> Option<CpuUsage> {
        let used = match self.tree.version {
            Version::V1 => self.number("cpuacct", "cpuacct.usage")?,
            Version::V2 => self.table("cpu", "cpu.stat").get("usage_usec")?.saturating_mul(1000),
        };
        let mut usage = CpuUsage::default();
        usage.at = self.at;
        usage.usage_core_nanoseconds = Some(used);
        Some(usage)
    }

    /// Memory.
    pub(crate) fn memory(&self) -> Option<MemoryUsage> {
        let is_v1 = self.tree.version == Version::V1;
        let (current, limit) = match self.tree.version {
            Version::V1 => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
            Version::V2 => ("memory.current", "memory.max"),
        };
        let used = self.number("memory", current)?;
        let table = self.table("memory", "memory.stat");
        let entry = |v1: &str, v2: &str| table.get(if is_v1 { v1 } else { v2 }).copied();
        let working_set = entry("total_inactive_file", "inactive_file").map(|inactive| used.saturating_sub(inactive));
        let limit = self.number("memory", limit).filter(|limit| *limit <= UNLIMITED);
        let mut usage = MemoryUsage::default();
        usage.at = self.at;
        usage.usage_bytes = Some(used);
        usage.working_set_bytes = working_set;
        usage.available_bytes = limit.zip(working_set).map(|(limit, used)| limit.saturating_sub(used));
        // Counted now and then alone; of what runs neither is nothing, so that nothing means: not yet.
        usage.rss_bytes = entry("total_rss", "anon").filter(|bytes| *bytes > 0);
        usage.page_faults = entry("total_pgfault", "pgfault").filter(|faults| *faults > 0);
        usage.major_page_faults = entry("total_pgmajfault", "pgmajfault");
        Some(usage)
    }

    /// Swap; nothing where it is not accounted for.
    pub(crate) fn swap(&self) -> Option<SwapUsage> {
        let (used, limit) = match self.tree.version {
            Version::V1 => {
                let used = *self.table("memory", "memory.stat").get("total_swap")?;
                // Memory and swap count together there.
                let both = self
                    .number("memory", "memory.memsw.limit_in_bytes")
                    .filter(|limit| *limit <= UNLIMITED);
                let memory = self.number("memory", "memory.limit_in_bytes");
                (used, both.zip(memory).map(|(both, memory)| both.saturating_sub(memory)))
            }
            Version::V2 => (
                self.number("memory", "memory.swap.current")?,
                self.number("memory", "memory.swap.max"),
            ),
        };
        let mut usage = SwapUsage::default();
        usage.at = self.at;
        usage.usage_bytes = Some(used);
        usage.available_bytes = limit.map(|limit| limit.saturating_sub(used));
        Some(usage)
    }

    /// How much time was lost in waiting; nothing where the kernel does not tell.
    pub(crate) fn pressure(&self) -> Option<Pressure> {
        if self.tree.version == Version::V1 {
            return None;
        }
        let mut pressure = Pressure::new(self.at);
        pressure.cpu = self.stalls("cpu");
        pressure.memory = self.stalls("memory");
        pressure.io = self.stalls("io");
        let is_told = pressure.cpu.is_some() || pressure.memory.is_some() || pressure.io.is_some();
        is_told.then_some(pressure)
    }

    fn stalls(&self, of: &str) -> Option<PressureStalls> {
        let text = self.tree.read(self.path, of, &format!("{of}.pressure"))?;
        let share = |kind: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
            share(line)
        };
        let mut stalls = PressureStalls::default();
        stalls.some = share("some")?;
        stalls.full = share("full");
        Some(stalls)
    }

    /// How many processes there are, those in cgroups inside of it among them.
    pub(crate) fn processes(&self) -> Option<u64> {
        let folder = self.tree.marked(self.path)?;
        count(&folder)
    }
}

fn count(folder: &Path) -> Option<u64> {
    let text = files::read(&folder.join("cgroup.procs")).ok()??;
    let mut number = u64::try_from(text.lines().count()).ok()?;
    for inside in files::folders(folder).ok()? {
        number = number.saturating_add(count(&inside).unwrap_or(0));
    }
    Some(number)
}

/// `avg10=0.12 avg60=1.00 avg300=0.00 total=4711`.
fn share(line: &str) -> Option<PressureShare> {
    let mut share = PressureShare::default();
    for word in line.split_whitespace() {
        let (name, value) = word.split_once('=')?;
        match name {
            "total" => share.total_micros = value.parse().ok()?,
            "avg10" => share.avg10_hundredths = hundredths(value)?,
            "avg60" => share.avg60_hundredths = hundredths(value)?,
            "avg300" => share.avg300_hundredths = hundredths(value)?,
            _ => {}
        }
    }
    Some(share)
}

/// Hundredths of a number with two places.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let part: u32 = format!("{part:0<2}").get(..2)?.parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use kubelet_core::jiff::Timestamp;
    use tempfile::TempDir;

    use super::{Reader, hundredths};
    use crate::tree::Tree;

    fn machine(files: &[(&str, &str)]) -> (TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let tree = Tree::find(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn files_of_v2_tell_what_is_used() {
        let (_dir, tree) = machine(&[
            ("cgroup.controllers", "cpu memory io pids"),
            ("a/cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
            ("a/memory.current", "1000\n"),
            (
                "a/memory.stat",
                "anon 300\nfile 600\ninactive_file 400\npgfault 7\npgmajfault 2\n",
            ),
            ("a/memory.max", "2000\n"),
            ("a/memory.swap.current", "10\n"),
            ("a/memory.swap.max", "max\n"),
            ("a/cgroup.procs", "1\n2\n"),
            ("a/b/cgroup.procs", "3\n"),
            ("a/cpu.pressure", "some avg10=0.12 avg60=1.00 avg300=10.50 total=4711\n"),
            (
                "a/memory.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=99.99 avg60=0 avg300=0 total=2\n",
            ),
        ]);
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let reader = Reader {
            tree: &tree,
            path: Path::new("a"),
            at,
        };
        assert_eq!(reader.cpu().unwrap().usage_core_nanoseconds, Some(1_500_000));
        let memory = reader.memory().unwrap();
        assert_eq!((memory.usage_bytes, memory.working_set_bytes), (Some(1000), Some(600)));
        assert_eq!((memory.available_bytes, memory.rss_bytes), (Some(1400), Some(300)));
        assert_eq!((memory.page_faults, memory.major_page_faults), (Some(7), Some(2)));
        let swap = reader.swap().unwrap();
        assert_eq!((swap.usage_bytes, swap.available_bytes), (Some(10), None));
        assert_eq!(reader.processes(), Some(3));
        let pressure = reader.pressure().unwrap();
        let cpu = pressure.cpu.unwrap();
        assert_eq!(
            (
                cpu.some.avg10_hundredths,
                cpu.some.avg300_hundredths,
                cpu.some.total_micros
            ),
            (12, 1050, 4711)
        );
        assert_eq!(cpu.full, None);
        assert_eq!(pressure.memory.unwrap().full.unwrap().avg10_hundredths, 9999);
        assert_eq!(pressure.io, None);
        let nothing = Reader {
            tree: &tree,
            path: Path::new("none"),
            at,
        };
        assert_eq!(
            (nothing.cpu(), nothing.memory(), nothing.swap(), nothing.pressure()),
            (None, None, None, None)
        );
        assert_eq!(nothing.processes(), None);
    }

    #[test]
    fn files_of_v1_tell_what_is_used() {
        let (_dir, tree) = machine(&[
            ("cpu/cgroup.procs", ""),
            ("cpuacct/cgroup.procs", ""),
            ("memory/cgroup.procs", ""),
            ("cpuacct/a/cpuacct.usage", "4711\n"),
            ("memory/a/memory.usage_in_bytes", "1000\n"),
            ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "memory/a/memory.stat",
                "rss 1\ntotal_rss 300\ntotal_inactive_file 1200\ntotal_pgfault 7\ntotal_swap 5\n",
            ),
        ]);
        let reader = Reader {
            tree: &tree,
            path: Path::new("a"),
            at: Timestamp::UNIX_EPOCH,
        };
        assert_eq!(reader.cpu().unwrap().usage_core_nanoseconds, Some(4711));
        let memory = reader.memory().unwrap();
        assert_eq!((memory.usage_bytes, memory.working_set_bytes), (Some(1000), Some(0)));
        assert_eq!((memory.available_bytes, memory.rss_bytes), (None, Some(300)));
        assert_eq!(memory.major_page_faults, None);
        let swap = reader.swap().unwrap();
        assert_eq!((swap.usage_bytes, swap.available_bytes), (Some(5), None));
        assert_eq!(reader.pressure(), None);
    }

    #[test]
    fn averages_are_read_to_the_hundredth() {
        for (text, value) in [
            ("0.00", Some(0)),
            ("0.5", Some(50)),
            ("12.34", Some(1234)),
            ("7", Some(700)),
            ("x", None),
        ] {
            assert_eq!(hundredths(text), value, "{text}");
        }
    }
}
