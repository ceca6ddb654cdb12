//! Ports of the host that pods take, and who has which.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ContainerPort;

use crate::ids::PodUid;
use crate::pod::{ContainerKind, PodRecord};
use crate::runtime::PortProtocol;

/// The address that stands for all of the host's.
const EVERY_ADDRESS: &str = "0.0.0.0";

/// A port that a pod takes on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortClaim {
    protocol: PortProtocol,
    port: u16,
    address: Box<str>,
    network: Network,
}

/// On whose network a port is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Network {
    /// The host's, wherever the pod's own network is.
    Host,
    /// The pod's: the host's only where pods have no network of their own.
    Pod,
}

impl PortClaim {
    /// The ports of the containers that stay, which an init container may use before them.
    pub(super) fn of_pod(pod: &PodRecord) -> Vec<Self> {
        let host_network = pod.facts().host_network;
        pod.containers()
            .filter(|container| matches!(container.kind(), ContainerKind::Regular | ContainerKind::Sidecar))
            .flat_map(|container| container.ports())
            .flat_map(|port| Self::of_port(port, host_network))
            .collect()
    }

    fn of_port(port: &ContainerPort, host_network: bool) -> impl Iterator<Item = Self> {
        let number = |port: i32| u16::try_from(port).ok().filter(|port| *port != 0);
        let in_pod = number(port.container_port);
        let on_host = port
            .host_port
            .and_then(number)
            .or_else(|| in_pod.filter(|_| host_network));
        let claim = |number: Option<u16>, network| {
            number.map(|number| Self {
                protocol: protocol(port.protocol.as_deref()),
                port: number,
                address: port
                    .host_ip
                    .as_deref()
                    .filter(|ip| !ip.is_empty())
                    .unwrap_or(EVERY_ADDRESS)
                    .into(),
                network,
            })
        };
        let declared = in_pod.filter(|port| Some(*port) != on_host);
        claim(on_host, Network::Host)
            .into_iter()
            .chain(claim(declared, Network::Pod))
    }

    fn key(&self, network: Network) -> Key {
        (self.protocol, self.port, network)
    }

    fn meets(&self, address: &str) -> bool {
        *self.address == *address || *self.address == *EVERY_ADDRESS || address == EVERY_ADDRESS
    }
}

/// TCP where none is given, as the API's default is.
fn protocol(name: Option<&str>) -> PortProtocol {
    match name {
        Some("UDP") => PortProtocol::Udp,
        Some("SCTP") => PortProtocol::Sctp,
        _ => PortProtocol::Tcp,
    }
}

/// Who has which port: the addresses of each holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortIndex(BTreeMap<Key, BTreeMap<PodUid, Vec<Box<str>>>>);

/// The network is part of the key, so that the many pods that listen on port 80 of their own network are never walked.
type Key = (PortProtocol, u16, Network);

impl PortIndex {
    pub(super) fn add(&mut self, uid: &PodUid, claims: &[PortClaim]) {
        for claim in claims {
            let holders = self.0.entry(claim.key(claim.network)).or_default();
            holders.entry(uid.clone()).or_default().push(claim.address.clone());
        }
    }

    pub(super) fn remove(&mut self, uid: &PodUid, claims: &[PortClaim]) {
        for claim in claims {
            let key = claim.key(claim.network);
            if let Some(holders) = self.0.get_mut(&key) {
                holders.remove(uid);
                if holders.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    /// A pod that has one of these ports.
    pub(super) fn holder(&self, claims: &[PortClaim], shared_network: bool) -> Option<&PodUid> {
        let networks: &[Network] = if shared_network {
            &[Network::Host, Network::Pod]
        } else {
            &[Network::Host]
        };
        claims
            .iter()
            .filter(|claim| networks.contains(&claim.network))
            .flat_map(|claim| networks.iter().map(move |network| (claim, claim.key(*network))))
            .find_map(|(claim, key)| {
                let holders = self.0.get(&key)?.iter();
                let mut meeting = holders.filter(|(_, addresses)| addresses.iter().any(|held| claim.meets(held)));
                meeting.next().map(|(uid, _)| uid)
            })
    }
}
