//! Who a container runs as, whether it may, and what confines it.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{AppArmorProfile, SELinuxOptions as ApiSelinux};

use super::images::PresentImage;
use super::start_error::{CONFIG_ERROR, StartError};
use crate::ids::ContainerId;
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{LinuxSecurity, NamespaceMode, Namespaces, SecurityProfile, SelinuxOptions};

/// Before the fields there were annotations, one for each container.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What the security of containers depends on beside their pods.
#[derive(Debug)]
pub(crate) struct SecurityDefaults {
    /// Containers without a seccomp profile get the runtime's.
    pub(crate) seccomp: bool,
    /// Where the seccomp profiles of the host are.
    pub(crate) seccomp_dir: PathBuf,
    /// What is hidden in containers of the default proc mount.
    pub(crate) masked_paths: Vec<String>,
}

impl SecurityDefaults {
    /// Those of this machine, for an agent with that root folder.
    pub(crate) fn new(seccomp: bool, root_dir: &Path) -> Self {
        let fixed = MASKED_PATHS.iter().map(|path| (*path).to_owned());
        Self {
            seccomp,
            seccomp_dir: root_dir.join("seccomp"),
            masked_paths: fixed
                .chain(thermal_throttles(Path::new("/sys/devices/system/cpu")))
                .collect(),
        }
    }
}

/// Source: kubelet 1.36, `securitycontext/util.go`.
const MASKED_PATHS: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const POWERCAP: &str = "/sys/devices/virtual/powercap";
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// How hot each processor gets tells what neighbours compute.
fn thermal_throttles(cpus: &Path) -> Vec<String> {
    let possible = std::fs::read_to_string(cpus.join("possible")).unwrap_or_default();
    let mut paths = vec![POWERCAP.to_owned()];
    for range in possible.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            continue;
        };
        let each = (first..=last.min(first.saturating_add(65_535)))
            .map(|number| cpus.join(format!("cpu{number}/thermal_throttle")))
            .filter(|path| path.exists());
        paths.extend(each.map(|path| path.display().to_string()));
    }
    paths
}

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
    defaults: &SecurityDefaults,
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
    let record = image.record.as_ref();
    let (uid, username) = match (run_as_user, record.and_then(|record| record.uid)) {
        (Some(user), _) | (None, Some(user)) => (id(Some(user)), String::new()),
        // The runtime looks the name up in the image.
        (None, None) => (None, record.map(|record| record.username.clone()).unwrap_or_default()),
    };
    let groups = of_pod.and_then(|c| c.fs_group).into_iter();
    let groups = groups.chain(of_pod.and_then(|c| c.supplemental_groups.clone()).into_iter().flatten());
    let unmasked = own.and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    let capabilities = own.and_then(|c| c.capabilities.as_ref());
    let selinux = own
        .and_then(|c| c.se_linux_options.as_ref())
        .or_else(|| of_pod.and_then(|c| c.se_linux_options.as_ref()));
    Ok(LinuxSecurity {
        run_as_user: uid,
        run_as_username: username,
        run_as_group: id(run_as_group),
        supplemental_groups: groups.filter_map(|group| id(Some(group))).collect(),
        only_given_groups: only_given_groups(pod),
        add_capabilities: capabilities.and_then(|c| c.add.clone()).unwrap_or_default(),
        drop_capabilities: capabilities.and_then(|c| c.drop.clone()).unwrap_or_default(),
        seccomp: Some(seccomp(pod, view, defaults)?),
        apparmor: apparmor(pod, view),
        selinux: selinux.map(selinux_options),
        masked_paths: if unmasked {
            Vec::new()
        } else {
            defaults.masked_paths.clone()
        },
        readonly_paths: if unmasked {
            Vec::new()
        } else {
            READONLY_PATHS.map(str::to_owned).to_vec()
        },
        privileged: own.and_then(|c| c.privileged).unwrap_or(false),
        read_only_root: own.and_then(|c| c.read_only_root_filesystem).unwrap_or(false),
        no_new_privileges: own
            .and_then(|c| c.allow_privilege_escalation)
            .is_some_and(|allowed| !allowed),
        namespaces: namespaces(pod),
        ..LinuxSecurity::default()
    })
}

