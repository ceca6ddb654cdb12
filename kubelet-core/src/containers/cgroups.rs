//! Cgroups of pods: when they are made, seen to, and removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::start_error::StartError;
use super::{ContainerSyncer, lock};
use crate::admission::{Ledger, NodeSettings};
use crate::cgroups::{CgroupContext, CgroupError, ContainerCgroup, NodeLimits, PodCgroups, PodLimits};
use crate::error::error_chain;
use crate::event::{Event, EventSink, EventSubject, EventType};
use crate::ids::PodUid;
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{CgroupDriver, LinuxResources};
use crate::syncer::{StepContext, SyncError};

/// How often the node's own limits are seen to. Source: kubelet 1.36, `cm/qos_container_manager_linux.go`.
const PERIOD: Duration = Duration::from_secs(60);
/// The first pause after the cgroup of a pod that nobody knows could not be removed, and the longest.
const ORPHAN_PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// What is to be removed once more.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    due: Instant,
    pause: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// The driver, once the runtime has answered.
    driver: Option<CgroupDriver>,
    is_open: bool,
    /// Whether pods of which there are cgroups were asked for, and could not be told.
    missed: bool,
    /// Whether the last attempt to set the node's limits worked.
    enforced: Option<bool>,
    orphans: BTreeMap<PodUid, Orphan>,
    /// Those of them that are being removed.
    removing: BTreeSet<PodUid>,
}

/// Opens cgroups, sees to the node's limits each minute, and removes what is left of pods that nobody knows.
#[derive(Debug)]
pub(crate) struct CgroupKeeper {
    cgroups: Arc<dyn PodCgroups>,
    /// What the node keeps for itself.
    node: NodeSettings,
    owner: String,
    /// Where the runtime does not say.
    default_driver: CgroupDriver,
    ledger: Arc<Ledger>,
    events: Arc<dyn EventSink>,
    state: Mutex<State>,
    /// Whether it was tried to open them; told anew at each look at the node.
    tried: watch::Sender<bool>,
}

impl CgroupKeeper {
    pub(crate) fn new(
        cgroups: Arc<dyn PodCgroups>,
        (node, owner): (NodeSettings, String),
        default_driver: CgroupDriver,
        ledger: Arc<Ledger>,
        events: Arc<dyn EventSink>,
    ) -> Self {
        Self {
            cgroups,
            node,
            owner,
            default_driver,
            ledger,
            events,
            state: Mutex::default(),
            tried: watch::Sender::new(false),
        }
    }

    /// The runtime has answered. The first time cgroups are opened, before any pod is looked after.
    pub(super) async fn runtime_answered(&self, driver: Option<CgroupDriver>) {
        let driver = driver.unwrap_or(self.default_driver);
        let is_first = {
            let mut state = lock(&self.state);
            let is_first = state.driver.is_none();
            state.driver.get_or_insert(driver);
            is_first
        };
        if is_first {
            self.look_after_node().await;
        }
    }

