//! Lists, whole and in pieces.

use std::any::Any;
use std::collections::BTreeMap;

use futures::stream;
use kubelet_core::{PodUid, RuntimeError, Scope, label};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::codegen::BoxStream;
use kubelet_proto::tonic::{Response, Status};

use crate::fake::Op;
use crate::fake::runtime::of_scope;
use crate::fake::state::State;
use crate::fake_cri::convert::selects;
use crate::fake_cri::face::Face;
use crate::fake_cri::status::{container_metadata, container_state, nanos, sandbox_metadata, sandbox_state};

/// How many items are in one piece of a list.
const PIECE: usize = 500;

/// The one pod that is selected by our mark.
fn pod_of(selector: &BTreeMap<String, String>) -> Option<PodUid> {
    selector.get(label::POD_UID).map(|uid| PodUid::from(uid.as_str()))
}

fn scope(pod: Option<&PodUid>) -> Scope<'_> {
    pod.map_or(Scope::All, Scope::Pod)
}

impl Face {
    pub(crate) async fn sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let filter = filter.unwrap_or_default();
        let pod = pod_of(&filter.label_selector);
        let work = |state: &mut State| Ok(list_sandboxes(state, &filter, pod.as_ref()));
        self.runtime
            .read(Op::ListSandboxes, of_scope(scope(pod.as_ref())), work)
            .await
    }

    pub(crate) async fn containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, RuntimeError> {
        let filter = filter.unwrap_or_default();
        let pod = pod_of(&filter.label_selector);
        let work = |state: &mut State| Ok(list_containers(state, &filter, pod.as_ref()));
        self.runtime
            .read(Op::ListContainers, of_scope(scope(pod.as_ref())), work)
            .await
    }
}

fn list_sandboxes(state: &State, filter: &v1::PodSandboxFilter, pod: Option<&PodUid>) -> Vec<v1::PodSandbox> {
    let numbers: Vec<u64> = match pod {
        // An object's mark and its metadata may differ.
        Some(uid) if !state.world.sandboxes_of(uid).is_empty() => state.world.sandboxes_of(uid),
        _ => state.world.sandboxes.keys().copied().collect(),
    };
    let found = numbers.into_iter().filter_map(|n| state.world.sandboxes.get(&n));
    let fits = found.filter(|sandbox| {
        let wanted = filter.state.as_ref().map(|wanted| wanted.state);
        (filter.id.is_empty() || sandbox.id.as_str() == filter.id)
            && wanted.is_none_or(|wanted| wanted == i32::from(sandbox_state(sandbox.state)))
            && selects(&filter.label_selector, &sandbox.config.labels)
    });
    fits.map(|sandbox| v1::PodSandbox {
        id: sandbox.id.to_string(),
        metadata: Some(sandbox_metadata(sandbox)),
        state: sandbox_state(sandbox.state).into(),
        created_at: nanos(sandbox.created),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    })
    .collect()
}

fn list_containers(state: &State, filter: &v1::ContainerFilter, pod: Option<&PodUid>) -> Vec<v1::Container> {
    let numbers: Vec<u64> = match pod {
        Some(uid) if !state.world.containers_of(uid).is_empty() => state.world.containers_of(uid),
        _ => state.world.containers.keys().copied().collect(),
    };
    let found = numbers.into_iter().filter_map(|n| {
        let container = state.world.containers.get(&n)?;
        Some((container, state.world.sandboxes.get(&container.sandbox)?.id.as_str()))
    });
    let fits = found.filter(|(container, sandbox)| {
        let wanted = filter.state.as_ref().map(|wanted| wanted.state);
        (filter.id.is_empty() || container.id.as_str() == filter.id)
            && (filter.pod_sandbox_id.is_empty() || *sandbox == filter.pod_sandbox_id)
            && wanted.is_none_or(|wanted| wanted == i32::from(container_state(container.state)))
            && selects(&filter.label_selector, &container.config.labels)
    });
    // Thousands of containers are of few images.
    let mut images: BTreeMap<&str, (String, String)> = BTreeMap::new();
    fits.map(|(container, sandbox)| {
        let image = container.config.image.name.as_str();
        let (image_ref, image_id) = images
            .entry(image)
            .or_insert_with(|| (state.images.reference(image), state.images.id(image)));
        v1::Container {
            id: container.id.to_string(),
            pod_sandbox_id: sandbox.to_owned(),
            metadata: Some(container_metadata(container)),
            image: Some(state.image_spec(container)),
            image_ref: image_ref.clone(),
            image_id: image_id.clone(),
            state: container_state(container.state).into(),
            created_at: nanos(container.created),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }
    })
    .collect()
}

/// A list in pieces, each changed on its way like an answer. One that is empty has no piece.
pub(crate) fn pieces<T, A>(face: &Face, items: Vec<T>, piece: impl Fn(Vec<T>) -> A) -> Response<BoxStream<A>>
where
    T: Send + 'static,
    A: Any + Send + 'static,
{
    let mut answers = Vec::new();
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let mut answer = piece(items.by_ref().take(PIECE).collect());
        face.change(&mut answer);
        answers.push(Ok::<A, Status>(answer));
    }
    Response::new(Box::pin(stream::iter(answers)))
}
