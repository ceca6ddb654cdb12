//! Where references can hide.

use k8s_openapi::api::core::v1::{LocalObjectReference, PodSpec, Volume, VolumeProjection};

use super::ApiReference;
use crate::validation::containers::all_containers;

/// What a source of a projected volume needs.
pub(super) enum Projection {
    /// Nothing of the API, or something that was looked for already.
    Local,
    Api(ApiReference),
    Unknown,
}

pub(super) fn names_account(spec: &PodSpec) -> bool {
    [&spec.service_account_name, &spec.service_account]
        .into_iter()
        .flatten()
        .any(|name| !name.is_empty())
}

pub(super) fn names_secret(spec: &PodSpec) -> bool {
    let pulls = spec.image_pull_secrets.iter().flatten();
    pulls.into_iter().any(|secret| !secret.name.is_empty())
        || all_containers(spec).any(|(_, container)| {
            let env = container.env.iter().flatten();
            let mut env = env.filter_map(|variable| variable.value_from.as_ref());
            let mut from = container.env_from.iter().flatten();
            env.any(|from| from.secret_key_ref.is_some()) || from.any(|from| from.secret_ref.is_some())
        })
        || spec.volumes.iter().flatten().any(volume_names_secret)
}

fn volume_names_secret(volume: &Volume) -> bool {
    fn set(secret: Option<&LocalObjectReference>) -> bool {
        secret.is_some_and(|secret| !secret.name.is_empty())
    }
    macro_rules! secret_of {
        ($($source:ident $field:ident),+) => {
            $(set(volume.$source.as_ref().and_then(|source| source.$field.as_ref())))||+
        };
    }
    volume.secret.is_some()
        || projections(volume).any(|source| source.secret.is_some())
        || volume.azure_file.is_some()
        || set(volume.scale_io.as_ref().map(|source| &source.secret_ref))
        || secret_of!(
            cephfs secret_ref, cinder secret_ref, flex_volume secret_ref, rbd secret_ref, iscsi secret_ref,
            storageos secret_ref, csi node_publish_secret_ref
        )
}

pub(super) fn names_config_map(spec: &PodSpec) -> bool {
    all_containers(spec).any(|(_, container)| {
        let env = container.env.iter().flatten();
        let mut env = env.filter_map(|variable| variable.value_from.as_ref());
        let mut from = container.env_from.iter().flatten();
        env.any(|from| from.config_map_key_ref.is_some()) || from.any(|from| from.config_map_ref.is_some())
    }) || spec
        .volumes
        .iter()
        .flatten()
        .any(|volume| volume.config_map.is_some() || projections(volume).any(|source| source.config_map.is_some()))
}

pub(super) fn volume_kind(volume: &Volume) -> Option<ApiReference> {
    let kinds = [
        (volume.csi.is_some(), ApiReference::CsiDrivers),
        (volume.glusterfs.is_some(), ApiReference::Endpoints),
        (
            volume.persistent_volume_claim.is_some(),
            ApiReference::PersistentVolumeClaims,
        ),
        (volume.ephemeral.is_some(), ApiReference::EphemeralVolumes),
    ];
    kinds.into_iter().find_map(|(set, kind)| set.then_some(kind))
}

pub(super) fn projection(source: &VolumeProjection) -> Projection {
    if source.service_account_token.is_some() {
        Projection::Api(ApiReference::ServiceAccountTokens)
    } else if source.cluster_trust_bundle.is_some() {
        Projection::Api(ApiReference::ClusterTrustBundles)
    } else if source.pod_certificate.is_some() {
        Projection::Api(ApiReference::PodCertificates)
    } else if source.secret.is_some() || source.config_map.is_some() || source.downward_api.is_some() {
        Projection::Local
    } else {
        Projection::Unknown
    }
}

fn projections(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    let projected = volume.projected.iter();
    projected.flat_map(|projected| projected.sources.iter().flatten())
}
