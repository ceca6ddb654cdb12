//! A pod network of an instance's own: a bridge, addresses, and what is left of them on the machine.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::containerd::archive::hex;
use crate::containerd::command::{find, output_with_input, run};
use crate::containerd::error::ComponentError;
use crate::containerd::folder::Lock;

/// The file in an instance's folder that says which network it has.
const FILE: &str = "network";

/// The folder below an instance's in which addresses are remembered.
const ADDRESSES: &str = "addresses";

/// Where the CNI library remembers what it has set up, whatever the configuration says.
const RESULTS: &str = "/var/lib/cni/results";

/// The chain from which host ports are sent to pods, shared by all networks.
const PORTS: &str = "CNI-HOSTPORT-DNAT";

/// The chains that the first pod with a host port brings, and the last one leaves.
const SHARED: [&str; 3] = [PORTS, "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"];

/// One of 256 networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    number: u8,
}

impl Network {
    /// Takes a network that no other folder has, for `folder`.
    pub(crate) fn claim(folder: &Path, lock: &Lock) -> Result<Self, ComponentError> {
        let taken: Vec<Self> = lock.all().iter().filter_map(|folder| Self::of(folder)).collect();
        let number = (0..=u8::MAX)
            .find(|number| !taken.contains(&Self { number: *number }))
            .ok_or_else(|| ComponentError::failed("find a pod network", "all are taken"))?;
        let file = folder.join(FILE);
        fs::write(&file, number.to_string()).map_err(ComponentError::io(format!("write {}", file.display())))?;
        Ok(Self { number })
    }

    /// The network that a folder has.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let number = fs::read_to_string(folder.join(FILE)).ok()?.parse().ok()?;
        Some(Self { number })
    }

    /// The name of the network and of its bridge.
    pub(crate) fn name(self) -> String {
        format!("kubetest{}", self.number)
    }

    /// The addresses of its pods: from a range that is set apart for tests.
    pub(crate) fn subnet(self) -> String {
        format!("198.19.{}.0/24", self.number)
    }

    /// The address of the machine in it.
    pub(crate) fn gateway(self) -> String {
        format!("198.19.{}.1", self.number)
    }

    /// Makes the bridge.
    ///
    /// It is not left to the plugin, which would switch on forwarding on the whole machine with it.
    pub(crate) fn create(self) -> Result<(), ComponentError> {
        let ip = find("ip", "iproute2")?;
        let name = self.name();
        // Nobody claims this network, so a bridge of its name is an orphan.
        self.remove_links()?;
        // A fixed address: the bridge would else take another with each pod, which the others do not know.
        let address = format!("02:00:c6:13:{:02x}:01", self.number);
        run(&ip, ["link", "add", &name, "address", &address, "type", "bridge"])?;
        run(&ip, ["address", "add", &format!("{}/24", self.gateway()), "dev", &name])?;
        run(&ip, ["link", "set", &name, "up"])?;
        Ok(())
    }

    /// The configuration for CNI, which remembers addresses in `folder`.
    pub(crate) fn conflist(self, folder: &Path) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": self.name(),
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.name(),
                    "isGateway": false,
                    "ipMasq": false,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": folder.join(ADDRESSES),
                        "ranges": [[{ "subnet": self.subnet(), "gateway": self.gateway() }]],
                        "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        })
    }

    /// Removes all that it has on the machine, for `folder`. Nothing of it may be in use.
    pub(crate) fn remove(self, folder: &Path) -> Result<(), ComponentError> {
        let pods = self.pods(folder);
        let ports = self.remove_host_ports(&pods);
        let links = self.remove_links();
        let results = self.remove_results(&pods);
        ports.and(links).and(results)
    }

    /// The pods that have an address. It is given before all else, and taken back last.
    pub(crate) fn pods(self, folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder.join(ADDRESSES).join(self.name()))
            .into_iter()
            .flatten()
            .flatten();
        let addresses = entries.filter(|entry| entry.file_name().to_string_lossy().parse::<IpAddr>().is_ok());
        let texts = addresses.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts
            .filter_map(|text| Some(text.lines().next()?.trim().to_owned()))
            .collect()
    }

    /// Removes the bridge and all that is plugged into it, which takes the pods' ends along.
    fn remove_links(self) -> Result<(), ComponentError> {
        let bridge = PathBuf::from(format!("/sys/class/net/{}", self.name()));
        if !bridge.exists() {
            return Ok(());
        }
        let ip = find("ip", "iproute2")?;
        for port in fs::read_dir(bridge.join("brif")).into_iter().flatten().flatten() {
            let removed = run(&ip, ["link".as_ref(), "delete".as_ref(), port.file_name().as_os_str()]);
            // It goes by itself with its pod's namespace.
            if port.path().exists() {
                removed?;
            }
        }
        run(&ip, ["link", "delete", &self.name()])?;
        Ok(())
    }

    /// Removes the chains that send host ports to its pods.
    fn remove_host_ports(self, pods: &[String]) -> Result<(), ComponentError> {
        let Ok(save) = find("iptables-save", "iptables") else {
            return Ok(());
        };
        let rules = removal(&run(&save, ["-t", "nat"])?, &self.name(), pods);
        if rules.is_empty() {
            return Ok(());
        }
        let restore = find("iptables-restore", "iptables")?;
        output_with_input(Command::new(restore).args(["--noflush", "--wait"]), &rules)?;
        Ok(())
    }

    /// Removes what the CNI library remembers of its pods.
    fn remove_results(self, pods: &[String]) -> Result<(), ComponentError> {
        let own = format!("{}-", self.name());
        let names: Vec<String> = fs::read_dir(RESULTS)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        for name in &names {
            // The loopback of a pod is remembered under a network name that all instances share.
            let loopback = name
                .strip_prefix("cni-loopback-")
                .and_then(|rest| rest.strip_suffix("-lo"));
            if name.starts_with(&own) || loopback.is_some_and(|id| pods.iter().any(|pod| pod == id)) {
                let path = Path::new(RESULTS).join(name);
                fs::remove_file(&path).map_err(ComponentError::io(format!("remove {}", path.display())))?;
            }
        }
        Ok(())
    }
}

