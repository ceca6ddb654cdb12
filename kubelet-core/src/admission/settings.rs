//! The node as an embedder describes it, and the view that admission gets of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Taint;

use super::machine::{MachineInfo, host_architecture, host_operating_system};
use super::node::NodeView;
use crate::quantity::{Quantity, QuantityFormat};
use crate::resources::{ResourceList, is_huge_page};

/// How a node presents itself. By default: all of its machine, for at most 110 pods, without taints.
///
/// Source: kubelet 1.36, `KubeletConfiguration` and `nodestatus/setters.go`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NodeSettings {
    /// The value of the label `kubernetes.io/hostname`; the node's name if absent.
    pub hostname: Option<String>,
    /// Further labels. They win over those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Taints. Only those with the effect `NoExecute` matter on the node itself.
    pub taints: Vec<Taint>,
    /// How many pods may be active at once.
    pub max_pods: u32,
    /// How many pods may be active per processor, besides `max_pods`; 0 for no such limit.
    pub pods_per_core: u32,
    /// Amounts that take the place of what the machine has, or come in addition to it.
    pub capacity: ResourceList,
    /// What the system keeps for itself.
    pub system_reserved: ResourceList,
    /// What the kubelet and the container runtime keep for themselves.
    pub kube_reserved: ResourceList,
    /// What is kept free by evicting pods at once: amounts of `memory` and `ephemeral-storage`.
    pub hard_eviction: ResourceList,
    /// The node's addresses, primary first.
    pub addresses: Vec<IpAddr>,
    /// What containers run on, as Go names it.
    pub operating_system: String,
    /// The processor's architecture, as Go names it.
    pub architecture: String,
    /// Whether the runtime keeps to `supplementalGroupsPolicy: Strict`; absent: as the runtime says, once it is asked.
    pub supplemental_groups_policy: Option<bool>,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            hostname: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            max_pods: 110,
            pods_per_core: 0,
            capacity: ResourceList::new(),
            system_reserved: ResourceList::new(),
            kube_reserved: ResourceList::new(),
            hard_eviction: ResourceList::new(),
            addresses: Vec::new(),
            operating_system: host_operating_system().to_owned(),
            architecture: host_architecture().to_owned(),
            supplemental_groups_policy: None,
        }
    }
}

impl NodeSettings {
    /// The node with this name, on this machine.
    #[must_use]
    pub fn node_view(&self, name: &str, machine: &MachineInfo) -> NodeView {
        let mut view = NodeView::new(name);
        view.labels = self.labels(name);
        view.taints.clone_from(&self.taints);
        view.capacity = self.capacity(machine);
        view.allocatable = self.allocatable(&view.capacity);
        view.max_pids = (machine.max_pids > 0).then_some(machine.max_pids);
        view.addresses.clone_from(&self.addresses);
        view.operating_system.clone_from(&self.operating_system);
        view.architecture.clone_from(&self.architecture);
        view.supplemental_groups_policy = self.supplemental_groups_policy;
        view
    }

