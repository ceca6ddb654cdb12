//! Quality of service of a pod.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

/// How a pod fares when its node runs short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum QosClass {
    /// Every container has limits for CPU and memory, and requests as much.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// Nothing is requested or limited.
    BestEffort,
}

impl QosClass {
    /// The text of the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Amounts = BTreeMap<&'static str, Quantity>;

/// The amounts of CPU and memory that are more than zero.
fn compute_amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    ["cpu", "memory"]
        .into_iter()
        .filter_map(|name| {
            let amount: Quantity = list?.get(name)?.0.parse().ok()?;
            (amount > Quantity::ZERO).then_some((name, amount))
        })
        .collect()
}

fn add_all(sum: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let total = sum
            .get(name)
            .map_or_else(|| amount.clone(), |so_far| so_far.saturating_add(amount));
        sum.insert(name, total);
    }
}

/// The class of a pod: the one in its status, else computed from requests and limits of CPU and memory over regular and
/// init containers, or from the pod-level ones alone where there are any.
///
/// Source: kubelet 1.36, `component-helpers/qos`.
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => return QosClass::Guaranteed,
        Some("Burstable") => return QosClass::Burstable,
        Some("BestEffort") => return QosClass::BestEffort,
        _ => {}
    }
    pod.spec.as_ref().map_or(QosClass::BestEffort, of_spec)
}

fn of_spec(spec: &PodSpec) -> QosClass {
    let lists: Vec<Option<&ResourceRequirements>> = match &spec.resources {
        Some(own) => vec![Some(own)],
        None => spec
            .init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
            .map(|c| c.resources.as_ref())
            .collect(),
    };
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut all_limited = true;
    for resources in lists {
        let limit = compute_amounts(resources.and_then(|r| r.limits.as_ref()));
        all_limited &= limit.len() == 2;
        add_all(
            &mut requests,
            &compute_amounts(resources.and_then(|r| r.requests.as_ref())),
        );
        add_all(&mut limits, &limit);
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::QosClass;
    use crate::pod::testing::record;

    #[test]
    fn classes_follow_requests_and_limits() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        let cases: [(Value, Value, QosClass); 6] = [
            (json!(null), json!(null), QosClass::BestEffort),
            (json!(null), json!({"requests": {"cpu": "0"}}), QosClass::BestEffort),
            (
                json!(null),
                json!({"requests": {"nvidia.com/gpu": "1"}}),
                QosClass::BestEffort,
            ),
            (json!(null), json!({"requests": {"cpu": "1m"}}), QosClass::Burstable),
            (json!(null), full.clone(), QosClass::Guaranteed),
            (full, json!({"limits": {"cpu": "1"}}), QosClass::Burstable),
        ];
        for (init, app, expected) in cases {
            let mut spec = json!({"containers": [{"name": "a", "image": "i", "resources": app}]});
            if !init.is_null() {
                spec["initContainers"] = json!([{"name": "i", "image": "i", "resources": init}]);
            }
            assert_eq!(record(json!({"spec": spec})).facts().qos, expected, "{spec}");
        }
    }

    #[test]
    fn pod_level_resources_stand_alone() {
        let pod = record(json!({"spec": {
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            "containers": [{"name": "a", "image": "i"}],
        }}));
        assert_eq!(pod.facts().qos, QosClass::Guaranteed);
    }
}
