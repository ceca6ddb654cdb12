//! CRI between a client and a server in this process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::error::Error;
use std::future::pending;
use std::io;

use futures::StreamExt;
use futures::channel::oneshot;
use kubelet_proto::cri::v1::image_service_server::{ImageService, ImageServiceServer};
use kubelet_proto::cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use kubelet_proto::cri::v1::{
    ContainerEventResponse, ContainerEventType, ExecSyncRequest, ExecSyncResponse, GetEventsRequest, Image,
    ListImagesRequest, ListImagesResponse, StatusRequest, VersionRequest, VersionResponse,
};
use kubelet_proto::cri::{MAX_MESSAGE_BYTES, image_client, runtime_client};
use kubelet_proto::unix::{ConnectError, ConnectSettings, Endpoint, ListenSettings, connect, connect_lazy, listen};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::codegen::BoxStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

/// Answers with what it was asked for.
struct Runtime;

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, request: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        let caller = request
            .extensions()
            .get::<UdsConnectInfo>()
            .and_then(|info| info.peer_cred);
        Ok(Response::new(VersionResponse {
            version: request.get_ref().version.clone(),
            runtime_name: format!("called by {:?}", caller.and_then(|caller| caller.pid())),
            ..VersionResponse::default()
        }))
    }

    /// As many bytes as the timeout has seconds.
    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
        let stdout = vec![b'x'; request.get_ref().timeout.try_into().unwrap()];
        Ok(Response::new(ExecSyncResponse {
            stdout: stdout.into(),
            ..ExecSyncResponse::default()
        }))
    }

    /// Two events, then nothing more, without an end.
    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<BoxStream<ContainerEventResponse>>, Status> {
        let events = ["a", "b"].map(|id| {
            Ok(ContainerEventResponse {
                container_id: id.to_owned(),
                container_event_type: ContainerEventType::ContainerStartedEvent.into(),
                ..ContainerEventResponse::default()
            })
        });
        let events = futures::stream::iter(events).chain(futures::stream::once(pending()));
        Ok(Response::new(Box::pin(events)))
    }
}

struct Images;

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(&self, _: Request<ListImagesRequest>) -> Result<Response<ListImagesResponse>, Status> {
        let image = Image {
            id: "sha256:1".to_owned(),
            ..Image::default()
        };
        Ok(Response::new(ListImagesResponse { images: vec![image] }))
    }
}

/// A server of both services, until it is dropped.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinSet<Result<(), tonic::transport::Error>>,
}

impl Running {
    async fn start(endpoint: &Endpoint) -> Self {
        let incoming = listen(endpoint, ListenSettings::default()).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        let server = Server::builder()
            .add_service(RuntimeServiceServer::new(Runtime))
            .add_service(ImageServiceServer::new(Images));
        task.spawn(server.serve_with_incoming_shutdown(incoming, async { stopped.await.unwrap_or(()) }));
        Self { stop, task }
    }

    /// Ends it once the calls in hand are answered.
    async fn stop(mut self) {
        self.stop.send(()).unwrap();
        self.task.join_next().await.unwrap().unwrap().unwrap();
    }
}

fn endpoint(folder: &TempDir) -> Endpoint {
    Endpoint::new(folder.path().join("cri.sock")).unwrap()
}

async fn version(channel: &Channel) -> Result<VersionResponse, Status> {
    let request = VersionRequest {
        version: "0.1.0".to_owned(),
    };
    Ok(runtime_client(channel.clone()).version(request).await?.into_inner())
}

async fn exec(channel: &Channel, bytes: usize) -> Result<usize, Status> {
    let request = ExecSyncRequest {
        timeout: bytes.try_into().unwrap(),
        ..ExecSyncRequest::default()
    };
    Ok(runtime_client(channel.clone())
        .exec_sync(request)
        .await?
        .into_inner()
        .stdout
        .len())
}

#[tokio::test]
async fn calls_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let running = Running::start(&endpoint).await;
    let channel = connect(&endpoint, ConnectSettings::default()).await.unwrap();

    let answer = version(&channel).await.unwrap();
    assert_eq!(answer.version, "0.1.0");
    assert_eq!(answer.runtime_name, format!("called by {:?}", Some(std::process::id())));

    let answer = image_client(channel.clone())
        .list_images(ListImagesRequest::default())
        .await
        .unwrap();
    assert_eq!(answer.into_inner().images[0].id, "sha256:1");

    let unknown = runtime_client(channel)
        .status(StatusRequest::default())
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);

    running.stop().await;
    assert!(!endpoint.path().exists());
}

#[tokio::test]
async fn events_arrive_while_the_call_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let _running = Running::start(&endpoint).await;
    let channel = connect(&endpoint, ConnectSettings::default()).await.unwrap();

    let mut events = runtime_client(channel.clone())
        .get_container_events(GetEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    for id in ["a", "b"] {
        let event = events.message().await.unwrap().unwrap();
        assert_eq!(event.container_id, id);
        assert_eq!(event.container_event_type(), ContainerEventType::ContainerStartedEvent);
    }
    let next = events.message();
    tokio::pin!(next);
    assert!(futures::poll!(&mut next).is_pending());
    version(&channel).await.unwrap();
}

#[tokio::test]
async fn messages_may_be_as_large_as_the_limit_and_no_larger() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let _running = Running::start(&endpoint).await;
    let channel = connect(&endpoint, ConnectSettings::default()).await.unwrap();

    // Its field's tag and length take five bytes.
    let largest = MAX_MESSAGE_BYTES - 5;
    assert_eq!(exec(&channel, largest).await.unwrap(), largest);
    assert_eq!(exec(&channel, largest + 1).await.unwrap_err().code(), Code::OutOfRange);

    let mut small = runtime_client(channel).max_decoding_message_size(1024);
    let request = ExecSyncRequest {
        timeout: 2048,
        ..ExecSyncRequest::default()
    };
    assert_eq!(small.exec_sync(request).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_lazy_channel_finds_a_server_that_comes_later_and_its_successor() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let channel = connect_lazy(&endpoint, ConnectSettings::default());

    let error = version(&channel).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let causes = std::iter::successors(Some(&error as &dyn Error), |&cause| cause.source());
    let cause = causes
        .filter_map(|cause| cause.downcast_ref::<ConnectError>())
        .next()
        .unwrap();
    assert_eq!((cause.endpoint(), cause.kind()), (&endpoint, io::ErrorKind::NotFound));

    for _ in 0..3 {
        let running = Running::start(&endpoint).await;
        // The channel learns in its own time that its last connection has ended.
        let answer = loop {
            match version(&channel).await {
                Err(error) if error.code() == Code::Unavailable => tokio::task::yield_now().await,
                answer => break answer,
            }
        };
        answer.unwrap();
        running.stop().await;
    }
}
