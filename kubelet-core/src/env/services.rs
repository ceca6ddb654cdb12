//! Variables that name the services of a namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;

use super::variables::Env;

/// The service that stands for the API server, and its namespace.
pub(super) const API_SERVICE: &str = "kubernetes";
pub(super) const API_NAMESPACE: &str = "default";

/// The variables of the services that a container may see.
///
/// `services` are those of the pod's namespace if `enableServiceLinks` is set, and `kubernetes` of
/// the namespace `default` always; others are left out here, and services without a cluster IP too.
/// A service `kubernetes` of the pod's own namespace replaces the other. Sorted by service name.
///
/// Source: kubelet 1.36, `kubelet_pods.go` and `envvars.go`.
pub fn service_variables<'s>(
    services: impl IntoIterator<Item = &'s Service>,
    namespace: &str,
    links: ServiceLinks,
) -> Env {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let (Some(name), Some(home)) = (&service.metadata.name, &service.metadata.namespace) else {
            continue;
        };
        if cluster_ip(service).is_none() {
            continue;
        }
        if links == ServiceLinks::Enabled && home == namespace {
            chosen.insert(name, service);
        } else if name == API_SERVICE && home == API_NAMESPACE {
            chosen.entry(name).or_insert(service);
        }
    }
    let mut env = Env::new();
    for (name, service) in chosen {
        add(&mut env, name, service);
    }
    env
}

/// Whether a pod is told the services of its namespace: `enableServiceLinks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceLinks {
    /// All of them.
    Enabled,
    /// Only the API server's.
    Disabled,
}

fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

fn add(env: &mut Env, name: &str, service: &Service) {
    let (Some(ip), Some(spec)) = (cluster_ip(service), &service.spec) else {
        return;
    };
    let name = variable_name(name);
    let ports = spec.ports.as_deref().unwrap_or_default();
    env.set(format!("{name}_SERVICE_HOST"), ip);
    if let Some(first) = ports.first() {
        env.set(format!("{name}_SERVICE_PORT"), first.port.to_string());
    }
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let port_name = variable_name(port_name);
            env.set(format!("{name}_SERVICE_PORT_{port_name}"), port.port.to_string());
        }
    }
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().filter(|name| !name.is_empty());
        let protocol = protocol.unwrap_or("TCP");
        let lower = protocol.to_ascii_lowercase();
        let number = port.port;
        let url = format!("{lower}://{host}:{number}");
        if index == 0 {
            env.set(format!("{name}_PORT"), url.clone());
        }
        let prefix = format!("{name}_PORT_{number}_{}", protocol.to_ascii_uppercase());
        env.set(prefix.clone(), url);
        env.set(format!("{prefix}_PROTO"), lower);
        env.set(format!("{prefix}_PORT"), number.to_string());
        env.set(format!("{prefix}_ADDR"), ip);
    }
}

fn variable_name(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::{ServiceLinks, service_variables};

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, i32, &str)]) -> Service {
        let ports = ports.iter().map(|(name, port, protocol)| ServicePort {
            name: Some((*name).to_owned()),
            port: *port,
            protocol: Some((*protocol).to_owned()),
            ..ServicePort::default()
        });
        Service {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                cluster_ip: Some(ip.into()),
                ports: Some(ports.collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    fn lines(services: &[Service], links: ServiceLinks) -> Vec<String> {
        service_variables(services, "shop", links)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn a_service_yields_these_variables() {
        let dns = service(
            "shop",
            "my-dns",
            "10.0.0.10",
            &[("dns-tcp", 53, "TCP"), ("", 53, "UDP")],
        );
        assert_eq!(
            lines(&[dns], ServiceLinks::Enabled),
            [
                "MY_DNS_SERVICE_HOST=10.0.0.10",
                "MY_DNS_SERVICE_PORT=53",
                "MY_DNS_SERVICE_PORT_DNS_TCP=53",
                "MY_DNS_PORT=tcp://10.0.0.10:53",
                "MY_DNS_PORT_53_TCP=tcp://10.0.0.10:53",
                "MY_DNS_PORT_53_TCP_PROTO=tcp",
                "MY_DNS_PORT_53_TCP_PORT=53",
                "MY_DNS_PORT_53_TCP_ADDR=10.0.0.10",
                "MY_DNS_PORT_53_UDP=udp://10.0.0.10:53",
                "MY_DNS_PORT_53_UDP_PROTO=udp",
                "MY_DNS_PORT_53_UDP_PORT=53",
                "MY_DNS_PORT_53_UDP_ADDR=10.0.0.10",
            ]
        );
    }

    #[test]
    fn ipv6_is_in_brackets_in_urls_only() {
        let web = service("shop", "web", "fd00::1", &[("", 80, "TCP")]);
        let lines = lines(&[web], ServiceLinks::Enabled);
        for line in [
            "WEB_SERVICE_HOST=fd00::1",
            "WEB_PORT=tcp://[fd00::1]:80",
            "WEB_PORT_80_TCP_ADDR=fd00::1",
        ] {
            assert!(lines.iter().any(|have| have == line), "{line} in {lines:?}");
        }
    }

    #[test]
    fn which_services_are_told() {
        let all = [
            service("shop", "kubernetes", "10.0.0.2", &[]),
            service("default", "kubernetes", "10.0.0.1", &[]),
            service("shop", "web", "10.0.0.3", &[]),
            service("shop", "headless", "None", &[]),
            service("shop", "external", "", &[]),
            service("default", "other", "10.0.0.4", &[]),
        ];
        assert_eq!(
            lines(&all, ServiceLinks::Enabled),
            ["KUBERNETES_SERVICE_HOST=10.0.0.2", "WEB_SERVICE_HOST=10.0.0.3"]
        );
        assert_eq!(
            lines(&all, ServiceLinks::Disabled),
            ["KUBERNETES_SERVICE_HOST=10.0.0.1"]
        );
    }
}
