//! File systems in memory.
//!
//! Source: kubelet 1.36, `emptydir/empty_dir.go`.

use std::io;
use std::path::Path;

use kubelet_core::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_core::{NodeView, PodLimits, PodRecord, Quantity, ResourceSettings};

use crate::ground::crash::step;
use crate::ground::mounts::{MountOptions, Mounts};

/// How large a file system in memory of a pod is at most: as the pod may use, as the node has for pods, and as is said of it.
pub(super) fn size_bytes(pod: &PodRecord, node: &NodeView, limit: Option<&ApiQuantity>) -> Option<u64> {
    let whole = |quantity: &Quantity| u64::try_from(quantity.value()).ok();
    let of_node = node.allocatable.get("memory").and_then(whole);
    let limits = PodLimits::of(pod.spec(), pod.facts().qos, &ResourceSettings::default(), node);
    let of_pod = limits.cgroup.memory_bytes;
    let said = limit.and_then(|quantity| whole(&quantity.0.parse::<Quantity>().ok()?));
    [of_node, of_pod, said]
        .into_iter()
        .flatten()
        .filter(|bytes| *bytes > 0)
        .min()
}

/// Mounts a file system in memory, unless there is one. It is never swapped out, where the kernel can promise that.
pub(super) fn mount(mounts: &dyn Mounts, dir: &Path, size: Option<u64>) -> io::Result<()> {
    if mounts.is_mount_point(dir)? {
        return Ok(());
    }
    let size = size.map(|bytes| format!("size={bytes}")).unwrap_or_default();
    let options = MountOptions::default();
    let unswapped = if size.is_empty() {
        "noswap".to_owned()
    } else {
        format!("{size},noswap")
    };
    let mounted = match mounts.mount("tmpfs", "tmpfs", dir, &options, &unswapped) {
        // Kernels before 6.4 do not know the option, and inside of a user namespace it is not to be had.
        Err(_) => mounts.mount("tmpfs", "tmpfs", dir, &options, &size),
        Ok(()) => Ok(()),
    };
    step("a file system in memory is mounted");
    mounted
}