    /// Works until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut next_look = Instant::now() + PERIOD;
        loop {
            let next_orphan = {
                let state = lock(&self.state);
                let due = state.orphans.values().map(|orphan| orphan.due).min();
                due.filter(|_| state.is_open)
            };
            // An orphan that turns up meanwhile waits for the next look at most.
            let wake = next_orphan.map_or(next_look, |due| due.min(next_look));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(wake) => {}
            }
            let work = async {
                if Instant::now() >= next_look {
                    next_look = Instant::now() + PERIOD;
                    self.look_after_node().await;
                }
                self.remove_orphans().await;
            };
            tokio::select! {
                biased;
                // What is dropped is repeated by the next life.
                () = stop.cancelled() => return,
                () = work => {}
            }
        }
    }

    /// Opens cgroups if they are not, and sets the node's limits.
    async fn look_after_node(&self) {
        let (driver, is_open) = {
            let state = lock(&self.state);
            (state.driver, state.is_open)
        };
        let Some(driver) = driver else { return };
        if !is_open {
            let context = CgroupContext::new(driver, self.owner.clone());
            let opened = self.cgroups.open(&context).await;
            lock(&self.state).is_open = opened.is_ok();
            self.tried.send_replace(true);
            match opened {
                Ok(()) => {}
                Err(error) => {
                    let text = error_chain(&error);
                    tracing::warn!(error = text, "cgroups of pods cannot be made");
                    self.tell(
                        EventType::Warning,
                        "KubeletSetupFailed",
                        format!("cgroups of pods cannot be made: {text}"),
                    );
                    return;
                }
            }
        } else {
            // Who could not list them tries that again.
            self.tried.send_replace(true);
        }
        let limits = NodeLimits::of(&self.node, &self.ledger.node());
        let outcome = self.cgroups.enforce(&limits).await;
        let before = lock(&self.state).enforced.replace(outcome.is_ok());
        match outcome {
            Ok(()) if before == Some(true) => {}
            Ok(()) => self.tell(
                EventType::Normal,
                "NodeAllocatableEnforced",
                "Updated Node Allocatable limit across pods".to_owned(),
            ),
            Err(error) => self.tell(
                EventType::Warning,
                "FailedNodeAllocatableEnforcement",
                format!("Failed to update Node Allocatable Limits: {}", error_chain(&error)),
            ),
        }
    }

    fn tell(&self, event_type: EventType, reason: &'static str, message: String) {
        self.events
            .record(Event::new(EventSubject::Node, event_type, reason, message));
    }

    /// What a runtime is told of the pod's cgroup.
    pub(super) fn parent(&self, pod: &PodRecord) -> String {
        self.cgroups.parent(pod)
    }

    async fn apply(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        {
            let mut state = lock(&self.state);
            if !state.is_open {
                return Err(CgroupError::NotOpen);
            }
            // What is left of an earlier pod of this UID is now this one's.
            state.orphans.remove(pod.uid());
            if state.removing.contains(pod.uid()) {
                let what = "what is left of an earlier pod with this UID".to_owned();
                return Err(CgroupError::Busy { what });
            }
        }
        self.cgroups.apply(pod, limits).await
    }

    /// The pods of which there is a cgroup: none if cgroups could not be opened. Waits until that was tried.
    pub(super) async fn list(&self) -> Vec<PodUid> {
        // The sender is this one's own.
        let _ = self.tried.subscribe().wait_for(|tried| *tried).await;
        let listed = self.try_list().await;
        lock(&self.state).missed = listed.is_none();
        listed.unwrap_or_default()
    }

    /// The same once it can be told, if it could not; waits until then.
    pub(super) async fn list_missed(&self) -> Vec<PodUid> {
        let mut looks = self.tried.subscribe();
        while lock(&self.state).missed {
            if looks.changed().await.is_err() {
                break;
            }
            if let Some(listed) = self.try_list().await {
                lock(&self.state).missed = false;
                return listed;
            }
        }
        Vec::new()
    }

    /// Nothing if they are not open, or cannot be listed.
    async fn try_list(&self) -> Option<Vec<PodUid>> {
        if !lock(&self.state).is_open {
            return None;
        }
        match self.cgroups.list().await {
            Ok(pods) => Some(pods),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cgroups of pods cannot be listed");
                None
            }
        }
    }

    /// Removes the cgroup of a pod whose containers have ended.
    pub(super) async fn destroy(&self, uid: &PodUid) -> Result<(), CgroupError> {
        if !lock(&self.state).is_open {
            // This life made none. What an earlier one made goes once they are open.
            self.note_orphan(uid, ORPHAN_PAUSE.0);
            return Ok(());
        }
        self.cgroups.destroy(uid).await
    }

    /// Removes the cgroups of pods that nobody knows; what cannot be removed is tried again later.
    pub(super) async fn sweep(&self, pods: &[PodUid]) {
        for uid in pods {
            if let Err(error) = self.destroy(uid).await {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(pod_uid = %uid, error, "the cgroup of a pod that nobody wishes for stays for now");
                self.note_orphan(uid, ORPHAN_PAUSE.0);
            }
        }
    }

    fn note_orphan(&self, uid: &PodUid, pause: Duration) {
        let due = Instant::now() + pause;
        lock(&self.state).orphans.insert(uid.clone(), Orphan { due, pause });
    }

    async fn remove_orphans(&self) {
        let now = Instant::now();
        let due: Vec<(PodUid, Orphan)> = {
            let state = lock(&self.state);
            let due = state
                .orphans
                .iter()
                .filter(|(_, orphan)| orphan.due <= now && state.is_open);
            due.map(|(uid, orphan)| (uid.clone(), *orphan)).collect()
        };
        for (uid, orphan) in due {
            {
                let mut state = lock(&self.state);
                // A pod of this UID may have been wished for meanwhile.
                if state.orphans.remove(&uid).is_none() {
                    continue;
                }
                state.removing.insert(uid.clone());
            }
            let removed = self.cgroups.destroy(&uid).await;
            lock(&self.state).removing.remove(&uid);
            if let Err(error) = removed {
                tracing::debug!(pod_uid = %uid, error = &error as &dyn std::error::Error, "an orphaned cgroup stays");
                self.note_orphan(&uid, (orphan.pause * 2).min(ORPHAN_PAUSE.1));
            }
        }
    }
}

/// Those containers of a pod that go on while others are started.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Whether there are any.
    pub(super) run: bool,
    /// The pod's spec with the resources that they still have, where those are not what it was granted.
    pub(super) before: Option<PodSpec>,
}

