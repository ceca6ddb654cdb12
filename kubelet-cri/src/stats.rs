//! What the runtime measures.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

use async_trait::async_trait;
use kubelet_core::{
    ContainerId, ContainerUsage, CpuUsage, FilesystemUsage, InterfaceUsage, MemoryUsage, NetworkUsage, PodUid,
    PodUsage, RuntimeError, Scope, StatsError, StatsProvider, StatsScope, StatsSnapshot, SwapUsage, label,
};
use kubelet_proto::cri::v1;
use kubelet_proto::cri::v1::UInt64Value;
use tracing::debug;

use crate::client::{answer, within};
use crate::convert::timestamp;
use crate::error::Op;
use crate::runtime::{CriRuntime, selector};

/// A limit of this many bytes or more is none: it is how cgroups write that.
const NO_LIMIT: u64 = 1 << 62;

#[async_trait]
impl StatsProvider for CriRuntime {
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
        let of = match want {
            StatsScope::Pod(uid) => Scope::Pod(uid),
            _ => Scope::All,
        };
        let mut snapshot = StatsSnapshot::default();
        let containers = self.container_stats(of).await;
        let containers = containers.map_err(|error| StatsError::failed("cannot read what containers use", error))?;
        snapshot.containers = containers.into_iter().filter_map(container).collect();
        match self.sandbox_stats(of).await {
            Ok(sandboxes) => snapshot.pods = pods(sandboxes),
            // Older runtimes measure containers only, and containerd measures no pod where one has no cgroup of its own.
            Err(error) => debug!(error = &error as &dyn Error, "the runtime does not tell what pods use"),
        }
        Ok(snapshot)
    }
}

impl CriRuntime {
    async fn container_stats(&self, of: Scope<'_>) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        let op = Op::read("list_container_stats", "container stats", "");
        let filter = v1::ContainerStatsFilter {
            label_selector: selector(of),
            ..v1::ContainerStatsFilter::default()
        };
        let request = v1::ListContainerStatsRequest { filter: Some(filter) };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        let said = answer(op, limit, runtime.list_container_stats(within(limit, request))).await?;
        Ok(said.stats)
    }

    async fn sandbox_stats(&self, of: Scope<'_>) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        let op = Op::read("list_podsandbox_stats", "sandbox stats", "");
        let filter = v1::PodSandboxStatsFilter {
            label_selector: selector(of),
            ..v1::PodSandboxStatsFilter::default()
        };
        let request = v1::ListPodSandboxStatsRequest { filter: Some(filter) };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        let said = answer(op, limit, runtime.list_pod_sandbox_stats(within(limit, request))).await?;
        Ok(said.stats)
    }
}

/// Nothing for containers without our mark, and for those that do not run: of these some runtimes tell the size alone.
fn container(stats: v1::ContainerStats) -> Option<ContainerUsage> {
    if stats.cpu.is_none() && stats.memory.is_none() {
        return None;
    }
    let mut attributes = stats.attributes?;
    let uid = attributes.labels.remove(label::POD_UID).filter(|uid| !uid.is_empty())?;
    let name = attributes.metadata.map(|metadata| metadata.name).unwrap_or_default();
    let mut usage = ContainerUsage::new(ContainerId::from(attributes.id), PodUid::from(uid), name);
    usage.cpu = stats.cpu.and_then(cpu);
    usage.memory = stats.memory.and_then(memory);
    usage.swap = stats.swap.and_then(swap);
    usage.writable_layer = stats.writable_layer.and_then(filesystem);
    Some(usage)
}

/// What pods use: of each the newest sandbox, since those that it had before may be there too.
fn pods(sandboxes: Vec<v1::PodSandboxStats>) -> Vec<PodUsage> {
    let attempt = |stats: &v1::PodSandboxStats| {
        let metadata = stats.attributes.as_ref()?.metadata.as_ref()?;
        Some(metadata.attempt)
    };
    let mut newest: BTreeMap<PodUid, (Option<u32>, PodUsage)> = BTreeMap::new();
    for stats in sandboxes {
        let attempt = attempt(&stats);
        let Some(usage) = pod(stats) else { continue };
        if newest.get(&usage.uid).is_none_or(|(before, _)| *before <= attempt) {
            newest.insert(usage.uid.clone(), (attempt, usage));
        }
    }
    newest.into_values().map(|(_, usage)| usage).collect()
}

/// Nothing for sandboxes without our mark.
fn pod(stats: v1::PodSandboxStats) -> Option<PodUsage> {
    let mut attributes = stats.attributes?;
    let uid = attributes.labels.remove(label::POD_UID).filter(|uid| !uid.is_empty())?;
    let mut usage = PodUsage::new(PodUid::from(uid));
    let linux = stats.linux?;
    usage.cpu = linux.cpu.and_then(cpu);
    usage.memory = linux.memory.and_then(memory);
    usage.network = linux.network.and_then(network);
    usage.process_count = value(linux.process.and_then(|process| process.process_count));
    Some(usage)
}