/// Removes the chains that all networks share, if no pod of the machine has a host port.
///
/// No instance may be there. Other software would make them again when it needs them; if it does so just now, nothing
/// is removed.
pub(crate) fn remove_shared_chains() {
    let (Ok(save), Ok(restore)) = (find("iptables-save", "iptables"), find("iptables-restore", "iptables")) else {
        return;
    };
    let rules = run(&save, ["-t", "nat"])
        .map(|saved| removal_of_shared(&saved))
        .unwrap_or_default();
    if !rules.is_empty() {
        // All or nothing: a chain that was used in between cannot be deleted. It is empty then, and hurts nobody.
        let _ = output_with_input(Command::new(restore).args(["--noflush", "--wait"]), &rules);
    }
}

/// What `iptables-restore` must be told to remove the shared chains; nothing if there are none, or they are in use.
fn removal_of_shared(saved: &str) -> String {
    let there = |chain: &&&str| saved.lines().any(|line| line.starts_with(&format!(":{chain} ")));
    // A plugin that was killed may have made only some of them.
    let chains: Vec<&str> = SHARED.iter().filter(there).copied().collect();
    let in_use = saved.lines().any(|line| line.starts_with(&format!("-A {PORTS} ")));
    if in_use || chains.is_empty() {
        return String::new();
    }
    let jumps = saved.lines().filter_map(|line| {
        let (rule, target) = line.strip_prefix("-A ")?.rsplit_once(" -j ")?;
        chains.contains(&target).then(|| format!("-D {rule} -j {target}\n"))
    });
    // The one that leads to pods is not emptied: it must be empty.
    let emptied = chains
        .iter()
        .filter(|chain| **chain != PORTS)
        .map(|chain| format!("-F {chain}\n"));
    let deleted = chains.iter().map(|chain| format!("-X {chain}\n"));
    let rules: String = jumps.chain(emptied).chain(deleted).collect();
    format!("*nat\n{rules}COMMIT\n")
}

