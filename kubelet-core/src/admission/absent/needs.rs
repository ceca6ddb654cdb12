//! What a pod needs, and which of it is not there.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{LifecycleHandler, PodSpec, Probe, VolumeProjection};

use super::Abilities;
use crate::admission::NodeView;
use crate::admission::node_fit::is_extended;
use crate::objects::ObjectKind;
use crate::pod::{ContainerKind, ContainerView, PodRecord, made_volumes};

/// Something that a pod needs and the node lacks.
#[derive(Debug)]
pub(super) struct Unmet<'a> {
    need: &'static str,
    names: BTreeSet<&'a str>,
    lack: &'static str,
}

impl fmt::Display for Unmet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod needs {} (", self.need)?;
        for (index, name) in self.names.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name:?}")?;
        }
        write!(f, "), and this node has {}", self.lack)
    }
}

/// All that the pod needs and the node lacks.
pub(super) fn unmet<'a>(pod: &'a PodRecord, able: &Abilities, node: &NodeView) -> Vec<Unmet<'a>> {
    let spec = pod.spec();
    let containers: Vec<_> = pod
        .containers()
        .filter(|c| c.kind() != ContainerKind::Ephemeral)
        .collect();
    let having = |test: fn(&ContainerView<'_>) -> bool| -> BTreeSet<&'a str> {
        containers.iter().filter(|c| test(c)).map(ContainerView::name).collect()
    };
    let serves = |kind| able.objects.contains(&kind);
    let checks: [(bool, &'static str, BTreeSet<&'a str>, &'static str); 13] = [
        (
            able.volumes,
            "volumes",
            // Those that are images need no more than a runtime that can mount them, which is asked later.
            made_volumes(spec).map(|volume| volume.name.as_str()).collect(),
            "no volume manager (kubelet-volume)",
        ),
        (
            able.exec_probes,
            "exec probes",
            having(|c| any_probe(c, |probe| probe.exec.is_some())),
            "no probe manager (kubelet-core)",
        ),
        (
            able.network_probes,
            "HTTP, TCP or gRPC probes",
            having(|c| any_probe(c, is_network_probe)),
            "no prober (kubelet-probe)",
        ),
        (
            able.http_hooks,
            "HTTP hooks",
            having(|c| any_hook(c, |hook| hook.http_get.is_some())),
            "no HTTP client (kubelet-probe)",
        ),
        // The API still has the field, but no kubelet ever acted on it.
        (
            false,
            "TCP hooks",
            having(|c| any_hook(c, |hook| hook.tcp_socket.is_some())),
            "no such thing, as no kubelet has",
        ),
        (
            able.devices,
            "devices",
            devices(&containers, node),
            "no device manager (kubelet-deviceplugin)",
        ),
        (
            able.resource_claims,
            "resource claims",
            spec.resource_claims.iter().flatten().map(|c| c.name.as_str()).collect(),
            "no dynamic resource allocation (kubelet-deviceplugin)",
        ),
        (
            serves(ObjectKind::Secret),
            "image pull secrets",
            spec.image_pull_secrets
                .iter()
                .flatten()
                .map(|secret| secret.name.as_str())
                .filter(|name| !name.is_empty())
                .collect(),
            "no object source that serves them (DirectoryObjects or kubelet-apiserver)",
        ),
        (
            serves(ObjectKind::Secret),
            "secrets",
            secrets(&containers).chain(volume_secrets(spec)).collect(),
            "no object source that serves them (DirectoryObjects or kubelet-apiserver)",
        ),
        (
            serves(ObjectKind::ConfigMap),
            "config maps",
            config_maps(&containers).chain(volume_config_maps(spec)).collect(),
            "no object source that serves them (DirectoryObjects or kubelet-apiserver)",
        ),
        (
            serves(ObjectKind::PersistentVolumeClaim) && serves(ObjectKind::PersistentVolume),
            "persistent volume claims",
            made_volumes(spec)
                .filter(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
                .map(|volume| volume.name.as_str())
                .collect(),
            "no object source that serves them (DirectoryObjects or kubelet-apiserver)",
        ),
        (
            able.tokens,
            "service account tokens",
            projections(spec)
                .filter(|(_, source)| source.service_account_token.is_some())
                .map(|(volume, _)| volume)
                .collect(),
            "no source of them (kubelet-apiserver)",
        ),
        (
            serves(ObjectKind::RuntimeClass),
            "a runtime class",
            spec.runtime_class_name
                .iter()
                .map(String::as_str)
                .filter(|name| !name.is_empty())
                .collect(),
            "no object source that serves them (DirectoryObjects or kubelet-apiserver)",
        ),
    ];
    checks
        .into_iter()
        .filter(|(met, _, names, _)| !met && !names.is_empty())
        .map(|(_, need, names, lack)| Unmet { need, names, lack })
        .collect()
}

fn any_probe(container: &ContainerView<'_>, test: fn(&Probe) -> bool) -> bool {
    container.probes().into_iter().flatten().any(test)
}

fn is_network_probe(probe: &Probe) -> bool {
    probe.http_get.is_some() || probe.tcp_socket.is_some() || probe.grpc.is_some()
}

fn any_hook(container: &ContainerView<'_>, test: fn(&LifecycleHandler) -> bool) -> bool {
    container
        .lifecycle()
        .into_iter()
        .flat_map(|hooks| [&hooks.post_start, &hooks.pre_stop])
        .flatten()
        .any(test)
}

/// Extended resources that the node does not list. Fitting leaves those out, so the pod would start without them.
fn devices<'a>(containers: &[ContainerView<'a>], node: &NodeView) -> BTreeSet<&'a str> {
    containers
        .iter()
        .filter_map(ContainerView::resources)
        .flat_map(|resources| [&resources.limits, &resources.requests])
        .flatten()
        .flatten()
        .filter(|(name, amount)| is_extended(name) && amount.0 != "0" && !node.allocatable.contains_key(*name))
        .map(|(name, _)| name.as_str())
        .collect()
}