fn value(value: Option<UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

fn cpu(said: v1::CpuUsage) -> Option<CpuUsage> {
    let mut usage = CpuUsage::default();
    usage.at = timestamp(said.timestamp)?;
    usage.usage_core_nanoseconds = value(said.usage_core_nano_seconds);
    // Zero is what a runtime says that has looked only once.
    usage.usage_nano_cores = value(said.usage_nano_cores).filter(|rate| *rate > 0);
    Some(usage)
}

fn memory(said: v1::MemoryUsage) -> Option<MemoryUsage> {
    let mut usage = MemoryUsage::default();
    usage.at = timestamp(said.timestamp)?;
    usage.working_set_bytes = value(said.working_set_bytes);
    // A runtime that has none says zero, or what a limit without end leaves.
    usage.available_bytes = value(said.available_bytes).filter(|bytes| (1..NO_LIMIT).contains(bytes));
    usage.usage_bytes = value(said.usage_bytes);
    usage.rss_bytes = value(said.rss_bytes);
    usage.page_faults = value(said.page_faults);
    usage.major_page_faults = value(said.major_page_faults);
    Some(usage)
}

fn swap(said: v1::SwapUsage) -> Option<SwapUsage> {
    let mut usage = SwapUsage::default();
    usage.at = timestamp(said.timestamp)?;
    usage.usage_bytes = value(said.swap_usage_bytes);
    usage.available_bytes = value(said.swap_available_bytes).filter(|bytes| *bytes < NO_LIMIT);
    Some(usage)
}

fn filesystem(said: v1::FilesystemUsage) -> Option<FilesystemUsage> {
    let mut usage = FilesystemUsage::default();
    usage.at = timestamp(said.timestamp)?;
    usage.mountpoint = said.fs_id.map(|id| PathBuf::from(id.mountpoint)).unwrap_or_default();
    usage.used_bytes = value(said.used_bytes);
    usage.inodes_used = value(said.inodes_used);
    Some(usage)
}

fn network(said: v1::NetworkUsage) -> Option<NetworkUsage> {
    let interface = |said: v1::NetworkInterfaceUsage| {
        let mut usage = InterfaceUsage::default();
        usage.name = said.name;
        usage.rx_bytes = value(said.rx_bytes);
        usage.rx_errors = value(said.rx_errors);
        usage.tx_bytes = value(said.tx_bytes);
        usage.tx_errors = value(said.tx_errors);
        usage
    };
    let mut usage = NetworkUsage::default();
    usage.at = timestamp(said.timestamp)?;
    usage.default_interface = said.default_interface.map(interface);
    usage.interfaces = said.interfaces.into_iter().map(interface).collect();
    Some(usage)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_core::label;
    use kubelet_proto::cri::v1;

    use super::{NO_LIMIT, container, cpu, memory, pod, pods};

    fn some(value: u64) -> Option<v1::UInt64Value> {
        Some(v1::UInt64Value { value })
    }

    #[test]
    fn only_what_has_our_mark_is_told_of() {
        let marked = |uid: &str| BTreeMap::from([(label::POD_UID.to_owned(), uid.to_owned())]);
        let of = |labels| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: "c".to_owned(),
                labels,
                ..v1::ContainerAttributes::default()
            }),
            cpu: Some(v1::CpuUsage::default()),
            ..v1::ContainerStats::default()
        };
        assert_eq!(container(of(marked("u"))).unwrap().pod_uid.as_str(), "u");
        assert_eq!(container(of(marked(""))), None);
        assert_eq!(container(of(BTreeMap::new())), None);
        // One that has ended.
        let ended = v1::ContainerStats {
            cpu: None,
            ..of(marked("u"))
        };
        assert_eq!(container(ended), None);
        assert_eq!(container(v1::ContainerStats::default()), None);
        assert_eq!(pod(v1::PodSandboxStats::default()), None);
    }

    #[test]
    fn of_a_pod_its_newest_sandbox_is_told() {
        let of = |uid: &str, attempt, processes| v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                metadata: Some(v1::PodSandboxMetadata {
                    attempt,
                    ..v1::PodSandboxMetadata::default()
                }),
                labels: BTreeMap::from([(label::POD_UID.to_owned(), uid.to_owned())]),
                ..v1::PodSandboxAttributes::default()
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                process: Some(v1::ProcessUsage {
                    process_count: some(processes),
                    ..v1::ProcessUsage::default()
                }),
                ..v1::LinuxPodSandboxStats::default()
            }),
            ..v1::PodSandboxStats::default()
        };
        let told = pods(vec![of("u", 1, 11), of("u", 3, 13), of("v", 0, 20), of("u", 2, 12)]);
        let told: Vec<_> = told.iter().map(|pod| (pod.uid.as_str(), pod.process_count)).collect();
        assert_eq!(told, [("u", Some(13)), ("v", Some(20))]);
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let said = v1::MemoryUsage {
            timestamp: 1,
            available_bytes: some(NO_LIMIT),
            usage_bytes: some(0),
            ..v1::MemoryUsage::default()
        };
        let usage = memory(said).unwrap();
        assert_eq!((usage.available_bytes, usage.usage_bytes), (None, Some(0)));
        assert_eq!(usage.working_set_bytes, None);
        let limited = v1::MemoryUsage {
            available_bytes: some(4096),
            ..said
        };
        assert_eq!(memory(limited).unwrap().available_bytes, Some(4096));
        assert_eq!(memory(v1::MemoryUsage::default()), None);
        let once = v1::CpuUsage {
            timestamp: 1,
            usage_core_nano_seconds: some(7),
            usage_nano_cores: some(0),
            ..v1::CpuUsage::default()
        };
        let usage = cpu(once).unwrap();
        assert_eq!((usage.usage_core_nanoseconds, usage.usage_nano_cores), (Some(7), None));
    }
}
