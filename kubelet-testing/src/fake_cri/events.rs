//! The stream of events.

use futures::stream::{self, StreamExt};
use kubelet_core::label;
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::Status;
use kubelet_proto::tonic::codegen::BoxStream;

use crate::FakeRuntime;
use crate::fake::events::{Event, EventKind, EventSubscription};
use crate::fake::state::State;
use crate::fake_cri::face::EventHook;
use crate::fake_cri::status::{nanos, sandbox_status};

pub(crate) fn events(
    runtime: FakeRuntime,
    hook: impl Fn() -> Option<EventHook> + Send + 'static,
) -> BoxStream<v1::ContainerEventResponse> {
    let subscription = EventSubscription::new(&runtime);
    let told = stream::unfold(subscription, |mut subscription| async move {
        let item = subscription.next(response).await?;
        Some((item.map_err(Status::unavailable), subscription))
    });
    let delivered = told.flat_map(move |item| {
        let items = match (item, hook()) {
            (Ok(event), Some(hook)) => hook(event).into_iter().map(Ok).collect(),
            (item, _) => vec![item],
        };
        stream::iter(items)
    });
    Box::pin(delivered)
}

/// An event with the statuses as they are when it is sent. What is gone is told with its ids alone.
fn response(state: &State, event: Event) -> v1::ContainerEventResponse {
    let kind = match event.kind {
        EventKind::Created => v1::ContainerEventType::ContainerCreatedEvent,
        EventKind::Started => v1::ContainerEventType::ContainerStartedEvent,
        EventKind::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
        EventKind::Deleted => v1::ContainerEventType::ContainerDeletedEvent,
    };
    let sandbox = match state.world.sandboxes.get(&event.sandbox) {
        Some(sandbox) => sandbox_status(sandbox),
        None => v1::PodSandboxStatus {
            id: format!("s{}", event.sandbox),
            metadata: Some(v1::PodSandboxMetadata {
                uid: event.pod.to_string(),
                ..v1::PodSandboxMetadata::default()
            }),
            state: v1::PodSandboxState::SandboxNotready.into(),
            labels: [(label::POD_UID.to_owned(), event.pod.to_string())].into(),
            ..v1::PodSandboxStatus::default()
        },
    };
    v1::ContainerEventResponse {
        container_id: event.id,
        container_event_type: kind.into(),
        created_at: nanos(event.at),
        pod_sandbox_status: Some(sandbox),
        containers_statuses: state.cri_statuses_in(event.sandbox),
    }
}
