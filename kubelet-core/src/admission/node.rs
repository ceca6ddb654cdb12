//! What admission knows of the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::machine::{host_architecture, host_operating_system};
use crate::resources::ResourceList;

/// The node, as admission sees it. Replaced as a whole when something of it changes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// What it has.
    pub capacity: ResourceList,
    /// What pods may hold together. A node that names no `pods` admits none.
    pub allocatable: ResourceList,
    /// How many processes and threads its kernel can have, where that is known. It is never published.
    pub max_pids: Option<u64>,
    /// Its addresses, primary first.
    pub addresses: Vec<IpAddr>,
    /// What its containers run on, as Go names it: `linux`.
    pub operating_system: String,
    /// The processor's architecture, as Go names it: `amd64`.
    pub architecture: String,
    /// Whether the runtime keeps to `supplementalGroupsPolicy: Strict`; absent: as the runtime says, once it is asked.
    pub supplemental_groups_policy: Option<bool>,
}

impl NodeView {
    /// A node with this name on this machine, with no resources, labels or taints.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            capacity: ResourceList::new(),
            allocatable: ResourceList::new(),
            max_pids: None,
            addresses: Vec::new(),
            operating_system: host_operating_system().to_owned(),
            architecture: host_architecture().to_owned(),
            supplemental_groups_policy: None,
        }
    }
}

/// A node without a name.
impl Default for NodeView {
    fn default() -> Self {
        Self::new("")
    }
}

impl NodeView {
    /// What pods may hold together, in the form of the API.
    #[must_use]
    pub fn api_allocatable(&self) -> BTreeMap<String, ApiQuantity> {
        self.allocatable
            .iter()
            .map(|(name, amount)| (name.clone(), amount.into()))
            .collect()
    }
}
