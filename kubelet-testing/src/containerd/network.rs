//! A pod network of an instance's own: a bridge, addresses, and what is left of them on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::containerd::command::{find, output_with_input, run};
use crate::containerd::error::ComponentError;
use crate::containerd::folder::Lock;

/// The file in an instance's folder that says which network it has.
const FILE: &str = "network";

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

    /// The configuration for CNI; `data` is where addresses are remembered.
    pub(crate) fn conflist(self, data: &Path) -> Value {
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
                        "dataDir": data,
                        "ranges": [[{ "subnet": self.subnet(), "gateway": self.gateway() }]],
                        "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        })
    }

    /// Removes all that it has on the machine. Nothing of it may be in use.
    pub(crate) fn remove(self) -> Result<(), ComponentError> {
        let ports = self.remove_host_ports();
        let links = self.remove_links();
        let results = self.remove_results();
        ports.and(links).and(results)
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
    fn remove_host_ports(self) -> Result<(), ComponentError> {
        let Ok(save) = find("iptables-save", "iptables") else {
            return Ok(());
        };
        let rules = removal(&run(&save, ["-t", "nat"])?, &self.name());
        if rules.is_empty() {
            return Ok(());
        }
        let restore = find("iptables-restore", "iptables")?;
        output_with_input(Command::new(restore).args(["--noflush", "--wait"]), &rules)?;
        Ok(())
    }

    /// Removes what the CNI library remembers of its pods.
    fn remove_results(self) -> Result<(), ComponentError> {
        let own = format!("{}-", self.name());
        let names: Vec<String> = fs::read_dir(RESULTS)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let pods: Vec<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix(&own)?.strip_suffix("-eth0"))
            .collect();
        for name in &names {
            // The loopback of a pod is remembered under a network name that all instances share.
            let loopback = name
                .strip_prefix("cni-loopback-")
                .and_then(|rest| rest.strip_suffix("-lo"));
            if name.starts_with(&own) || loopback.is_some_and(|pod| pods.contains(&pod)) {
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

/// What `iptables-restore` must be told to remove a network's host ports, from what `iptables-save` says.
fn removal(saved: &str, network: &str) -> String {
    let of_network = format!(r#"name: \"{network}\""#);
    let mut rules = String::new();
    let mut chains = String::new();
    for line in saved.lines().filter(|line| line.contains(&of_network)) {
        let chain = line.rsplit_once(" -j ").map(|(_, chain)| chain.trim());
        if let (Some(rule), Some(chain)) = (line.strip_prefix(&format!("-A {PORTS} ")), chain) {
            rules.push_str(&format!("-D {PORTS} {rule}\n"));
            // Two protocols have two rules, and one chain.
            let removed = format!("-F {chain}\n-X {chain}\n");
            if !chains.contains(&removed) {
                chains.push_str(&removed);
            }
        }
    }
    if rules.is_empty() {
        return rules;
    }
    format!("*nat\n{rules}{chains}COMMIT\n")
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
        assert_eq!(removal(saved, "kubetest1"), expected);
        assert_eq!(removal(saved, "kubetest2"), "");
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
