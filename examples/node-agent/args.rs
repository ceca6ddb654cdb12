//! What can be said on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use kubelet_core::{ImageVerification, Quantity};

/// Runs the pods of a folder of manifests on this machine.
///
/// Ctrl-C ends the agent and leaves the pods running; the next start takes them over. A second Ctrl-C does not wait.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Folder of pod manifests (YAML or JSON), or one manifest.
    pub(crate) manifests: PathBuf,

    /// Name of this node; the names of its pods end in it. Default: the host's name.
    #[arg(long)]
    pub(crate) node_name: Option<String>,

    /// Where the agent keeps its state and the logs of pods. Default: /var/lib/kubelet-agent for root, else
    /// kubelet-agent in the user's state folder.
    #[arg(long)]
    pub(crate) root_dir: Option<PathBuf>,

    /// Root file systems that pods may name as their images. Default: images in the root folder.
    #[arg(long)]
    pub(crate) images_dir: Option<PathBuf>,

    /// Folder of secrets and config maps that pods may refer to.
    #[arg(long)]
    pub(crate) objects: Option<PathBuf>,

    /// How often all manifests are read, in seconds; changes are followed at once in any case.
    #[arg(long, default_value = "20", value_parser = seconds)]
    pub(crate) period: Duration,

    /// What runs containers.
    #[arg(long, value_enum, default_value_t = Runtime::Process)]
    pub(crate) runtime: Runtime,

    /// Socket of the runtime, with `--runtime cri`.
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock")]
    pub(crate) endpoint: String,

    /// Configuration of credential provider plugins, a file or a folder; with `--image-credential-provider-bin-dir`.
    #[arg(long, requires = "image_credential_provider_bin_dir")]
    pub(crate) image_credential_provider_config: Option<PathBuf>,

    /// Folder of credential provider plugins.
    #[arg(long, requires = "image_credential_provider_config")]
    pub(crate) image_credential_provider_bin_dir: Option<PathBuf>,

    /// Which images that are present a pod may use only if it could have pulled them.
    #[arg(long, value_enum, default_value_t = Verification::NeverVerifyPreloadedImages)]
    pub(crate) image_pull_credentials_verification_policy: Verification,

    /// Repositories, or `registry/path/*`, that `never-verify-allowlisted-images` leaves out.
    #[arg(long, value_delimiter = ',')]
    pub(crate) preloaded_images_verification_allowlist: Vec<String>,

    /// How many images are pulled at once; 0: as many as are wanted.
    #[arg(long, default_value = "1")]
    pub(crate) max_parallel_image_pulls: usize,

    /// How many pods run on this node at most.
    #[arg(long, default_value = "110")]
    pub(crate) max_pods: u32,

    /// How many seconds a dead container stays at least, after it was made.
    #[arg(long, value_parser = seconds)]
    pub(crate) minimum_container_ttl_duration: Option<Duration>,

    /// How many dead containers of each name of a pod stay; negative: all.
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    pub(crate) maximum_dead_containers_per_container: i32,

    /// How many dead containers stay in all; negative: any number.
    #[arg(long, default_value = "-1", allow_negative_numbers = true)]
    pub(crate) maximum_dead_containers: i32,

    /// Whether each pod has a cgroup of its own, in which its limits hold. Default: where they can be made.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) cgroups_per_qos: Option<bool>,

    /// The cgroup that those of pods are made in.
    #[arg(long, default_value = "/")]
    pub(crate) cgroup_root: String,

    /// What of the node is enforced: `none`, or `pods`, `system-reserved`, `kube-reserved`, the latter two also with
    /// `-compressible`.
    #[arg(long, value_delimiter = ',', default_value = "pods")]
    pub(crate) enforce_node_allocatable: Vec<String>,

    /// What is kept for the system, such as `cpu=500m,memory=1Gi,pid=1000`.
    #[arg(long, value_delimiter = ',', value_parser = amount)]
    pub(crate) system_reserved: Vec<(String, Quantity)>,

    /// What is kept for the agent and the container runtime.
    #[arg(long, value_delimiter = ',', value_parser = amount)]
    pub(crate) kube_reserved: Vec<(String, Quantity)>,

    /// The cgroup that `system-reserved` is enforced on.
    #[arg(long)]
    pub(crate) system_reserved_cgroup: Option<String>,

    /// The cgroup that `kube-reserved` is enforced on.
    #[arg(long)]
    pub(crate) kube_reserved_cgroup: Option<String>,

    /// How many processes and threads each pod may have; negative or 0: any number.
    #[arg(long, default_value = "-1", allow_negative_numbers = true)]
    pub(crate) pod_max_pids: i64,

    /// End the pods together with the agent.
    #[arg(long)]
    pub(crate) stop_pods: bool,

    /// Print lines instead of a live table, also on a terminal.
    #[arg(long)]
    pub(crate) plain: bool,
}

/// What can run containers.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Runtime {
    /// The embedded runtime: processes of this machine.
    Process,
    /// A container runtime that speaks CRI, such as containerd or CRI-O.
    Cri,
}

/// As upstream's `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Verification {
    /// None.
    NeverVerify,
    /// Those that this agent has pulled.
    NeverVerifyPreloadedImages,
    /// All but those of the allowlist.
    NeverVerifyAllowlistedImages,
    /// All.
    AlwaysVerify,
}

impl Args {
    pub(crate) fn verification(&self) -> ImageVerification {
        match self.image_pull_credentials_verification_policy {
            Verification::NeverVerify => ImageVerification::NeverVerify,
            Verification::NeverVerifyPreloadedImages => ImageVerification::NeverVerifyPreloadedImages,
            Verification::NeverVerifyAllowlistedImages => {
                ImageVerification::NeverVerifyAllowlistedImages(self.preloaded_images_verification_allowlist.clone())
            }
            Verification::AlwaysVerify => ImageVerification::AlwaysVerify,
        }
    }
}

fn amount(text: &str) -> Result<(String, Quantity), String> {
    let (name, amount) = text.split_once('=').ok_or("not resource=amount")?;
    let amount = amount.parse().map_err(|error| format!("{name}: {error}"))?;
    Ok((name.to_owned(), amount))
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(error) => Err(format!("not a number of seconds: {error}")),
    }
}
