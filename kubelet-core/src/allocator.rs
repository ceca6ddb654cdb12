//! What containers are given beside what their specs say: devices, processors, memory nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::ids::PodUid;
use crate::runtime::{Device, Mount};

/// What a container was given, as its config needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerResources {
    /// Devices of the host.
    pub devices: Vec<Device>,
    /// Mounts that go with them. They come before those of the container's spec.
    pub mounts: Vec<Mount>,
    /// Variables that go with them. What the container's spec defines wins.
    pub env: Vec<(String, String)>,
    /// Annotations that go with them. The engine's own win.
    pub annotations: BTreeMap<String, String>,
    /// Devices by their names in the Container Device Interface.
    pub cdi_devices: Vec<String>,
    /// The processors that it may run on, such as `0-2,7`; empty for all.
    pub cpuset_cpus: String,
    /// The memory nodes that it may use, such as `0,1`; empty for all.
    pub cpuset_mems: String,
    /// Whether the processors are its own: it is then held back by no quota.
    pub exclusive_cpus: bool,
}

/// Gives devices, processors and memory nodes to containers.
///
/// What is given has to be known before the pod's sandbox is made, and over a restart of the agent: a container that is made
/// anew gets what the one before it had. The engine asks for each container that it makes, and again for all of a pod to
/// tell whether any has processors of its own. It tells nobody when a pod leaves the node.
///
/// # Contract
/// - `container` does not wait, and may be asked by any thread, by several at once.
/// - The same container gets the same answer for as long as its pod is on the node, whatever else is asked.
/// - Containers are told apart by their pod and their name.
/// - Who was given nothing has nothing, which is the default, and asking gives nothing.
pub trait ResourceAllocator: fmt::Debug + Send + Sync + 'static {
    /// What a container of a pod has been given, init and ephemeral containers among them.
    ///
    /// There is no error: what cannot be given has to be refused at admission, by an
    /// [`AdmitHandler`](crate::AdmitHandler). A panic fails the step of the pod, which is repeated.
    fn container(&self, pod: &PodUid, container: &str) -> ContainerResources;
}

#[deny(clippy::missing_trait_methods)]
impl<T: ResourceAllocator + ?Sized> ResourceAllocator for Arc<T> {
    fn container(&self, pod: &PodUid, container: &str) -> ContainerResources {
        (**self).container(pod, container)
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn ResourceAllocator) = |_| {};
