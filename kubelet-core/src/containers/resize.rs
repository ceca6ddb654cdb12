//! Giving running containers the CPU and memory that their pod was granted.
//!
//! Source: kubelet 1.36, `kuberuntime_manager.go`.

mod decreases;
mod whole;

use k8s_openapi::api::core::v1::ResourceRequirements;

use self::whole::{Way, WholeError};
use super::ContainerSyncer;
use super::config::NO_QUOTA;
use crate::actions::PodActions;
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::ContainerId;
use crate::pod::{ContainerView, Difference, PodRecord, resizable_containers};
use crate::runtime::{LinuxResources, Target};
use crate::status::{told_containers, told_id};
use crate::syncer::{PodWork, StepContext, StepNotes, SyncError};

/// A container that runs with other resources than its pod was granted.
#[derive(Debug)]
struct Lag<'a> {
    view: ContainerView<'a>,
    id: &'a ContainerId,
    difference: Difference,
    has: Option<&'a ResourceRequirements>,
}

impl Lag<'_> {
    fn needs_restart(&self) -> bool {
        self.difference.needs_restart(&self.view)
    }
}

/// What of a pod lags behind what it was granted.
#[derive(Debug)]
pub(super) struct Lags<'a> {
    work: &'a PodWork,
    containers: Vec<Lag<'a>>,
    /// The pod as a whole does.
    as_a_whole: bool,
    /// A change was begun and not brought to its end, so that anything may have something else than is told.
    is_unsettled: bool,
    /// The pod with the resources that it and its containers have.
    before: PodRecord,
}

/// Another limit for a container that goes on.
#[derive(Debug)]
struct Change<'a> {
    view: ContainerView<'a>,
    id: &'a ContainerId,
    from: LinuxResources,
    to: LinuxResources,
}

/// No limit is more than any.
fn limit(amount: i64) -> i64 {
    if amount > 0 { amount } else { i64::MAX }
}

impl Change<'_> {
    fn is_other_limit(&self) -> bool {
        limit(self.to.cpu_quota) != limit(self.from.cpu_quota)
            || limit(self.to.memory_limit_bytes) != limit(self.from.memory_limit_bytes)
    }

    /// Whether any limit grows, or goes.
    fn grows(&self) -> bool {
        limit(self.to.cpu_quota) > limit(self.from.cpu_quota)
            || limit(self.to.memory_limit_bytes) > limit(self.from.memory_limit_bytes)
    }
}

impl<'a> Lags<'a> {
    /// Nothing if all have what they were granted.
    pub(super) fn of(work: &'a PodWork, is_unsettled: bool) -> Option<Self> {
        let containers: Vec<Lag<'a>> = lagging(work).collect();
        let as_a_whole = lags_as_a_whole(work);
        let is_unsettled = is_unsettled && work.observed.containers.iter().any(|seen| seen.is_running());
        if containers.is_empty() && !as_a_whole && !is_unsettled {
            return None;
        }
        let has = |name: &str| {
            let lag = containers.iter().find(|lag| lag.view.name() == name)?;
            Some(lag.has.cloned())
        };
        let whole = as_a_whole.then(|| work.status.resources.clone());
        let before = work.pod.with_resources(whole, has);
        Some(Self {
            work,
            containers,
            as_a_whole,
            is_unsettled,
            before,
        })
    }

    /// The containers that have to be started anew.
    pub(super) fn to_restart(&self) -> Vec<ContainerId> {
        let restart = self.containers.iter().filter(|lag| lag.needs_restart());
        restart.map(|lag| lag.id.clone()).collect()
    }

    /// The pod with the resources that it and its containers have.
    pub(super) fn before(&self) -> &PodRecord {
        &self.before
    }
}

/// The containers of a pod that lag behind what it was granted.
fn lagging(work: &PodWork) -> impl Iterator<Item = Lag<'_>> {
    resizable_containers(&work.pod).filter_map(|view| {
        let seen = work.observed.of_name(view.name()).find(|seen| seen.is_running())?;
        // What the status tells has to be of this container, and not of the one before.
        let told = told_containers(&work.status).find(|told| told_id(told) == Some(seen.id.as_str()))?;
        let difference = Difference::between(view.resources(), told.resources.as_ref());
        difference.any().then_some(Lag {
            view,
            id: &seen.id,
            difference,
            has: told.resources.as_ref(),
        })
    })
}

/// Whether something of a pod runs, and the pod as a whole has not what it was granted.
fn lags_as_a_whole(work: &PodWork) -> bool {
    let granted = work.pod.spec().resources.as_ref();
    granted.is_some()
        && Difference::between(granted, work.status.resources.as_ref()).any()
        && work.observed.containers.iter().any(|seen| seen.is_running())
}

