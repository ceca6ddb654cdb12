//! The runtime's events, as hints.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kubelet_core::{PodUid, RuntimeError, RuntimeHint, label};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::{Request, Response, Status, Streaming};
use tokio::task::{JoinError, JoinSet};

use crate::client::Client;
use crate::error::Op;

/// How long a runtime that has no events may take to say so. One that has them answers with the first event only, which may
/// be hours away.
const REFUSAL_WITHIN: Duration = Duration::from_secs(1);

const OP: Op<'static> = Op {
    name: "get_container_events",
    kind: crate::error::Kind::Read,
    object: "events",
    id: "",
};

type Opened = Result<Response<Streaming<v1::ContainerEventResponse>>, Status>;

enum State {
    Closed(Client),
    /// Asked, and not refused.
    Asked(Asked),
    Open(Streaming<v1::ContainerEventResponse>),
    Over,
}

/// The call goes on in a task, since it must be polled while nobody waits for it; it ends with the stream.
type Asked = JoinSet<Opened>;

pub(crate) fn events(client: Client) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
    stream::unfold(State::Closed(client), next).boxed()
}

async fn next(mut state: State) -> Option<(Result<RuntimeHint, RuntimeError>, State)> {
    loop {
        state = match state {
            State::Closed(client) => {
                let mut runtime = client.runtime();
                let call = async move {
                    runtime
                        .get_container_events(Request::new(v1::GetEventsRequest {}))
                        .await
                };
                let mut asked = Asked::new();
                asked.spawn(call);
                match tokio::time::timeout(REFUSAL_WITHIN, asked.join_next()).await {
                    Err(_) => return Some((Ok(RuntimeHint::Ready), State::Asked(asked))),
                    Ok(opened) => match settled(opened) {
                        Ok(events) => return Some((Ok(RuntimeHint::Ready), State::Open(events))),
                        Err(error) => return Some((Err(error), State::Over)),
                    },
                }
            }
            State::Asked(mut asked) => match settled(asked.join_next().await) {
                Ok(events) => State::Open(events),
                Err(error) => return Some((Err(error), State::Over)),
            },
            State::Open(mut events) => match events.message().await {
                Ok(Some(event)) => return Some((Ok(hint(event)), State::Open(events))),
                // The caller connects again.
                Ok(None) => return None,
                Err(status) => return Some((Err(OP.error(status)), State::Over)),
            },
            State::Over => return None,
        };
    }
}

fn settled(opened: Option<Result<Opened, JoinError>>) -> Result<Streaming<v1::ContainerEventResponse>, RuntimeError> {
    match opened {
        Some(Ok(Ok(response))) => Ok(response.into_inner()),
        Some(Ok(Err(status))) => Err(OP.error(status)),
        Some(Err(error)) => Err(RuntimeError::unavailable(OP.name, error)),
        // There is one task, and it is asked for once.
        None => Err(OP.bad_answer("the call was lost")),
    }
}

/// Which pod an event is about; one that does not say means that all are looked at.
fn hint(event: v1::ContainerEventResponse) -> RuntimeHint {
    let of_sandbox = event.pod_sandbox_status.and_then(|mut sandbox| {
        let marked = sandbox.labels.remove(label::POD_UID);
        marked.or_else(|| sandbox.metadata.map(|metadata| metadata.uid))
    });
    let of_container = || {
        let mut containers = event.containers_statuses.into_iter();
        containers.find_map(|mut container| container.labels.remove(label::POD_UID))
    };
    match of_sandbox.filter(|uid| !uid.is_empty()).or_else(of_container) {
        Some(uid) => RuntimeHint::Pod(PodUid::from(uid)),
        None => RuntimeHint::Lost,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_core::{PodUid, RuntimeHint, label};
    use kubelet_proto::cri::v1;

    use super::hint;

    #[test]
    fn an_event_names_its_pod_or_all() {
        let labels = || BTreeMap::from([(label::POD_UID.to_owned(), "u-1".to_owned())]);
        let of_sandbox = v1::ContainerEventResponse {
            pod_sandbox_status: Some(v1::PodSandboxStatus {
                labels: labels(),
                ..v1::PodSandboxStatus::default()
            }),
            ..v1::ContainerEventResponse::default()
        };
        let of_container = v1::ContainerEventResponse {
            containers_statuses: vec![v1::ContainerStatus {
                labels: labels(),
                ..v1::ContainerStatus::default()
            }],
            ..v1::ContainerEventResponse::default()
        };
        assert_eq!(hint(of_sandbox), RuntimeHint::Pod(PodUid::from("u-1")));
        assert_eq!(hint(of_container), RuntimeHint::Pod(PodUid::from("u-1")));
        assert_eq!(hint(v1::ContainerEventResponse::default()), RuntimeHint::Lost);
    }
}
