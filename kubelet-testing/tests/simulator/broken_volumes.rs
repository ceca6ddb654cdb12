//! Volumes that are broken between the engine and their manager, as a broken engine breaks them, and the invariant that catches each.

use std::sync::Arc;

use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    BoxError, CancellationToken, ContainerVolumes, PodRecord, PodSignals, PodUid, PodVolumes, SourceKind,
    VolumeContext, VolumeError, VolumeManager, VolumeUsage, async_trait,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{Invariant, Simulation, SimulationSettings};
use tokio::sync::Semaphore;

/// How many seeds may pass before a broken engine is caught.
const SEEDS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Volumes that cannot be had are no reason to wait.
    StartsWithout,
    /// Volumes of pods that run are made anew at each sync.
    UnmountsInUse,
    /// Nobody has volumes gone.
    NeverUnmounts,
    /// The last volume of each pod is never made.
    LeavesOneOut,
    /// One pod's volumes are made after the other's.
    OneAtATime,
}

#[derive(Debug)]
struct Broken {
    inner: Arc<dyn VolumeManager>,
    fault: Fault,
    turn: Semaphore,
}

fn without_last(pod: &PodRecord) -> Arc<PodRecord> {
    let mut less = Pod {
        metadata: pod.metadata().clone(),
        spec: Some(pod.spec().clone()),
        ..Pod::default()
    };
    if let Some(volumes) = less.spec.as_mut().and_then(|spec| spec.volumes.as_mut()) {
        volumes.pop();
    }
    Arc::new(PodRecord::new(&less, pod.source().clone(), SourceKind::Managed).unwrap())
}

#[async_trait]
impl VolumeManager for Broken {
    fn open(&self, context: VolumeContext) {
        self.inner.open(context);
    }
    fn lacks(&self, pod: &PodRecord) -> Option<String> {
        self.inner.lacks(pod)
    }
    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        match self.fault {
            Fault::StartsWithout => {
                let mounted = self.inner.mount(pod, stop).await;
                Ok(mounted.unwrap_or_default())
            }
            Fault::UnmountsInUse => {
                self.inner.unmount(pod.uid(), stop).await?;
                self.inner.mount(pod, stop).await
            }
            Fault::NeverUnmounts => self.inner.mount(pod, stop).await,
            Fault::LeavesOneOut => self.inner.mount(&without_last(pod), stop).await,
            Fault::OneAtATime => {
                let turn = tokio::select! {
                    biased;
                    () = stop.cancelled() => return Err(VolumeError::Stopped),
                    turn = self.turn.acquire() => turn.unwrap(),
                };
                let mounted = self.inner.mount(pod, stop).await;
                drop(turn);
                mounted
            }
        }
    }
    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError> {
        self.inner.container(pod, container, env).await
    }
    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        match self.fault {
            Fault::NeverUnmounts => Ok(()),
            _ => self.inner.unmount(uid, stop).await,
        }
    }
    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        self.inner.usage(uid)
    }
    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError> {
        self.inner.run(wake, stop).await
    }
}

/// Runs seeds until one catches the fault by that invariant. A fault breaks others on its way.
fn caught(fault: Fault, by: Invariant) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        let mut settings = SimulationSettings::default();
        settings.volume_share = 100;
        let simulation = Simulation::new(seed, settings).wrap_volumes(move |inner| {
            Arc::new(Broken {
                inner,
                fault,
                turn: Semaphore::new(1),
            })
        });
        for violation in simulation.run(GenericPleg::default).violations {
            if violation.invariant == by {
                println!("{fault:?}: seed {seed}: {by:?}: {}", violation.what);
                return;
            }
            others.push((seed, violation.invariant));
        }
    }
    panic!("{fault:?} was not caught by {by:?} in {SEEDS} seeds, which caught {others:?}");
}

#[test]
fn a_start_without_volumes_is_caught() {
    caught(Fault::StartsWithout, Invariant::VolumesFirst);
}

#[test]
fn an_unmount_of_what_is_in_use_is_caught() {
    caught(Fault::UnmountsInUse, Invariant::VolumesLast);
}

#[test]
fn volumes_that_are_left_of_pods_that_are_gone_are_caught() {
    caught(Fault::NeverUnmounts, Invariant::VolumesInEnd);
}

#[test]
fn volumes_that_a_pod_never_gets_are_caught() {
    caught(Fault::LeavesOneOut, Invariant::VolumesInEnd);
}

#[test]
fn a_pod_that_waits_for_the_volumes_of_another_is_caught() {
    caught(Fault::OneAtATime, Invariant::VolumesApart);
}
