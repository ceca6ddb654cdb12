//! What a pod's resolver is told: the policies of a pod, the cluster's servers, the host's own file, and the limits.
//!
//! Pure functions. The runtime writes the `resolv.conf` that containers see.
//!
//! Source: kubelet 1.36, `network/dns/dns.go`.

mod limits;
mod resolv_conf;

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodSpec};

pub use limits::{DnsCut, MAX_NAMESERVERS, MAX_SEARCH_LINE, MAX_SEARCH_PATH, MAX_SEARCHES, check_host_limits};
pub use resolv_conf::{MAX_RESOLV_CONF_BYTES, ResolvConfError, parse_resolv_conf};

/// The option that names of services need: with fewer dots the search paths come first.
const CLUSTER_OPTION: &str = "ndots:5";

/// Lines of a `resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DnsConfig {
    /// Addresses of servers, in order.
    pub servers: Vec<String>,
    /// Search paths, in order.
    pub searches: Vec<String>,
    /// Options, such as `ndots:5`.
    pub options: Vec<String>,
}

impl DnsConfig {
    /// One with these servers and search paths, and no options.
    pub fn new(
        servers: impl IntoIterator<Item = impl Into<String>>,
        searches: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            searches: searches.into_iter().map(Into::into).collect(),
            options: Vec::new(),
        }
    }

    /// Whether it says nothing, so that the runtime's own default holds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.searches.is_empty() && self.options.is_empty()
    }
}

/// The name service of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterDns {
    /// Its servers; none: the node has none, and pods that want it get the host's.
    pub servers: Vec<IpAddr>,
    /// The domain of the cluster, such as `cluster.local`; may be empty.
    pub domain: String,
}

impl ClusterDns {
    /// A name service with these servers for that domain.
    pub fn new(servers: impl IntoIterator<Item = IpAddr>, domain: impl Into<String>) -> Self {
        Self {
            servers: servers.into_iter().collect(),
            domain: domain.into(),
        }
    }
}

/// What the host's resolver is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum HostDns<'a> {
    /// The lines of its file.
    File(&'a DnsConfig),
    /// The node has no such file on purpose; pods ask the node itself, at one address per family of these.
    Node(&'a [IpAddr]),
}

/// A pod's resolver, and what an operator should hear about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodDns {
    /// What the sandbox is made with.
    pub config: DnsConfig,
    /// The pod asked for the cluster's servers, and there are none.
    pub missing_cluster_dns: bool,
    /// What was left out to stay within the limits.
    pub cut: Vec<DnsCut>,
}

/// Works out what a pod's resolver is told.
#[must_use]
pub fn pod_dns(pod: &Pod, cluster: &ClusterDns, host: HostDns<'_>) -> PodDns {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    let base = Base::of(spec);
    let missing_cluster_dns = base == Base::Cluster && cluster.servers.is_empty();
    let mut config = match base {
        Base::Empty => DnsConfig::default(),
        Base::Cluster if !missing_cluster_dns => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            in_cluster(namespace, cluster, host)
        }
        Base::Cluster | Base::Host => on_host(host),
    };
    if let Some(own) = &spec.dns_config {
        merge(&mut config, own);
    }
    let cut = limits::apply(&mut config);
    PodDns {
        config,
        missing_cluster_dns,
        cut,
    }
}

/// Where a pod's resolver begins from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Empty,
    Host,
    Cluster,
}

impl Base {
    fn of(spec: &PodSpec) -> Self {
        let host_network = spec.host_network.unwrap_or(false);
        match spec.dns_policy.as_deref() {
            Some("None") => Self::Empty,
            Some("Default") => Self::Host,
            Some("ClusterFirst") | None if host_network => Self::Host,
            // What is invalid does not come this far from an API server, and upstream takes it as this.
            _ => Self::Cluster,
        }
    }
}

fn in_cluster(namespace: &str, cluster: &ClusterDns, host: HostDns<'_>) -> DnsConfig {
    let domain = &cluster.domain;
    let own = if domain.is_empty() {
        Vec::new()
    } else {
        vec![
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.clone(),
        ]
    };
    let of_host = match host {
        HostDns::File(file) => file.searches.clone(),
        HostDns::Node(_) => Vec::new(),
    };
    let mut config = DnsConfig::new(cluster.servers.iter().map(IpAddr::to_string), Vec::<String>::new());
    extend_new(&mut config.searches, own.into_iter().chain(of_host));
    config.options.push(CLUSTER_OPTION.to_owned());
    config
}

fn on_host(host: HostDns<'_>) -> DnsConfig {
    match host {
        HostDns::File(file) => file.clone(),
        HostDns::Node(addresses) => {
            let mut servers: Vec<&str> = Vec::new();
            for address in addresses {
                let itself = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
                if !servers.contains(&itself) {
                    servers.push(itself);
                }
            }
            if servers.is_empty() {
                servers.push("127.0.0.1");
            }
            DnsConfig::new(servers, ["."])
        }
    }
}

