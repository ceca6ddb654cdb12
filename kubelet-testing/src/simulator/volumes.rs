//! The volumes of a simulation's pods, and how they fail.
//!
//! A share of the seeds has them. All chance of them is drawn from dice of their own: a seed without volumes takes the same course
//! as before there were any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume, VolumeMount,
};
use kubelet_core::{
    BoxError, CancellationToken, ContainerVolumes, PodRecord, PodSignals, PodUid, PodVolumes, VolumeContext,
    VolumeError, VolumeManager, VolumeUsage, async_trait,
};

use super::cluster::REJECTION;
use super::dice::Dice;
use crate::fake::FakeRuntime;
use crate::fake::journal::{Happened, VolumeChange};
use crate::volumes::FakeVolumes;

/// Makes the dice of volumes differ from all others of a seed.
const SALT: u64 = 0x766f_6c75_6d65_7321;
/// Says what is wrong with a pod's volumes, for ever.
pub(crate) const CURSE: &str = "simulator/volumes";

/// What is wrong with the volumes of a pod from its first to its last day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Curse {
    MountWaits,
    MountFails,
    MountHangs,
    MountRejects,
    UnmountFails,
    UnmountHangs,
}

impl Curse {
    const ALL: [Self; 6] = [
        Self::MountWaits,
        Self::MountFails,
        Self::MountHangs,
        Self::MountRejects,
        Self::UnmountFails,
        Self::UnmountHangs,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::MountWaits => "mount-waits",
            Self::MountFails => "mount-fails",
            Self::MountHangs => "mount-hangs",
            Self::MountRejects => "mount-rejects",
            Self::UnmountFails => "unmount-fails",
            Self::UnmountHangs => "unmount-hangs",
        }
    }

    pub(crate) fn of(pod: &PodRecord) -> Option<Self> {
        let word = pod.metadata().labels.as_ref()?.get(CURSE)?;
        Self::ALL.into_iter().find(|curse| curse.word() == word)
    }

    pub(crate) fn is_of_unmount(self) -> bool {
        matches!(self, Self::UnmountFails | Self::UnmountHangs)
    }
}

/// What outlives the agent, beside the volumes themselves.
#[derive(Debug)]
struct State {
    /// Drawn from by calls.
    dice: Dice,
    curses: BTreeMap<PodUid, Curse>,
    counts: BTreeMap<&'static str, u64>,
}

/// All volumes of a simulation. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct Volumes {
    /// Those of the present life.
    pub(crate) fake: FakeVolumes,
    /// Drawn from by steps.
    pub(crate) dice: Arc<Dice>,
    /// The world, in whose journal is noted what becomes of them.
    runtime: FakeRuntime,
    state: Arc<Mutex<State>>,
}

