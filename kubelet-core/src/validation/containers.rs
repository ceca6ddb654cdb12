//! Containers of all three kinds.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerResizePolicy, EphemeralContainer, PodSpec, ResourceRequirements, Volume,
};

use super::check::{known_only, one_of, required_name};
use super::field::{FieldErrors, FieldPath, Json};
use super::names::NameKind;
use super::{env, mounts, ports, probes, resources, security};
use crate::resources::is_sidecar;

const RULES: usize = 20;
const EXIT_CODES: usize = 255;

/// What a container is checked against besides itself.
pub(super) struct PodContext<'a> {
    pub(super) spec: &'a PodSpec,
    /// The volumes that have no error of their own, by name.
    pub(super) volumes: BTreeMap<&'a str, &'a Volume>,
    pub(super) claims: BTreeSet<&'a str>,
}

/// Every container with its path: regular, init, ephemeral.
pub(super) fn all_containers(spec: &PodSpec) -> impl Iterator<Item = (FieldPath, Cow<'_, Container>)> {
    let at = |list: &'static str| {
        let list = FieldPath::new("spec").child(list);
        move |i: usize| list.index(i)
    };
    let (regular, init, late) = (at("containers"), at("initContainers"), at("ephemeralContainers"));
    let containers = spec.containers.iter().enumerate();
    let containers = containers.map(move |(i, container)| (regular(i), Cow::Borrowed(container)));
    let inits = spec.init_containers.iter().flatten().enumerate();
    let inits = inits.map(move |(i, container)| (init(i), Cow::Borrowed(container)));
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate();
    let ephemeral = ephemeral.map(move |(i, container)| (late(i), Cow::Owned(as_container(container))));
    containers.chain(inits).chain(ephemeral)
}

pub(super) fn check_regular<'a>(cx: &PodContext<'a>, names: &mut BTreeSet<&'a str>, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("containers");
    if cx.spec.containers.is_empty() {
        errors.required(path.clone(), "");
    }
    for (i, container) in cx.spec.containers.iter().enumerate() {
        let path = path.index(i);
        check_common(cx, container, &path, errors);
        check_repeat(names, &container.name, &path, errors);
        check_running(cx, container, &path, errors);
        check_restart(container, &path, errors);
    }
}

pub(super) fn check_init<'a>(cx: &PodContext<'a>, names: &mut BTreeSet<&'a str>, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("initContainers");
    for (i, container) in cx.spec.init_containers.iter().flatten().enumerate() {
        let path = path.index(i);
        check_common(cx, container, &path, errors);
        check_repeat(names, &container.name, &path, errors);
        if is_sidecar(container) {
            check_running(cx, container, &path, errors);
        } else {
            check_plain_init(container, &path, errors);
        }
        check_restart(container, &path, errors);
    }
}

pub(super) fn check_ephemeral<'a>(cx: &PodContext<'a>, names: &mut BTreeSet<&'a str>, errors: &mut FieldErrors) {
    let spec = cx.spec;
    let targets: BTreeSet<_> = names.clone();
    let path = FieldPath::new("spec").child("ephemeralContainers");
    for (i, given) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = path.index(i);
        let container = as_container(given);
        check_common(cx, &container, &path, errors);
        check_repeat(names, &given.name, &path, errors);
        if let Some(target) = given.target_container_name.as_deref()
            && !target.is_empty()
            && !targets.contains(target)
        {
            errors.not_found(path.child("targetContainerName"), target, "");
        }
        check_allowed(&container, &path, errors);
    }
}

/// Create-only: they are added to a pod that runs.
pub(super) fn check_no_ephemeral(spec: &PodSpec, errors: &mut FieldErrors) {
    if spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        let path = FieldPath::new("spec").child("ephemeralContainers");
        errors.forbidden(path, "cannot be set on create");
    }
}

pub(super) fn check_image_blanks(spec: &PodSpec, errors: &mut FieldErrors) {
    for (path, container) in all_containers(spec) {
        let image = container.image.as_deref().unwrap_or_default();
        if image != image.trim() {
            let path = path.child("image");
            errors.invalid(path, image, "must not have leading or trailing whitespace");
        }
    }
}

fn check_common(cx: &PodContext<'_>, container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    required_name(&path.child("name"), &container.name, NameKind::Label, errors);
    if container.image.as_deref().unwrap_or_default().is_empty() {
        errors.required(path.child("image"), "");
    }
    let policy = container.termination_message_policy.as_deref();
    one_of(
        path.child("terminationMessagePolicy"),
        policy,
        &["File", "FallbackToLogsOnError"],
        errors,
    );
    ports::check(container, path, errors);
    env::check(cx, container, path, errors);
    mounts::check(cx, container, path, errors);
    let policy = container.image_pull_policy.as_deref();
    one_of(
        path.child("imagePullPolicy"),
        policy,
        &["Always", "IfNotPresent", "Never"],
        errors,
    );
    let resources = container.resources.as_ref();
    resources::check_container(resources, &cx.claims, &path.child("resources"), errors);
    check_resize(cx.spec, container, path, errors);
    security::check_container(cx.spec, container, &path.child("securityContext"), errors);
}

