//! Usage of containers and sandboxes: made up, but growing with time as real usage does.

use kubelet_core::RuntimeError;
use kubelet_core::jiff::Timestamp;
use kubelet_proto::cri::v1;

use crate::FakeRuntime;
use crate::fake::effect::{no_container, no_sandbox};
use crate::fake::state::State;
use crate::fake::world::{Container, Sandbox};
use crate::fake_cri::convert::selects;
use crate::fake_cri::status::{container_metadata, nanos, sandbox_metadata};

/// A hundredth of a core.
const NANO_CORES: u64 = 10_000_000;
const MEMORY: u64 = 8 << 20;
const LAYER: u64 = 64 << 10;

fn number(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

/// What a container has used by now.
fn cpu(started: Option<Timestamp>, now: Timestamp) -> v1::CpuUsage {
    let ran = started.map(|started| nanos(now).saturating_sub(nanos(started)));
    let ran = u64::try_from(ran.unwrap_or_default()).unwrap_or_default();
    v1::CpuUsage {
        timestamp: nanos(now),
        usage_core_nano_seconds: number(ran / (1_000_000_000 / NANO_CORES)),
        usage_nano_cores: number(NANO_CORES),
        ..v1::CpuUsage::default()
    }
}

fn memory(bytes: u64, now: Timestamp) -> v1::MemoryUsage {
    v1::MemoryUsage {
        timestamp: nanos(now),
        working_set_bytes: number(bytes),
        usage_bytes: number(bytes),
        rss_bytes: number(bytes / 2),
        page_faults: number(100),
        major_page_faults: number(1),
        ..v1::MemoryUsage::default()
    }
}

fn of_container(container: &Container, now: Timestamp) -> v1::ContainerStats {
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: container.id.to_string(),
            metadata: Some(container_metadata(container)),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: Some(cpu(container.started, now)),
        memory: Some(memory(MEMORY, now)),
        writable_layer: Some(v1::FilesystemUsage {
            timestamp: nanos(now),
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: "/var/lib/fake/containers".to_owned(),
            }),
            used_bytes: number(LAYER),
            inodes_used: number(16),
        }),
        ..v1::ContainerStats::default()
    }
}

fn of_sandbox(state: &State, sandbox: &Sandbox, n: u64, now: Timestamp) -> v1::PodSandboxStats {
    let inside: Vec<&Container> = state
        .world
        .containers_in(n)
        .into_iter()
        .filter_map(|n| state.world.containers.get(&n))
        .filter(|container| container.is_running())
        .collect();
    let bytes = MEMORY.saturating_mul(inside.len() as u64);
    let interface = v1::NetworkInterfaceUsage {
        name: "eth0".to_owned(),
        rx_bytes: number(1 << 10),
        rx_errors: number(0),
        tx_bytes: number(1 << 10),
        tx_errors: number(0),
    };
    v1::PodSandboxStats {
        attributes: Some(v1::PodSandboxAttributes {
            id: sandbox.id.to_string(),
            metadata: Some(sandbox_metadata(sandbox)),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
        }),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu: Some(cpu(Some(sandbox.created), now)),
            memory: Some(memory(bytes, now)),
            network: Some(v1::NetworkUsage {
                timestamp: nanos(now),
                default_interface: Some(interface),
                interfaces: Vec::new(),
            }),
            process: Some(v1::ProcessUsage {
                timestamp: nanos(now),
                process_count: number(inside.len() as u64),
            }),
            containers: inside.iter().map(|container| of_container(container, now)).collect(),
            io: None,
        }),
        windows: None,
    }
}

/// Statistics meet no faults of the world: no call of it stands for them.
fn look<T>(runtime: &FakeRuntime, read: impl FnOnce(&State, Timestamp) -> T) -> T {
    let mut state = runtime.lock();
    state.advance(tokio::time::Instant::now());
    let now = state.clock.now();
    read(&state, now)
}

pub(crate) fn container(runtime: &FakeRuntime, id: &str) -> Result<v1::ContainerStats, RuntimeError> {
    look(runtime, |state, now| {
        let id = id.into();
        let container = state.world.container(&id).ok_or_else(|| no_container(&id))?;
        Ok(of_container(container, now))
    })
}

/// Those of containers that run, as a containerd lists them.
pub(crate) fn containers(runtime: &FakeRuntime, filter: Option<v1::ContainerStatsFilter>) -> Vec<v1::ContainerStats> {
    let filter = filter.unwrap_or_default();
    look(runtime, |state, now| {
        let fits = state.world.containers.values().filter(|container| {
            let sandbox = state.world.sandboxes.get(&container.sandbox);
            container.is_running()
                && (filter.id.is_empty() || container.id.as_str() == filter.id)
                && (filter.pod_sandbox_id.is_empty()
                    || sandbox.is_some_and(|sandbox| sandbox.id.as_str() == filter.pod_sandbox_id))
                && selects(&filter.label_selector, &container.config.labels)
        });
        fits.map(|container| of_container(container, now)).collect()
    })
}

pub(crate) fn sandbox(runtime: &FakeRuntime, id: &str) -> Result<v1::PodSandboxStats, RuntimeError> {
    look(runtime, |state, now| {
        let id = id.into();
        let n = state.world.sandbox_number(&id).ok_or_else(|| no_sandbox(&id))?;
        Ok(of_sandbox(state, &state.world.sandboxes[&n], n, now))
    })
}

pub(crate) fn sandboxes(runtime: &FakeRuntime, filter: Option<v1::PodSandboxStatsFilter>) -> Vec<v1::PodSandboxStats> {
    let filter = filter.unwrap_or_default();
    look(runtime, |state, now| {
        let fits = state.world.sandboxes.iter().filter(|(_, sandbox)| {
            (filter.id.is_empty() || sandbox.id.as_str() == filter.id)
                && selects(&filter.label_selector, &sandbox.config.labels)
        });
        fits.map(|(n, sandbox)| of_sandbox(state, sandbox, *n, now)).collect()
    })
}
