//! The name a pod's host has.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::names::{is_dns_label, is_dns_subdomain};

/// Longest host name, in bytes, where a domain is kept apart.
const MAX_LABEL_BYTES: usize = 63;
/// Longest host name that the Linux kernel takes.
const MAX_KERNEL_BYTES: usize = 64;

/// Why a pod can have no host name. The pod must be changed; until then its sandbox is not made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostnameError {
    /// A field has not the form it must have.
    #[error("pod {field} {value:?} is not a valid {form}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        form: &'static str,
    },
    /// Nothing is left of the name once it is cut.
    #[error("hostname from pod name {name:?} is empty once cut to {MAX_LABEL_BYTES} characters")]
    Empty {
        /// The pod's name.
        name: String,
    },
    /// `setHostnameAsFQDN` asks for a name that the kernel does not take.
    #[error("pod FQDN {fqdn:?} is longer than {MAX_KERNEL_BYTES} characters")]
    FqdnTooLong {
        /// The full name.
        fqdn: String,
    },
}

/// The short host name of a pod, and its domain; the domain is empty if it has none.
///
/// `hostnameOverride` wins and has no domain. Otherwise the name is `hostname`, or the pod's name, and
/// a `subdomain` gives the domain `<subdomain>.<namespace>.svc.<cluster_domain>`. Names are cut to 63
/// bytes, after which dashes and dots at the end go.
///
/// Source: kubelet 1.36, `kubelet_pods.go`.
///
/// # Errors
/// [`HostnameError::Invalid`] for a field of the wrong form, [`HostnameError::Empty`] if the cut
/// leaves nothing.
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> Result<(String, String), HostnameError> {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    if let Some(name) = given(&spec.hostname_override) {
        if !is_dns_subdomain(name) {
            return Err(invalid("hostnameOverride", name, "DNS subdomain"));
        }
        return Ok((cut(name)?, String::new()));
    }
    let hostname = match given(&spec.hostname) {
        Some(name) if !is_dns_label(name) => return Err(invalid("hostname", name, "DNS label")),
        Some(name) => cut(name)?,
        None => cut(pod.metadata.name.as_deref().unwrap_or_default())?,
    };
    let domain = match given(&spec.subdomain) {
        Some(name) if !is_dns_label(name) => return Err(invalid("subdomain", name, "DNS label")),
        Some(name) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            format!("{name}.{namespace}.svc.{cluster_domain}")
        }
        None => String::new(),
    };
    Ok((hostname, domain))
}

/// The host name the sandbox is made with; none for a pod in the host's network.
///
/// It is the full name if `setHostnameAsFQDN` is set and there is a domain, else the short one.
///
/// Source: kubelet 1.36, `kuberuntime_sandbox.go`.
///
/// # Errors
/// [`HostnameError::FqdnTooLong`] if the full name has more than 64 bytes.
pub fn sandbox_hostname(pod: &Pod, hostname: &str, domain: &str) -> Result<Option<String>, HostnameError> {
    let flag = |of: fn(&PodSpec) -> Option<bool>| pod.spec.as_ref().and_then(of) == Some(true);
    if flag(|spec| spec.host_network) {
        return Ok(None);
    }
    if domain.is_empty() || !flag(|spec| spec.set_hostname_as_fqdn) {
        return Ok(Some(hostname.to_owned()));
    }
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > MAX_KERNEL_BYTES {
        return Err(HostnameError::FqdnTooLong { fqdn });
    }
    Ok(Some(fqdn))
}

fn given(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

fn invalid(field: &'static str, value: &str, form: &'static str) -> HostnameError {
    HostnameError::Invalid {
        field,
        value: value.to_owned(),
        form,
    }
}

fn cut(name: &str) -> Result<String, HostnameError> {
    let mut short = name;
    if name.len() > MAX_LABEL_BYTES {
        // Names are ASCII; one that is not, and would be cut inside a character, counts as empty.
        let start = name.get(..MAX_LABEL_BYTES).unwrap_or_default();
        short = start.trim_end_matches(['-', '.']);
    }
    if short.is_empty() {
        return Err(HostnameError::Empty { name: name.to_owned() });
    }
    Ok(short.to_owned())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, PodSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::{HostnameError, hostname_and_domain, sandbox_hostname};

    fn pod(name: &str, spec: PodSpec) -> Pod {
        Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("shop".into()),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            ..Pod::default()
        }
    }

    fn spec(hostname: &str, subdomain: &str, replaced_by: &str) -> PodSpec {
        PodSpec {
            hostname: Some(hostname.into()),
            subdomain: Some(subdomain.into()),
            hostname_override: Some(replaced_by.into()),
            ..PodSpec::default()
        }
    }

    #[test]
    fn names_and_domains() {
        let long = format!("{}-.b", "a".repeat(61));
        let at_limit = "a".repeat(63);
        let cases = [
            ("web", spec("", "", ""), ("web", "")),
            ("web", spec("front", "", ""), ("front", "")),
            ("web", spec("", "sub", ""), ("web", "sub.shop.svc.cluster.local")),
            (
                "web",
                spec("front", "sub", "full.example.com"),
                ("full.example.com", ""),
            ),
            (&long, spec("", "", ""), (&at_limit[..61], "")),
            ("web", spec("", "", &long.replace("-.", "a.")), (&at_limit[..62], "")),
            (&at_limit, spec("", "", ""), (&at_limit, "")),
        ];
        for (name, spec, (hostname, domain)) in cases {
            let got = hostname_and_domain(&pod(name, spec.clone()), "cluster.local");
            let expected = (hostname.to_owned(), domain.to_owned());
            assert_eq!(got, Ok(expected), "{name} {spec:?}");
        }
    }

    #[test]
    fn fields_of_the_wrong_form_are_named() {
        for (spec, field) in [
            (spec("A", "", ""), "hostname"),
            (spec("a.b", "", ""), "hostname"),
            (spec("", "a.b", ""), "subdomain"),
            (spec("", "", "A"), "hostnameOverride"),
        ] {
            let error = hostname_and_domain(&pod("web", spec), "x").unwrap_err();
            let HostnameError::Invalid { field: named, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(*named, field);
        }
        for name in ["".to_owned(), "-".repeat(70)] {
            let error = hostname_and_domain(&pod(&name, PodSpec::default()), "x").unwrap_err();
            assert!(matches!(error, HostnameError::Empty { .. }));
        }
    }

    #[test]
    fn the_sandbox_gets_the_full_name_when_asked_for() {
        let with = |fqdn: bool, host_network: bool| {
            let spec = PodSpec {
                set_hostname_as_fqdn: Some(fqdn),
                host_network: Some(host_network),
                ..PodSpec::default()
            };
            pod("web", spec)
        };
        let name = |pod: &Pod, host: &str, domain: &str| sandbox_hostname(pod, host, domain);
        assert_eq!(name(&with(false, false), "web", "d"), Ok(Some("web".into())));
        assert_eq!(name(&with(true, false), "web", "d"), Ok(Some("web.d".into())));
        assert_eq!(name(&with(true, false), "web", ""), Ok(Some("web".into())));
        assert_eq!(name(&with(true, true), "web", "d"), Ok(None));
        let fits = "d".repeat(60);
        let full = format!("web.{fits}");
        assert_eq!(name(&with(true, false), "web", &fits), Ok(Some(full)));
        let error = name(&with(true, false), "webs", &fits).unwrap_err();
        assert!(matches!(error, HostnameError::FqdnTooLong { .. }));
    }
}
