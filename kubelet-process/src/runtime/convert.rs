//! Turns what the engine asks for into what a supervisor starts, and refuses what cannot be done.

use std::path::{Path, PathBuf};

use kubelet_core::jiff::Timestamp;
use kubelet_core::{ContainerConfig, CreateContainer, LinuxSecurity, MountPropagation, RuntimeError, annotation};

use crate::host;
use crate::image::Found;
use crate::record::{ContainerFile, MountSpec, ProcessSpec, UserSpec};
use crate::signal;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a program on the host's files finds the file for its termination message.
const TERMINATION_MESSAGE_PATH: &str = "TERMINATION_MESSAGE_PATH";
/// Starts the variables that tell a program on the host's files where its mounts are.
const MOUNT_PREFIX: &str = "KUBELET_MOUNT";

/// Who the agent is, as far as it matters for what it may start.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Agent {
    pub(crate) fn current() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }

    fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// The record of a new container.
pub(crate) fn container_file(
    agent: &Agent,
    req: &CreateContainer<'_>,
    image: Found,
    boot_id: &str,
    now: Timestamp,
) -> Result<ContainerFile, RuntimeError> {
    let config = req.container;
    let stop_signal = match &config.stop_signal {
        None => libc::SIGTERM,
        Some(name) => {
            signal::number(name).ok_or_else(|| RuntimeError::refused(format!("there is no signal {name:?}")))?
        }
    };
    let log_path = (!config.log_path.as_os_str().is_empty() && !req.sandbox.log_directory.as_os_str().is_empty())
        .then(|| req.sandbox.log_directory.join(&config.log_path));
    Ok(ContainerFile {
        sandbox_id: req.sandbox_id.clone(),
        pod_uid: req.sandbox.pod_uid.clone(),
        name: config.name.clone(),
        attempt: config.attempt,
        boot_id: boot_id.to_owned(),
        created_at: now,
        image: config.image.asked.clone(),
        image_ref: image.id.clone(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path,
        stop_signal,
        process: process_spec(agent, config, &req.sandbox.hostname, &image)?,
    })
}

fn process_spec(
    agent: &Agent,
    config: &ContainerConfig,
    hostname: &str,
    image: &Found,
) -> Result<ProcessSpec, RuntimeError> {
    // As with images that have no entry point elsewhere, arguments alone are a command.
    let argv: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
    if argv.is_empty() {
        let message = format!("no command: image {} has no entry point", config.image);
        return Err(RuntimeError::refused(message));
    }
    if argv.iter().any(|arg| arg.contains('\0')) {
        return Err(RuntimeError::refused("the command has a zero byte in it"));
    }
    if config.tty {
        return Err(RuntimeError::refused("the process runtime gives no terminals"));
    }
    refuse_isolation(config)?;
    let root = image.root.clone();
    if root.is_some() && !agent.is_root() {
        return Err(RuntimeError::refused(format!(
            "image {} is a root file system, which only an agent that runs as root can use",
            config.image
        )));
    }
    if root.is_none() && config.security.read_only_root {
        return Err(RuntimeError::refused(
            "the host's own files cannot be made read-only for a container",
        ));
    }
    let etc = root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let user = user(agent, &config.security, &etc)?;
    let uid = user.as_ref().map_or(agent.uid, |user| user.uid);
    let mut env = config.env.clone();
    let mut default = |name: &str, value: String| {
        if !env.iter().any(|(known, _)| known == name) {
            env.push((name.to_owned(), value));
        }
    };
    default("PATH", DEFAULT_PATH.to_owned());
    default(
        "HOME",
        host::passwd_entry(&etc, uid).map_or_else(|| "/".to_owned(), |entry| entry.home),
    );
    if !hostname.is_empty() {
        default("HOSTNAME", hostname.to_owned());
    }
    if root.is_none() {
        for (name, value) in mount_variables(config)? {
            default(&name, value);
        }
    }
    Ok(ProcessSpec {
        argv,
        env,
        working_dir: match config.working_dir.as_str() {
            "" => "/".to_owned(),
            dir => dir.to_owned(),
        },
        mounts: match root {
            Some(_) => mounts(config),
            None => Vec::new(),
        },
        root,
        read_only_root: config.security.read_only_root,
        user,
        no_new_privileges: config.security.no_new_privileges,
        oom_score_adj: config.resources.oom_score_adj,
        cgroup: config.cgroup.clone().map(|cgroup| cgroup.folders).unwrap_or_default(),
    })
}

/// What takes more than a process of the host. Limits are not refused: they hold where the container has a cgroup.
fn refuse_isolation(config: &ContainerConfig) -> Result<(), RuntimeError> {
    let lack = |what: &str| Err(RuntimeError::refused(format!("the process runtime gives no {what}")));
    if !config.devices.is_empty() || !config.cdi_devices.is_empty() {
        return lack("devices");
    }
    if config.security.user_namespace.is_some() {
        return lack("users of a container's own");
    }
    for mount in &config.mounts {
        if mount.image.is_some() {
            return lack("mounts of images");
        }
        if mount.recursive_read_only {
            return lack("recursively read-only mounts");
        }
        if mount.propagation != MountPropagation::Private {
            return lack("propagation of mounts");
        }
    }
    Ok(())
}

/// Whom to become; nothing if that is who the agent is.
fn user(agent: &Agent, security: &LinuxSecurity, root: &Path) -> Result<Option<UserSpec>, RuntimeError> {
    if !agent.is_root() {
        let cannot = |what: &str, id: u32| {
            RuntimeError::refused(format!(
                "cannot run as {what} {id}: the agent runs as user {}",
                agent.uid
            ))
        };
        if let Some(uid) = security.run_as_user.filter(|uid| *uid != agent.uid) {
            return Err(cannot("user", uid));
        }
        if let Some(gid) = security.run_as_group.filter(|gid| *gid != agent.gid) {
            return Err(cannot("group", gid));
        }
        let mut groups = security.supplemental_groups.iter();
        return match groups.find(|gid| **gid != agent.gid && !agent.groups.contains(gid)) {
            Some(gid) => Err(cannot("group", *gid)),
            None => Ok(None),
        };
    }
    let uid = security.run_as_user.unwrap_or(0);
    let gid = security.run_as_group.unwrap_or_else(|| {
        // A user that nobody knows gets a group of its own number: on the host's files, root's group would be a privilege.
        host::passwd_entry(root, uid).map_or(uid, |entry| entry.gid)
    });
    Ok(Some(UserSpec {
        uid,
        gid,
        groups: security.supplemental_groups.clone(),
    }))
}

fn mounts(config: &ContainerConfig) -> Vec<MountSpec> {
    config
        .mounts
        .iter()
        .map(|mount| MountSpec {
            container_path: mount.container_path.clone(),
            host_path: mount.host_path.clone(),
            read_only: mount.read_only,
        })
        .collect()
}

/// On the host's files nothing is mounted: that would need root, and places for it in the host's own folders. Programs are
/// told where on the host to look.
fn mount_variables(config: &ContainerConfig) -> Result<Vec<(String, String)>, RuntimeError> {
    let message_path = config.annotations.get(annotation::TERMINATION_MESSAGE_PATH);
    let mut variables = Vec::new();
    for mount in &config.mounts {
        let Some(host_path) = mount.host_path.to_str() else {
            let message = format!("mount {}: the host path is not UTF-8", mount.container_path);
            return Err(RuntimeError::refused(message));
        };
        if message_path == Some(&mount.container_path) {
            variables.push((TERMINATION_MESSAGE_PATH.to_owned(), host_path.to_owned()));
        }
        variables.push((mount_variable(&mount.container_path), host_path.to_owned()));
    }
    Ok(variables)
}

/// `/etc/app.d` becomes `KUBELET_MOUNT_ETC_APP_D`.
fn mount_variable(container_path: &str) -> String {
    let name: String = container_path
        .trim_matches('/')
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    format!("{MOUNT_PREFIX}_{name}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kubelet_core::{
        ContainerConfig, Device, IdMapping, ImageMount, ImageRef, Mount, MountPropagation, RuntimeError, UserNamespace,
        annotation,
    };

    use super::{Agent, mount_variable, process_spec, user};
    use crate::image::Found;
    use crate::record::ProcessSpec;

    fn spec(
        agent_uid: u32,
        root: Option<&str>,
        change: impl FnOnce(&mut ContainerConfig),
    ) -> Result<ProcessSpec, String> {
        let agent = Agent {
            uid: agent_uid,
            gid: agent_uid,
            groups: vec![50],
        };
        let mut config = ContainerConfig::new("app", 0, ImageRef::new("localhost/host"));
        config.command = vec!["true".to_owned()];
        change(&mut config);
        let image = Found {
            id: "localhost/host:latest".to_owned(),
            root: root.map(Into::into),
        };
        process_spec(&agent, &config, "", &image).map_err(|err| match err {
            RuntimeError::Refused { message, .. } => message,
            other => other.to_string(),
        })
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_reason() {
        let refusal = |agent, root, change: fn(&mut ContainerConfig)| spec(agent, root, change).unwrap_err();
        assert_eq!(
            refusal(1000, None, |c| c.command.clear()),
            "no command: image localhost/host has no entry point"
        );
        assert!(refusal(1000, Some("/images/app"), |_| {}).contains("only an agent that runs as root"));
        assert!(refusal(1000, None, |c| c.security.run_as_user = Some(7)).contains("cannot run as user 7"));
        assert!(refusal(1000, None, |c| c.security.supplemental_groups = vec![50, 51]).contains("group 51"));
        assert!(refusal(0, None, |c| c.security.read_only_root = true).contains("read-only"));
        assert!(refusal(0, None, |c| c.tty = true).contains("terminals"));
    }

    #[test]
    fn an_ordinary_user_can_only_be_itself() {
        let own = |c: &mut ContainerConfig| {
            c.security.run_as_user = Some(1000);
            c.security.supplemental_groups = vec![50, 1000];
        };
        assert_eq!(spec(1000, None, own).unwrap().user, None);
    }

    #[test]
    fn a_user_that_nobody_knows_does_not_get_the_group_of_root() {
        let agent = Agent {
            uid: 0,
            gid: 0,
            groups: vec![],
        };
        let security = spec_security(4711);
        let user = user(&agent, &security, Path::new("/nonexistent")).unwrap().unwrap();
        assert_eq!((user.uid, user.gid), (4711, 4711));
    }

    fn spec_security(uid: u32) -> kubelet_core::LinuxSecurity {
        let mut security = kubelet_core::LinuxSecurity::default();
        security.run_as_user = Some(uid);
        security
    }

    #[test]
    fn what_a_process_cannot_have_is_refused() {
        let refused = |change: fn(&mut ContainerConfig)| spec(0, None, change).unwrap_err();
        for (error, word) in [
            (refused(|c| c.cdi_devices = vec!["a/b=c".to_owned()]), "devices"),
            (refused(|c| c.devices = vec![Device::new("/d", "/d", "r")]), "devices"),
            (
                refused(|c| {
                    let users = UserNamespace::of_block(IdMapping::new(65_536, 0, 65_536));
                    c.security.user_namespace = Some(users);
                }),
                "users",
            ),
            (
                refused(|c| {
                    let mut mount = Mount::new("/a", "/a");
                    mount.propagation = MountPropagation::Bidirectional;
                    c.mounts = vec![mount];
                }),
                "propagation",
            ),
            (
                refused(|c| {
                    let mut mount = Mount::new("/a", "/a");
                    mount.recursive_read_only = true;
                    c.mounts = vec![mount];
                }),
                "read-only",
            ),
            (
                refused(|c| {
                    let mut mount = Mount::new("/a", "");
                    mount.image = Some(ImageMount::new(ImageRef::new("model")));
                    c.mounts = vec![mount];
                }),
                "images",
            ),
        ] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn mounts_on_the_hosts_files_are_told_in_the_environment() {
        let spec = spec(0, None, |c| {
            c.env = vec![("PATH".to_owned(), "/opt".to_owned())];
            c.mounts = vec![
                Mount::new("/etc/app.d", "/host/app"),
                Mount::new("/dev/msg", "/host/msg"),
            ];
            c.annotations
                .insert(annotation::TERMINATION_MESSAGE_PATH.to_owned(), "/dev/msg".to_owned());
        })
        .unwrap();
        let value = |name: &str| {
            spec.env
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("KUBELET_MOUNT_ETC_APP_D"), Some("/host/app"));
        assert_eq!(value("TERMINATION_MESSAGE_PATH"), Some("/host/msg"));
        assert_eq!(value("PATH"), Some("/opt"));
        assert!(spec.mounts.is_empty());
        assert_eq!(mount_variable("/"), "KUBELET_MOUNT_");
    }
}
