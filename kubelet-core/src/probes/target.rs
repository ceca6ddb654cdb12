//! What a probe asks, with names and defaults resolved.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerPort, EnvVar, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::prober::{GrpcProbe, HttpProbe, ProbeAction, ProbeTarget, TcpProbe};
use crate::env::expand;
use crate::pod::ContainerView;

/// What one run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Runs a command in the container.
    Exec(Vec<String>),
    /// Asks over the network.
    Network(ProbeTarget),
}

/// Works out what a probe of a container asks; a text if that cannot be.
///
/// Source: kubelet 1.36, `prober/prober.go`.
pub(super) fn resolve(
    view: &ContainerView<'_>,
    probe: &Probe,
    timeout: Duration,
    pod_ip: Option<IpAddr>,
) -> Result<Target, String> {
    let action = if let Some(exec) = &probe.exec {
        let words = exec.command.as_deref().unwrap_or_default();
        return Ok(Target::Exec(with_literals(words, view.env())));
    } else if let Some(http) = &probe.http_get {
        ProbeAction::HttpGet(http_get(http, view, pod_ip)?)
    } else if let Some(tcp) = &probe.tcp_socket {
        let host = host(tcp.host.as_ref(), pod_ip)?;
        ProbeAction::TcpSocket(TcpProbe::new(host, port(&tcp.port, view.ports())?))
    } else if let Some(grpc) = &probe.grpc {
        let service = grpc.service.clone().unwrap_or_default();
        ProbeAction::Grpc(GrpcProbe::new(host(None, pod_ip)?, number(grpc.port)?, service))
    } else {
        return Err("missing probe handler".to_owned());
    };
    Ok(Target::Network(ProbeTarget::new(action, timeout)))
}

/// Works out what an HTTP GET of a container, for a probe or a hook, asks; a text if that cannot be.
///
/// Source: kubelet 1.36, `pkg/probe/http/request.go`.
pub(crate) fn http_get(
    http: &HTTPGetAction,
    view: &ContainerView<'_>,
    pod_ip: Option<IpAddr>,
) -> Result<HttpProbe, String> {
    let headers = http.http_headers.iter().flatten();
    Ok(HttpProbe {
        tls: http
            .scheme
            .as_deref()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: host(http.host.as_ref(), pod_ip)?,
        port: port(&http.port, view.ports())?,
        path: http.path.clone().unwrap_or_default(),
        headers: headers
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect(),
    })
}

/// A host as it is named, or else the pod.
fn host(named: Option<&String>, pod_ip: Option<IpAddr>) -> Result<String, String> {
    match named.filter(|host| !host.is_empty()) {
        // A user may well write an address of IPv6 as URLs have it.
        Some(host) => Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned()),
        None => pod_ip
            .map(|ip| ip.to_string())
            .ok_or_else(|| "the pod has no address".to_owned()),
    }
}

/// A port by its number, its name among the container's ports, or its number as a text.
fn port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    match port {
        IntOrString::Int(port) => number(*port),
        IntOrString::String(name) => match ports.iter().find(|port| port.name.as_ref() == Some(name)) {
            Some(port) => number(port.container_port),
            None => match name.parse::<i32>() {
                Ok(port) => number(port),
                Err(_) => Err(format!("no port of the container is named {name:?}")),
            },
        },
    }
}

fn number(port: i32) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("invalid port number: {port}"))
}

