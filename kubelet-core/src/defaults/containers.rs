//! Fields of containers.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle, Probe,
};

use super::image::pull_policy;
use super::{set_number, set_text};

pub(super) fn set(container: &mut Container) {
    set_image(&mut container.image_pull_policy, container.image.as_deref());
    set_termination(
        &mut container.termination_message_path,
        &mut container.termination_message_policy,
    );
    set_ports(container.ports.as_mut());
    set_env(container.env.as_mut());
    set_probe(container.liveness_probe.as_mut());
    set_probe(container.readiness_probe.as_mut());
    set_probe(container.startup_probe.as_mut());
    set_lifecycle(container.lifecycle.as_mut());
}

/// The same fields: both kinds of container have them, in two types.
pub(super) fn set_ephemeral(container: &mut EphemeralContainer) {
    set_image(&mut container.image_pull_policy, container.image.as_deref());
    set_termination(
        &mut container.termination_message_path,
        &mut container.termination_message_policy,
    );
    set_ports(container.ports.as_mut());
    set_env(container.env.as_mut());
    set_probe(container.liveness_probe.as_mut());
    set_probe(container.readiness_probe.as_mut());
    set_probe(container.startup_probe.as_mut());
    set_lifecycle(container.lifecycle.as_mut());
}

fn set_image(policy: &mut Option<String>, image: Option<&str>) {
    set_text(policy, pull_policy(image.unwrap_or_default()));
}

fn set_termination(path: &mut Option<String>, policy: &mut Option<String>) {
    set_text(path, "/dev/termination-log");
    set_text(policy, "File");
}

fn set_ports(ports: Option<&mut Vec<ContainerPort>>) {
    for port in ports.into_iter().flatten() {
        set_text(&mut port.protocol, "TCP");
    }
}

fn set_env(env: Option<&mut Vec<EnvVar>>) {
    for variable in env.into_iter().flatten() {
        let Some(from) = &mut variable.value_from else {
            continue;
        };
        if let Some(field) = &mut from.field_ref {
            set_text(&mut field.api_version, "v1");
        }
        if let Some(file) = &mut from.file_key_ref {
            file.optional.get_or_insert(false);
        }
    }
}

fn set_probe(probe: Option<&mut Probe>) {
    let Some(probe) = probe else { return };
    set_number(&mut probe.timeout_seconds, 1);
    set_number(&mut probe.period_seconds, 10);
    set_number(&mut probe.success_threshold, 1);
    set_number(&mut probe.failure_threshold, 3);
    set_http(probe.http_get.as_mut());
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn set_lifecycle(lifecycle: Option<&mut Lifecycle>) {
    let Some(lifecycle) = lifecycle else { return };
    for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop] {
        set_http(hook.as_mut().and_then(|hook| hook.http_get.as_mut()));
    }
}

fn set_http(http: Option<&mut HTTPGetAction>) {
    let Some(http) = http else { return };
    set_text(&mut http.path, "/");
    set_text(&mut http.scheme, "HTTP");
}
