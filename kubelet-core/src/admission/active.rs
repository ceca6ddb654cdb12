//! The admitted pods, and what they hold together.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ports::{PortClaim, PortIndex};
use crate::ids::PodUid;
use crate::pod::PodRecord;
use crate::quantity::{Quantity, QuantityFormat};
use crate::resources::{ResourceList, pod_requests};

/// The admitted pods that are not terminated, with totals that are kept as pods come and go.
///
/// Finished and rejected pods are never among them, so that nothing they asked for is counted.
#[derive(Clone, Debug, Default)]
pub struct ActivePods {
    pods: BTreeMap<PodUid, ActivePod>,
    used: ResourceList,
    ports: PortIndex,
}

/// A pod and what it was admitted with, which need not be what its newest spec asks for.
#[derive(Clone, Debug)]
pub(super) struct ActivePod {
    pod: Arc<PodRecord>,
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    /// Not a map: its nodes have room for eleven, and there is one of these for every pod.
    requests: Box<[(Box<str>, Quantity)]>,
    ports: Vec<PortClaim>,
}

impl ActivePods {
    /// No pods.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The pods, sorted by UID.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PodRecord>> {
        self.pods.values().map(|active| &active.pod)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// One pod.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&Arc<PodRecord>> {
        self.pods.get(uid).map(|active| &active.pod)
    }

    /// The sum of what the pods hold, without resources that nobody holds.
    #[must_use]
    pub fn used(&self) -> &ResourceList {
        &self.used
    }

    /// What one pod holds.
    #[must_use]
    pub fn requests_of(&self, uid: &PodUid) -> Option<ResourceList> {
        let held = &self.pods.get(uid)?.held.requests;
        Some(
            held.iter()
                .map(|(name, amount)| (name.to_string(), amount.clone()))
                .collect(),
        )
    }

    /// What one pod holds of one resource.
    pub(super) fn held_by(&self, uid: &PodUid, resource: &str) -> Option<&Quantity> {
        let held = &self.pods.get(uid)?.held.requests;
        held.iter()
            .find(|(name, _)| **name == *resource)
            .map(|(_, amount)| amount)
    }

    /// Adds a pod, which takes the place of an earlier one with its UID. It holds what its spec requests.
    pub fn insert(&mut self, pod: Arc<PodRecord>) {
        let held = Held {
            requests: countable_requests(&pod)
                .into_iter()
                .map(|(name, amount)| (name.into_boxed_str(), amount))
                .collect(),
            ports: PortClaim::of_pod(&pod),
        };
        self.put(ActivePod {
            pod,
            held: Arc::new(held),
        });
    }

    /// Takes a pod away, with all that it holds.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Arc<PodRecord>> {
        self.take(uid).map(|active| active.pod)
    }

    /// Puts another record in the place of one with its UID; what the pod holds stays. False if there is no such pod.
    pub fn replace(&mut self, pod: Arc<PodRecord>) -> bool {
        match self.pods.get_mut(pod.uid()) {
            Some(active) => {
                active.pod = pod;
                true
            }
            None => false,
        }
    }

    /// A pod that has one of these ports of the host.
    pub(super) fn port_holder(&self, claims: &[PortClaim], shared_network: bool) -> Option<&PodUid> {
        self.ports.holder(claims, shared_network)
    }

    pub(super) fn put(&mut self, active: ActivePod) {
        let uid = active.pod.uid().clone();
        self.take(&uid);
        for (name, amount) in &active.held.requests {
            match self.used.get_mut(&**name) {
                Some(sum) => *sum = sum.saturating_add(amount),
                None => {
                    self.used.insert(name.to_string(), amount.clone());
                }
            }
        }
        self.ports.add(&uid, &active.held.ports);
        self.pods.insert(uid, active);
    }

    pub(super) fn take(&mut self, uid: &PodUid) -> Option<ActivePod> {
        let active = self.pods.remove(uid)?;
        for (name, amount) in &active.held.requests {
            if let Some(sum) = self.used.get_mut(&**name) {
                *sum = sum.saturating_sub(amount);
                if sum.is_zero() {
                    self.used.remove(&**name);
                }
            }
        }
        self.ports.remove(uid, &active.held.ports);
        Some(active)
    }
}

