//! Who a container runs as, and whether it may.

use super::images::PresentImage;
use super::start::StartError;
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{LinuxSecurity, NamespaceMode, Namespaces};

fn id(value: Option<i64>) -> Option<u32> {
    value.and_then(|value| u32::try_from(value).ok())
}

/// Security of a container: its own context over the pod's.
///
/// Source: kubelet 1.36, `security_context.go`.
pub(super) fn container_security(
    pod: &PodRecord,
    view: &ContainerView<'_>,
    image: &PresentImage,
) -> Result<LinuxSecurity, StartError> {
    let of_pod = pod.spec().security_context.as_ref();
    let own = view.security_context();
    let run_as_user = own
        .and_then(|c| c.run_as_user)
        .or_else(|| of_pod.and_then(|c| c.run_as_user));
    let run_as_group = own
        .and_then(|c| c.run_as_group)
        .or_else(|| of_pod.and_then(|c| c.run_as_group));
    let non_root = own
        .and_then(|c| c.run_as_non_root)
        .or_else(|| of_pod.and_then(|c| c.run_as_non_root))
        .unwrap_or(false);
    if non_root {
        check_non_root(pod, view, run_as_user, image)?;
    }
    let privileged = own.and_then(|c| c.privileged).unwrap_or(false);
    let mut supplemental_groups: Vec<u32> = of_pod
        .and_then(|c| c.supplemental_groups.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|group| id(Some(*group)))
        .collect();
    supplemental_groups.extend(id(of_pod.and_then(|c| c.fs_group)));
    Ok(LinuxSecurity {
        run_as_user: id(run_as_user.or_else(|| image.record.as_ref().and_then(|record| record.uid))),
        run_as_group: id(run_as_group),
        supplemental_groups,
        privileged,
        read_only_root: own.and_then(|c| c.read_only_root_filesystem).unwrap_or(false),
        no_new_privileges: own
            .and_then(|c| c.allow_privilege_escalation)
            .is_some_and(|allowed| !allowed),
        namespaces: namespaces(pod),
    })
}

/// Security of a sandbox: the pod's context.
pub(super) fn sandbox_security(pod: &PodRecord) -> LinuxSecurity {
    let context = pod.spec().security_context.as_ref();
    let privileged = pod
        .containers()
        .any(|view| view.security_context().and_then(|c| c.privileged).unwrap_or(false));
    LinuxSecurity {
        run_as_user: id(context.and_then(|c| c.run_as_user)),
        run_as_group: id(context.and_then(|c| c.run_as_group)),
        privileged,
        namespaces: namespaces(pod),
        ..LinuxSecurity::default()
    }
}

fn namespaces(pod: &PodRecord) -> Namespaces {
    let spec = pod.spec();
    let or_pod = |host: Option<bool>| {
        if host.unwrap_or(false) {
            NamespaceMode::Node
        } else {
            NamespaceMode::Pod
        }
    };
    Namespaces {
        network: or_pod(spec.host_network),
        ipc: or_pod(spec.host_ipc),
        pid: if spec.host_pid.unwrap_or(false) {
            NamespaceMode::Node
        } else if spec.share_process_namespace.unwrap_or(false) {
            NamespaceMode::Pod
        } else {
            NamespaceMode::Container
        },
    }
}

fn check_non_root(
    pod: &PodRecord,
    view: &ContainerView<'_>,
    run_as_user: Option<i64>,
    image: &PresentImage,
) -> Result<(), StartError> {
    let whom = format!("(pod: \"{}\", container: {})", pod.describe(), view.name());
    let refuse = |why: String| {
        Err(StartError::failed(
            "CreateContainerConfigError",
            format!("{why} {whom}"),
        ))
    };
    let record = image.record.as_ref();
    match (run_as_user, record.and_then(|record| record.uid)) {
        (Some(0), _) => refuse("container's runAsUser breaks non-root policy".to_owned()),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => refuse("container has runAsNonRoot and image will run as root".to_owned()),
        (None, Some(_)) => Ok(()),
        (None, None) => match record
            .map(|record| record.username.as_str())
            .filter(|name| !name.is_empty())
        {
            Some(name) => refuse(format!(
                "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
            )),
            None => refuse("container has runAsNonRoot and image will run as root".to_owned()),
        },
    }
}
