//! Fields of the pod that a container can be told.

mod quoting;

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ObjectFieldSelector, Pod, PodSpec};

use super::names::is_qualified_name;
use quoting::quoted;

/// Where the values of `fieldRef`s come from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PodFields<'a> {
    /// The pod. Its UID is the one shown; for a static pod that is the static UID.
    pub pod: &'a Pod,
    /// The node, for pods that do not say so themselves.
    pub node_name: &'a str,
    /// The addresses of the node, the primary one first.
    pub host_ips: Vec<IpAddr>,
    /// The addresses of the pod, as the runtime reports them. A pod in the host's network without any
    /// is given those of the host.
    pub pod_ips: Vec<IpAddr>,
}

/// Why a `fieldRef` has no value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldRefError {
    /// Field paths are those of version `v1` only. The pod must be changed.
    #[error("unsupported version {version:?} in fieldRef")]
    Version {
        /// The version asked for.
        version: String,
    },
    /// There is no such field, or it cannot be used this way. The pod must be changed.
    #[error("unsupported fieldPath: {path}")]
    Path {
        /// The path asked for.
        path: String,
    },
    /// The key is no valid key of a label or annotation. The pod must be changed.
    #[error("invalid key subscript in {path}")]
    Key {
        /// The path asked for.
        path: String,
    },
    /// The node does not know its address yet. Waiting helps.
    #[error("the address of the node is not known yet, needed for {path}")]
    NoHostIp {
        /// The path asked for.
        path: String,
    },
}

impl<'a> PodFields<'a> {
    /// Starts without addresses.
    pub fn new(pod: &'a Pod, node_name: &'a str) -> Self {
        Self {
            pod,
            node_name,
            host_ips: Vec::new(),
            pod_ips: Vec::new(),
        }
    }

    /// Adds the addresses of the node, the primary one first.
    #[must_use]
    pub fn with_host_ips(mut self, ips: impl IntoIterator<Item = IpAddr>) -> Self {
        self.host_ips = ips.into_iter().collect();
        self
    }

    /// Adds the addresses of the pod.
    #[must_use]
    pub fn with_pod_ips(mut self, ips: impl IntoIterator<Item = IpAddr>) -> Self {
        self.pod_ips = ips.into_iter().collect();
        self
    }

    /// The addresses shown to the pod: the first of the node's primary family, then the first of the other.
    pub fn shown_pod_ips(&self) -> Vec<IpAddr> {
        let in_host_network = self.spec().is_some_and(|spec| spec.host_network == Some(true));
        let ips = if self.pod_ips.is_empty() && in_host_network {
            &self.host_ips
        } else {
            &self.pod_ips
        };
        let Some(primary) = self.host_ips.first().or_else(|| ips.first()) else {
            return Vec::new();
        };
        let first = |alike: bool| ips.iter().find(|ip| (ip.is_ipv4() == primary.is_ipv4()) == alike);
        first(true).into_iter().chain(first(false)).copied().collect()
    }

    /// The value of a field.
    ///
    /// A label or annotation that is absent is empty. All labels or annotations come as lines
    /// `key="value"`, sorted, the value quoted as a Go string.
    ///
    /// Source: kubelet 1.36, `kubelet_pods.go` and `fieldpath.go`.
    ///
    /// # Errors
    /// [`FieldRefError::NoHostIp`] can pass; after any other the pod must be changed.
    pub fn value(&self, field: &ObjectFieldSelector) -> Result<String, FieldRefError> {
        if let Some(version) = field.api_version.as_deref()
            && !matches!(version, "" | "v1")
        {
            return Err(FieldRefError::Version {
                version: version.to_owned(),
            });
        }
        let path = field.field_path.as_str();
        match subscript(path) {
            Some((map, key)) => self.entry(path, map, key),
            None => self.plain(path),
        }
    }

    fn entry(&self, path: &str, map: &str, key: &str) -> Result<String, FieldRefError> {
        let metadata = &self.pod.metadata;
        let (map, valid) = match map {
            "metadata.labels" => (&metadata.labels, is_qualified_name(key)),
            // Annotations may be written with capitals in the prefix.
            "metadata.annotations" => (&metadata.annotations, is_qualified_name(&key.to_ascii_lowercase())),
            _ => return Err(unsupported(path)),
        };
        if !valid {
            return Err(FieldRefError::Key { path: path.to_owned() });
        }
        let value = map.as_ref().and_then(|map| map.get(key));
        Ok(value.cloned().unwrap_or_default())
    }