fn check_repeat<'a>(names: &mut BTreeSet<&'a str>, name: &'a str, path: &FieldPath, errors: &mut FieldErrors) {
    if !name.is_empty() && !names.insert(name) {
        errors.duplicate(path.child("name"), name);
    }
}

/// What only containers have that run beside the others.
fn check_running(cx: &PodContext<'_>, container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    probes::check_lifecycle(cx.spec, container.lifecycle.as_ref(), &path.child("lifecycle"), errors);
    probes::check_probes(container, path, errors);
}

fn check_plain_init(container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    for (field, set) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if set {
            let detail = "may not be set for init containers without restartPolicy=Always";
            errors.forbidden(path.child(field), detail);
        }
    }
    for (j, policy) in container.resize_policy.iter().flatten().enumerate() {
        if policy.restart_policy == "RestartContainer" {
            errors.invalid(
                path.child("resizePolicy").index(j).child("restartPolicy"),
                Json(&policy.restart_policy),
                "must not be set to 'RestartContainer' for non-sidecar initContainers",
            );
        }
    }
}

fn check_restart(container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    let policy = path.child("restartPolicy");
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    match &container.restart_policy {
        Some(value) => known_only(policy, value, &["Always", "Never", "OnFailure"], errors),
        None if !rules.is_empty() => {
            errors.required(policy, "must specify restartPolicy when restart rules are used");
        }
        None => {}
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > RULES {
        errors.too_many(path.clone(), rules.len(), RULES);
    }
    for (j, rule) in rules.iter().enumerate() {
        let path = path.index(j);
        let action = Some(rule.action.as_str());
        one_of(
            path.child("action"),
            action,
            &["Restart", "RestartAllContainers"],
            errors,
        );
        let path = path.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(path, "must be specified");
            continue;
        };
        one_of(path.child("operator"), Some(&codes.operator), &["In", "NotIn"], errors);
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > EXIT_CODES {
            errors.too_many(path.child("values"), count, EXIT_CODES);
        }
    }
}

fn check_resize(spec: &PodSpec, container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    let path = path.child("resizePolicy");
    let mut seen = BTreeSet::new();
    for (j, policy) in container.resize_policy.iter().flatten().enumerate() {
        let ContainerResizePolicy {
            resource_name,
            restart_policy,
        } = policy;
        if !seen.insert(resource_name) {
            errors.duplicate(path.index(j), Json(resource_name));
        }
        one_of(path.clone(), Some(resource_name), &["cpu", "memory"], errors);
        one_of(
            path.clone(),
            Some(restart_policy),
            &["NotRequired", "RestartContainer"],
            errors,
        );
        if restart_policy == "RestartContainer" && spec.restart_policy.as_deref() == Some("Never") {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(path.clone(), Json(restart_policy), detail);
        }
    }
}

fn check_allowed(container: &Container, path: &FieldPath, errors: &mut FieldErrors) {
    fn some<T>(list: &Option<Vec<T>>) -> bool {
        list.as_ref().is_some_and(|list| !list.is_empty())
    }
    let resources = container.resources.as_ref();
    let resources = resources.is_some_and(|resources| *resources != ResourceRequirements::default());
    for (field, set) in [
        ("ports", some(&container.ports)),
        ("resources", resources),
        ("resizePolicy", some(&container.resize_policy)),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", some(&container.restart_policy_rules)),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ] {
        if set {
            let detail = "cannot be set for an Ephemeral Container";
            errors.forbidden(path.child(field), detail);
        }
    }
    for (j, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = path.child("volumeMounts").index(j);
        for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if value.as_ref().is_some_and(|value| !value.is_empty()) {
                let detail = "cannot be set for an Ephemeral Container";
                errors.forbidden(path.child(field), detail);
            }
        }
    }
}

/// The fields both types have; the checks are the same.
fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let from = ephemeral.clone();
    Container {
        args: from.args,
        command: from.command,
        env: from.env,
        env_from: from.env_from,
        image: from.image,
        image_pull_policy: from.image_pull_policy,
        lifecycle: from.lifecycle,
        liveness_probe: from.liveness_probe,
        name: from.name,
        ports: from.ports,
        readiness_probe: from.readiness_probe,
        resize_policy: from.resize_policy,
        resources: from.resources,
        restart_policy: from.restart_policy,
        restart_policy_rules: from.restart_policy_rules,
        security_context: from.security_context,
        startup_probe: from.startup_probe,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        volume_devices: from.volume_devices,
        volume_mounts: from.volume_mounts,
        ..Container::default()
    }
}
