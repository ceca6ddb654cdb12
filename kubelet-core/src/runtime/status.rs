//! Full statuses, as a runtime reports them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::jiff::Timestamp;

use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};
use crate::runtime::{ContainerState, SandboxState};

/// A sandbox in full.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SandboxStatus {
    /// Its id.
    pub id: SandboxId,
    /// The pod that it belongs to.
    pub pod_uid: PodUid,
    /// That pod's namespace and name.
    pub key: PodKey,
    /// How many sandboxes of the pod came before it.
    pub attempt: u32,
    /// Its state.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: Timestamp,
    /// The pod's addresses, primary first. Empty where it shares the host's network, and before it has one.
    pub ips: Vec<IpAddr>,
    /// Whether it shares the host's network.
    pub host_network: bool,
    /// The runtime handler that it was made with; empty for the default one.
    pub handler: String,
    /// Labels as it was made with.
    pub labels: BTreeMap<String, String>,
    /// Annotations as it was made with.
    pub annotations: BTreeMap<String, String>,
    /// The statuses of its containers, where the runtime brings them along.
    pub containers: Option<Vec<ContainerStatus>>,
}

impl SandboxStatus {
    /// A status with the required fields; addresses, labels and annotations are empty.
    #[must_use]
    pub fn new(
        id: SandboxId,
        pod_uid: PodUid,
        key: PodKey,
        attempt: u32,
        state: SandboxState,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            pod_uid,
            key,
            attempt,
            state,
            created_at,
            ips: Vec::new(),
            host_network: false,
            handler: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            containers: None,
        }
    }
}

/// A container in full.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContainerStatus {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox that it was made in, where the runtime says so.
    pub sandbox_id: Option<SandboxId>,
    /// Its name in the pod's spec.
    pub name: String,
    /// How many containers of this name came before it in this pod.
    pub attempt: u32,
    /// Its state.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its process was started; absent while it is created.
    pub started_at: Option<Timestamp>,
    /// When its process ended; only of an exited one.
    pub finished_at: Option<Timestamp>,
    /// How its process ended; 0 unless exited. A signal shows as 128 plus its number.
    pub exit_code: i32,
    /// One CamelCase word on why it is in this state, such as `Completed`, `Error`, `OOMKilled`, `StartError`.
    pub reason: String,
    /// A sentence on that.
    pub message: String,
    /// The image as it was asked for.
    pub image: String,
    /// The image as `repository@digest`, or its id where it has none: what the API shows as `imageID`.
    pub image_ref: String,
    /// The images that are mounted into it, each by its id, or by all names that the runtime has for it.
    pub mounted_images: Vec<String>,
    /// Labels as it was made with.
    pub labels: BTreeMap<String, String>,
    /// Annotations as it was made with.
    pub annotations: BTreeMap<String, String>,
    /// Where its log is on the host.
    pub log_path: Option<PathBuf>,
}

impl ContainerStatus {
    /// A status with the required fields; everything else is empty.
    #[must_use]
    pub fn new(id: ContainerId, name: String, attempt: u32, state: ContainerState, created_at: Timestamp) -> Self {
        Self {
            id,
            sandbox_id: None,
            name,
            attempt,
            state,
            created_at,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_ref: String::new(),
            mounted_images: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            log_path: None,
        }
    }
}
