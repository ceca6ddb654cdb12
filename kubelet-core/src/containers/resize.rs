//! Giving running containers the CPU and memory that their pod was granted.
//!
//! Source: kubelet 1.36, `kuberuntime_manager.go`.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

use super::ContainerSyncer;
use super::config::NO_QUOTA;
use crate::actions::PodActions;
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::ContainerId;
use crate::pod::{ContainerView, Difference, PodRecord, resizable_containers};
use crate::quantity::Quantity;
use crate::resources::read_list;
use crate::runtime::{LinuxResources, Target};
use crate::status::{told_containers, told_id};
use crate::syncer::{PodWork, StepContext, StepNotes, SyncError};

/// A container that runs with other resources than its pod was granted.
#[derive(Debug)]
pub(super) struct Lag<'a> {
    view: ContainerView<'a>,
    id: &'a ContainerId,
    difference: Difference,
    has: Option<&'a ResourceRequirements>,
}

impl Lag<'_> {
    fn needs_restart(&self) -> bool {
        self.difference.needs_restart(&self.view)
    }

    /// Whether any limit grows, or goes.
    fn grows(&self) -> bool {
        let limits = |of: Option<&ResourceRequirements>| read_list(of.and_then(|of| of.limits.as_ref()));
        let (wanted, has) = (limits(self.view.resources()), limits(self.has));
        ["cpu", "memory"].into_iter().any(|name| {
            let least: Option<&Quantity> = has.get(name);
            least.is_some_and(|has| wanted.get(name).is_none_or(|wanted| wanted > has))
        })
    }
}

/// The containers of a pod that lag behind what it was granted.
pub(super) fn lags(work: &PodWork) -> Vec<Lag<'_>> {
    resizable_containers(&work.pod)
        .filter_map(|view| {
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
        .collect()
}

/// Notes that a backend was handed the pod with what it was granted, which is all that there is to do.
pub(crate) fn note_all_resized(work: &PodWork, notes: &StepNotes) {
    for lag in lags(work) {
        notes.resized(lag.view.name(), lag.id, lag.view.resources());
    }
}

/// The containers that have to be started anew.
pub(super) fn restart_to_resize(lags: &[Lag<'_>]) -> Vec<ContainerId> {
    let restart = lags.iter().filter(|lag| lag.needs_restart());
    restart.map(|lag| lag.id.clone()).collect()
}

impl ContainerSyncer {
    /// Gives containers that go on what their pod was granted: those first that give something back.
    pub(super) async fn resize(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        mut lags: Vec<Lag<'_>>,
        actions: &PodActions,
    ) -> Result<(), SyncError> {
        if lags.is_empty() {
            return Ok(());
        }
        let before = spec_before(pod, &lags);
        lags.retain(|lag| !lag.needs_restart() && actions.kill.iter().all(|kill| kill.id != *lag.id));
        if lags.is_empty() || actions.kill_pod {
            return Ok(());
        }
        lags.sort_by_key(Lag::grows);
        let node = self.node.ledger.node();
        let cgroup = match self.widen_cgroup(pod, &before).await {
            Ok(cgroup) => cgroup,
            Err(error) => {
                return Err(tell_failed(
                    cx,
                    pod,
                    "cannot change the cgroup of the pod".to_owned(),
                    error,
                ));
            }
        };
        let mut done = Vec::new();
        let tell_done = |done: &[&Lag<'_>]| {
            done.iter()
                .for_each(|lag| cx.notes.resized(lag.view.name(), lag.id, lag.view.resources()))
        };
        for lag in &lags {
            let name = lag.view.name();
            let all = self.node.resources.of_container(pod, &lag.view, &node);
            let has_own_cpus = self.given(pod.uid(), name).exclusive_cpus;
            let limits = LinuxResources {
                cpu_shares: all.cpu_shares,
                cpu_quota: if has_own_cpus { NO_QUOTA } else { all.cpu_quota },
                cpu_period: all.cpu_period,
                memory_limit_bytes: all.memory_limit_bytes,
                memory_swap_limit_bytes: all.memory_swap_limit_bytes,
                ..LinuxResources::default()
            };
            match self.call_update(&cx.notes, Target::Container(lag.id), &limits).await {
                Ok(()) => done.push(lag),
                // It has ended meanwhile: the next one is made with what the pod was granted.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    let what = format!("cannot change the resources of container {name}");
                    tell_done(&done);
                    return Err(tell_failed(cx, pod, what, error));
                }
            }
        }
        if let Err(error) = self.narrow_cgroup(pod, cgroup).await {
            return Err(tell_failed(
                cx,
                pod,
                "cannot change the cgroup of the pod".to_owned(),
                error,
            ));
        }
        // Only now: as long as the cgroup of the pod is too wide all is tried again.
        tell_done(&done);
        cx.notes.resize_failed(None);
        Ok(())
    }
}

/// The pod's spec with the resources that its containers have.
pub(super) fn spec_before(pod: &PodRecord, lags: &[Lag<'_>]) -> PodSpec {
    let mut spec = pod.spec().clone();
    let all = spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten());
    for container in all {
        if let Some(lag) = lags.iter().find(|lag| lag.view.name() == container.name) {
            container.resources = lag.has.cloned();
        }
    }
    spec
}

/// Tells that a resize has failed, once.
fn tell_failed(
    cx: &StepContext,
    pod: &PodRecord,
    what: String,
    error: impl std::error::Error + Send + Sync + 'static,
) -> SyncError {
    let text = format!("{what}: {}", error_chain(&error));
    if cx.notes.resize_failed(Some(text.clone())) {
        let subject = EventSubject::pod(pod);
        cx.events
            .record(Event::new(subject, EventType::Warning, "ResizeError", text));
    }
    SyncError::failed(what, error)
}
