//! Fields of the pod itself.

mod dns;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;

pub(super) use dns::{check_config, check_policy};

use super::check::{known_only, name, one_of, range, required_name};
use super::field::{FieldErrors, FieldPath};
use super::names::NameKind;

const MIRROR: &str = "kubernetes.io/config.mirror";
const HOSTNAME_BYTES: usize = 64;

pub(super) fn check_grace(spec: &PodSpec, errors: &mut FieldErrors) {
    if spec.termination_grace_period_seconds.is_none() {
        let path = FieldPath::new("spec").child("terminationGracePeriodSeconds");
        errors.required(path, "");
    }
}

/// The names of the pod's resource claims.
pub(super) fn check_claims<'a>(
    spec: &'a PodSpec,
    annotations: Option<&BTreeMap<String, String>>,
    errors: &mut FieldErrors,
) -> BTreeSet<&'a str> {
    let list = FieldPath::new("spec").child("resourceClaims");
    let claims = spec.resource_claims.as_deref().unwrap_or_default();
    if !claims.is_empty() && annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)) {
        errors.forbidden(FieldPath::new("[]"), "static pods do not support resource claims");
    }
    let mut names = BTreeSet::new();
    for (k, claim) in claims.iter().enumerate() {
        let path = list.index(k);
        if !claim.name.is_empty() && !names.insert(claim.name.as_str()) {
            errors.duplicate(path.child("name"), claim.name.as_str());
        }
        required_name(&path.child("name"), &claim.name, NameKind::Label, errors);
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (None, None) => {
                let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.required(path, detail);
            }
            (Some(claim), Some(_)) => {
                errors.invalid(
                    path,
                    claim.as_str(),
                    "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
                );
            }
            (Some(claim), None) => {
                name(&path.child("resourceClaimName"), claim, NameKind::Subdomain, errors);
            }
            (None, Some(template)) => {
                name(
                    &path.child("resourceClaimTemplateName"),
                    template,
                    NameKind::Subdomain,
                    errors,
                );
            }
        }
    }
    names
}

pub(super) fn check_restart_policy(spec: &PodSpec, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("restartPolicy");
    let policy = spec.restart_policy.as_deref();
    one_of(path, policy, &["Always", "OnFailure", "Never"], errors);
}

pub(super) fn check_readiness_gates(spec: &PodSpec, errors: &mut FieldErrors) {
    let list = FieldPath::new("spec").child("readinessGates");
    for (k, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let path = list.index(k).child("conditionType");
        name(&path, &gate.condition_type, NameKind::Qualified, errors);
    }
}

pub(super) fn check_scheduling_gates(spec: &PodSpec, errors: &mut FieldErrors) {
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let placed = spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
    if gated && placed {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden(FieldPath::new("spec").child("nodeName"), detail);
    }
}

pub(super) fn check_hostname_override(spec: &PodSpec, errors: &mut FieldErrors) {
    let Some(given) = &spec.hostname_override else {
        return;
    };
    let path = FieldPath::new("spec").child("hostnameOverride");
    if given.len() > HOSTNAME_BYTES {
        errors.too_long(path.clone(), HOSTNAME_BYTES);
    }
    name(&path, given, NameKind::Subdomain, errors);
    if spec.set_hostname_as_fqdn == Some(true) {
        let detail = "may not be specified when setHostnameAsFQDN is true";
        errors.forbidden(path.clone(), detail);
    }
    if spec.host_network == Some(true) {
        errors.forbidden(path, "may not be specified when hostNetwork is true");
    }
}

/// What nothing else depends on, in the order of upstream's texts.
pub(super) fn check_rest(spec: &PodSpec, errors: &mut FieldErrors) {
    let root = FieldPath::new("spec");
    if let Some(policy) = &spec.preemption_policy {
        let path = root.child("preemptionPolicy");
        known_only(path, policy, &["PreemptLowerPriority", "Never"], errors);
    }
    dns::check_host_aliases(spec, errors);
    let optional = |field, given: &Option<String>, kind, errors: &mut FieldErrors| {
        if let Some(given) = given.as_deref().filter(|given| !given.is_empty()) {
            name(&root.child(field), given, kind, errors);
        }
    };
    optional("hostname", &spec.hostname, NameKind::Label, errors);
    optional("subdomain", &spec.subdomain, NameKind::Label, errors);
    if let Some(seconds) = spec.active_deadline_seconds {
        let path = root.child("activeDeadlineSeconds");
        range(path, seconds, 1, i64::from(i32::MAX), errors);
    }
    for (field, given) in [
        ("serviceAccountName", &spec.service_account_name),
        ("priorityClassName", &spec.priority_class_name),
        ("nodeName", &spec.node_name),
    ] {
        optional(field, given, NameKind::Subdomain, errors);
    }
    if let Some(class) = &spec.runtime_class_name {
        name(&root.child("runtimeClassName"), class, NameKind::Subdomain, errors);
    }
}
