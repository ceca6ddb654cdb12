//! The Container Runtime Interface: what a kubelet asks of containerd, CRI-O and the like.

use std::fmt;

use tonic::transport::Channel;

use v1::image_service_client::ImageServiceClient;
use v1::runtime_service_client::RuntimeServiceClient;

/// CRI v1, package `runtime.v1`, as of Kubernetes 1.36.
///
/// Times are nanoseconds since the Unix epoch and timeouts are seconds, unless a field says otherwise. Enums are `i32` in
/// messages, since a peer may know values that this version does not; each has an accessor that takes an unknown value for the
/// first one.
#[path = "generated/cri_v1.rs"]
#[rustfmt::skip]
#[allow(
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    missing_docs,
    reason = "generated: formatted by its generator, documented by its .proto"
)]
pub mod v1;

/// The largest message that a client of this API accepts, in bytes; gRPC's own limit is 4 MiB.
///
/// Source: the client of Kubernetes 1.36.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// A client of the runtime service that accepts messages of up to [`MAX_MESSAGE_BYTES`].
///
/// `max_decoding_message_size` sets another limit. No call has a deadline of its own: give each request one.
pub fn runtime_client(channel: Channel) -> RuntimeServiceClient<Channel> {
    RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// A client of the image service that accepts messages of up to [`MAX_MESSAGE_BYTES`].
///
/// `max_decoding_message_size` sets another limit. No call has a deadline of its own: give each request one.
pub fn image_client(channel: Channel) -> ImageServiceClient<Channel> {
    ImageServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// Leaves out what is secret.
impl fmt::Debug for v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

/// Leaves the value out: environments hold secrets.
impl fmt::Debug for v1::KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::v1::{AuthConfig, ContainerConfig, KeyValue, PullImageRequest};

    #[test]
    fn secrets_are_not_printed() {
        let auth = AuthConfig {
            username: "robot".to_owned(),
            password: "hidden-1".to_owned(),
            auth: "hidden-2".to_owned(),
            identity_token: "hidden-3".to_owned(),
            registry_token: "hidden-4".to_owned(),
            ..AuthConfig::default()
        };
        let request = PullImageRequest {
            auth: Some(auth),
            ..PullImageRequest::default()
        };
        let env = KeyValue {
            key: "TOKEN".to_owned(),
            value: "hidden-5".to_owned(),
        };
        let config = ContainerConfig {
            envs: vec![env],
            ..ContainerConfig::default()
        };
        let printed = format!("{request:?} {config:?}");
        assert!(printed.contains("robot") && printed.contains("TOKEN"), "{printed}");
        assert!(!printed.contains("hidden"), "{printed}");
    }
}
