//! Fields of the pod itself, and what converting to upstream's internal form and back changes.

use k8s_openapi::api::core::v1::{PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{lasting_containers, set_text};

/// Written by releases that kept init containers in annotations; never read again.
const DROPPED_ANNOTATIONS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-container-statuses",
];

pub(super) fn set(spec: &mut PodSpec) {
    spec.enable_service_links.get_or_insert(true);
    if spec.host_network == Some(true) {
        for container in lasting_containers(spec) {
            for port in container.ports.iter_mut().flatten() {
                if port.host_port.unwrap_or_default() == 0 {
                    port.host_port = Some(port.container_port);
                }
            }
        }
    }
    set_text(&mut spec.dns_policy, "ClusterFirst");
    set_text(&mut spec.restart_policy, "Always");
    set_text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
}

pub(super) fn convert_spec(spec: &mut PodSpec) {
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let account = named(&spec.service_account_name).or_else(|| named(&spec.service_account));
    spec.service_account_name.clone_from(&account);
    spec.service_account = account;
    if let Some(grace) = &mut spec.termination_grace_period_seconds
        && *grace < 0
    {
        *grace = 1;
    }
}

pub(super) fn convert_metadata(metadata: &mut ObjectMeta) {
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| !DROPPED_ANNOTATIONS.contains(&key.as_str()));
    }
}

pub(super) fn convert_status(status: &mut PodStatus) {
    let ip = status.pod_ip.clone().filter(|ip| !ip.is_empty());
    let ips = status.pod_ips.get_or_insert_default();
    if let Some(ip) = ip
        && ips.is_empty()
    {
        ips.push(PodIP { ip });
    }
    if ips.is_empty() {
        status.pod_ips = None;
    }
}
