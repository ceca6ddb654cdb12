//! Cgroups that break a promise.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use kubelet_core::{
    CgroupContext, CgroupError, ContainerCgroup, LinuxResources, NodeLimits, PodCgroups, PodLimits, PodRecord, PodUid,
    async_trait,
};
use kubelet_testing::FakeCgroups;
use kubelet_testing::contract::{CgroupFixture, now};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    OpensItself,
    OpenBeginsAnew,
    OneParentForAll,
    ParentOfALife,
    ApplyOnlyOnce,
    ExistsFromMemory,
    ContainersShare,
    ContainerWithoutPod,
    ListsAll,
    ListsThisLifeOnly,
    DestroyKillsNothing,
    DestroyWantsOne,
    OneAtATime,
    DroppedIsHalfDone,
}

#[derive(Debug)]
struct Cgroups {
    memory: FakeCgroups,
    fault: Fault,
    made: Mutex<Vec<PodUid>>,
    lives: Arc<AtomicU32>,
    life: u32,
    busy: AtomicU32,
}

impl Cgroups {
    fn new(memory: FakeCgroups, fault: Fault, lives: Arc<AtomicU32>) -> Self {
        let life = lives.fetch_add(1, Ordering::Relaxed);
        Self {
            memory,
            fault,
            made: Mutex::default(),
            lives,
            life,
            busy: AtomicU32::new(0),
        }
    }
}

/// Counts a call for as long as it is not dropped.
struct Turn<'a>(&'a AtomicU32);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl PodCgroups for Cgroups {
    async fn open(&self, context: &CgroupContext) -> Result<(), CgroupError> {
        if self.fault == Fault::OpenBeginsAnew {
            for uid in self.made.lock().unwrap().drain(..) {
                self.memory.remove(&uid);
            }
        }
        self.memory.open(context).await
    }
    async fn enforce(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        self.memory.enforce(node).await
    }
    fn parent(&self, pod: &PodRecord) -> String {
        match self.fault {
            Fault::OneParentForAll => "/kubepods".to_owned(),
            Fault::ParentOfALife => format!("{}/{}", self.memory.parent(pod), self.life),
            _ => self.memory.parent(pod),
        }
    }
    async fn exists(&self, pod: &PodRecord) -> Result<bool, CgroupError> {
        if self.fault == Fault::ExistsFromMemory {
            return Ok(self.made.lock().unwrap().contains(pod.uid()));
        }
        self.memory.exists(pod).await
    }
    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        let _turn = Turn(&self.busy);
        if self.busy.fetch_add(1, Ordering::Relaxed) > 0 && self.fault == Fault::OneAtATime {
            return Err(CgroupError::Busy {
                what: "another call".to_owned(),
            });
        }
        if self.fault == Fault::OpensItself && self.memory.context().is_none() {
            return Ok(());
        }
        if self.fault == Fault::DroppedIsHalfDone {
            let what = "what an earlier call has left".to_owned();
            if self.made.lock().unwrap().contains(pod.uid()) {
                return Err(CgroupError::Busy { what });
            }
            self.made.lock().unwrap().push(pod.uid().clone());
            let applied = self.memory.apply(pod, limits).await;
            self.made.lock().unwrap().retain(|uid| uid != pod.uid());
            return applied;
        }
        if self.fault == Fault::ApplyOnlyOnce && self.memory.has(pod.uid()) {
            return Err(CgroupError::failed("make a cgroup", "it is there"));
        }
        self.made.lock().unwrap().push(pod.uid().clone());
        self.memory.apply(pod, limits).await
    }
    async fn container(
        &self,
        pod: &PodRecord,
        container: &str,
        limits: &LinuxResources,
    ) -> Result<ContainerCgroup, CgroupError> {
        match self.fault {
            Fault::ContainersShare => self.memory.container(pod, "shared", limits).await,
            Fault::ContainerWithoutPod if !self.memory.has(pod.uid()) => {
                let made = self.memory.container(pod, container, limits).await;
                self.memory.remove(pod.uid());
                made
            }
            _ => {
                self.made.lock().unwrap().push(pod.uid().clone());
                self.memory.container(pod, container, limits).await
            }
        }
    }
    async fn list(&self) -> Result<Vec<PodUid>, CgroupError> {
        let mut listed = self.memory.list().await?;
        match self.fault {
            Fault::ListsAll if self.memory.has(&PodUid::from("stranger")) => listed.push(PodUid::from("stranger")),
            Fault::ListsThisLifeOnly => listed.retain(|uid| self.made.lock().unwrap().contains(uid)),
            _ => {}
        }
        Ok(listed)
    }
    async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError> {
        match self.fault {
            Fault::DestroyKillsNothing if !self.memory.processes(uid).is_empty() => return Ok(()),
            Fault::DestroyWantsOne if !self.memory.has(uid) => {
                return Err(CgroupError::failed("remove a cgroup", "it is not there"));
            }
            _ => {}
        }
        self.made.lock().unwrap().retain(|made| made != uid);
        self.memory.destroy(uid).await
    }
}

fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Cgroups, CgroupFixture)> {
    async move || {
        let memory = FakeCgroups::new();
        let (next, process, stranger, lost) = (memory.clone(), memory.clone(), memory.clone(), memory.clone());
        let cgroups = Cgroups::new(memory, fault, Arc::default());
        let lives = cgroups.lives.clone();
        let fixture = CgroupFixture::new()
            .next_life(move || now(|| Arc::new(Cgroups::new(next.next_life(), fault, lives.clone())) as _))
            .process(move |uid| {
                let processes = process.clone();
                processes.add_process(&uid, "left");
                now(move || move || !processes.processes(&uid).is_empty())
            })
            .stranger(move || {
                stranger.add_orphan(&PodUid::from("stranger"), "another");
                now(|| PodUid::from("stranger"))
            })
            .lost(move |uid| now(|| lost.remove(&uid)));
        Some((cgroups, fixture))
    }
}

async fn sound() -> Option<(Cgroups, CgroupFixture)> {
    with(Fault::None)().await
}

kubelet_testing::cgroup_contract!(sound);

faults! { cgroups:
    opens_itself: with(Fault::OpensItself), nothing_is_made_before_open, "is made before open";
    open_begins_anew: with(Fault::OpenBeginsAnew), open_may_be_repeated, "is gone after another open";
    one_parent_for_all: with(Fault::OneParentForAll), each_pod_has_its_parent, "two pods have one parent";
    a_parent_of_a_life: with(Fault::ParentOfALife), each_pod_has_its_parent, "changed in a later life";
    apply_only_once: with(Fault::ApplyOnlyOnce), apply_makes_what_is_missing, "it is there";
    exists_from_memory: with(Fault::ExistsFromMemory), apply_makes_what_is_missing, "was lost, and is there";
    containers_share: with(Fault::ContainersShare), containers_are_inside_of_their_pods, "two containers share";
    a_container_without_its_pod: with(Fault::ContainerWithoutPod), containers_are_inside_of_their_pods, "without its pod";
    lists_all: with(Fault::ListsAll), list_tells_of_own_pods, "of another owner";
    lists_this_life_only: with(Fault::ListsThisLifeOnly), list_tells_of_own_pods, "in a later life";
    destroy_kills_nothing: with(Fault::DestroyKillsNothing), destroy_ends_what_runs, "runs after destroy";
    destroy_wants_one: with(Fault::DestroyWantsOne), destroying_nothing_succeeds, "it is not there";
    one_at_a_time: with(Fault::OneAtATime), calls_about_different_pods_may_overlap, "another call";
    dropped_is_half_done: with(Fault::DroppedIsHalfDone), a_dropped_call_may_be_repeated, "has left";
}