impl FromIterator<Arc<PodRecord>> for ActivePods {
    fn from_iter<I: IntoIterator<Item = Arc<PodRecord>>>(pods: I) -> Self {
        let mut active = Self::new();
        for pod in pods {
            active.insert(pod);
        }
        active
    }
}

/// What a pod requests, as it is counted: amounts below zero give nothing back, and amounts beyond what the API's
/// integers hold are held there, so that sums of them stay exact and what was added can be taken off again.
fn countable_requests(pod: &PodRecord) -> ResourceList {
    pod_requests(pod.spec())
        .into_iter()
        .filter(|(_, amount)| *amount > Quantity::ZERO)
        .map(|(name, amount)| {
            (
                name,
                amount.min(Quantity::from_value(i64::MAX, QuantityFormat::DecimalSi)),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
    use serde_json::json;

    use super::{ActivePods, countable_requests};
    use crate::pod::PodRecord;
    use crate::pod::testing::record;
    use crate::quantity::Quantity;
    use crate::resources::ResourceList;

    fn pod(uid: u8, cpu: u64, extra: Option<&str>, port: u16) -> Arc<PodRecord> {
        let mut requests = json!({"cpu": format!("{cpu}m"), "memory": "1Gi"});
        if let Some(extra) = extra {
            requests[extra] = json!("2");
        }
        Arc::new(record(json!({
            "metadata": {"uid": format!("u{uid}")},
            "spec": {"containers": [{
                "name": "c",
                "ports": [{"containerPort": 80, "hostPort": port}],
                "resources": {"requests": requests},
            }]},
        })))
    }

    fn recompute(active: &ActivePods) -> ResourceList {
        let mut sum = ResourceList::new();
        for pod in active.iter() {
            for (name, amount) in countable_requests(pod) {
                let total = sum.entry(name).or_insert(Quantity::ZERO);
                *total = total.saturating_add(&amount);
            }
        }
        sum
    }

    fn arbitrary_pod() -> impl Strategy<Value = Arc<PodRecord>> {
        (0u8..8, 0u64..u64::MAX, any::<bool>(), 0u16..3)
            .prop_map(|(uid, cpu, extra, port)| pod(uid, cpu, extra.then_some("example.com/gpu"), port))
    }

    proptest! {
        #[test]
        fn totals_are_the_sum_over_the_pods(steps in proptest::collection::vec((arbitrary_pod(), any::<bool>()), 0..40)) {
            let mut active = ActivePods::new();
            for (pod, add) in steps {
                if add {
                    active.insert(pod);
                } else {
                    active.remove(pod.uid());
                }
                prop_assert_eq!(active.used(), &recompute(&active));
                let fresh: ActivePods = active.iter().cloned().collect();
                prop_assert_eq!(active.len(), fresh.len());
            }
            let uids: Vec<_> = active.iter().map(|pod| pod.uid().clone()).collect();
            for uid in uids {
                active.remove(&uid);
            }
            prop_assert!(active.is_empty() && active.used().is_empty());
            prop_assert_eq!(&active.ports, &super::PortIndex::default());
        }
    }

    #[test]
    fn a_replaced_record_holds_what_was_admitted() {
        let mut active: ActivePods = [pod(1, 100, None, 80)].into_iter().collect();
        let newer = pod(1, 900, None, 81);
        assert!(active.replace(newer.clone()));
        assert!(Arc::ptr_eq(active.get(newer.uid()).unwrap(), &newer));
        assert_eq!(active.requests_of(newer.uid()).unwrap()["cpu"].to_string(), "100m");
        assert_eq!(active.used()["cpu"].to_string(), "100m");
        assert!(!active.replace(pod(2, 1, None, 0)));
    }
}
