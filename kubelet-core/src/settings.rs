//! Numbers of the engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::runtime::CgroupDriver;

/// How often and how long. The defaults are those of the upstream kubelet 1.36, where it has them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Each pod is looked into again after this time, stretched by up to a half. 60 s.
    pub resync_period: Duration,
    /// Wait after a step that failed, stretched by up to a half. 10 s.
    pub error_backoff: Duration,
    /// Wait while the pod network is not ready, stretched by up to a half. 1 s.
    pub network_backoff: Duration,
    /// How often the backend is asked how it is. 5 s.
    pub runtime_status_period: Duration,
    /// Deadline of a runtime call. 2 min; making a sandbox gets twice that, stopping and exec get it beside their own.
    pub runtime_request_timeout: Duration,
    /// How long [`Kubelet::run`](crate::Kubelet::run) may take to end once it is asked to. 10 s.
    pub stop_within: Duration,
    /// First and longest wait before a container that keeps failing is started again. 10 s and 300 s.
    pub crash_backoff: (Duration, Duration),
    /// First and longest wait before an image is pulled again. 10 s and 300 s.
    pub image_backoff: (Duration, Duration),
    /// How many images are pulled at once; `usize::MAX`: as many as are wanted. 1, as upstream.
    pub parallel_image_pulls: usize,
    /// How many pulls begin per second once [`registry_burst`](Self::registry_burst) is used up; the others wait. 0: no
    /// bound. 5.
    pub registry_pull_qps: u32,
    /// How many pulls begin at once after a while without any. 10.
    pub registry_burst: u32,
    /// How often the logs of running containers are looked at, and rotated where they have grown too large. 10 s.
    pub log_check_period: Duration,
    /// Publishes of statuses under way at once, per sink. 8.
    pub parallel_publishes: usize,
    /// How many runs of probes may be under way at once; one pod gets an eighth of them. What is due beyond that waits. 1024,
    /// where upstream has no bound.
    pub parallel_probes: usize,
    /// How many sandboxes and containers are made and started at a time.
    pub start_limits: StartLimits,
    /// How many dead containers stay.
    pub container_gc: ContainerGcPolicy,
}

/// How many dead containers stay, with their logs, of pods that are still wished for. Of a pod that leaves the node, or is
/// evicted, nothing stays.
///
/// What is too much goes with the next sync of its pod: at once where a newer one takes its place, else within
/// [`Settings::resync_period`] and a half. The newest container of each name always stays, unless it is made anew: it tells
/// what has run.
///
/// Source: kubelet 1.36, the flags that are named; all have been called deprecated for long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerGcPolicy {
    /// Dead containers made less than this ago stay, and do not count. Zero. `--minimum-container-ttl-duration`. Those of a pod
    /// that ends stay until it leaves the node, since nobody syncs it any more.
    pub min_age: Duration,
    /// How many of each name of a pod stay; `None`: any number. 1. `--maximum-dead-containers-per-container`, where any number
    /// is negative.
    pub max_per_container: Option<u32>,
    /// How many stay on the node; `None`: any number, the default. Beyond it go first those of names that have more than an
    /// equal share, then the oldest. `--maximum-dead-containers`, where any number is negative. Of a pod that has ended
    /// only the newest of each name stay once this is set.
    pub max_total: Option<u32>,
}

impl Default for ContainerGcPolicy {
    fn default() -> Self {
        Self {
            min_age: Duration::ZERO,
            max_per_container: Some(1),
            max_total: None,
        }
    }
}

/// How many calls that make sandboxes, or make or start containers, are under way at a time. The number moves between the
/// least and the most, to where the runtime gets most done with the fewest. Pulls, hooks and stops do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartLimits {
    /// The number at first. Four for each processor of the machine, at least 8 and at most 64.
    pub first: NonZeroUsize,
    /// It never falls below this. 4.
    pub least: NonZeroUsize,
    /// It never rises above this. 256.
    pub most: NonZeroUsize,
}

impl Default for StartLimits {
    fn default() -> Self {
        const EIGHT: NonZeroUsize = NonZeroUsize::new(8).unwrap();
        const MOST_AT_FIRST: NonZeroUsize = NonZeroUsize::new(64).unwrap();
        const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self {
            first: processors.saturating_mul(FOUR).clamp(EIGHT, MOST_AT_FIRST),
            least: FOUR,
            most: const { NonZeroUsize::new(256).unwrap() },
        }
    }
}

impl StartLimits {
    /// Always the same number.
    #[must_use]
    pub fn fixed(number: NonZeroUsize) -> Self {
        Self {
            first: number,
            least: number,
            most: number,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resync_period: Duration::from_secs(60),
            error_backoff: Duration::from_secs(10),
            network_backoff: Duration::from_secs(1),
            runtime_status_period: Duration::from_secs(5),
            runtime_request_timeout: Duration::from_secs(120),
            stop_within: Duration::from_secs(10),
            crash_backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            image_backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            parallel_image_pulls: 1,
            registry_pull_qps: 5,
            registry_burst: 10,
            log_check_period: Duration::from_secs(10),
            parallel_publishes: 8,
            parallel_probes: 1024,
            start_limits: StartLimits::default(),
            container_gc: ContainerGcPolicy::default(),
        }
    }
}

/// Whether containers may use the node's swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwapBehavior {
    /// They may not.
    #[default]
    NoSwap,
    /// Those of Burstable pods may use a share like the share of the node's memory that they request. Needs cgroup v2.
    LimitedSwap,
}

/// How limits of containers become those of the kernel. The defaults are those of the upstream kubelet 1.36.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ResourceSettings {
    /// Whether limits of CPU are enforced, by quotas. True.
    pub cpu_cfs_quota: bool,
    /// The period of those quotas, 1 ms to 1 s. 100 ms.
    pub cpu_cfs_quota_period: Duration,
    /// Whether the kernel kills only one process of a container that is out of memory, and not all. False; with cgroup
    /// v1 it is always one.
    pub single_process_oom_kill: bool,
    /// Whether containers may use swap. They may not.
    pub swap: SwapBehavior,
    /// How many processes and threads each pod may have, where pods have cgroups. Any number.
    pub pod_pids_limit: Option<u64>,
    /// Who makes cgroups, where the runtime does not say. Plain folders.
    pub cgroup_driver: CgroupDriver,
}

impl Default for ResourceSettings {
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            single_process_oom_kill: false,
            swap: SwapBehavior::NoSwap,
            pod_pids_limit: None,
            cgroup_driver: CgroupDriver::Cgroupfs,
        }
    }
}

/// Which users of the host pods have that have users of their own (`hostUsers: false`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserNamespaceSettings {
    /// How many users each pod has: a multiple of 65536. 65536.
    pub ids_per_pod: u32,
    /// The users of the host that are given to pods, and of the groups the same: the first one, and how many. By default
    /// those that `getsubids` tells of the user `kubelet`; where there is no such user or no such program, all but the
    /// first block.
    pub host_ids: Option<(u32, u32)>,
}

impl Default for UserNamespaceSettings {
    fn default() -> Self {
        Self {
            ids_per_pod: 65_536,
            host_ids: None,
        }
    }
}

impl UserNamespaceSettings {
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.ids_per_pod {
            0 => Err("no ids per pod".to_owned()),
            ids if !ids.is_multiple_of(65_536) => Err(format!("{ids} ids per pod are no multiple of 65536")),
            _ => Ok(()),
        }
    }
}