/// Notes that a backend was handed the pod with what it was granted, which is all that there is to do.
pub(crate) fn note_all_resized(work: &PodWork, notes: &StepNotes) {
    for lag in lagging(work) {
        notes.resized(lag.view.name(), lag.id, lag.view.resources());
    }
    if lags_as_a_whole(work) {
        notes.resized_as_a_whole(work.pod.spec().resources.as_ref());
    }
}

impl ContainerSyncer {
    /// The limits of a container that runs, by its pod as it is or as it was.
    fn limits_of(&self, pod: &PodRecord, name: &str) -> LinuxResources {
        let node = self.node.ledger.node();
        let view = pod.container(name);
        let mut limits = view.map_or_else(LinuxResources::default, |view| {
            self.node.resources.of_container(pod, &view, &node)
        });
        if self.given(pod.uid(), name).exclusive_cpus {
            limits.cpu_quota = NO_QUOTA;
        }
        limits
    }

    /// The containers that get other limits and go on: those first that give something back. A container without a limit of its
    /// own has that of its pod.
    fn changes<'a>(&self, lags: &Lags<'a>) -> Vec<Change<'a>> {
        let work = lags.work;
        let in_place = resizable_containers(&work.pod).filter_map(|view| {
            let seen = work.observed.of_name(view.name()).find(|seen| seen.is_running())?;
            let lag = lags.containers.iter().find(|lag| lag.id == &seen.id);
            let change = Change {
                view,
                id: &seen.id,
                from: self.limits_of(&lags.before, view.name()),
                to: self.limits_of(&work.pod, view.name()),
            };
            match lag {
                Some(lag) => (!lag.needs_restart()).then_some(change),
                None => (lags.is_unsettled || change.is_other_limit()).then_some(change),
            }
        });
        let mut changes: Vec<Change<'a>> = in_place.collect();
        changes.sort_by_key(Change::grows);
        changes
    }

    /// Gives containers that go on what their pod was granted.
    pub(super) async fn resize(
        &self,
        cx: &StepContext,
        lags: &Lags<'_>,
        actions: &PodActions,
    ) -> Result<(), SyncError> {
        let pod = &*lags.work.pod;
        let mut changes = self.changes(lags);
        changes.retain(|change| actions.kill.iter().all(|kill| kill.id != *change.id));
        if actions.kill_pod {
            return Ok(());
        }
        let as_a_whole = |error| tell_failed(cx, pod, "cannot change the limits of the pod".to_owned(), error);
        let whole = match self.whole_of(lags).await {
            Ok(whole) => whole,
            Err(error) => return Err(as_a_whole(WholeError::Cgroup(error))),
        };
        cx.notes.resize_begun();
        let wider = self.go_on(cx, pod, &whole, (Way::Had, Way::Between)).await;
        wider.map_err(as_a_whole)?;
        let mut done = Vec::new();
        let tell_done = |done: &[&Change<'_>]| {
            done.iter()
                .for_each(|change| cx.notes.resized(change.view.name(), change.id, change.view.resources()))
        };
        for change in &changes {
            match self
                .call_update(&cx.notes, Target::Container(change.id), &change.to)
                .await
            {
                Ok(()) => done.push(change),
                // It has ended meanwhile: the next one is made with what the pod was granted.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    let what = format!("cannot change the resources of container {}", change.view.name());
                    tell_done(&done);
                    return Err(tell_failed(cx, pod, what, error));
                }
            }
        }
        let narrower = self.go_on(cx, pod, &whole, (Way::Between, Way::Granted)).await;
        narrower.map_err(as_a_whole)?;
        // Only now: as long as the cgroup of the pod is too wide all is tried again.
        tell_done(&done);
        if lags.as_a_whole {
            cx.notes.resized_as_a_whole(pod.spec().resources.as_ref());
        }
        cx.notes.resize_failed(None);
        cx.notes.resize_settled();
        Ok(())
    }
}

/// Tells that a resize has failed, once.
fn tell_failed(
    cx: &StepContext,
    pod: &PodRecord,
    what: String,
    error: impl std::error::Error + Send + Sync + 'static,
) -> SyncError {
    tell(cx, pod, format!("{what}: {}", error_chain(&error)));
    SyncError::failed(what, error)
}

fn tell(cx: &StepContext, pod: &PodRecord, text: String) {
    if cx.notes.resize_failed(Some(text.clone())) {
        let subject = EventSubject::pod(pod);
        cx.events
            .record(Event::new(subject, EventType::Warning, "ResizeError", text));
    }
}
