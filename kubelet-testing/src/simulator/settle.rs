//! Faults stop, and every wish has to be met.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::{
    ContainerId, ContainerKind, ContainerView, OnStop, PodLifecycleEventGenerator, PodRecord, PodSnapshot, PodUid,
    Quantity, RestartPolicy, SandboxState, SourceKind, SourceName, Stage, Target, pod_is_terminal,
    should_restart_exited,
};
use tokio::time::Instant;

use super::checker::Instance;
use super::checker::resizes::{granted, milli, pending};
use super::cluster::API;
use super::rig::{NODE_CPU, Rig};
use super::volumes::Curse;
use super::workload::REJECT;
use super::{Invariant, workload};
use crate::fake::Op;
use crate::fake::journal::By;

/// The longest crash back-off, the longest run of a program that ends, and some time to notice.
const CRASH_LOOP: Duration = Duration::from_secs(300 + 120);

impl<G: PodLifecycleEventGenerator> Rig<'_, G> {
    pub(super) async fn settle(&mut self) {
        self.drain();
        self.trace.line(Instant::now(), format_args!("settle"));
        self.fake.stop_faults();
        self.fake.come_up();
        self.sickness.heal();
        self.gate.set(true);
        self.calm_volumes();
        {
            let mut state = self.cluster.lock();
            state.linked = true;
            state.sink_down = false;
            state.sink_slow = false;
        }
        self.folder.trouble = false;
        if self.agent.is_none() {
            self.disk.restart();
            self.begin_life(OnStop::LeavePods);
        }
        self.send_all_files().await;
        self.send_all_pods().await;
        self.pass(self.settings.settle_within).await;
        if self.checker.breaches.is_empty() {
            self.check_settled();
        }
        if self.settings.idle_hour && self.checker.breaches.is_empty() {
            self.idle_hour().await;
        }
    }

    /// The pods that are to be there, by UID.
    fn wanted(&self) -> BTreeMap<PodUid, Arc<PodRecord>> {
        let mut wanted: BTreeMap<PodUid, Arc<PodRecord>> = BTreeMap::new();
        for pod in self.cluster.lock().pods.values() {
            if let Ok(record) = PodRecord::new(pod, SourceName::from(API), SourceKind::Managed) {
                wanted.insert(record.uid().clone(), Arc::new(record));
            }
        }
        for pod in self.folder.in_force.values() {
            wanted.insert(pod.uid().clone(), pod.clone());
        }
        wanted
    }

    fn check_settled(&mut self) {
        let now = Instant::now();
        let wanted = self.wanted();
        let snapshots = self.agent.as_ref().map(|agent| agent.handle.pods()).unwrap_or_default();
        let snapshots: BTreeMap<PodUid, PodSnapshot> = snapshots
            .into_iter()
            .map(|snapshot| (snapshot.pod.uid().clone(), snapshot))
            .collect();
        let mut found: Vec<(Invariant, String)> = Vec::new();
        for sandbox in self.fake.sandboxes() {
            // A pod whose volumes cannot go is not gone, and what it had is kept until then, but for what runs.
            let is_kept = sandbox.state != SandboxState::Ready && self.cannot_go(&sandbox.pod_uid);
            if !wanted.contains_key(&sandbox.pod_uid) && !is_kept {
                let what = format!("sandbox {} of pod {} is left", sandbox.id, sandbox.pod_uid);
                found.push((Invariant::Unwanted, what));
            }
        }
        for uid in snapshots
            .keys()
            .filter(|uid| !wanted.contains_key(*uid) && !self.cannot_go(uid))
        {
            found.push((Invariant::Unwanted, format!("pod {uid} is still known to the kubelet")));
        }
        let wish = self.wish_of(&wanted);
        for (uid, pod) in wanted.iter().filter(|(_, pod)| !self.is_cursed(pod)) {
            let complaint = match snapshots.get(uid) {
                None => Some("is not known to the kubelet".to_owned()),
                Some(_) if pod.is_deleted() => Some("was deleted and is still there".to_owned()),
                Some(snapshot) => self.complaint(pod, snapshot),
            };
            if let Some(complaint) = complaint {
                found.push((wish, format!("pod {uid} ({}) {complaint}", pod.key())));
            }
        }
        for (invariant, what) in found {
            self.checker.breach(now, invariant, what);
        }
        self.check_resizes(&wanted, &snapshots);
        self.check_volumes(&wanted, &snapshots);
    }

    /// What is wrong with a pod that had all the time it needs.
    fn complaint(&self, pod: &Arc<PodRecord>, snapshot: &PodSnapshot) -> Option<String> {
        let phase = snapshot.status.as_ref()?.phase.clone().unwrap_or_default();
        let running: Vec<(u64, &Instance)> = self.checker.of_pod(pod.uid()).filter(|(_, i)| i.runs()).collect();
        if matches!(phase.as_str(), "Succeeded" | "Failed") {
            if let Some((n, _)) = running.first() {
                return Some(format!("is {phase}, and c{n} runs"));
            }
            let ready = self
                .fake
                .sandboxes()
                .into_iter()
                .any(|sandbox| sandbox.pod_uid == *pod.uid() && sandbox.state == SandboxState::Ready);
            if ready {
                return Some(format!("is {phase}, and its sandbox is ready"));
            }
            if snapshot.stage != Stage::Finished {
                return Some(format!("is {phase}, and its worker is {:?}", snapshot.stage));
            }
            return (!may_end(pod)).then(|| format!("is {phase}, which its policy does not allow"));
        }
        // A static pod keeps the phase that it had when nothing more could come of it.
        let never = pod.facts().restart_policy == RestartPolicy::Never;
        if pod.is_static() && never && snapshot.stage == Stage::Finished && running.is_empty() {
            return None;
        }
        if snapshot.stage != Stage::Syncing {
            return Some(format!("is {phase}, and its worker is {:?}", snapshot.stage));
        }
        let blocked = self.is_blocked(pod);
        let mut open = false;
        for view in pod.containers() {
            let mine: Vec<&(u64, &Instance)> = running.iter().filter(|(_, i)| i.name == view.name()).collect();
            match (view.kind(), mine.as_slice()) {
                (ContainerKind::Init | ContainerKind::Ephemeral, _) => {}
                (_, [(n, only)]) => {
                    open = true;
                    if only.image != view.image() {
                        return Some(format!("runs c{n} of {} with {}", view.name(), only.image));
                    }
                }
                (_, []) if blocked => open = true,
                (_, []) => match self.excuse(pod, &view) {
                    Some(Excuse::Done) => {}
                    Some(Excuse::CrashLoop) => open = true,
                    None => return Some(format!("is {phase}, and {} does not run", view.name())),
                },
                (_, many) => return Some(format!("runs {} of {}", many.len(), view.name())),
            }
        }
        if let Some((n, stranger)) = running.iter().find(|(_, i)| pod.container(&i.name).is_none()) {
            return Some(format!("runs c{n}, a {}", stranger.name));
        }
        (!open).then(|| format!("is {phase}, and all its containers are done"))
    }

    /// What is wrong with the CPU of a container that runs: it has what it was granted, and was granted what it asks for, unless
    /// there is no room: `free` is what nobody was granted.
    fn resize_complaint(&self, view: &ContainerView<'_>, status: &PodStatus, free: i64) -> Option<String> {
        let told = status
            .container_statuses
            .iter()
            .flatten()
            .find(|c| c.name == view.name())?;
        told.state.as_ref()?.running.as_ref()?;
        let wanted = milli(view.resources()?.requests.as_ref())?;
        let granted = milli(told.allocated_resources.as_ref());
        let has = milli(told.resources.as_ref().and_then(|of| of.requests.as_ref()));
        let id = ContainerId::from(told.container_id.as_deref()?.rsplit('/').next()?);
        let updated = self.fake.updated_resources(Target::Container(&id));
        let quota = match updated {
            Some(updated) => updated.cpu_quota,
            None => self.fake.container_config(&id)?.resources.cpu_quota,
        };
        let is_resizing = status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "PodResizeInProgress");
        let fits = wanted <= free + granted.unwrap_or(0);
        let reason = match (granted == Some(wanted), wanted <= milli_of_node()) {
            (true, _) => None,
            (false, true) => Some("Deferred"),
            (false, false) => Some("Infeasible"),
        };
        let pending = pending(status);
        let is_well = granted == has
            && has.is_some_and(|has| quota == has * 100)
            && !is_resizing
            && pending == reason
            && !(pending.is_some() && fits);
        (!is_well).then(|| {
            format!(
                "wants {wanted}m where {free}m are free, was granted {granted:?}, has {has:?} and a quota of {quota}; \
                 pending: {pending:?}, in progress: {is_resizing}"
            )
        })
    }

    /// Whether each pod has what it asks for, or waits for a reason.
    fn check_resizes(&mut self, wanted: &BTreeMap<PodUid, Arc<PodRecord>>, snapshots: &BTreeMap<PodUid, PodSnapshot>) {
        let going_on = || {
            let statuses = snapshots.iter().filter_map(|(uid, snapshot)| {
                let status = snapshot.status.as_deref()?;
                (!pod_is_terminal(status)).then_some((uid, status))
            });
            statuses.filter_map(|(uid, status)| Some((wanted.get(uid)?, status)))
        };
        let held: i64 = going_on().map(|(_, status)| granted(status)).sum();
        let free = milli_of_node() - held;
        let found: Vec<String> = going_on()
            .flat_map(|(pod, status)| pod.containers().map(move |view| (pod, view, status)))
            .filter_map(|(pod, view, status)| {
                let complaint = self.resize_complaint(&view, status, free)?;
                Some(format!("{} of pod {} {complaint}", view.name(), pod.uid()))
            })
            .collect();
        for what in found {
            self.checker.breach(Instant::now(), Invariant::Resizes, what);
        }
    }

    /// Whether an init container keeps failing.
    fn is_blocked(&self, pod: &PodRecord) -> bool {
        ContainerView::init(pod.spec()).any(|view| {
            view.kind() == ContainerKind::Init
                && self.last(pod, view.name()).is_some_and(|last| {
                    // One that has just been started once more is in its loop as well.
                    let failed = |end: Option<(Instant, i32, _)>| {
                        end.is_some_and(|(at, code, _)| code != 0 && at.elapsed() < CRASH_LOOP)
                    };
                    failed(last.ended)
                        || (last.runs()
                            && self
                                .checker
                                .of_pod(pod.uid())
                                .any(|(_, other)| other.name == view.name() && failed(other.ended)))
                })
        })
    }

    fn last(&self, pod: &PodRecord, name: &str) -> Option<&Instance> {
        let mut started = self.checker.of_pod(pod.uid()).rev();
        started
            .find(|(_, i)| i.name == name && i.had_its_turn())
            .map(|(_, instance)| instance)
    }

    /// How the newest container of that name ended of which there is a record.
    fn left_end(&self, pod: &PodRecord, name: &str) -> Option<(Instant, i32, By)> {
        let mut left = self.checker.of_pod(pod.uid()).rev();
        let (_, newest) = left.find(|(_, i)| i.name == name && i.gone.is_none())?;
        newest.ended
    }

    /// Why a container need not run.
    fn excuse(&self, pod: &PodRecord, view: &ContainerView<'_>) -> Option<Excuse> {
        let last = self.last(pod, view.name())?;
        let policy = RestartPolicy::of_container(view, pod.facts().restart_policy);
        // One whose record is gone ended in a way that nobody knows; what is left of an earlier one still decides.
        let (at, code, by) = last.ended.or_else(|| self.left_end(pod, view.name()))?;
        if !should_restart_exited(view, pod.facts().restart_policy, code) {
            return Some(Excuse::Done);
        }
        // A stop that was interrupted may leave either behind.
        if matches!(by, By::Stop | By::Caller) && policy == RestartPolicy::Never {
            return Some(Excuse::Done);
        }
        (at.elapsed() < CRASH_LOOP).then_some(Excuse::CrashLoop)
    }

    /// Nothing is to happen in an hour in which nothing happens.
    async fn idle_hour(&mut self) {
        for (uid, pod) in self.wanted() {
            if !ends_by_itself(&pod) {
                continue;
            }
            self.cluster.lock().pods.remove(&uid);
            self.folder
                .files
                .retain(|_, manifest| manifest.pod.as_ref().is_none_or(|of| of.uid() != pod.uid()));
            let broken = &self.folder.in_force;
            let file = broken.iter().find(|(_, of)| of.uid() == pod.uid());
            if let Some(file) = file.map(|(file, _)| file.clone()) {
                self.folder.files.remove(&file);
            }
        }
        self.send_all_files().await;
        self.send_all_pods().await;
        self.pass(Duration::from_secs(600)).await;
        self.trace.line(Instant::now(), format_args!("idle hour"));
        self.fake.clear_calls();
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let now = Instant::now();
        let told = self.cluster.lock().told.len();
        if told > 0 {
            self.checker
                .breach(now, Invariant::Idle, format!("{told} statuses told"));
        }
        // Probes go on.
        let is_probed = self.wanted().values().any(|pod| pod.facts().has_probes);
        for op in [
            Op::SandboxStatus,
            Op::ContainerStatus,
            Op::RunSandbox,
            Op::StopSandbox,
            Op::RemoveSandbox,
            Op::CreateContainer,
            Op::StartContainer,
            Op::StopContainer,
            Op::RemoveContainer,
            Op::UpdateResources,
            Op::UpdateSandbox,
            Op::Exec,
            Op::ImageStatus,
            Op::Pull,
        ] {
            let calls = self.fake.count(op);
            if calls > 0 && !(op == Op::Exec && is_probed) {
                let what = format!("{calls} calls of {}", op.name());
                self.checker.breach(now, Invariant::Idle, what);
            }
        }
        self.check_idle_volumes(began);
        self.drain();
    }
}

