//! The configuration of an instance.

use std::path::Path;

use crate::containerd::components::{CNI_PLUGINS, Containerd};
use crate::containerd::images::PAUSE_IMAGE;

/// The namespace in which the CRI of containerd has what it has.
pub(crate) const NAMESPACE: &str = "k8s.io";

/// Where an instance has what it has, below its folder.
pub(crate) const ROOT: &str = "root";
pub(crate) const STATE: &str = "state";
pub(crate) const SOCKET: &str = "containerd.sock";
pub(crate) const NETWORKS: &str = "networks";
/// Where descriptions of devices for the Container Device Interface are.
pub(crate) const CDI: &str = "cdi";

/// The name of a second runtime handler. It does what the default one does; with 2.x it may be of a newer runc, which can do
/// more.
pub const SECOND_HANDLER: &str = "second";

/// Where runc keeps what it knows of containers, by namespace.
pub(crate) const RUNC: &str = "runc";

/// The configuration's text.
///
/// Everything that containerd has somewhere on the machine by default is moved into the folder, and what needs rights
/// that test machines lack is switched off: a negative oom_score_adj needs CAP_SYS_RESOURCE.
pub(crate) fn config(version: Containerd, folder: &Path, newer_runc: Option<&Path>) -> String {
    let binary = newer_runc.map(|runc| format!("BinaryName = '{}'", runc.display()));
    let binary = binary.unwrap_or_default();
    let folder = folder.display();
    let common = format!(
        "root = '{folder}/{ROOT}'
state = '{folder}/{STATE}'

[grpc]
address = '{folder}/{SOCKET}'

[plugins.'io.containerd.internal.v1.opt']
path = '{folder}/opt'
"
    );
    let networks = format!("conf_dir = '{folder}/{NETWORKS}'");
    let runc = format!("Root = '{folder}/{RUNC}'");
    match version {
        Containerd::V1_6 => format!(
            "version = 2
{common}
[plugins.'io.containerd.grpc.v1.cri']
sandbox_image = '{PAUSE_IMAGE}'
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = '127.0.0.1'
stream_server_port = '0'

[plugins.'io.containerd.grpc.v1.cri'.cni]
bin_dir = '{CNI_PLUGINS}'
{networks}

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc.options]
{runc}

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.{SECOND_HANDLER}]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.{SECOND_HANDLER}.options]
{runc}
"
        ),
        // NRI would listen on one socket for all instances.
        Containerd::V2 => format!(
            "version = 3
{common}
[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE_IMAGE}'

[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = '127.0.0.1'
stream_server_port = '0'

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
enable_cdi = true
cdi_spec_dirs = ['{folder}/{CDI}']

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{CNI_PLUGINS}']
{networks}

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
{runc}

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{SECOND_HANDLER}]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{SECOND_HANDLER}.options]
{runc}
{binary}
"
        ),
    }
}
