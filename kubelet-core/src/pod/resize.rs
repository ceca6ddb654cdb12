//! Resources that may change while a pod runs: CPU and memory.
//!
//! Source: kubelet 1.36, `allocation_manager.go`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use serde_json::{Value, json};

use super::{ContainerKind, ContainerView, PodRecord};
use crate::observation::{ObservedContainer, PodObservation};
use crate::quantity::Quantity;
use crate::resources::{pod_requests, read_list};
use crate::status::{is_resizing, told_containers, told_id};

const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Which resources differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) cpu: bool,
    pub(crate) memory: bool,
}

impl Difference {
    /// Between what is wished for and what is so.
    pub(crate) fn between(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> Self {
        // The same texts are the same amounts, as nearly always: reading them would cost more than all else of an idle pod.
        if a == b {
            return Self::default();
        }
        let differs = |name: &str| amounts(a, name) != amounts(b, name);
        Self {
            cpu: differs("cpu"),
            memory: differs("memory"),
        }
    }

    pub(crate) fn any(self) -> bool {
        self.cpu || self.memory
    }

    /// Whether a container gets them only by a start anew.
    pub(crate) fn needs_restart(self, view: &ContainerView<'_>) -> bool {
        // What an init container has done is not begun again.
        let may_restart = view.kind() != ContainerKind::Init;
        may_restart && ((self.cpu && view.restarts_for("cpu")) || (self.memory && view.restarts_for("memory")))
    }
}

/// Request and limit of a resource.
fn amounts(of: Option<&ResourceRequirements>, name: &str) -> [Option<Quantity>; 2] {
    let lists = [
        of.and_then(|resources| resources.requests.as_ref()),
        of.and_then(|resources| resources.limits.as_ref()),
    ];
    lists.map(|list| read_list(list).get(name).cloned())
}

/// Whether what is requested is what was granted.
fn requests_are(asked: Option<&ResourceRequirements>, granted: Option<&BTreeMap<String, ApiQuantity>>) -> bool {
    let asked = read_list(asked.and_then(|asked| asked.requests.as_ref()));
    let granted = read_list(granted);
    RESIZABLE.iter().all(|name| asked.get(*name) == granted.get(*name))
}

/// Whether nothing of these is more than it was, so that it always fits.
pub(crate) fn only_shrinks(pod: &PodRecord, before: &PodRecord) -> bool {
    let (now, then) = (pod_requests(pod.spec()), pod_requests(before.spec()));
    RESIZABLE.iter().all(|name| match (now.get(*name), then.get(*name)) {
        (Some(now), Some(then)) => now <= then,
        (Some(now), None) => now.is_zero(),
        (None, _) => true,
    })
}

/// The containers whose resources can be changed while they run.
pub(crate) fn resizable_containers(pod: &PodRecord) -> impl Iterator<Item = ContainerView<'_>> {
    pod.containers().filter(|view| view.kind() != ContainerKind::Ephemeral)
}

/// The resources of a pod, as events show them.
pub(crate) fn resize_summary(pod: &PodRecord) -> String {
    let of = |list: Option<&Vec<Container>>| -> Vec<Value> {
        let with_resources = list
            .into_iter()
            .flatten()
            .filter(|container| container.resources.is_some());
        with_resources
            .map(|container| json!({"name": container.name, "resources": container.resources}))
            .collect()
    };
    let spec = pod.spec();
    let mut summary = serde_json::Map::new();
    if let Some(resources) = &spec.resources {
        summary.insert("resources".to_owned(), json!(resources));
    }
    for (name, list) in [
        ("initContainers", of(spec.init_containers.as_ref())),
        ("containers", of(Some(&spec.containers))),
    ] {
        if !list.is_empty() {
            summary.insert(name.to_owned(), Value::Array(list));
        }
    }
    Value::Object(summary).to_string()
}

impl PodRecord {
    /// Whether another version of the pod asks for other CPU or memory.
    pub(crate) fn resizes(&self, before: &Self) -> bool {
        self.resizes_as_a_whole(before)
            || resizable_containers(self).any(|view| {
                let old = before.container(view.name());
                old.is_some_and(|old| Difference::between(view.resources(), old.resources()).any())
            })
    }

    /// Whether its spec is that of another version but for CPU and memory.
    pub(crate) fn only_resizes(&self, before: &Self) -> bool {
        self.spec() == before.spec() || (self.resizes(before) && self.with_resources_of(before).spec() == before.spec())
    }

    /// Whether it asks for other amounts for all its containers together.
    pub(crate) fn resizes_as_a_whole(&self, before: &Self) -> bool {
        Difference::between(self.spec().resources.as_ref(), before.spec().resources.as_ref()).any()
    }

    /// Whether the pod, or any container, is to get other amounts without a start anew.
    pub(crate) fn resizes_in_place(&self, before: &Self) -> bool {
        if self.resizes_as_a_whole(before) {
            return true;
        }
        resizable_containers(self).any(|view| {
            let Some(old) = before.container(view.name()) else {
                return false;
            };
            let differs = Difference::between(view.resources(), old.resources());
            differs.any() && !differs.needs_restart(&view)
        })
    }

    /// This version of the pod with the CPU and memory of another one.
    pub(crate) fn with_resources_of(&self, other: &Self) -> Self {
        let of_pod = other.spec().resources.clone();
        self.with_resources(Some(of_pod), |name| Some(other.container(name)?.resources().cloned()))
    }

