//! What pods and containers use, from their cgroups.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use kubelet_core::{
    Clock, ContainerRecord, ContainerRuntime, ContainerState, ContainerUsage, PodUid, PodUsage, Scope, StatsError,
    StatsProvider, StatsScope, StatsSnapshot, SystemClock,
};

use crate::manager::{CgroupManager, Open};
use crate::usage::Reader;

/// Tells what the pods of a [`CgroupManager`] use: beside a runtime that measures too, or for one that does not.
///
/// Which containers there are the runtime says; of what they use it is not asked. A container is found in the cgroup of its pod by its
/// id, as runtimes name its cgroup, or by its name, as [`PodCgroups::container`](kubelet_core::PodCgroups::container) does.
/// What is not in a cgroup of this manager's is not told of.
#[derive(Debug)]
pub struct CgroupStats {
    cgroups: CgroupManager,
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
}

impl CgroupStats {
    /// Of the pods of a manager, whose containers a runtime knows.
    pub fn new(cgroups: CgroupManager, runtime: Arc<dyn ContainerRuntime>) -> Self {
        Self {
            cgroups,
            runtime,
            clock: Arc::new(SystemClock),
        }
    }

    /// With another clock than the machine's.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

/// How runtimes call the cgroup of a container.
fn names(container: &ContainerRecord) -> [String; 5] {
    let id = &container.id;
    [
        id.to_string(),
        format!("cri-containerd-{id}.scope"),
        format!("crio-{id}.scope"),
        format!("crio-{id}"),
        container.name.clone(),
    ]
}

#[async_trait]
impl StatsProvider for CgroupStats {
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
        let failed = |error: kubelet_core::CgroupError| StatsError::failed("cannot read cgroups of pods", error);
        let open = self.cgroups.opened().map_err(failed)?;
        let (scope, only) = match want {
            StatsScope::Pod(uid) => (Scope::Pod(uid), Some(uid.clone())),
            _ => (Scope::All, None),
        };
        let listed = self.runtime.list_containers(scope).await;
        let mut containers = listed.map_err(|error| StatsError::failed("cannot list containers", error))?;
        containers.retain(|container| container.state == ContainerState::Running);
        let clock = self.clock.clone();
        let read = tokio::task::spawn_blocking(move || {
            let pods = open.pods(only.as_ref())?;
            let mut snapshot = StatsSnapshot::default();
            for (uid, path) in pods {
                read_pod(&open, &*clock, (&uid, &path), &containers, &mut snapshot);
            }
            Ok(snapshot)
        });
        match read.await {
            Ok(snapshot) => snapshot.map_err(failed),
            Err(error) => Err(StatsError::failed("cannot read cgroups of pods", error)),
        }
    }
}

fn read_pod(
    open: &Open,
    clock: &dyn Clock,
    (uid, path): (&PodUid, &Path),
    containers: &[ContainerRecord],
    snapshot: &mut StatsSnapshot,
) {
    let whole = Reader {
        tree: &open.tree,
        path,
        at: clock.now(),
    };
    // One in which nothing runs is not measured: its pod may run elsewhere.
    let Some(processes) = whole.processes().filter(|processes| *processes > 0) else {
        return;
    };
    let mut pod = PodUsage::new(uid.clone());
    pod.process_count = Some(processes);
    pod.cpu = whole.cpu();
    pod.memory = whole.memory();
    pod.pressure = whole.pressure();
    snapshot.pods.push(pod);
    for container in containers.iter().filter(|container| container.pod_uid == *uid) {
        let found = names(container)
            .into_iter()
            .map(|name| path.join(name))
            .find(|path| is_there(open, path));
        let Some(own) = found else { continue };
        let part = Reader {
            tree: &open.tree,
            path: &own,
            at: clock.now(),
        };
        let mut usage = ContainerUsage::new(container.id.clone(), uid.clone(), container.name.clone());
        usage.cpu = part.cpu();
        usage.memory = part.memory();
        usage.swap = part.swap();
        usage.pressure = part.pressure();
        snapshot.containers.push(usage);
    }
}

/// Whether something runs in a cgroup.
fn is_there(open: &Open, path: &PathBuf) -> bool {
    let reader = Reader {
        tree: &open.tree,
        path,
        at: kubelet_core::jiff::Timestamp::UNIX_EPOCH,
    };
    reader.processes().is_some_and(|processes| processes > 0)
}
