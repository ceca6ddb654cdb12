//! The content of a pod's `/etc/hosts`.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::HostAlias;

const POD_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const FIXED_ENTRIES: &str = "\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

/// The hosts file of a pod with a network of its own.
///
/// `hostname` is the short name even if the sandbox is made with the full one; `domain` may be empty.
///
/// Source: kubelet 1.36, `kubelet_pods.go`.
pub fn hosts_file(pod_ips: &[IpAddr], hostname: &str, domain: &str, aliases: &[HostAlias]) -> String {
    let mut file = format!("{POD_NETWORK_HEADER}{FIXED_ENTRIES}");
    for ip in pod_ips {
        file.push_str(&if domain.is_empty() {
            format!("{ip}\t{hostname}\n")
        } else {
            format!("{ip}\t{hostname}.{domain}\t{hostname}\n")
        });
    }
    add_aliases(&mut file, aliases);
    file
}

/// The hosts file of a pod in the host's network; `node_file` is the content of the node's own.
///
/// Source: kubelet 1.36, `kubelet_pods.go`.
pub fn host_network_hosts_file(node_file: &str, aliases: &[HostAlias]) -> String {
    let mut file = format!("{HOST_NETWORK_HEADER}{node_file}");
    if !file.ends_with('\n') {
        file.push('\n');
    }
    add_aliases(&mut file, aliases);
    file
}

fn add_aliases(file: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    file.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        file.push_str(&alias.ip);
        file.push('\t');
        file.push_str(&names.join("\t"));
        file.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use k8s_openapi::api::core::v1::HostAlias;

    use super::{host_network_hosts_file, hosts_file};

    fn alias(ip: &str, names: &[&str]) -> HostAlias {
        HostAlias {
            ip: ip.into(),
            hostnames: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        }
    }

    fn ips() -> [IpAddr; 2] {
        ["10.1.0.1", "fd01::1"].map(|ip| ip.parse().unwrap())
    }

    #[test]
    fn a_pod_network_file_lists_the_pod_and_its_aliases() {
        let aliases = [
            alias("10.9.9.9", &["a.example", "b.example"]),
            alias("10.9.9.8", &["c"]),
        ];
        assert_eq!(
            hosts_file(&ips(), "web", "sub.shop.svc.cluster.local", &aliases),
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n\
             10.1.0.1\tweb.sub.shop.svc.cluster.local\tweb\n\
             fd01::1\tweb.sub.shop.svc.cluster.local\tweb\n\
             \n\
             # Entries added by HostAliases.\n\
             10.9.9.9\ta.example\tb.example\n\
             10.9.9.8\tc\n"
        );
        let plain = hosts_file(&ips()[..1], "web", "", &[]);
        assert!(plain.ends_with("ip6-allrouters\n10.1.0.1\tweb\n"));
    }

    #[test]
    fn a_host_network_file_is_that_of_the_node_and_the_aliases() {
        let header = "# Kubernetes-managed hosts file (host network).\n";
        assert_eq!(
            host_network_hosts_file("127.0.0.1 localhost\n", &[]),
            format!("{header}127.0.0.1 localhost\n")
        );
        assert_eq!(
            host_network_hosts_file("127.0.0.1 localhost", &[alias("10.9.9.9", &["a"])]),
            format!("{header}127.0.0.1 localhost\n\n# Entries added by HostAliases.\n10.9.9.9\ta\n")
        );
    }
}