/// The sources of the projected volumes that are made, each with its volume's name.
fn projections(spec: &PodSpec) -> impl Iterator<Item = (&str, &VolumeProjection)> {
    made_volumes(spec).flat_map(|volume| {
        let projected = volume.projected.iter();
        let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
        sources.map(|source| (volume.name.as_str(), source))
    })
}

fn volume_secrets(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let volumes = made_volumes(spec).filter_map(|volume| {
        let secret = volume.secret.as_ref()?;
        required(secret.secret_name.as_deref().unwrap_or_default(), secret.optional)
    });
    let projected = projections(spec).filter_map(|(_, source)| {
        let secret = source.secret.as_ref()?;
        required(&secret.name, secret.optional)
    });
    volumes.chain(projected)
}

fn volume_config_maps(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let volumes = made_volumes(spec).filter_map(|volume| {
        let map = volume.config_map.as_ref()?;
        required(&map.name, map.optional)
    });
    let projected = projections(spec).filter_map(|(_, source)| {
        let map = source.config_map.as_ref()?;
        required(&map.name, map.optional)
    });
    volumes.chain(projected)
}

fn secrets<'a>(containers: &[ContainerView<'a>]) -> impl Iterator<Item = &'a str> {
    let keys = containers.iter().flat_map(ContainerView::env).filter_map(|var| {
        let key = var.value_from.as_ref()?.secret_key_ref.as_ref()?;
        required(&key.name, key.optional)
    });
    let sets = containers.iter().flat_map(ContainerView::env_from).filter_map(|from| {
        let set = from.secret_ref.as_ref()?;
        required(&set.name, set.optional)
    });
    keys.chain(sets)
}

fn config_maps<'a>(containers: &[ContainerView<'a>]) -> impl Iterator<Item = &'a str> {
    let keys = containers.iter().flat_map(ContainerView::env).filter_map(|var| {
        let key = var.value_from.as_ref()?.config_map_key_ref.as_ref()?;
        required(&key.name, key.optional)
    });
    let sets = containers.iter().flat_map(ContainerView::env_from).filter_map(|from| {
        let set = from.config_map_ref.as_ref()?;
        required(&set.name, set.optional)
    });
    keys.chain(sets)
}

fn required(name: &str, optional: Option<bool>) -> Option<&str> {
    (optional != Some(true)).then_some(name)
}
