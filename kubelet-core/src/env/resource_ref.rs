//! Resources of a container that it can be told.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceFieldSelector, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::Quantity as Exact;

/// Quantities by resource name.
type Resources = BTreeMap<String, Quantity>;

/// Why a `resourceFieldRef` has no value. The pod must be changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceRefError {
    /// The pod has no regular or init container of that name.
    #[error("container {name} not found")]
    Container {
        /// The name asked for.
        name: String,
    },
    /// Only limits and requests of cpu, memory, ephemeral-storage and huge pages can be asked for.
    #[error("unsupported container resource: {resource}")]
    Resource {
        /// The resource asked for.
        resource: String,
    },
    /// A quantity cannot be read, is too large, or is a negative divisor.
    #[error("invalid quantity {quantity:?} for {resource}")]
    Quantity {
        /// The resource asked for.
        resource: String,
        /// The quantity.
        quantity: String,
    },
}

/// The value of a `resourceFieldRef`: the quantity divided by the divisor, rounded up.
///
/// `own` are the resources of the container that asks; `allocatable` what the node has for pods. A
/// divisor that is absent or zero counts as 1. Quantities and divisor are first rounded up to
/// thousandths of a CPU, or to whole units of anything else. A limit on cpu, memory or ephemeral
/// storage that is absent or zero is replaced by that of the pod, else by what the node has, but not
/// for an init container that is named in the reference. Anything else that is absent is `0`.
///
/// Source: kubelet 1.36, `kubelet_pods.go` and `component-helpers/resource`.
///
/// # Errors
/// As the variants say; none passes by waiting.
pub fn resource_value(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    own: Option<&ResourceRequirements>,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, ResourceRefError> {
    let asked = Asked::parse(&selector.resource)?;
    let spec = pod.spec.as_ref();
    let named = selector.container_name.as_deref().unwrap_or_default();
    let (resources, falls_back) = match named {
        "" => (own, true),
        name => find(spec, name)?,
    };
    let own = resources.and_then(|resources| asked.of(resources));
    let quantity = match own {
        Some(quantity) if asked.milli(quantity)? != 0 => Some(quantity),
        _ if falls_back && asked.falls_back() => spec
            .and_then(|spec| spec.resources.as_ref())
            .and_then(|resources| asked.of(resources))
            .or_else(|| allocatable.get(asked.name)),
        other => other,
    };
    let quantity = match quantity {
        Some(quantity) => asked.amount(quantity)?,
        None => 0,
    };
    let divisor = match &selector.divisor {
        Some(divisor) => match asked.amount(divisor)? {
            0 => asked.one(),
            amount if amount < 0 => return Err(asked.invalid(divisor)),
            amount => amount,
        },
        None => asked.one(),
    };
    Ok(divided_up(quantity, divisor).to_string())
}

/// Divides, rounding up.
fn divided_up(amount: i128, divisor: i128) -> i128 {
    -(-amount).div_euclid(divisor)
}

/// Finds a container by name, and says whether its limits may be those of the pod or node.
fn find<'p>(
    spec: Option<&'p PodSpec>,
    name: &str,
) -> Result<(Option<&'p ResourceRequirements>, bool), ResourceRefError> {
    let regular = spec.into_iter().flat_map(|spec| &spec.containers);
    let init = spec
        .into_iter()
        .filter_map(|spec| spec.init_containers.as_ref())
        .flatten();
    regular
        .map(|container| (container, true))
        .chain(init.map(|container| (container, false)))
        .find(|(container, _)| container.name == name)
        .map(|(container, falls_back)| (container.resources.as_ref(), falls_back))
        .ok_or_else(|| ResourceRefError::Container { name: name.to_owned() })
}

/// What a selector asks for.
#[derive(Clone, Copy)]
struct Asked<'a> {
    limits: bool,
    name: &'a str,
}

impl<'a> Asked<'a> {
    fn parse(resource: &'a str) -> Result<Self, ResourceRefError> {
        let asked = match resource.split_once('.') {
            Some(("limits", name)) => Self { limits: true, name },
            Some(("requests", name)) => Self { limits: false, name },
            _ => Self {
                limits: false,
                name: "",
            },
        };
        if asked.is_compute() || asked.name.starts_with("hugepages-") {
            Ok(asked)
        } else {
            Err(ResourceRefError::Resource {
                resource: resource.to_owned(),
            })
        }
    }

    fn is_compute(self) -> bool {
        matches!(self.name, "cpu" | "memory" | "ephemeral-storage")
    }

    fn falls_back(self) -> bool {
        self.limits && self.is_compute()
    }

    fn of(self, resources: &ResourceRequirements) -> Option<&Quantity> {
        let lists: &Option<Resources> = if self.limits {
            &resources.limits
        } else {
            &resources.requests
        };
        lists.as_ref()?.get(self.name)
    }

