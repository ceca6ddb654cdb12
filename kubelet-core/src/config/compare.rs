//! In what two versions of a pod differ.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::PodRecord;
use crate::runtime::annotation;

/// Annotations that the node writes for itself. Source: kubelet 1.36, `config/config.go`.
pub(super) const LOCAL: [&str; 3] = [
    annotation::CONFIG_SOURCE,
    annotation::CONFIG_SEEN,
    annotation::CONFIG_MIRROR,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// In nothing that matters to a node.
    None,
    /// Only in what the source says of the status.
    Status,
    /// In what is wished for.
    Wish,
}

pub(super) fn difference(old: &PodRecord, new: &PodRecord) -> Difference {
    let (before, after) = (old.metadata(), new.metadata());
    let alike = before.deletion_timestamp == after.deletion_timestamp
        && before.deletion_grace_period_seconds == after.deletion_grace_period_seconds
        && entries(before.labels.as_ref()).eq(entries(after.labels.as_ref()))
        && shared(before.annotations.as_ref()).eq(shared(after.annotations.as_ref()))
        && old.spec() == new.spec();
    match (alike, old.api_status() == new.api_status()) {
        (false, _) => Difference::Wish,
        (true, false) => Difference::Status,
        (true, true) => Difference::None,
    }
}

/// Gives a new version of a pod the local annotations of the old one.
pub(super) fn keep_local(pod: &mut Pod, old: &PodRecord) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    for name in LOCAL {
        match old.metadata().annotations.as_ref().and_then(|old| old.get(name)) {
            Some(value) => annotations.insert(name.to_owned(), value.clone()),
            None => annotations.remove(name),
        };
    }
}

fn entries(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&String, &String)> {
    map.into_iter().flatten()
}

fn shared(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&String, &String)> {
    entries(map).filter(|(name, _)| !LOCAL.contains(&name.as_str()))
}