/// Expands a command by the variables that have their values in the pod's spec: the others are known to the container alone.
fn with_literals(words: &[String], env: &[EnvVar]) -> Vec<String> {
    let value = |name: &str| {
        let of_name = |var: &&EnvVar| var.name == name && var.value_from.is_none();
        let var = env.iter().rev().find(of_name)?;
        Some(var.value.as_deref().unwrap_or_default())
    };
    words.iter().map(|word| expand(word, value)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Probe;
    use serde_json::{Value, json};

    use super::{Target, resolve};
    use crate::pod::ContainerView;
    use crate::pod::testing::record;
    use crate::probes::ProbeAction;

    fn resolved(probe: Value, ip: Option<&str>) -> Result<Target, String> {
        let pod = record(json!({"spec": {"containers": [{
            "name": "c",
            "env": [
                {"name": "A", "value": "first"},
                {"name": "A", "value": "a"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "ports": [{"name": "web", "containerPort": 8080}, {"name": "99", "containerPort": 7}],
        }]}}));
        let probe: Probe = serde_json::from_value(probe).unwrap();
        let view = ContainerView::regular(pod.spec()).next().unwrap();
        let ip: Option<IpAddr> = ip.map(|ip| ip.parse().unwrap());
        resolve(&view, &probe, Duration::from_secs(2), ip)
    }

    fn action(probe: Value, ip: Option<&str>) -> Result<ProbeAction, String> {
        resolved(probe, ip).map(|target| match target {
            Target::Network(target) => {
                assert_eq!(target.timeout, Duration::from_secs(2));
                target.action
            }
            Target::Exec(_) => panic!("a command"),
        })
    }

    fn http(probe: Value, ip: Option<&str>) -> Result<(bool, String, u16, String), String> {
        action(json!({ "httpGet": probe }), ip).map(|action| match action {
            ProbeAction::HttpGet(http) => (http.tls, http.host, http.port, http.path),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn hosts_and_ports_are_those_of_the_pod_where_the_probe_names_none() {
        let all = |tls, host: &str, port, path: &str| Ok((tls, host.to_owned(), port, path.to_owned()));
        assert_eq!(
            http(json!({"port": "web", "path": "/a?b"}), Some("10.1.2.3")),
            all(false, "10.1.2.3", 8080, "/a?b")
        );
        assert_eq!(
            http(json!({"port": 1, "host": "h", "scheme": "HTTPS"}), None),
            all(true, "h", 1, "")
        );
        assert_eq!(
            http(json!({"port": "81", "host": "[fd00::1]"}), None),
            all(false, "fd00::1", 81, "")
        );
        // A name goes before a number.
        assert_eq!(
            http(json!({"port": "99", "host": ""}), Some("fd00::2")),
            all(false, "fd00::2", 7, "")
        );
    }

    #[test]
    fn what_cannot_be_asked_says_why() {
        let ip = Some("10.1.2.3");
        let error = |probe: Value, ip| http(probe, ip).unwrap_err();
        assert_eq!(error(json!({"port": 80}), None), "the pod has no address");
        assert_eq!(
            error(json!({"port": "nope"}), ip),
            "no port of the container is named \"nope\""
        );
        assert_eq!(error(json!({"port": 0}), ip), "invalid port number: 0");
        assert_eq!(error(json!({"port": "70000"}), ip), "invalid port number: 70000");
        assert_eq!(resolved(json!({}), ip).unwrap_err(), "missing probe handler");
    }

    #[test]
    fn tcp_and_grpc_are_asked_at_the_pod() {
        let tcp = action(json!({"tcpSocket": {"port": "web"}}), Some("10.1.2.3")).unwrap();
        assert!(matches!(tcp, ProbeAction::TcpSocket(tcp) if tcp.host == "10.1.2.3" && tcp.port == 8080));
        let grpc = action(json!({"grpc": {"port": 5, "service": "s"}}), Some("10.1.2.3")).unwrap();
        assert!(matches!(grpc, ProbeAction::Grpc(grpc) if grpc.port == 5 && grpc.service == "s"));
    }

    #[test]
    fn a_command_knows_only_the_variables_whose_values_the_pod_has() {
        let target = resolved(json!({"exec": {"command": ["x", "$(A) $(B) $(C) $$(A)"]}}), None);
        let words = ["x", "a $(B) $(C) $(A)"].map(str::to_owned).to_vec();
        assert_eq!(target, Ok(Target::Exec(words)));
    }
}
