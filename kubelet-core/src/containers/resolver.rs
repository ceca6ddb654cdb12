//! What a pod's containers know of names: their resolver and their hosts file.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::ContainerSyncer;
use super::ground::Ground;
use super::start_error::{CONFIG_ERROR, StartError};
use crate::dns::{ClusterDns, DnsConfig, HostDns, MAX_RESOLV_CONF_BYTES, parse_resolv_conf, pod_dns};
use crate::env::{host_network_hosts_file, hostname_and_domain, hosts_file};
use crate::event::{Event, EventSubject, EventType};
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::Mount;
use crate::syncer::{StepContext, SyncError};

const HOSTS_PATH: &str = "/etc/hosts";
/// More of the host's own hosts file than anybody has.
const MAX_HOSTS_BYTES: u64 = 1 << 20;

/// What the node knows of names.
#[derive(Clone, Debug)]
pub(crate) struct NodeDns {
    pub(crate) cluster: ClusterDns,
    /// The host's own file; none: pods without a better answer ask the node itself.
    pub(crate) resolv_conf: Option<PathBuf>,
}

impl ContainerSyncer {
    /// What the resolver of a pod is told. `tells` says whether an operator hears of what is missing or left out.
    pub(super) async fn resolver(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        tells: bool,
    ) -> Result<DnsConfig, SyncError> {
        let node = &self.node;
        let addresses: Vec<IpAddr> = node.ledger.node().addresses.clone();
        let file = match &node.dns.resolv_conf {
            Some(path) => Some(self.read_resolv_conf(path.clone()).await?),
            None => None,
        };
        let host = file.as_ref().map_or(HostDns::Node(&addresses), HostDns::File);
        let dns = pod_dns(pod.pod(), &node.dns.cluster, host);
        if tells {
            let tell = |reason: &'static str, message: String| {
                cx.events
                    .record(Event::new(EventSubject::pod(pod), EventType::Warning, reason, message));
            };
            // A static pod on a node without a cluster asks for it by default alone.
            let has_cluster = !node.dns.cluster.domain.is_empty();
            if dns.missing_cluster_dns && (has_cluster || !pod.is_static()) {
                let message = format!(
                    "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" \
                     policy. Falling back to \"Default\" policy.",
                    pod.describe()
                );
                tell("MissingClusterDNS", message);
            }
            for cut in dns.cut {
                tell("DNSConfigForming", cut.to_string());
            }
        }
        Ok(dns.config)
    }

    async fn read_resolv_conf(&self, path: PathBuf) -> Result<DnsConfig, SyncError> {
        let what = "cannot read the host's resolver";
        let named = format!("{}", path.display());
        let text = match self.node.files.read_text(path, MAX_RESOLV_CONF_BYTES).await {
            Ok(text) => text,
            // A machine without one has nothing to pass on; that keeps no pod from running.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(SyncError::failed(what, error)),
        };
        parse_resolv_conf(&text).map_err(|error| SyncError::failed(what, format!("{named}: {error}")))
    }

    /// Writes the hosts file of a pod, and gives its mount; none where the container has one of its own, or the pod has no
    /// address yet.
    pub(super) async fn hosts_mount(
        &self,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
    ) -> Result<Option<Mount>, StartError> {
        let pod = &*ground.work.pod;
        let host_network = pod.facts().host_network;
        let has_own = view
            .volume_mounts()
            .iter()
            .any(|mount| Path::new(&mount.mount_path) == Path::new(HOSTS_PATH));
        if has_own || (ground.pod_ips.is_empty() && !host_network) {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| StartError::failed(CONFIG_ERROR, format!("cannot make {error}"));
        let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
        let content = if host_network {
            let own = self
                .node
                .files
                .read_text(PathBuf::from(HOSTS_PATH), MAX_HOSTS_BYTES)
                .await;
            host_network_hosts_file(&own.map_err(|error| failed(&error))?, aliases)
        } else {
            let (hostname, domain) =
                hostname_and_domain(pod.pod(), &self.node.dns.cluster.domain).map_err(|error| failed(&error))?;
            hosts_file(&ground.pod_ips, &hostname, &domain, aliases)
        };
        let path = self.pod_dir(pod.uid()).join("etc-hosts");
        self.node
            .files
            .write_text(path.clone(), content)
            .await
            .map_err(|error| failed(&error))?;
        Ok(Some(Mount::new(HOSTS_PATH, path).relabelled()))
    }
}