    fn plain(&self, path: &str) -> Result<String, FieldRefError> {
        let metadata = &self.pod.metadata;
        let spec = self.spec();
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let no_host_ip = || FieldRefError::NoHostIp { path: path.to_owned() };
        Ok(match path {
            "metadata.name" => text(&metadata.name),
            "metadata.namespace" => text(&metadata.namespace),
            "metadata.uid" => text(&metadata.uid),
            "metadata.labels" => lines(metadata.labels.as_ref()),
            "metadata.annotations" => lines(metadata.annotations.as_ref()),
            "spec.nodeName" | "spec.host" => spec
                .and_then(|spec| spec.node_name.clone())
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| self.node_name.to_owned()),
            "spec.serviceAccountName" => spec
                .and_then(|spec| spec.service_account_name.clone())
                .unwrap_or_default(),
            "status.hostIP" => self.host_ips.first().ok_or_else(no_host_ip)?.to_string(),
            "status.hostIPs" if self.host_ips.is_empty() => return Err(no_host_ip()),
            "status.hostIPs" => joined(&self.host_ips),
            "status.podIP" => joined(self.shown_pod_ips().get(..1).unwrap_or_default()),
            "status.podIPs" => joined(&self.shown_pod_ips()),
            _ => return Err(unsupported(path)),
        })
    }

    fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }
}

impl FieldRefError {
    /// Whether asking again can help while the pod stays as it is.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self, FieldRefError::NoHostIp { .. })
    }
}

fn unsupported(path: &str) -> FieldRefError {
    FieldRefError::Path { path: path.to_owned() }
}

/// Takes `map['key']` apart.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

fn joined(ips: &[IpAddr]) -> String {
    let texts: Vec<_> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(",")
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<_> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use k8s_openapi::api::core::v1::{ObjectFieldSelector, Pod, PodSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::{FieldRefError, PodFields};

    fn field(path: &str) -> ObjectFieldSelector {
        ObjectFieldSelector {
            api_version: Some("v1".into()),
            field_path: path.into(),
        }
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn pod() -> Pod {
        let map = |entries: &[(&str, &str)]| {
            let entries = entries.iter();
            Some(BTreeMap::from_iter(
                entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
            ))
        };
        Pod {
            metadata: ObjectMeta {
                name: Some("web".into()),
                namespace: Some("shop".into()),
                uid: Some("u-1".into()),
                labels: map(&[("app", "web"), ("example.com/tier", "1")]),
                annotations: map(&[("b", "two\nlines"), ("a", "say \"hi\"")]),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                service_account_name: Some("robot".into()),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    #[test]
    fn each_supported_field_has_its_value() {
        let pod = pod();
        let fields = PodFields::new(&pod, "edge-7")
            .with_host_ips(ips(&["10.0.0.7", "fd00::7"]))
            .with_pod_ips(ips(&["fd01::1", "10.1.0.1", "10.1.0.2"]));
        for (path, expected) in [
            ("metadata.name", "web"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u-1"),
            ("metadata.labels", "app=\"web\"\nexample.com/tier=\"1\""),
            ("metadata.annotations", "a=\"say \\\"hi\\\"\"\nb=\"two\\nlines\""),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['example.com/tier']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['b']", "two\nlines"),
            ("metadata.annotations['Example.COM/x']", ""),
            ("spec.nodeName", "edge-7"),
            ("spec.host", "edge-7"),
            ("spec.serviceAccountName", "robot"),
            ("status.hostIP", "10.0.0.7"),
            ("status.hostIPs", "10.0.0.7,fd00::7"),
            ("status.podIP", "10.1.0.1"),
            ("status.podIPs", "10.1.0.1,fd01::1"),
        ] {
            assert_eq!(fields.value(&field(path)).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn other_paths_are_refused() {
        let pod = pod();
        let fields = PodFields::new(&pod, "edge-7");
        for path in [
            "spec.restartPolicy",
            "spec.schedulerName",
            "status.phase",
            "spec.nodeName['x']",
            "metadata.labels['x",
            "",
        ] {
            let error = fields.value(&field(path)).unwrap_err();
            assert_eq!(error.to_string(), format!("unsupported fieldPath: {path}"));
            assert!(!error.is_retryable());
        }
        for path in ["metadata.labels['']", "metadata.labels['Example.COM/x']"] {
            let error = fields.value(&field(path)).unwrap_err();
            assert!(matches!(error, FieldRefError::Key { .. }), "{path}");
        }
        let other = ObjectFieldSelector {
            api_version: Some("v2".into()),
            field_path: "metadata.name".into(),
        };
        assert!(matches!(fields.value(&other), Err(FieldRefError::Version { .. })));
    }

    #[test]
    fn addresses_that_are_not_known_yet() {
        let mut pod = pod();
        let fields = PodFields::new(&pod, "edge-7");
        assert_eq!(fields.value(&field("status.podIP")).unwrap(), "");
        assert_eq!(fields.value(&field("status.podIPs")).unwrap(), "");
        assert!(fields.value(&field("status.hostIP")).unwrap_err().is_retryable());
        assert!(fields.value(&field("status.hostIPs")).unwrap_err().is_retryable());
        pod.spec.as_mut().unwrap().host_network = Some(true);
        let fields = PodFields::new(&pod, "edge-7").with_host_ips(ips(&["10.0.0.7"]));
        assert_eq!(fields.value(&field("status.podIP")).unwrap(), "10.0.0.7");
    }
}
