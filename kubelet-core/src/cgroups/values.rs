//! What is written into one cgroup, and the arithmetic of it.
//!
//! Source: kubelet 1.36, `cm/helpers_linux.go`.

use std::collections::BTreeMap;

const LEAST_SHARES: u64 = 2;
const MOST_SHARES: u64 = 262_144;
const LEAST_QUOTA_MICROS: i64 = 1_000;

/// CPU shares, as cgroup v1 has them, of an amount in thousandths of a processor.
///
/// ```
/// assert_eq!(kubelet_core::cpu_shares(500), 512);
/// assert_eq!(kubelet_core::cpu_shares(0), 2);
/// ```
#[must_use]
pub fn cpu_shares(milli: i64) -> u64 {
    u64::try_from(milli.saturating_mul(1024) / 1000)
        .unwrap_or(0)
        .clamp(LEAST_SHARES, MOST_SHARES)
}

/// The weight that cgroup v2 has for CPU shares.
///
/// ```
/// assert_eq!(kubelet_core::cpu_weight(1024), 39);
/// ```
#[must_use]
pub fn cpu_weight(shares: u64) -> u64 {
    let shares = shares.clamp(LEAST_SHARES, MOST_SHARES);
    1 + (shares - LEAST_SHARES) * 9_999 / (MOST_SHARES - LEAST_SHARES)
}

/// CPU quota in microseconds per period, of an amount in thousandths of a processor; 0 for no limit.
///
/// ```
/// assert_eq!(kubelet_core::cpu_quota(250, 100_000), 25_000);
/// ```
#[must_use]
pub fn cpu_quota(milli: i64, period_micros: i64) -> i64 {
    if milli <= 0 {
        return 0;
    }
    (milli.saturating_mul(period_micros) / 1000).max(LEAST_QUOTA_MICROS)
}

/// The size of large pages as the names of cgroup files have it: `2MB`.
pub(crate) fn page_size_name(bytes: u64) -> String {
    let mut amount = bytes;
    let mut unit = 0;
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    while amount >= 1024 && unit + 1 < UNITS.len() {
        amount /= 1024;
        unit += 1;
    }
    format!("{amount}{}", UNITS[unit])
}

/// The limits of one cgroup. What is absent stays as it is, which in a new cgroup is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupLimits {
    /// CPU weight, in the shares of cgroup v1.
    pub cpu_shares: Option<u64>,
    /// CPU quota in microseconds per period; -1 for none.
    pub cpu_quota: Option<i64>,
    /// CPU period in microseconds.
    pub cpu_period: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// How many processes and threads.
    pub pids: Option<u64>,
    /// Bytes in large pages, by their size as in the names of cgroup files: `2MB`.
    pub hugepages: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::{cpu_quota, cpu_shares, cpu_weight, page_size_name};

    #[test]
    fn shares_weight_and_quota_follow_the_table() {
        for (milli, shares, weight) in [
            (-1, 2, 1),
            (0, 2, 1),
            (1, 2, 1),
            (100, 102, 4),
            (500, 512, 20),
            (1000, 1024, 39),
            (4000, 4096, 157),
            (1_000_000, 262_144, 10_000),
            (i64::MAX, 262_144, 10_000),
        ] {
            assert_eq!(cpu_shares(milli), shares, "{milli}");
            assert_eq!(cpu_weight(shares), weight, "{shares}");
        }
        for (milli, quota) in [(-1, 0), (0, 0), (5, 1000), (250, 25_000), (2000, 200_000)] {
            assert_eq!(cpu_quota(milli, 100_000), quota);
        }
        assert_eq!(cpu_quota(250, 10_000), 2_500);
    }

    #[test]
    fn sizes_of_large_pages_are_named_as_the_kernel_does() {
        for (bytes, name) in [
            (64 << 10, "64KB"),
            (2 << 20, "2MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ] {
            assert_eq!(page_size_name(bytes), name);
        }
    }
}
