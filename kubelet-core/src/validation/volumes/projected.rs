//! Projected volumes: several sources in one directory.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, PodCertificateProjection, PodSpec, ProjectedVolumeSource,
    ServiceAccountTokenProjection, VolumeProjection,
};

use super::files::{check_downward, check_items, check_mode};
use crate::validation::check::{local_file, one_of, range, required, required_name};
use crate::validation::field::{FieldErrors, FieldPath};
use crate::validation::names::NameKind;

const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
const TOKEN_SECONDS: (i64, i64) = (10 * 60, 1 << 32);
const CERTIFICATE_SECONDS: (i64, i64) = (3600, 91 * 86_400);
/// For signers of Kubernetes' own domain.
const OWN_CERTIFICATE_SECONDS: i64 = 86_400;

pub(super) fn check(
    spec: &PodSpec,
    source: Option<&ProjectedVolumeSource>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    let Some(source) = source else { return };
    check_mode(source.default_mode, path.child("defaultMode"), errors);
    let mut files = Files {
        seen: BTreeSet::new(),
        path,
    };
    for (k, projection) in source.sources.iter().flatten().enumerate() {
        let place = path.child("sources").index(k);
        check_projection(spec, projection, &mut files, &place, errors);
    }
}

/// The paths listed so far. A clash is shown at the volume, with the object that brought it.
struct Files<'a> {
    seen: BTreeSet<String>,
    path: &'a FieldPath,
}

impl Files<'_> {
    fn add(&mut self, file: &str, shown: &str, errors: &mut FieldErrors) {
        if !file.is_empty() && !self.seen.insert(file.to_owned()) {
            let detail = "conflicting duplicate paths";
            errors.invalid(self.path.clone(), shown, detail);
        }
    }
}

fn check_projection(
    spec: &PodSpec,
    source: &VolumeProjection,
    files: &mut Files<'_>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    let mut found = 0;
    if let Some(secret) = &source.secret {
        found += 1;
        let path = path.child("secret");
        required(path.child("name"), &secret.name, errors);
        check_items(secret.items.as_deref(), &path, errors);
        for item in secret.items.iter().flatten() {
            files.add(&item.path, &secret.name, errors);
        }
    }
    let next = |found: &mut i32, errors: &mut FieldErrors| {
        *found += 1;
        if *found > 1 {
            let detail = "may not specify more than 1 volume type per source";
            errors.forbidden(path.clone(), detail);
        }
        *found == 1
    };
    if let Some(map) = &source.config_map
        && next(&mut found, errors)
    {
        let path = path.child("configMap");
        required(path.child("name"), &map.name, errors);
        check_items(map.items.as_deref(), &path, errors);
        for item in map.items.iter().flatten() {
            files.add(&item.path, &map.name, errors);
        }
    }
    if let Some(downward) = &source.downward_api
        && next(&mut found, errors)
    {
        for file in downward.items.iter().flatten() {
            check_downward(file, &path.child("downwardAPI"), errors);
            files.add(&file.path, &file.path, errors);
        }
    }
    if let Some(token) = &source.service_account_token
        && next(&mut found, errors)
    {
        check_token(spec, token, files, &path.child("serviceAccountToken"), errors);
    }
    if let Some(bundle) = &source.cluster_trust_bundle
        && next(&mut found, errors)
    {
        check_bundle(bundle, &path.child("clusterTrustBundle"), errors);
        files.add(&bundle.path, &bundle.path, errors);
    }
    if let Some(certificate) = &source.pod_certificate
        && next(&mut found, errors)
    {
        check_certificate(certificate, files, &path.child("podCertificate"), errors);
    }
}

fn check_token(
    spec: &PodSpec,
    token: &ServiceAccountTokenProjection,
    files: &Files<'_>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    if spec.service_account_name.as_deref().unwrap_or_default().is_empty() {
        let detail = "must not be specified when serviceAccountName is not set";
        errors.forbidden(path.clone(), detail);
    }
    let seconds = token.expiration_seconds.unwrap_or_default();
    if seconds < TOKEN_SECONDS.0 {
        let detail = "may not specify a duration less than 10 minutes";
        errors.invalid(path.child("expirationSeconds"), seconds, detail);
    }
    if seconds > TOKEN_SECONDS.1 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(path.child("expirationSeconds"), seconds, detail);
    }
    required(files.path.child("path"), &token.path, errors);
    local_file(&files.path.child("path"), &token.path, errors);
}

fn check_bundle(bundle: &ClusterTrustBundleProjection, path: &FieldPath, errors: &mut FieldErrors) {
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    match (some(&bundle.name), some(&bundle.signer_name)) {
        (None, None) => errors.required(path.clone(), "must specify one of name and signerName"),
        (Some(name), Some(_)) => {
            let detail = "name and signerName can not be specified simultaneously";
            errors.invalid(path.child("name"), name.as_str(), detail);
        }
        (Some(name), None) => {
            // The name of a signer's bundle holds the signer, with colons for slashes.
            let own = name.rsplit_once(':').map_or(name.as_str(), |(_, own)| own);
            errors.invalid_each(&path.child("name"), &name, NameKind::Subdomain.faults(own));
        }
        (None, Some(signer)) => {
            let faults = NameKind::Signer.faults(&signer);
            errors.invalid_each(&path.child("signerName"), &signer, faults);
        }
    }
    required(path.child("path"), &bundle.path, errors);
    local_file(&path.child("path"), &bundle.path, errors);
}

fn check_certificate(
    certificate: &PodCertificateProjection,
    files: &mut Files<'_>,
    path: &FieldPath,
    errors: &mut FieldErrors,
) {
    let signer = certificate.signer_name.as_str();
    required_name(&path.child("signerName"), signer, NameKind::Signer, errors);
    one_of(path.child("keyType"), Some(&certificate.key_type), &KEY_TYPES, errors);
    if let Some(seconds) = certificate.max_expiration_seconds {
        let domain = signer.split('/').next().unwrap_or_default();
        let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let most = if own {
            OWN_CERTIFICATE_SECONDS
        } else {
            CERTIFICATE_SECONDS.1
        };
        let path = path.child("maxExpirationSeconds");
        range(path, i64::from(seconds), CERTIFICATE_SECONDS.0, most, errors);
    }
    let paths = [
        ("credentialBundlePath", &certificate.credential_bundle_path),
        ("keyPath", &certificate.key_path),
        ("certificateChainPath", &certificate.certificate_chain_path),
    ];
    let mut found = false;
    for (field, file) in paths {
        if let Some(file) = file.as_deref().filter(|file| !file.is_empty()) {
            found = true;
            local_file(&path.child(field), file, errors);
            files.add(file, file, errors);
        }
    }
    if !found {
        let detail = "must specify at least one of credentialBundlePath, keyPath and certificateChainPath";
        errors.required(path.clone(), detail);
    }
}
