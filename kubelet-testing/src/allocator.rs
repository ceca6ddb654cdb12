//! An allocator that gives what a test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kubelet_core::{ContainerResources, PodUid, ResourceAllocator};

/// An in-memory [`ResourceAllocator`]. A clone is another handle to the same one.
///
/// ```
/// use kubelet_core::{ContainerResources, Device, PodUid, ResourceAllocator};
/// use kubelet_testing::FakeAllocator;
///
/// let allocator = FakeAllocator::default();
/// let mut given = ContainerResources::default();
/// given.devices.push(Device::new("/dev/fuse", "/dev/fuse", "rw"));
/// allocator.give(&PodUid::from("u1"), "app", given.clone());
/// assert_eq!(allocator.container(&PodUid::from("u1"), "app"), given);
/// ```
#[derive(Clone, Debug, Default)]
pub struct FakeAllocator {
    given: Arc<Mutex<BTreeMap<(PodUid, String), ContainerResources>>>,
}

impl FakeAllocator {
    /// Gives that to a container of a pod, from now on.
    pub fn give(&self, pod: &PodUid, container: impl Into<String>, resources: ContainerResources) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.insert((pod.clone(), container.into()), resources);
    }
}

impl ResourceAllocator for FakeAllocator {
    fn container(&self, pod: &PodUid, container: &str) -> ContainerResources {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let found = given.get(&(pod.clone(), container.to_owned()));
        found.cloned().unwrap_or_default()
    }
}
