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
pub trait ResourceAllocator: fmt::Debug + Send + Sync + 'static {
    /// What a container of a pod has been given; nothing if it was given nothing. Does not wait. The same container gets
    /// the same answer for as long as its pod is on the node.
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