/// Adds what the pod says itself.
fn merge(config: &mut DnsConfig, own: &PodDNSConfig) {
    extend_new(&mut config.servers, own.nameservers.iter().flatten().cloned());
    extend_new(&mut config.searches, own.searches.iter().flatten().cloned());
    for option in own.options.iter().flatten() {
        let Some(name) = option.name.as_deref().filter(|name| !name.is_empty()) else {
            continue;
        };
        let text = match option.value.as_deref().filter(|value| !value.is_empty()) {
            Some(value) => format!("{name}:{value}"),
            None => name.to_owned(),
        };
        // The pod's value wins, in the place of the one that it replaces.
        match config.options.iter_mut().find(|known| option_name(known) == name) {
            Some(known) => *known = text,
            None => config.options.push(text),
        }
    }
}

/// The part of an option before its value.
fn option_name(option: &str) -> &str {
    option.split_once(':').map_or(option, |(name, _)| name)
}

fn extend_new(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    let mut known: BTreeSet<String> = list.iter().cloned().collect();
    for item in more {
        if known.insert(item.clone()) {
            list.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::{ClusterDns, DnsConfig, HostDns, pod_dns};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})).unwrap()
    }

    fn cluster() -> ClusterDns {
        ClusterDns::new(["10.96.0.10".parse().unwrap()], "cluster.local")
    }

    fn host() -> DnsConfig {
        let mut config = DnsConfig::new(["192.0.2.1"], ["example.org", "cluster.local"]);
        config.options = vec!["rotate".to_owned(), "timeout:1".to_owned()];
        config
    }

    fn text(config: &DnsConfig) -> String {
        format!(
            "{}|{}|{}",
            config.servers.join(" "),
            config.searches.join(" "),
            config.options.join(" ")
        )
    }

    /// What pods of these policies get.
    #[test]
    fn each_policy_has_its_base() {
        let of_cluster = "10.96.0.10|shop.svc.cluster.local svc.cluster.local cluster.local example.org|ndots:5";
        let of_host = "192.0.2.1|example.org cluster.local|rotate timeout:1";
        for (policy, host_network, expected) in [
            ("None", false, "||"),
            ("None", true, "||"),
            ("Default", false, of_host),
            ("Default", true, of_host),
            ("ClusterFirst", false, of_cluster),
            ("ClusterFirst", true, of_host),
            ("ClusterFirstWithHostNet", false, of_cluster),
            ("ClusterFirstWithHostNet", true, of_cluster),
            ("Sideways", false, of_cluster),
        ] {
            let pod = pod(json!({"containers": [], "dnsPolicy": policy, "hostNetwork": host_network}));
            let dns = pod_dns(&pod, &cluster(), HostDns::File(&host()));
            assert_eq!(text(&dns.config), expected, "{policy}, host network: {host_network}");
            assert!(!dns.missing_cluster_dns && dns.cut.is_empty());
        }
    }

    #[test]
    fn without_servers_of_the_cluster_a_pod_gets_those_of_the_host_and_that_is_said() {
        let pod = pod(json!({"containers": [], "dnsPolicy": "ClusterFirst"}));
        let dns = pod_dns(&pod, &ClusterDns::new([], "cluster.local"), HostDns::File(&host()));
        assert!(dns.missing_cluster_dns);
        assert_eq!(dns.config, host());
    }

    #[test]
    fn without_a_domain_the_searches_are_those_of_the_host() {
        let pod = pod(json!({"containers": [], "dnsPolicy": "ClusterFirst"}));
        let cluster = ClusterDns::new(["10.96.0.10".parse().unwrap()], "");
        let dns = pod_dns(&pod, &cluster, HostDns::File(&host()));
        assert_eq!(text(&dns.config), "10.96.0.10|example.org cluster.local|ndots:5");
    }

    #[test]
    fn a_node_without_a_file_is_asked_itself_once_per_family() {
        let pod = pod(json!({"containers": [], "dnsPolicy": "Default"}));
        let addresses: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "fd00::1"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let dns = |addresses: &[IpAddr]| text(&pod_dns(&pod, &cluster(), HostDns::Node(addresses)).config);
        assert_eq!(dns(&addresses), "127.0.0.1 ::1|.|");
        assert_eq!(dns(&[]), "127.0.0.1|.|");
    }

    #[test]
    fn what_the_pod_says_is_added_and_its_options_win() {
        let pod = pod(json!({"containers": [], "dnsPolicy": "Default", "dnsConfig": {
            "nameservers": ["192.0.2.1", "192.0.2.2"],
            "searches": ["shop.example", "example.org"],
            "options": [{"name": "timeout", "value": "3"}, {"name": "edns0"}, {"value": "7"}],
        }}));
        let dns = pod_dns(&pod, &cluster(), HostDns::File(&host()));
        assert_eq!(
            text(&dns.config),
            "192.0.2.1 192.0.2.2|example.org cluster.local shop.example|rotate timeout:3 edns0"
        );
    }
}
