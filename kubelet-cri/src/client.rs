//! Calls with deadlines.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use kubelet_core::RuntimeError;
use kubelet_proto::cri::v1::image_service_client::ImageServiceClient;
use kubelet_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use kubelet_proto::prost::Message;
use kubelet_proto::tonic::client::Grpc;
use kubelet_proto::tonic::codegen::http::uri::PathAndQuery;
use kubelet_proto::tonic::transport::Channel;
use kubelet_proto::tonic::{Request, Response, Status};
use tokio::time::timeout;
use tonic_prost::ProstCodec;

use crate::error::Op;
use crate::settings::CriSettings;

/// One connection to a runtime, and how it is used. A cheap clone; all clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    image_channel: Channel,
    pub(crate) settings: CriSettings,
}

impl Client {
    pub(crate) fn new(channel: Channel, image_channel: Channel, settings: CriSettings) -> Self {
        Self {
            channel,
            image_channel,
            settings,
        }
    }

    pub(crate) fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(self.settings.max_message_bytes)
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.image_channel.clone()).max_decoding_message_size(self.settings.max_message_bytes)
    }

    /// The ordinary deadline.
    pub(crate) fn limit(&self) -> Duration {
        self.settings.request_timeout
    }

    /// Calls a method of the runtime service whose answer is decoded into another message than the generated one.
    pub(crate) async fn unary<Q, A>(&self, path: &'static str, request: Request<Q>) -> Result<Response<A>, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(self.settings.max_message_bytes);
        grpc.ready()
            .await
            .map_err(|error| Status::from_error(Box::new(error)))?;
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(request, PathAndQuery::from_static(path), codec).await
    }
}

/// A request that tells the runtime its deadline.
pub(crate) fn within<T>(limit: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Waits for an answer, for no longer than the deadline.
pub(crate) async fn answer<T>(
    op: Op<'_>,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, RuntimeError> {
    match timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(op.error(status)),
        Err(_) => Err(op.no_answer(limit)),
    }
}

/// The first bytes of an output.
pub(crate) fn cut(mut output: Bytes, limit: usize) -> Bytes {
    output.truncate(limit);
    output
}