    fn labels(&self, name: &str) -> BTreeMap<String, String> {
        let hostname = self.hostname.as_deref().unwrap_or(name);
        let mut labels: BTreeMap<_, _> = [
            ("kubernetes.io/hostname", hostname),
            ("kubernetes.io/os", &self.operating_system),
            ("kubernetes.io/arch", &self.architecture),
            ("beta.kubernetes.io/os", &self.operating_system),
            ("beta.kubernetes.io/arch", &self.architecture),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
        labels.extend(self.labels.clone());
        labels
    }

    fn capacity(&self, machine: &MachineInfo) -> ResourceList {
        let per_core = match self.pods_per_core {
            0 => u64::MAX,
            per_core => machine.cpus.saturating_mul(per_core.into()),
        };
        let mut capacity = ResourceList::from([
            ("cpu".to_owned(), decimal(machine.cpus)),
            ("memory".to_owned(), binary(machine.memory_bytes)),
            ("pods".to_owned(), decimal(per_core.min(self.max_pods.into()))),
            ("ephemeral-storage".to_owned(), binary(machine.storage_bytes)),
        ]);
        for (size, count) in &machine.huge_pages {
            capacity.insert(
                format!("hugepages-{}", binary(*size)),
                binary(size.saturating_mul(*count)),
            );
        }
        capacity.extend(self.capacity.clone());
        capacity
    }

    /// What is left for pods. Memory in huge pages is not memory for anything else.
    fn allocatable(&self, capacity: &ResourceList) -> ResourceList {
        let mut allocatable = capacity.clone();
        for (name, left) in &mut allocatable {
            for kept in [&self.kube_reserved, &self.system_reserved, &self.hard_eviction] {
                if let Some(kept) = kept.get(name) {
                    *left = subtract_to_zero(left, kept);
                }
            }
        }
        let huge: Vec<_> = capacity.iter().filter(|(name, _)| is_huge_page(name)).collect();
        if let Some(memory) = allocatable.get_mut("memory") {
            for (_, pages) in huge {
                *memory = subtract_to_zero(memory, pages);
            }
        }
        allocatable
    }
}

fn subtract_to_zero(amount: &Quantity, kept: &Quantity) -> Quantity {
    amount
        .saturating_sub(kept)
        .max(Quantity::from_value(0, amount.format()))
}

fn decimal(amount: u64) -> Quantity {
    Quantity::from_value(i64::try_from(amount).unwrap_or(i64::MAX), QuantityFormat::DecimalSi)
}

fn binary(bytes: u64) -> Quantity {
    Quantity::from_value(i64::try_from(bytes).unwrap_or(i64::MAX), QuantityFormat::BinarySi)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::NodeSettings;
    use crate::admission::MachineInfo;
    use crate::resources::ResourceList;

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        entries
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap()))
            .collect()
    }

    fn text(list: &ResourceList) -> String {
        let texts: Vec<_> = list.iter().map(|(k, v)| format!("{k}={v}")).collect();
        texts.join(" ")
    }

    fn machine() -> MachineInfo {
        MachineInfo {
            cpus: 4,
            memory_bytes: 8 << 30,
            huge_pages: BTreeMap::from([(2 << 20, 512), (1 << 30, 0)]),
            storage_bytes: 100 << 30,
            max_pids: 32_768,
        }
    }

    #[test]
    fn a_node_offers_its_machine_without_what_is_kept() {
        let mut settings = NodeSettings::default();
        let view = settings.node_view("edge-7", &machine());
        assert_eq!(
            text(&view.capacity),
            "cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=8Gi pods=110"
        );
        assert_eq!(
            text(&view.allocatable),
            "cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=7Gi pods=110"
        );

        settings.pods_per_core = 10;
        settings.capacity = list(&[("ephemeral-storage", "10Gi"), ("example.com/dongle", "2")]);
        settings.system_reserved = list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]);
        settings.kube_reserved = list(&[("cpu", "250m"), ("ephemeral-storage", "11Gi")]);
        settings.hard_eviction = list(&[("memory", "100Mi")]);
        let view = settings.node_view("edge-7", &machine());
        assert_eq!(
            text(&view.allocatable),
            "cpu=3250m ephemeral-storage=0 example.com/dongle=2 hugepages-1Gi=0 hugepages-2Mi=1Gi memory=6044Mi pods=40"
        );
        assert_eq!(view.capacity["cpu"].to_string(), "4");
    }

    #[test]
    fn every_node_has_its_labels_and_may_replace_them() {
        let mut settings = NodeSettings {
            operating_system: "linux".into(),
            architecture: "arm64".into(),
            labels: BTreeMap::from([
                ("zone".to_owned(), "a".to_owned()),
                ("beta.kubernetes.io/os".to_owned(), "mine".to_owned()),
            ]),
            ..NodeSettings::default()
        };
        let view = settings.node_view("edge-7", &MachineInfo::default());
        let labels: Vec<_> = view.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            labels,
            [
                "beta.kubernetes.io/arch=arm64",
                "beta.kubernetes.io/os=mine",
                "kubernetes.io/arch=arm64",
                "kubernetes.io/hostname=edge-7",
                "kubernetes.io/os=linux",
                "zone=a",
            ]
        );
        settings.hostname = Some("box".into());
        let view = settings.node_view("edge-7", &MachineInfo::default());
        assert_eq!(view.labels["kubernetes.io/hostname"], "box");
    }
}