impl ContainerSyncer {
    /// Makes the pod's cgroup before anything is started in it.
    ///
    /// A pod that runs is never ended for lack of its cgroup, as upstream does: either it was started without, by an agent
    /// that made none, or somebody has taken its processes out. What is started from now on has its limits.
    pub(super) async fn ensure_cgroup(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        others: &Others,
    ) -> Result<(), SyncError> {
        let Some(keeper) = &self.node.cgroups else {
            return Ok(());
        };
        let wanted = self.limits_of_pod(pod, pod.spec());
        let limits = match &others.before {
            Some(before) => self.limits_of_pod(pod, before).widest(&wanted),
            None => wanted,
        };
        let exists = matches!(keeper.cgroups.exists(pod).await, Ok(true));
        let is_so = super::lock(&self.memory_of(pod.uid())).cgroup.as_ref() == Some(&limits);
        if is_so && exists {
            return Ok(());
        }
        let Err(error) = self.apply_cgroup(keeper, pod, limits).await else {
            return Ok(());
        };
        let text = format!("unable to ensure pod container exists: {}", error_chain(&error));
        cx.events.record(Event::new(
            EventSubject::pod(pod),
            EventType::Warning,
            "FailedCreatePodContainer",
            text,
        ));
        // What runs in it may use more than it is to have by now, which the kernel refuses to take back. That binds what is
        // started now all the same.
        if exists && others.run {
            return Ok(());
        }
        Err(SyncError::failed("cannot make the pod's cgroup", error))
    }

    /// Gives the pod's cgroup other limits.
    pub(super) async fn change_cgroup(&self, pod: &PodRecord, limits: &PodLimits) -> Result<(), CgroupError> {
        let Some(keeper) = &self.node.cgroups else {
            return Ok(());
        };
        let is_so = super::lock(&self.memory_of(pod.uid())).cgroup.as_ref() == Some(limits);
        if is_so {
            return Ok(());
        }
        self.apply_cgroup(keeper, pod, limits.clone()).await
    }

    async fn apply_cgroup(&self, keeper: &CgroupKeeper, pod: &PodRecord, limits: PodLimits) -> Result<(), CgroupError> {
        let memory = self.memory_of(pod.uid());
        // Unknown until it has succeeded.
        super::lock(&memory).cgroup = None;
        keeper.apply(pod, &limits).await?;
        super::lock(&memory).cgroup = Some(limits);
        Ok(())
    }

    fn limits_of_pod(&self, pod: &PodRecord, spec: &PodSpec) -> PodLimits {
        let limits = self.node.resources.of_pod(pod, spec, &self.node.ledger.node());
        match self.has_exclusive_cpus(pod) {
            true => limits.without_quota(),
            false => limits,
        }
    }

    /// The limits of the pod's cgroup by `before`, by what the pod was granted, and in between, with room for both. Nothing where
    /// there is no cgroup, or nothing of it changes for certain.
    pub(super) async fn cgroup_on_way(
        &self,
        pod: &PodRecord,
        before: &PodSpec,
        is_unsettled: bool,
    ) -> Result<Option<[PodLimits; 3]>, CgroupError> {
        let Some(keeper) = &self.node.cgroups else {
            return Ok(None);
        };
        let (had, wanted) = (self.limits_of_pod(pod, before), self.limits_of_pod(pod, pod.spec()));
        // What runs elsewhere is not bound by a cgroup that is made for it now.
        if (had == wanted && !is_unsettled) || !keeper.cgroups.exists(pod).await? {
            return Ok(None);
        }
        let between = had.widest(&wanted);
        Ok(Some([had, between, wanted]))
    }

    /// The memory that the pod's cgroup is to have at most from now on, if that is less than by `before`.
    pub(super) async fn lower_memory_of_pod(&self, pod: &PodRecord, before: &PodSpec) -> Option<u64> {
        let keeper = self.node.cgroups.as_ref()?;
        let had = self.limits_of_pod(pod, before).cgroup.memory_bytes;
        let wanted = self.limits_of_pod(pod, pod.spec()).cgroup.memory_bytes?;
        let falls = had.is_none_or(|had| wanted < had);
        (falls && matches!(keeper.cgroups.exists(pod).await, Ok(true))).then_some(wanted)
    }

    /// Makes the cgroup of a container, where the runtime makes none.
    pub(super) async fn container_cgroup(
        &self,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        limits: &LinuxResources,
    ) -> Result<Option<ContainerCgroup>, StartError> {
        let Some(keeper) = &self.node.cgroups else {
            return Ok(None);
        };
        if !lock(&self.abilities).lacks_container_cgroups {
            return Ok(None);
        }
        match keeper.cgroups.container(pod, view.name(), limits).await {
            Ok(cgroup) => Ok(Some(cgroup)),
            Err(error) => {
                let text = format!("cannot make the container's cgroup: {}", error_chain(&error));
                Err(StartError::failed("CreateContainerError", text))
            }
        }
    }

    /// Whether a container of the pod has processors of its own.
    pub(super) fn has_exclusive_cpus(&self, pod: &PodRecord) -> bool {
        pod.containers()
            .any(|view| self.given(pod.uid(), view.name()).exclusive_cpus)
    }
}
