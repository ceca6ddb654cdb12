//! Random changes of what containers need, and of how well they are.

use kubelet_core::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_core::{ContainerState, PodLifecycleEventGenerator, PodUid, ProbeKind};
use tokio::time::Instant;

use super::rig::Rig;

/// CPU of which the node has enough for one pod, beside all others.
pub(super) const MUCH: &str = "36";

impl<G: PodLifecycleEventGenerator> Rig<'_, G> {
    /// Has a probe of some container fail from now on, if it has such a one.
    pub(super) fn sicken(&mut self) {
        let containers = self.fake.containers();
        let probed: Vec<(PodUid, String, ProbeKind)> = containers
            .iter()
            .filter(|container| container.state == ContainerState::Running)
            .filter_map(|container| {
                let sandbox = self
                    .fake
                    .sandboxes()
                    .into_iter()
                    .find(|s| Some(&s.id) == container.sandbox_id.as_ref())?;
                Some((
                    self.checker.books.get(&sandbox.pod_uid)?.pod.clone(),
                    container.name.clone(),
                ))
            })
            .filter_map(|(pod, name)| {
                let view = pod.container(&name)?;
                let of = ProbeKind::ALL.into_iter().filter(|kind| view.probe(*kind).is_some());
                Some(
                    of.map(|kind| (pod.uid().clone(), name.clone(), kind))
                        .collect::<Vec<_>>(),
                )
            })
            .flatten()
            .collect();
        if let Some((pod, container, kind)) = self.dice.pick(&probed).cloned() {
            self.trace
                .line(Instant::now(), format_args!("      {container} of {pod}: {kind} fails"));
            self.sickness.sicken(pod, container, kind);
        }
    }

    /// Has a pod ask for other CPU, sometimes for more than there is.
    pub(super) async fn resize(&mut self) {
        let sized: Vec<PodUid> = {
            let state = self.cluster.lock();
            // One that the node has never heard of is simply new.
            let runs = |uid: &PodUid| {
                let book = self.checker.books.get(uid);
                book.is_some_and(|book| book.told.phase.as_deref() == Some("Running"))
            };
            let with_cpu = state.pods.iter().filter(|(uid, pod)| {
                let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
                runs(uid) && container.is_some_and(|container| container.resources.is_some())
            });
            with_cpu.map(|(uid, _)| uid.clone()).collect()
        };
        let Some(uid) = self.dice.pick(&sized).cloned() else {
            return;
        };
        let cpu = match self.dice.below(10) {
            0 => "100".to_owned(),
            1..=5 => MUCH.to_owned(),
            _ => format!("{}m", self.dice.between(1, 10) * 100),
        };
        if let Some(pod) = self.cluster.lock().pods.get_mut(&uid) {
            let container = pod.spec.as_mut().and_then(|spec| spec.containers.first_mut());
            let resources = container.and_then(|container| container.resources.as_mut());
            for list in resources
                .into_iter()
                .flat_map(|r| [&mut r.requests, &mut r.limits])
                .flatten()
            {
                list.insert("cpu".to_owned(), ApiQuantity(cpu.clone()));
            }
            pod.metadata.generation = Some(pod.metadata.generation.unwrap_or(1) + 1);
        }
        self.trace
            .line(Instant::now(), format_args!("      {uid} wants {cpu} of CPU"));
        self.send_pod(&uid).await;
    }
}
