//! The limits of containers and sandboxes.

use std::collections::BTreeMap;

/// Limits on Linux. Zero, empty or absent means: no limit of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinuxResources {
    /// Relative CPU weight, 2 to 262144; 0 leaves the default.
    pub cpu_shares: u64,
    /// CPU time per period in microseconds; 0 or negative for no limit.
    pub cpu_quota: i64,
    /// Period in microseconds.
    pub cpu_period: u64,
    /// The processors that it may run on, such as `0-2,7`.
    pub cpuset_cpus: String,
    /// The memory nodes that it may use, such as `0,1`.
    pub cpuset_mems: String,
    /// Memory limit in bytes; 0 for none.
    pub memory_limit_bytes: i64,
    /// Limit of memory and swap together in bytes, with cgroup v1; 0 for none.
    pub memory_swap_limit_bytes: i64,
    /// Limits of memory in large pages in bytes, by the size of the pages as the kernel writes it: `2MB`. Zero allows
    /// none.
    pub hugepage_limits: BTreeMap<String, u64>,
    /// Files of the cgroup v2 and their content, such as `memory.oom.group` and `1`.
    pub unified: BTreeMap<String, String>,
    /// OOM score adjustment, -1000 to 1000.
    pub oom_score_adj: i32,
}
