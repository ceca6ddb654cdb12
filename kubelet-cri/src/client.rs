//! Calls with deadlines.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kubelet_core::RuntimeError;
use kubelet_proto::cri::v1::image_service_client::ImageServiceClient;
use kubelet_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use kubelet_proto::prost::Message;
use kubelet_proto::tonic::client::Grpc;
use kubelet_proto::tonic::codegen::http::uri::PathAndQuery;
use kubelet_proto::tonic::transport::Channel;
use kubelet_proto::tonic::{Code, Request, Response, Status};
use tokio::time::timeout;
use tonic_prost::ProstCodec;

use crate::error::Op;
use crate::lists::List;
use crate::settings::CriSettings;

/// One connection to a runtime, and how it is used. A cheap clone; all clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    image_channel: Channel,
    pub(crate) settings: CriSettings,
    /// A list was too large for one message.
    in_pieces: Arc<AtomicBool>,
}

impl Client {
    pub(crate) fn new(channel: Channel, image_channel: Channel, settings: CriSettings) -> Self {
        Self {
            channel,
            image_channel,
            settings,
            in_pieces: Arc::default(),
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

    /// Reads a list: as one message, or in pieces once one was larger than a message may be.
    ///
    /// Source: the streaming lists of CRI in kubelet 1.36; there a gate chooses between the two.
    pub(crate) async fn list<Q, L>(&self, op: Op<'_>, request: Q) -> Result<Vec<L::Item>, RuntimeError>
    where
        Q: Message + Default + Clone + 'static,
        L: List,
    {
        let limit = self.limit();
        let too_large = if self.in_pieces.load(Ordering::Relaxed) {
            None
        } else {
            match timeout(limit, self.whole::<Q, L>(within(limit, request.clone()))).await {
                Ok(Err(status)) if matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted) => Some(status),
                Ok(said) => return said.map_err(|status| op.error(status)),
                Err(_) => return Err(op.no_answer(limit)),
            }
        };
        let items = match timeout(limit, self.pieces::<Q, L>(within(limit, request))).await {
            Ok(Ok(items)) => items,
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                self.in_pieces.store(false, Ordering::Relaxed);
                return Err(op.error(too_large.unwrap_or(status)));
            }
            Ok(Err(status)) => return Err(op.error(status)),
            Err(_) => return Err(op.no_answer(limit)),
        };
        if let Some(status) = too_large {
            self.in_pieces.store(true, Ordering::Relaxed);
            tracing::warn!(
                error = &status as &dyn std::error::Error,
                list = op.object,
                "a list is too large for one message, lists are read in pieces from now on"
            );
        }
        Ok(items)
    }

    async fn whole<Q, L>(&self, request: Request<Q>) -> Result<Vec<L::Item>, Status>
    where
        Q: Message + Default + 'static,
        L: List,
    {
        let codec = ProstCodec::<Q, L>::default();
        let mut grpc = self.grpc().await?;
        let said = grpc.unary(request, PathAndQuery::from_static(L::WHOLE), codec).await?;
        Ok(said.into_inner().items())
    }

    async fn pieces<Q, L>(&self, request: Request<Q>) -> Result<Vec<L::Item>, Status>
    where
        Q: Message + Default + 'static,
        L: List,
    {
        let codec = ProstCodec::<Q, L>::default();
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static(L::PIECES);
        let mut said = grpc.server_streaming(request, path, codec).await?.into_inner();
        let mut items = Vec::new();
        // What breaks off says nothing: half a list is none.
        while let Some(piece) = said.message().await? {
            items.extend(piece.items());
        }
        Ok(items)
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(self.settings.max_message_bytes);
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
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