fn milli_of_node() -> i64 {
    NODE_CPU.parse::<Quantity>().map_or(0, |cpu| cpu.milli_value())
}

enum Excuse {
    /// It has ended for good.
    Done,
    /// It keeps ending, and waits to be started again.
    CrashLoop,
}

/// Whether a pod may come to an end by itself.
fn may_end(pod: &PodRecord) -> bool {
    let labels = pod.metadata().labels.as_ref();
    let rejected = labels.is_some_and(|labels| labels.contains_key(REJECT));
    let rejected = rejected || Curse::of(pod) == Some(Curse::MountRejects);
    let never = pod.facts().restart_policy == RestartPolicy::Never;
    let by_policy = ContainerView::regular(pod.spec())
        .all(|view| RestartPolicy::of_container(&view, pod.facts().restart_policy) != RestartPolicy::Always);
    rejected || pod.facts().active_deadline.is_some() || never || by_policy
}

/// Whether anything of it ends by itself, or may be killed at a set time.
fn ends_by_itself(pod: &PodRecord) -> bool {
    let ends = |view: ContainerView<'_>| view.kind() != ContainerKind::Init && workload::ends(&view);
    pod.containers().any(ends)
        || pod.facts().active_deadline.is_some()
        || ContainerView::init(pod.spec()).any(|view| view.name() == "init-1")
}