/// What `iptables-restore` must be told to remove the host ports of a network and of pods, from what `iptables-save` says.
fn removal(saved: &str, network: &str, pods: &[String]) -> String {
    let of_network = format!(r#"name: \"{network}\""#);
    let mut rules = String::new();
    let mut chains = BTreeSet::new();
    for line in saved.lines().filter(|line| line.contains(&of_network)) {
        let chain = line.rsplit_once(" -j ").map(|(_, chain)| chain.trim());
        if let (Some(rule), Some(chain)) = (line.strip_prefix(&format!("-A {PORTS} ")), chain) {
            rules.push_str(&format!("-D {PORTS} {rule}\n"));
            chains.insert(chain.to_owned());
        }
    }
    // A plugin that was killed may have made a chain and no rule that leads to it.
    let made = |chain: &String| saved.lines().any(|line| line.starts_with(&format!(":{chain} ")));
    chains.extend(pods.iter().flat_map(|pod| chains_of(network, pod)).filter(made));
    if chains.is_empty() {
        return String::new();
    }
    let chains: String = chains.iter().map(|chain| format!("-F {chain}\n-X {chain}\n")).collect();
    format!("*nat\n{rules}{chains}COMMIT\n")
}

/// The names of a pod's chains as the plugin makes them, each of 28 letters.
fn chains_of(network: &str, pod: &str) -> [String; 2] {
    let hash = hex(&Sha512::digest(format!("{network}{pod}")));
    ["CNI-DN-", "CNI-SN-"].map(|kind| format!("{kind}{}", &hash[..28 - kind.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_ports_of_one_network_are_removed() {
        let saved = r#"*nat
:CNI-DN-1 - [0:0]
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"kubetest1\" id: \"a\"" -m multiport --dports 80 -j CNI-DN-1
-A CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"kubetest1\" id: \"a\"" -m multiport --dports 53 -j CNI-DN-1
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"kubetest11\" id: \"b\"" -m multiport --dports 81 -j CNI-DN-2
COMMIT
"#;
        let expected = r#"*nat
-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"kubetest1\" id: \"a\"" -m multiport --dports 80 -j CNI-DN-1
-D CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"kubetest1\" id: \"a\"" -m multiport --dports 53 -j CNI-DN-1
-F CNI-DN-1
-X CNI-DN-1
COMMIT
"#;
        assert_eq!(removal(saved, "kubetest1", &[]), expected);
        assert_eq!(removal(saved, "kubetest2", &["b".to_owned()]), "");
    }

    #[test]
    fn chains_of_a_pod_to_which_nothing_leads_are_removed() {
        let pod = "c082a07d4319947be889713bf5ec81620f95fc444fab2bf53e3d7b5c5fefbd4f";
        let saved = "*nat\n:CNI-DN-cc13f46f14df5eb02dd9e - [0:0]\n:CNI-DN-other - [0:0]\nCOMMIT\n";
        let expected = "*nat\n-F CNI-DN-cc13f46f14df5eb02dd9e\n-X CNI-DN-cc13f46f14df5eb02dd9e\nCOMMIT\n";
        assert_eq!(removal(saved, "kt8", &[pod.to_owned()]), expected);
    }

    #[test]
    fn shared_chains_are_removed_once_nobody_uses_them() {
        let saved = r#"*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -j OTHER
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
"#;
        let expected = "*nat
-D OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-F CNI-HOSTPORT-MASQ
-F CNI-HOSTPORT-SETMARK
-X CNI-HOSTPORT-DNAT
-X CNI-HOSTPORT-MASQ
-X CNI-HOSTPORT-SETMARK
COMMIT
";
        assert_eq!(removal_of_shared(saved), expected);
        let used = format!("{saved}-A CNI-HOSTPORT-DNAT -p tcp -j CNI-DN-1\n");
        assert_eq!(removal_of_shared(&used), "");
        assert_eq!(removal_of_shared(""), "");
        let half = ":CNI-HOSTPORT-MASQ - [0:0]\n-A CNI-HOSTPORT-MASQ -j MASQUERADE\n";
        let expected = "*nat\n-F CNI-HOSTPORT-MASQ\n-X CNI-HOSTPORT-MASQ\nCOMMIT\n";
        assert_eq!(removal_of_shared(half), expected);
    }
}