impl Volumes {
    /// Those of a seed, if it is one of so many in a hundred that have any.
    pub(crate) fn of_seed(seed: u64, share: u64, runtime: &FakeRuntime) -> Option<Self> {
        let dice = Dice::new(seed ^ SALT);
        let state = State {
            dice: Dice::new(dice.next()),
            curses: BTreeMap::new(),
            counts: BTreeMap::new(),
        };
        dice.chance(share).then(|| Self {
            fake: FakeVolumes::new(),
            dice: Arc::new(dice),
            runtime: runtime.clone(),
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// What a new life of the agent finds.
    pub(crate) fn begin_life(&mut self) -> Arc<dyn VolumeManager> {
        self.fake = self.fake.next_life();
        Arc::new(SimulatedVolumes(self.clone()))
    }

    /// Gives a new pod volumes, or none.
    pub(crate) fn furnish(&self, pod: &mut Pod, number: usize) {
        let dice = &*self.dice;
        if dice.chance(50) {
            return;
        }
        let is_static = pod.metadata.uid.is_none();
        let Some(spec) = pod.spec.as_mut() else { return };
        let mut volumes = Vec::new();
        for index in 0..dice.between(1, 3) {
            let name = format!("v{number}-{index}");
            let volume = if dice.chance(20) {
                let path = format!("/host/{name}");
                let host_path = Some(HostPathVolumeSource { path, type_: None });
                Volume {
                    name,
                    host_path,
                    ..Volume::default()
                }
            } else {
                let empty_dir = Some(EmptyDirVolumeSource::default());
                Volume {
                    name,
                    empty_dir,
                    ..Volume::default()
                }
            };
            volumes.push(volume);
        }
        let mut containers: Vec<&mut Container> = spec.init_containers.iter_mut().flatten().collect();
        containers.extend(&mut spec.containers);
        // One that nobody mounts is not made.
        for (index, volume) in volumes.iter().enumerate() {
            let mount = VolumeMount {
                name: volume.name.clone(),
                mount_path: format!("/mnt/{index}"),
                ..VolumeMount::default()
            };
            let mut mounted = dice.chance(15);
            for container in &mut containers {
                if !mounted || dice.chance(30) {
                    container.volume_mounts.get_or_insert_default().push(mount.clone());
                    mounted = true;
                }
            }
        }
        spec.volumes = Some(volumes);
        if dice.chance(8) {
            // Who waits for a static pod's name waits until nothing is left of it.
            let curses = if is_static { &Curse::ALL[..4] } else { &Curse::ALL[..] };
            if let Some(curse) = dice.pick(curses) {
                let labels = pod.metadata.labels.get_or_insert_default();
                labels.insert(CURSE.to_owned(), curse.word().to_owned());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn curse_of(&self, uid: &PodUid) -> Option<Curse> {
        self.lock().curses.get(uid).copied()
    }

    /// The pods that have volumes, and nothing in the runtime that tells of them.
    pub(crate) fn without_traces(&self) -> Vec<PodUid> {
        let sandboxes = self.runtime.sandboxes().into_iter();
        let seen: BTreeSet<PodUid> = sandboxes.map(|sandbox| sandbox.pod_uid).collect();
        let pods = self.fake.pods().into_iter();
        pods.filter(|uid| !seen.contains(uid)).collect()
    }

    pub(crate) fn take_counts(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.lock().counts)
    }

    pub(crate) fn note(&self, pod: &PodUid, change: VolumeChange) {
        *self.lock().counts.entry(change.name()).or_default() += 1;
        let pod = pod.clone();
        self.runtime.note(Happened::Volumes { pod, change });
    }

    /// Mounts are gone after the machine has started anew.
    pub(crate) fn lose(&self) {
        for pod in self.fake.pods() {
            self.fake.lose(&pod);
            self.note(&pod, VolumeChange::Lost);
        }
    }

    /// Some calls take their time.
    async fn take_time(&self, stop: &CancellationToken) -> Result<(), VolumeError> {
        let pause = {
            let state = self.lock();
            state.dice.chance(25).then(|| state.dice.millis(1, 3_000))
        };
        let Some(pause) = pause else { return Ok(()) };
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(VolumeError::Stopped),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    async fn try_mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        let curse = Curse::of(pod);
        if let Some(curse) = curse {
            self.lock().curses.insert(pod.uid().clone(), curse);
        }
        self.take_time(stop).await?;
        match curse {
            Some(Curse::MountWaits) => {
                return Err(VolumeError::Waiting {
                    unmounted: vec!["cursed".to_owned()],
                    unattached: Vec::new(),
                    unprocessed: Vec::new(),
                    detail: "what it is made from is not there".to_owned(),
                    retry_at: None,
                });
            }
            Some(Curse::MountFails) => return Err(VolumeError::failed("mount volumes", "simulated, for ever")),
            Some(Curse::MountHangs) => {
                stop.cancelled().await;
                return Err(VolumeError::Stopped);
            }
            Some(Curse::MountRejects) => {
                // Some may be there nevertheless.
                self.fake.mount(pod, stop).await?;
                return Err(VolumeError::RejectPod {
                    reason: REJECTION,
                    message: "these volumes will never be".to_owned(),
                });
            }
            _ => {}
        }
        let mounted = self.fake.mount(pod, stop).await?;
        // They are there, and nobody knows it yet.
        self.take_time(stop).await?;
        Ok(mounted)
    }

    async fn try_unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        self.take_time(stop).await?;
        match self.curse_of(uid) {
            Some(Curse::UnmountFails) => return Err(VolumeError::failed("unmount volumes", "simulated, for ever")),
            Some(Curse::UnmountHangs) => {
                stop.cancelled().await;
                return Err(VolumeError::Stopped);
            }
            _ => {}
        }
        self.fake.unmount(uid, stop).await?;
        self.take_time(stop).await
    }
}

/// The volumes of one life of the agent.
#[derive(Debug)]
struct SimulatedVolumes(Volumes);

#[async_trait]
impl VolumeManager for SimulatedVolumes {
    fn open(&self, context: VolumeContext) {
        self.0.fake.open(context);
    }

    fn lacks(&self, pod: &PodRecord) -> Option<String> {
        self.0.fake.lacks(pod)
    }

    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        let outcome = self.0.try_mount(pod, stop).await;
        let change = match &outcome {
            Ok(_) => VolumeChange::Mounted,
            Err(error) => VolumeChange::NotMounted(error.to_string()),
        };
        self.0.note(pod.uid(), change);
        outcome
    }

    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError> {
        self.0.fake.container(pod, container, env).await
    }

    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        // From here on they may be gone.
        self.0.note(uid, VolumeChange::Unmounting);
        let outcome = self.0.try_unmount(uid, stop).await;
        let change = match &outcome {
            Ok(()) => VolumeChange::Unmounted,
            Err(error) => VolumeChange::NotUnmounted(error.to_string()),
        };
        self.0.note(uid, change);
        outcome
    }

    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        self.0.fake.usage(uid)
    }

    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError> {
        self.0.fake.run(wake, stop).await
    }
}