/// Lets a container that has processes to itself see those of another one instead.
pub(super) fn see_processes_of(security: &mut LinuxSecurity, target: &ContainerId) {
    if security.namespaces.pid == NamespaceMode::Container {
        security.namespaces.pid = NamespaceMode::Target;
        security.pid_target = Some(target.clone());
    }
}

/// Security of a sandbox: the pod's context.
pub(super) fn sandbox_security(pod: &PodRecord) -> LinuxSecurity {
    let context = pod.spec().security_context.as_ref();
    let privileged = pod
        .containers()
        .any(|view| view.security_context().and_then(|c| c.privileged).unwrap_or(false));
    let groups = context.and_then(|c| c.fs_group).into_iter();
    let groups = groups.chain(
        context
            .and_then(|c| c.supplemental_groups.clone())
            .into_iter()
            .flatten(),
    );
    LinuxSecurity {
        run_as_user: id(context.and_then(|c| c.run_as_user)),
        run_as_group: id(context.and_then(|c| c.run_as_group)),
        supplemental_groups: groups.filter_map(|group| id(Some(group))).collect(),
        only_given_groups: only_given_groups(pod),
        // Whatever the pod says: nothing of it runs there.
        seccomp: Some(SecurityProfile::RuntimeDefault),
        selinux: context.and_then(|c| c.se_linux_options.as_ref()).map(selinux_options),
        privileged,
        namespaces: namespaces(pod),
        ..LinuxSecurity::default()
    }
}

pub(super) fn only_given_groups(pod: &PodRecord) -> bool {
    let context = pod.spec().security_context.as_ref();
    context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict")
}

fn selinux_options(of: &ApiSelinux) -> SelinuxOptions {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    SelinuxOptions::new(text(&of.user), text(&of.role), text(&of.type_), text(&of.level))
}

/// The container's profile, else the pod's, else the node's default.
fn seccomp(
    pod: &PodRecord,
    view: &ContainerView<'_>,
    defaults: &SecurityDefaults,
) -> Result<SecurityProfile, StartError> {
    let own = view.security_context().and_then(|c| c.seccomp_profile.as_ref());
    let of_pod = pod
        .spec()
        .security_context
        .as_ref()
        .and_then(|c| c.seccomp_profile.as_ref());
    let Some(profile) = own.or(of_pod) else {
        return Ok(if defaults.seccomp {
            SecurityProfile::RuntimeDefault
        } else {
            SecurityProfile::Unconfined
        });
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(SecurityProfile::RuntimeDefault),
        "Localhost" => match profile.localhost_profile.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => Ok(SecurityProfile::Localhost(
                defaults.seccomp_dir.join(name).display().to_string(),
            )),
            None => Err(StartError::failed(
                CONFIG_ERROR,
                "localhostProfile must be set if seccompProfile type is Localhost.",
            )),
        },
        _ => Ok(SecurityProfile::Unconfined),
    }
}

