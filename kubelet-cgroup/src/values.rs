//! Limits as the content of files.

use kubelet_core::{CgroupLimits, LinuxResources, cpu_weight};

use crate::tree::Version;

/// One file, and what is written into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The controller that it belongs to.
    pub(crate) controller: &'static str,
    pub(crate) file: String,
    pub(crate) text: String,
}

fn value(controller: &'static str, file: impl Into<String>, text: impl ToString) -> Value {
    Value {
        controller,
        file: file.into(),
        text: text.to_string(),
    }
}

/// The limits of one cgroup, in the order in which they are written.
pub(crate) fn values(limits: &CgroupLimits, version: Version) -> Vec<Value> {
    let mut all = Vec::new();
    match version {
        Version::V1 => {
            all.extend(limits.cpu_shares.map(|shares| value("cpu", "cpu.shares", shares)));
            all.extend(
                limits
                    .cpu_period
                    .map(|period| value("cpu", "cpu.cfs_period_us", period)),
            );
            all.extend(
                limits
                    .cpu_quota
                    .map(|quota| value("cpu", "cpu.cfs_quota_us", quota.max(-1))),
            );
            all.extend(
                limits
                    .memory_bytes
                    .map(|bytes| value("memory", "memory.limit_in_bytes", bytes)),
            );
        }
        Version::V2 => {
            all.extend(
                limits
                    .cpu_shares
                    .map(|shares| value("cpu", "cpu.weight", cpu_weight(shares))),
            );
            if let Some(quota) = limits.cpu_quota {
                let quota = match quota {
                    ..=0 => "max".to_owned(),
                    quota => quota.to_string(),
                };
                let period = limits.cpu_period.unwrap_or(100_000);
                all.push(value("cpu", "cpu.max", format!("{quota} {period}")));
            }
            all.extend(limits.memory_bytes.map(|bytes| value("memory", "memory.max", bytes)));
        }
    }
    all.extend(limits.pids.map(|pids| value("pids", "pids.max", pids)));
    all.extend(limits.hugepages.iter().map(|(size, bytes)| match version {
        Version::V1 => value("hugetlb", format!("hugetlb.{size}.limit_in_bytes"), bytes),
        Version::V2 => value("hugetlb", format!("hugetlb.{size}.max"), bytes),
    }));
    all
}

/// The limits of a container.
pub(crate) fn container_values(limits: &LinuxResources, version: Version) -> Vec<Value> {
    let mut own = CgroupLimits::default();
    own.cpu_shares = Some(limits.cpu_shares).filter(|shares| *shares > 0);
    own.cpu_period = Some(limits.cpu_period).filter(|period| *period > 0);
    // It may have had another one before.
    own.cpu_quota = own.cpu_period.map(|_| match limits.cpu_quota {
        ..=0 => -1,
        quota => quota,
    });
    own.memory_bytes = u64::try_from(limits.memory_limit_bytes).ok().filter(|bytes| *bytes > 0);
    own.hugepages.clone_from(&limits.hugepage_limits);
    let mut all = values(&own, version);
    match version {
        Version::V1 if limits.memory_swap_limit_bytes > 0 => {
            let bytes = limits.memory_swap_limit_bytes;
            all.push(value("memory", "memory.memsw.limit_in_bytes", bytes));
        }
        Version::V1 => {}
        Version::V2 => all.extend(limits.unified.iter().map(|(file, text)| {
            let controller = match file.split('.').next() {
                Some("cpu") => "cpu",
                Some("pids") => "pids",
                Some("io") => "io",
                Some("hugetlb") => "hugetlb",
                _ => "memory",
            };
            value(controller, file.clone(), text)
        })),
    }
    let sets = [
        ("cpuset.cpus", &limits.cpuset_cpus),
        ("cpuset.mems", &limits.cpuset_mems),
    ];
    let sets = sets.into_iter().filter(|(_, set)| !set.is_empty());
    all.extend(sets.map(|(file, set)| value("cpuset", file, set)));
    all
}