    /// This version of the pod with the CPU and memory that it was granted last, as a status and its containers tell it. Nothing if
    /// that is what it asks for. What they do not tell is taken for unchanged.
    pub(crate) fn with_resources_told(&self, status: &PodStatus, seen: Option<&PodObservation>) -> Option<Self> {
        let is_resizing = is_resizing(status);
        let told = |name: &str| {
            let told = told_containers(status).find(|told| told.name == name)?;
            let newest = seen.and_then(|seen| seen.newest(name));
            // One that was not told of yet was made with what was granted by then.
            let untold = newest.filter(|seen| told_id(told) != Some(seen.id.as_str()));
            if let Some(made_with) = untold.and_then(ObservedContainer::resources_made_with) {
                return Some(made_with);
            }
            let asked = self.container(name)?;
            let is_granted = is_resizing && requests_are(asked.resources(), told.allocated_resources.as_ref());
            told.resources.clone().filter(|_| !is_granted)
        };
        let is_other = |own: Option<&ResourceRequirements>, told: Option<&ResourceRequirements>| {
            told.is_some() && Difference::between(own, told).any()
        };
        let own = self.spec().resources.as_ref();
        let is_granted = is_resizing && requests_are(own, status.allocated_resources.as_ref());
        let whole = status.resources.as_ref().filter(|_| !is_granted);
        let differs = is_other(self.spec().resources.as_ref(), whole)
            || resizable_containers(self).any(|view| is_other(view.resources(), told(view.name()).as_ref()));
        let whole = whole.cloned().map(Some);
        differs.then(|| self.with_resources(whole, |name| told(name).map(Some)))
    }

    /// This version of the pod with other CPU and memory, where they are told.
    pub(crate) fn with_resources(
        &self,
        of_pod: Option<Option<ResourceRequirements>>,
        of: impl Fn(&str) -> Option<Option<ResourceRequirements>>,
    ) -> Self {
        let mut pod = self.pod.clone();
        if let Some(spec) = &mut pod.spec {
            if let Some(other) = of_pod {
                replace(&mut spec.resources, other.as_ref());
            }
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                if let Some(other) = of(&container.name) {
                    let Container { resources, .. } = container;
                    replace(resources, other.as_ref());
                }
            }
        }
        let facts = super::PodFacts::compute(&pod, self.source_kind);
        Self {
            pod,
            // The same pod in all that can be wrong with it.
            facts: facts.map_or_else(|_| self.facts.clone(), std::sync::Arc::new),
            api_status: self.api_status.clone(),
            source: self.source.clone(),
            source_kind: self.source_kind,
        }
    }
}

/// Puts the CPU and memory of `other` in the place of the own.
fn replace(own: &mut Option<ResourceRequirements>, other: Option<&ResourceRequirements>) {
    if !Difference::between(own.as_ref(), other).any() {
        return;
    }
    let is_none = other.is_none();
    let amounts = own.get_or_insert_default();
    let merge = |list: &mut Option<BTreeMap<String, ApiQuantity>>, from: Option<&BTreeMap<String, ApiQuantity>>| {
        for name in RESIZABLE {
            match from.and_then(|from| from.get(name)) {
                Some(amount) => drop(list.get_or_insert_default().insert(name.to_owned(), amount.clone())),
                None => drop(list.as_mut().and_then(|list| list.remove(name))),
            }
        }
        if list.as_ref().is_some_and(BTreeMap::is_empty) {
            *list = None;
        }
    };
    merge(&mut amounts.requests, other.and_then(|other| other.requests.as_ref()));
    merge(&mut amounts.limits, other.and_then(|other| other.limits.as_ref()));
    if is_none && *amounts == ResourceRequirements::default() {
        *own = None;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::record;
    use super::only_shrinks;
    use crate::pod::PodRecord;

    fn pod(cpu: &str, memory: &str) -> PodRecord {
        record(json!({"spec": {"containers": [{
            "name": "app",
            "image": "i",
            "resources": {"requests": {"cpu": cpu, "memory": memory, "x/gpu": "1"}, "limits": {"x/gpu": "1"}},
        }]}}))
    }

    #[test]
    fn only_cpu_and_memory_are_taken_over_and_amounts_count_not_texts() {
        let (before, now) = (pod("1", "1Gi"), pod("1500m", "1Gi"));
        assert!(now.resizes(&before) && !now.resizes(&now));
        assert!(!pod("1000m", "1024Mi").resizes(&before));
        let held = now.with_resources_of(&before);
        assert_eq!(held.spec(), before.spec());
        assert!(!held.resizes(&before));
        assert!(only_shrinks(&before, &now) && !only_shrinks(&now, &before));
    }

    #[test]
    fn what_a_status_tells_of_containers_is_what_they_were_granted() {
        let now = pod("2", "2Gi");
        let told = |state: Value| {
            let status = json!({"containerStatuses": [{
                "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
                "resources": {"requests": {"cpu": "1", "memory": "1Gi", "x/gpu": "1"}},
            }]});
            now.with_resources_told(&serde_json::from_value(status).unwrap(), None)
        };
        for state in ["running", "waiting"] {
            assert!(!told(json!({ state: {} })).unwrap().resizes(&pod("1", "1Gi")));
        }
        assert!(now.with_resources_told(&Default::default(), None).is_none());
    }
}
