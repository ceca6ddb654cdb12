//! Labels and annotations on sandboxes and containers: our mark, and what a restarted agent learns from.
//!
//! Source: kubelet 1.36, `kuberuntime/labels.go`. Kept as they are, so that tools that work with a kubelet work with
//! this one, and so that its pods can be taken over.

use std::collections::BTreeMap;

/// Keys of labels.
pub mod label {
    /// The pod's UID: without it nothing is touched.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// The pod's name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// The pod's namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// The container's name.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// Keys of annotations.
pub mod annotation {
    /// On a pod: the source that it came from.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
    /// On a static pod: its UID.
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
    /// On a pod: when its source first named it.
    pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
    /// On a mirror pod: the hash of the static pod that it shows.
    pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
    /// On a container: hash of its image and name, in hex.
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// On a container: its restart count.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// On a container: where in it the termination message is written.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// On a container: what happens without a termination message.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// On a container: its pre-stop hook as JSON.
    pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
    /// On a container: its ports as JSON.
    pub const PORTS: &str = "io.kubernetes.container.ports";
    /// On a container: the pod's deletion grace in seconds.
    pub const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
    /// On a container: the pod's termination grace in seconds.
    pub const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// On a container: the host file that holds its termination message. Ours: upstream finds it among the mounts,
    /// which the neutral status does not carry.
    pub const TERMINATION_MESSAGE_HOST_PATH: &str = "io.kubelet-sdk.container.terminationMessageHostPath";
    /// On a container that is started anew for other resources: those that it was made with, as JSON. Ours: an agent that ends
    /// before it could tell of the container must not start it anew once more.
    pub const RESOURCES: &str = "io.kubelet-sdk.container.resources";
}

/// What the annotations of a container say, taken out once so that the maps need not be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerAnnotations {
    /// Hash of image and name; absent or malformed: nothing.
    pub hash: Option<u32>,
    /// Restart count; absent or malformed: 0.
    pub restart_count: u32,
    /// Host file of the termination message.
    pub termination_message_host_path: Option<String>,
    /// Whether the end of the log stands in for a missing termination message of a failed container.
    pub fallback_to_logs: bool,
    /// The pod's termination grace in seconds.
    pub termination_grace: Option<i64>,
    /// The resources that it was made with, as JSON.
    pub resources: Option<String>,
}

impl ContainerAnnotations {
    /// Reads the annotations of a container. Malformed values count as absent.
    #[must_use]
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let get = |key: &str| annotations.get(key).map(String::as_str);
        Self {
            hash: get(annotation::CONTAINER_HASH).and_then(|text| u32::from_str_radix(text, 16).ok()),
            restart_count: get(annotation::RESTART_COUNT)
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
            termination_message_host_path: get(annotation::TERMINATION_MESSAGE_HOST_PATH).map(str::to_owned),
            fallback_to_logs: get(annotation::TERMINATION_MESSAGE_POLICY) == Some("FallbackToLogsOnError"),
            termination_grace: get(annotation::POD_TERMINATION_GRACE).and_then(|text| text.parse().ok()),
            resources: get(annotation::RESOURCES).map(str::to_owned),
        }
    }
}