/// The amount in thousandths of a processor that shares were made from, as nearly as they tell.
pub(crate) fn milli_of_shares(shares: u64) -> u64 {
    match shares {
        ..=2 => 0,
        shares => shares.saturating_mul(1000).div_ceil(1024),
    }
}

/// The shares that a weight was made from, as nearly as it tells.
pub(crate) fn shares_of_weight(weight: u64) -> u64 {
    2 + (weight.clamp(1, 10_000).saturating_sub(1) * 262_142).div_ceil(9_999)
}

#[cfg(test)]
mod tests {
    use kubelet_core::{CgroupLimits, LinuxResources, cpu_shares, cpu_weight};

    use super::{Value, container_values, milli_of_shares, shares_of_weight, values};
    use crate::tree::Version;

    fn text(values: &[Value]) -> String {
        let texts: Vec<String> = values.iter().map(|v| format!("{}={}", v.file, v.text)).collect();
        texts.join("; ")
    }

    #[test]
    fn limits_become_files_of_each_version() {
        let mut limits = CgroupLimits::default();
        assert_eq!(values(&limits, Version::V1), []);
        assert_eq!(values(&limits, Version::V2), []);
        limits.cpu_shares = Some(512);
        limits.cpu_quota = Some(50_000);
        limits.cpu_period = Some(100_000);
        limits.memory_bytes = Some(64 << 20);
        limits.pids = Some(100);
        limits.hugepages.insert("2MB".to_owned(), 0);
        assert_eq!(
            text(&values(&limits, Version::V1)),
            "cpu.shares=512; cpu.cfs_period_us=100000; cpu.cfs_quota_us=50000; memory.limit_in_bytes=67108864; \
             pids.max=100; hugetlb.2MB.limit_in_bytes=0"
        );
        assert_eq!(
            text(&values(&limits, Version::V2)),
            "cpu.weight=20; cpu.max=50000 100000; memory.max=67108864; pids.max=100; hugetlb.2MB.max=0"
        );
        limits.cpu_quota = Some(-1);
        assert!(text(&values(&limits, Version::V1)).contains("cpu.cfs_quota_us=-1;"));
        assert!(text(&values(&limits, Version::V2)).contains("cpu.max=max 100000;"));
    }

    #[test]
    fn limits_of_containers_become_files_of_each_version() {
        let mut limits = LinuxResources::default();
        assert_eq!(container_values(&limits, Version::V1), []);
        limits.cpu_shares = 512;
        limits.cpu_period = 100_000;
        limits.memory_limit_bytes = 64 << 20;
        limits.memory_swap_limit_bytes = 64 << 20;
        limits.cpuset_cpus = "0-1".to_owned();
        limits.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
        assert_eq!(
            text(&container_values(&limits, Version::V1)),
            "cpu.shares=512; cpu.cfs_period_us=100000; cpu.cfs_quota_us=-1; memory.limit_in_bytes=67108864; \
             memory.memsw.limit_in_bytes=67108864; cpuset.cpus=0-1"
        );
        assert_eq!(
            text(&container_values(&limits, Version::V2)),
            "cpu.weight=20; cpu.max=max 100000; memory.max=67108864; memory.oom.group=1; cpuset.cpus=0-1"
        );
    }

    #[test]
    fn what_an_earlier_life_wrote_tells_what_was_requested() {
        for milli in [0_u32, 100, 250, 500, 1000, 4000] {
            let shares = cpu_shares(milli.into());
            assert_eq!(cpu_shares(i64::try_from(milli_of_shares(shares)).unwrap()), shares);
            let told = shares_of_weight(cpu_weight(shares));
            assert_eq!(
                cpu_weight(told),
                cpu_weight(shares),
                "{milli}: {shares} is told as {told}"
            );
        }
    }
}
