//! What a pod needs from an API server.

mod find;

use k8s_openapi::api::core::v1::Pod;

/// A kind of object, or a way of using one, that a node can usually only get from an API server.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum ApiReference {
    /// The pod runs under a service account.
    ServiceAccounts,
    /// A secret, in the environment, in a volume, for a pull or for a volume's driver.
    Secrets,
    /// A config map, in the environment or in a volume.
    ConfigMaps,
    /// Dynamic resource claims.
    ResourceClaims,
    /// A CSI driver, named by an inline volume.
    CsiDrivers,
    /// Endpoints, named by a glusterFS volume.
    Endpoints,
    /// A persistent volume claim.
    PersistentVolumeClaims,
    /// A claim that would have to be created for the pod.
    EphemeralVolumes,
    /// A token in a projected volume.
    ServiceAccountTokens,
    /// Trust anchors in a projected volume.
    ClusterTrustBundles,
    /// A certificate in a projected volume.
    PodCertificates,
}

impl ApiReference {
    /// How the refusal names it.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::ServiceAccounts => "serviceaccounts",
            Self::Secrets => "secrets",
            Self::ConfigMaps => "configmaps",
            Self::ResourceClaims => "resourceclaims",
            Self::CsiDrivers => "csidrivers (via CSI volumes)",
            Self::Endpoints => "endpoints (via glusterFS volumes)",
            Self::PersistentVolumeClaims => "persistentvolumeclaims",
            Self::EphemeralVolumes => "persistentvolumeclaims (via ephemeral volumes)",
            Self::ServiceAccountTokens => "serviceaccounts (via projected volumes)",
            Self::ClusterTrustBundles => "clustertrustbundles",
            Self::PodCertificates => "podcertificates",
        }
    }
}

/// Why a static pod may not run here: it needs objects that nothing local serves. The person who wrote it has to
/// change it, or the node has to be given a local source.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StaticReferenceError {
    /// A reference to something only an API server has.
    #[error("static pods may not reference {}", .0.description())]
    NotServed(ApiReference),
    /// A projected volume with a source that sets nothing known.
    #[error("unknown source for projected volume \"{volume}\"")]
    UnknownProjection {
        /// The volume's name.
        volume: String,
    },
}

/// Refuses a static pod that references what `served` does not answer for.
///
/// `served` says whether a local source of objects serves a kind; with one that always says no, this is upstream's
/// rule. The pod is expected to be valid.
///
/// Source: kubelet 1.36, `config/common.go` with `PreventStaticPodAPIReferences`.
///
/// # Errors
/// The first reference that is not served, in upstream's order.
pub fn refuse_api_references(pod: &Pod, served: &dyn Fn(ApiReference) -> bool) -> Result<(), StaticReferenceError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let refuse = |kind| {
        if served(kind) {
            Ok(())
        } else {
            Err(StaticReferenceError::NotServed(kind))
        }
    };
    if find::names_account(spec) {
        refuse(ApiReference::ServiceAccounts)?;
    }
    if find::names_secret(spec) {
        refuse(ApiReference::Secrets)?;
    }
    if find::names_config_map(spec) {
        refuse(ApiReference::ConfigMaps)?;
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        refuse(ApiReference::ResourceClaims)?;
    }
    for volume in spec.volumes.iter().flatten() {
        if let Some(kind) = find::volume_kind(volume) {
            refuse(kind)?;
        }
        let projected = volume.projected.as_ref();
        for source in projected
            .and_then(|projected| projected.sources.as_ref())
            .into_iter()
            .flatten()
        {
            match find::projection(source) {
                find::Projection::Local => {}
                find::Projection::Api(kind) => refuse(kind)?,
                find::Projection::Unknown => {
                    let volume = volume.name.clone();
                    return Err(StaticReferenceError::UnknownProjection { volume });
                }
            }
        }
    }
    Ok(())
}