/// The container's profile, else the one of its old annotation, else the pod's.
fn apparmor(pod: &PodRecord, view: &ContainerView<'_>) -> Option<SecurityProfile> {
    let profile = |of: &AppArmorProfile| match of.type_.as_str() {
        "RuntimeDefault" => Some(SecurityProfile::RuntimeDefault),
        "Unconfined" => Some(SecurityProfile::Unconfined),
        "Localhost" => of.localhost_profile.clone().map(SecurityProfile::Localhost),
        _ => None,
    };
    if let Some(own) = view.security_context().and_then(|c| c.app_armor_profile.as_ref()) {
        return profile(own);
    }
    let annotations = pod.metadata().annotations.as_ref();
    if let Some(text) = annotations.and_then(|all| all.get(&format!("{APPARMOR_ANNOTATION}{}", view.name()))) {
        return match text.as_str() {
            "runtime/default" => Some(SecurityProfile::RuntimeDefault),
            "unconfined" => Some(SecurityProfile::Unconfined),
            text => text
                .strip_prefix("localhost/")
                .map(|name| SecurityProfile::Localhost(name.to_owned())),
        };
    }
    let of_pod = pod.spec().security_context.as_ref();
    of_pod.and_then(|c| c.app_armor_profile.as_ref()).and_then(profile)
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
    let refuse = |why: String| Err(StartError::failed(CONFIG_ERROR, format!("{why} {whom}")));
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::{
        MASKED_PATHS, PresentImage, READONLY_PATHS, SecurityDefaults, container_security, sandbox_security,
        see_processes_of, thermal_throttles,
    };
    use crate::ids::{ContainerId, ImageId};
    use crate::pod::testing::record;
    use crate::runtime::{ImageRecord, ImageRef, LinuxSecurity, NamespaceMode, SecurityProfile};

    fn defaults() -> SecurityDefaults {
        SecurityDefaults {
            seccomp: false,
            seccomp_dir: PathBuf::from("/root-dir/seccomp"),
            masked_paths: vec!["/proc/kcore".to_owned()],
        }
    }

    fn image(uid: Option<i64>, username: &str) -> PresentImage {
        let mut record = ImageRecord::new(ImageId::from("sha256:1"));
        record.uid = uid;
        username.clone_into(&mut record.username);
        PresentImage {
            image: ImageRef::new("i"),
            id: record.id.clone(),
            record: Some(record),
        }
    }

    /// The security of the only container, with contexts of pod and container.
    fn of(pod: &Value, container: &Value, defaults: &SecurityDefaults) -> Result<LinuxSecurity, String> {
        let pod = record(json!({"spec": {
            "securityContext": pod,
            "containers": [{"name": "app", "image": "i", "securityContext": container}],
        }}));
        let view = pod.container("app").unwrap();
        container_security(&pod, &view, &image(None, ""), defaults).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn the_container_wins_over_the_pod_field_by_field() {
        let pod = json!({
            "runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 2000, "supplementalGroups": [3000],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0:c1"},
        });
        let security = of(
            &pod,
            &json!({"runAsUser": 7, "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}),
            &defaults(),
        )
        .unwrap();
        assert_eq!((security.run_as_user, security.run_as_group), (Some(7), Some(1001)));
        assert_eq!(security.supplemental_groups, [2000, 3000]);
        assert!(security.only_given_groups);
        assert_eq!(
            (security.add_capabilities, security.drop_capabilities),
            (vec!["NET_ADMIN".to_owned()], vec!["ALL".to_owned()])
        );
        assert_eq!(security.selinux.unwrap().level, "s0:c1");
    }

    #[test]
    fn the_image_names_the_user_where_nobody_else_does() {
        let pod = record(json!({"spec": {"containers": [{"name": "app", "image": "i"}]}}));
        let view = pod.container("app").unwrap();
        for (image, user, name) in [
            (image(Some(5), "x"), Some(5), ""),
            (image(None, "app"), None, "app"),
            (image(None, ""), None, ""),
        ] {
            let security = container_security(&pod, &view, &image, &defaults()).unwrap();
            assert_eq!((security.run_as_user, security.run_as_username.as_str()), (user, name));
        }
    }

    #[test]
    fn seccomp_comes_from_the_container_the_pod_or_the_node() {
        use SecurityProfile::{Localhost, RuntimeDefault, Unconfined};
        let none = json!({});
        let profile = |kind: &str| json!({"seccompProfile": {"type": kind, "localhostProfile": "web.json"}});
        let seccomp = |pod: &Value, own: &Value| of(pod, own, &defaults()).unwrap().seccomp.unwrap();
        assert_eq!(seccomp(&none, &none), Unconfined);
        assert_eq!(seccomp(&profile("RuntimeDefault"), &none), RuntimeDefault);
        assert_eq!(seccomp(&profile("RuntimeDefault"), &profile("Unconfined")), Unconfined);
        assert_eq!(
            seccomp(&profile("Localhost"), &none),
            Localhost("/root-dir/seccomp/web.json".to_owned())
        );
        let strict = SecurityDefaults {
            seccomp: true,
            ..defaults()
        };
        assert_eq!(of(&none, &none, &strict).unwrap().seccomp, Some(RuntimeDefault));
        let refused = of(&none, &json!({"seccompProfile": {"type": "Localhost"}}), &defaults()).unwrap_err();
        assert!(
            refused.contains("CreateContainerConfigError") && refused.contains("localhostProfile"),
            "{refused}"
        );
    }

    #[test]
    fn apparmor_comes_from_the_container_its_annotation_or_the_pod() {
        let apparmor = |annotation: Option<&str>, pod: Value, own: Value| {
            let annotations =
                annotation.map(|text| json!({"container.apparmor.security.beta.kubernetes.io/app": text}));
            let pod = record(json!({
                "metadata": {"annotations": annotations},
                "spec": {
                    "securityContext": pod,
                    "containers": [{"name": "app", "image": "i", "securityContext": own}],
                },
            }));
            let view = pod.container("app").unwrap();
            container_security(&pod, &view, &image(None, ""), &defaults())
                .unwrap()
                .apparmor
        };
        let named = |name: &str| json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": name}});
        let localhost = |name: &str| Some(SecurityProfile::Localhost(name.to_owned()));
        assert_eq!(apparmor(None, json!({}), json!({})), None);
        assert_eq!(apparmor(None, named("of-pod"), json!({})), localhost("of-pod"));
        assert_eq!(
            apparmor(Some("localhost/old"), named("of-pod"), json!({})),
            localhost("old")
        );
        assert_eq!(
            apparmor(Some("runtime/default"), named("of-pod"), json!({})),
            Some(SecurityProfile::RuntimeDefault)
        );
        assert_eq!(
            apparmor(Some("unconfined"), named("of-pod"), named("own")),
            localhost("own")
        );
    }

    #[test]
    fn an_unmasked_proc_hides_nothing() {
        let masked = of(&json!({}), &json!({}), &defaults()).unwrap();
        assert_eq!(masked.masked_paths, ["/proc/kcore"]);
        assert_eq!(masked.readonly_paths, READONLY_PATHS);
        let unmasked = of(&json!({}), &json!({"procMount": "Unmasked"}), &defaults()).unwrap();
        assert!(unmasked.masked_paths.is_empty() && unmasked.readonly_paths.is_empty());
    }

    #[test]
    fn the_paths_of_a_machine_are_those_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("possible"), "0-2,5\n").unwrap();
        for cpu in ["cpu1", "cpu5", "cpu7"] {
            std::fs::create_dir_all(dir.path().join(cpu).join("thermal_throttle")).unwrap();
        }
        let found = thermal_throttles(dir.path());
        let ends: Vec<&str> = found.iter().map(|path| path.rsplit('/').nth(1).unwrap()).collect();
        assert_eq!(ends, ["virtual", "cpu1", "cpu5"]);
        let all = SecurityDefaults::new(false, dir.path());
        assert!(all.masked_paths.len() > MASKED_PATHS.len());
        assert_eq!(thermal_throttles(&dir.path().join("nothing")).len(), 1);
    }

    #[test]
    fn processes_are_the_containers_own_the_pods_the_hosts_or_those_of_a_target() {
        use NamespaceMode::{Container, Node, Pod, Target};
        for (spec, pid, with_target) in [
            (json!({}), Container, Target),
            (json!({"shareProcessNamespace": true}), Pod, Pod),
            (json!({"hostPID": true}), Node, Node),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([{"name": "app", "image": "i"}]);
            let pod = record(json!({"spec": spec}));
            let view = pod.container("app").unwrap();
            let mut security = container_security(&pod, &view, &image(None, ""), &defaults()).unwrap();
            assert_eq!(security.namespaces.pid, pid);
            assert_eq!(sandbox_security(&pod).namespaces.pid, pid);
            see_processes_of(&mut security, &ContainerId::from("c7"));
            assert_eq!(security.namespaces.pid, with_target);
            assert_eq!(security.pid_target.is_some(), with_target == Target);
        }
    }

    #[test]
    fn a_sandbox_is_confined_whatever_its_pod_says() {
        let pod = record(json!({"spec": {
            "securityContext": {"seccompProfile": {"type": "Unconfined"}, "fsGroup": 5, "supplementalGroups": [6]},
            "containers": [{"name": "app", "image": "i", "securityContext": {"privileged": true}}],
        }}));
        let security = sandbox_security(&pod);
        assert_eq!(security.seccomp, Some(SecurityProfile::RuntimeDefault));
        assert!(security.privileged);
        assert_eq!(security.supplemental_groups, [5, 6]);
    }
}
