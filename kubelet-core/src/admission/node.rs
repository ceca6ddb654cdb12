//! What admission knows of the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Taint;

use crate::quantity::Quantity;

/// The node, as admission sees it. Replaced as a whole when something of it changes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// What it has.
    pub capacity: BTreeMap<String, Quantity>,
    /// What pods may hold together.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Its addresses, primary first.
    pub addresses: Vec<IpAddr>,
}