    /// The number 1 in the unit of [`amount`](Self::amount).
    fn one(self) -> i128 {
        if self.name == "cpu" { 1000 } else { 1 }
    }

    /// Thousandths of a CPU, or whole units of anything else, rounded up.
    fn amount(self, quantity: &Quantity) -> Result<i128, ResourceRefError> {
        let milli = self.milli(quantity)?;
        Ok(divided_up(milli, 1000 / self.one()))
    }

    fn milli(self, quantity: &Quantity) -> Result<i128, ResourceRefError> {
        let exact = Exact::try_from(quantity).map_err(|_| self.invalid(quantity))?;
        Ok(i128::from(exact.milli_value()))
    }

    fn invalid(self, quantity: &Quantity) -> ResourceRefError {
        ResourceRefError::Quantity {
            resource: self.name.to_owned(),
            quantity: quantity.0.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceFieldSelector, ResourceRequirements};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::{ResourceRefError, resource_value};

    fn quantities(entries: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        let entries = entries.iter();
        entries
            .map(|(name, quantity)| ((*name).to_owned(), Quantity((*quantity).to_owned())))
            .collect()
    }

    fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ResourceRequirements {
        ResourceRequirements {
            requests: Some(quantities(requests)),
            limits: Some(quantities(limits)),
            ..ResourceRequirements::default()
        }
    }

    fn container(name: &str, resources: ResourceRequirements) -> Container {
        Container {
            name: name.into(),
            resources: Some(resources),
            ..Container::default()
        }
    }

    fn pod() -> Pod {
        Pod {
            spec: Some(PodSpec {
                containers: vec![container("bare", resources(&[], &[("cpu", "0")]))],
                init_containers: Some(vec![container("init", resources(&[], &[]))]),
                resources: Some(resources(&[], &[("memory", "1Gi")])),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn value(container: &str, resource: &str, divisor: &str) -> Result<String, ResourceRefError> {
        let own = resources(
            &[("cpu", "125m"), ("memory", "64Mi")],
            &[
                ("cpu", "250m"),
                ("memory", "100M"),
                ("hugepages-2Mi", "4Mi"),
                ("ephemeral-storage", "0.5"),
            ],
        );
        let selector = ResourceFieldSelector {
            container_name: (!container.is_empty()).then(|| container.to_owned()),
            divisor: (!divisor.is_empty()).then(|| Quantity(divisor.to_owned())),
            resource: resource.to_owned(),
        };
        let allocatable = quantities(&[
            ("cpu", "3900m"),
            ("memory", "8Gi"),
            ("ephemeral-storage", "10G"),
            ("hugepages-2Mi", "1Gi"),
        ]);
        resource_value(&selector, &pod(), Some(&own), &allocatable)
    }

    #[test]
    fn values_are_divided_and_rounded_up() {
        for (container, resource, divisor, expected) in [
            ("", "limits.cpu", "", "1"),
            ("", "limits.cpu", "1", "1"),
            ("", "limits.cpu", "0", "1"),
            ("", "limits.cpu", "1m", "250"),
            ("", "requests.cpu", "1m", "125"),
            ("", "limits.memory", "", "100000000"),
            ("", "limits.memory", "1Mi", "96"),
            ("", "requests.memory", "1Mi", "64"),
            ("", "limits.hugepages-2Mi", "1Mi", "4"),
            ("", "limits.ephemeral-storage", "", "1"),
            ("", "requests.ephemeral-storage", "", "0"),
            ("bare", "limits.cpu", "1m", "3900"),
            ("bare", "limits.memory", "1Mi", "1024"),
            ("bare", "limits.ephemeral-storage", "1G", "10"),
            ("bare", "limits.hugepages-2Mi", "", "0"),
            ("bare", "requests.memory", "", "0"),
            ("init", "limits.cpu", "1m", "0"),
            ("init", "limits.memory", "", "0"),
        ] {
            let got = value(container, resource, divisor);
            assert_eq!(got.as_deref(), Ok(expected), "{container} {resource} / {divisor}");
        }
    }

    #[test]
    fn what_cannot_be_answered_is_said() {
        let missing = value("none", "limits.cpu", "").unwrap_err();
        assert_eq!(missing.to_string(), "container none not found");
        for resource in ["limits.pods", "cpu", "limits", "limits.nvidia.com/gpu", "x.cpu"] {
            let error = value("", resource, "").unwrap_err();
            assert!(matches!(error, ResourceRefError::Resource { .. }), "{resource}");
        }
        for divisor in ["-1", "x", "1e99"] {
            let error = value("", "limits.cpu", divisor).unwrap_err();
            assert!(matches!(error, ResourceRefError::Quantity { .. }), "{divisor}");
        }
    }
}
