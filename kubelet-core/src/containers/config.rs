//! What sandboxes and containers are made from.
//!
//! Source: kubelet 1.36, `kuberuntime_sandbox.go`, `kuberuntime_container.go`, `labels.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ContainerPort, ContainerState as ApiState, ContainerStateTerminated};

use super::ContainerSyncer;
use super::ground::Ground;
use super::image_volumes::MountedImages;
use super::images::PresentImage;
use super::security::{container_security, sandbox_security, see_processes_of};
use super::start_error::{CONFIG_ERROR, StartError};
use crate::admission::sysctl_name;
use crate::env::{Env, EnvRequest, PodFields, build_env, expand_command, hostname_and_domain, sandbox_hostname};
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::PodUid;
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{ContainerConfig, Mount, PortMapping, PortProtocol, SandboxConfig, annotation, label};
use crate::status::reason;
use crate::syncer::{StepContext, SyncError};
use crate::volumes::PodVolumes;

/// The quota of containers that have processors of their own.
pub(super) const NO_QUOTA: i64 = -1;

impl ContainerSyncer {
    /// The config of a pod's sandbox. It is made anew for each sync, and told of only where `is_new`.
    pub(super) async fn sandbox_config(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        volumes: &PodVolumes,
        attempt: u32,
        is_new: bool,
    ) -> Result<SandboxConfig, SyncError> {
        let mut config = SandboxConfig::new(pod.uid().clone(), pod.key().clone(), attempt);
        let (hostname, domain) = hostname_and_domain(pod.pod(), &self.node.dns.cluster.domain)
            .map_err(|error| SyncError::failed("cannot name the pod's host", error))?;
        config.hostname = sandbox_hostname(pod.pod(), &hostname, &domain)
            .map_err(|error| SyncError::failed("cannot name the pod's host", error))?
            .unwrap_or_default();
        config.log_directory = self.log_directory(pod);
        config.port_mappings = ContainerView::regular(pod.spec())
            .flat_map(|view| port_mappings(view.ports()))
            .collect();
        config.dns = self.resolver(cx, pod, is_new).await?;
        let sysctls = pod.spec().security_context.as_ref().and_then(|c| c.sysctls.as_ref());
        config.sysctls = sysctls
            .into_iter()
            .flatten()
            .map(|sysctl| (sysctl_name(&sysctl.name), sysctl.value.clone()))
            .collect();
        config.resources = self.limits_of_sandbox(pod);
        if let Some(keeper) = &self.node.cgroups {
            config.cgroup_parent = keeper.parent(pod);
        }
        config.overhead = self.node.resources.of_overhead(pod);
        config.labels = pod.metadata().labels.clone().unwrap_or_default();
        config.labels.extend(mark(pod));
        config.annotations = pod.metadata().annotations.clone().unwrap_or_default();
        config
            .annotations
            .insert(annotation::CONFIG_SOURCE.to_owned(), pod.source().to_string());
        config.security = sandbox_security(pod);
        config.security.supplemental_groups.extend(&volumes.groups);
        config.security.user_namespace = self.user_namespace(pod).await?;
        Ok(config)
    }

    fn log_directory(&self, pod: &PodRecord) -> PathBuf {
        self.node
            .logs
            .pod_dir(&pod.key().namespace, &pod.key().name, pod.uid().as_str())
    }

    fn termination_dir(&self, uid: &PodUid, container: &str) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container)
    }

    /// Makes the folders that a pod needs before anything of it runs.
    pub(super) async fn make_pod_dirs(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        sandbox: &SandboxConfig,
    ) -> Result<(), SyncError> {
        let folders = vec![
            self.pod_dir(pod.uid()).join("volumes"),
            self.pod_dir(pod.uid()).join("plugins"),
            sandbox.log_directory.clone(),
        ];
        self.node.files.make_dirs(folders).await.map_err(|error| {
            let message = format!("error making pod data directories: {error}");
            cx.events.record(Event::new(
                EventSubject::pod(pod),
                EventType::Warning,
                "Failed",
                message,
            ));
            SyncError::failed("cannot make the pod's folders", error)
        })
    }

    pub(super) async fn container_config(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
        (image, mounted): (&PresentImage, &MountedImages),
    ) -> Result<ContainerConfig, StartError> {
        let pod = &*ground.work.pod;
        let (restart_count, log_path) = self.restart_count(ground, view).await?;
        let given = self.given(pod.uid(), view.name());
        let mut env = Env::from_iter(given.env);
        for (name, value) in self.environment(cx, ground, view).await?.into_vec() {
            env.set(name, value);
        }
        let mut config = ContainerConfig::new(view.name(), restart_count, image.image.clone());
        config.command = expand_command(view.command(), &env);
        config.args = expand_command(view.args(), &env);
        let (volume_mounts, volume_devices) = self.volume_mounts(cx, pod, view, (mounted, &env)).await?;
        config.env = env.into_vec();
        view.working_dir().clone_into(&mut config.working_dir);
        config.log_path = log_path;
        config.stdin = view.stdin();
        config.stdin_once = view.stdin_once();
        config.tty = view.tty();
        config.stop_signal = view.lifecycle().and_then(|lifecycle| lifecycle.stop_signal.clone());
        config.security = container_security(pod, view, image, &self.node.security)?;
        config.security.supplemental_groups.extend(&ground.volumes.groups);
        config.security.user_namespace = ground.sandbox.security.user_namespace.clone();
        let target = view.target_container();
        if let Some(target) = target.and_then(|name| ground.work.observed.newest(name)) {
            see_processes_of(&mut config.security, &target.id);
        }
        config.resources = self.node.resources.of_container(pod, view, &self.node.ledger.node());
        config.resources.cpuset_cpus = given.cpuset_cpus;
        config.resources.cpuset_mems = given.cpuset_mems;
        if given.exclusive_cpus {
            config.resources.cpu_quota = NO_QUOTA;
        }
        config.cgroup = self.container_cgroup(pod, view, &config.resources).await?;
        config.devices = given.devices;
        config.devices.extend(volume_devices);
        config.cdi_devices = given.cdi_devices;
        config.mounts = given.mounts;
        config.mounts.extend(volume_mounts);
        config.labels = mark(pod);
        config
            .labels
            .insert(label::CONTAINER_NAME.to_owned(), view.name().to_owned());
        config.annotations = given.annotations;
        config.annotations.extend(annotations(pod, view, restart_count));
        config.mounts.extend(self.hosts_mount(ground, view).await?);
        let termination_file = self.termination_file(pod, view).await?;
        config.annotations.insert(
            annotation::TERMINATION_MESSAGE_HOST_PATH.to_owned(),
            termination_file.display().to_string(),
        );
        config
            .mounts
            .push(Mount::new(view.termination_message_path(), termination_file).relabelled());
        for mount in &mut config.mounts {
            mount.id_mappings.clone_from(&config.security.user_namespace);
        }
        Ok(config)
    }

    /// How many containers of this name came before, by everything that still tells, and the log that follows from it.
    async fn restart_count(&self, ground: &Ground<'_>, view: &ContainerView<'_>) -> Result<(u32, PathBuf), StartError> {
        let observed = &ground.work.observed;
        let by_record = observed
            .of_name(view.name())
            .map(|container| container.restart_count.max(container.attempt).saturating_add(1))
            .max();
        let by_record = match by_record {
            Some(count) => count,
            None => {
                // Its containers are gone: its logs still tell.
                let dir = ground.sandbox.log_directory.join(view.name());
                self.node.files.count_from_logs(dir).await
            }
        };
        // Records of later ones than those that are left may be gone.
        let count = by_record.max(told_count(ground, view.name()));
        let dir = ground.sandbox.log_directory.join(view.name());
        self.node
            .files
            .make_dirs(vec![dir.clone()])
            .await
            .map_err(|error| StartError::failed(CONFIG_ERROR, format!("cannot make {error}")))?;
        // Containers that somebody else removed leave their logs: without end, if they keep crashing. The last one's stays,
        // which also tells the count.
        let kept = observed.of_name(view.name()).map(|c| c.restart_count.max(c.attempt));
        let first_kept = kept.min().unwrap_or(count).min(count.saturating_sub(1));
        if let Err(error) = self.node.files.remove_logs_before(dir, first_kept).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                container = view.name(),
                "old logs not removed"
            );
        }
        self.clear_strays(&observed.uid).await;
        let log_path = PathBuf::from(crate::logs::container_log_name(view.name(), count));
        Ok((count, log_path))
    }

    async fn environment(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
    ) -> Result<Env, StartError> {
        let pod = &*ground.work.pod;
        let node = self.node.ledger.node();
        let pod_ips = if pod.facts().host_network {
            node.addresses.clone()
        } else {
            ground.pod_ips.clone()
        };
        let fields = PodFields::new(pod.pod(), &self.node.node_name)
            .with_host_ips(node.addresses.iter().copied())
            .with_pod_ips(pod_ips);
        let allocatable = node.api_allocatable();
        let mut request = EnvRequest::new(&fields, *view).with_allocatable(&allocatable);
        if let Some(objects) = &self.node.objects {
            request = request.with_objects(&**objects);
        }
        if pod.is_static() {
            request = request.with_static_pod();
        }
        // Objects come from wherever the embedder has them: a source that does not answer must not hold the pod.
        let limit = self.node.settings.runtime_request_timeout;
        tokio::select! {
            biased;
            () = cx.stop.cancelled() => Err(StartError::Stopped),
            built = tokio::time::timeout(limit, build_env(&request)) => match built {
                Ok(env) => env.map_err(|error| StartError::failed(CONFIG_ERROR, error_chain(&error))),
                Err(_) => Err(StartError::failed(
                    CONFIG_ERROR,
                    format!("no answer from the source of objects within {limit:?}"),
                )),
            },
        }
    }

    /// The host file that the container writes its termination message to.
    async fn termination_file(&self, pod: &PodRecord, view: &ContainerView<'_>) -> Result<PathBuf, StartError> {
        let dir = self.termination_dir(pod.uid(), view.name());
        let path = dir.join(format!("{:08x}", self.node.random.next_u64() & 0xffff_ffff));
        self.node
            .files
            .make_open_file(path.clone())
            .await
            .map_err(|error| StartError::failed(CONFIG_ERROR, format!("cannot make {error}")))?;
        Ok(path)
    }
}

/// The restart count that the next container of that name has, going by the status that was last told.
fn told_count(ground: &Ground<'_>, name: &str) -> u32 {
    let status = &ground.work.status;
    let told = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .find(|status| status.name == name);
    let Some(told) = told else { return 0 };
    let ended = |state: &Option<ApiState>| state.as_ref().and_then(|state| state.terminated.clone());
    let runs = told.state.as_ref().is_some_and(|state| state.running.is_some());
    let last = ended(&told.state).or_else(|| ended(&told.last_state).filter(|_| !runs));
    // Ends that nobody saw were counted as they were told.
    let counted = |end: &ContainerStateTerminated| {
        let unseen = [reason::CONTAINER_STATUS_UNKNOWN, reason::RESTARTING_ALL_CONTAINERS];
        end.reason.as_deref().is_some_and(|reason| unseen.contains(&reason))
    };
    let one_more = u32::from(last.is_some_and(|end| !counted(&end)));
    u32::try_from(told.restart_count).unwrap_or(0).saturating_add(one_more)
}

/// Our mark, on sandboxes and containers.
fn mark(pod: &PodRecord) -> BTreeMap<String, String> {
    BTreeMap::from([
        (label::POD_NAME.to_owned(), pod.key().name.to_string()),
        (label::POD_NAMESPACE.to_owned(), pod.key().namespace.to_string()),
        (label::POD_UID.to_owned(), pod.uid().to_string()),
    ])
}

fn annotations(pod: &PodRecord, view: &ContainerView<'_>, restart_count: u32) -> BTreeMap<String, String> {
    let hash = crate::pod::container_hash(view.name(), view.image());
    let mut annotations = BTreeMap::from([
        (annotation::CONTAINER_HASH.to_owned(), format!("{hash:x}")),
        (annotation::RESTART_COUNT.to_owned(), restart_count.to_string()),
        (
            annotation::TERMINATION_MESSAGE_PATH.to_owned(),
            view.termination_message_path().to_owned(),
        ),
        (
            annotation::TERMINATION_MESSAGE_POLICY.to_owned(),
            view.termination_message_policy().to_owned(),
        ),
    ]);
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    if let Some(hook) = view.lifecycle().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
        annotations.insert(
            annotation::PRE_STOP_HANDLER.to_owned(),
            json(serde_json::to_string(hook)),
        );
    }
    if !view.ports().is_empty() {
        annotations.insert(annotation::PORTS.to_owned(), json(serde_json::to_string(view.ports())));
    }
    if let Some(seconds) = pod.metadata().deletion_grace_period_seconds {
        annotations.insert(annotation::POD_DELETION_GRACE.to_owned(), seconds.to_string());
    }
    if let Some(seconds) = pod.spec().termination_grace_period_seconds {
        annotations.insert(annotation::POD_TERMINATION_GRACE.to_owned(), seconds.to_string());
    }
    if ["cpu", "memory"].into_iter().any(|name| view.restarts_for(name)) {
        let resources = view.resources().cloned().unwrap_or_default();
        annotations.insert(
            annotation::RESOURCES.to_owned(),
            json(serde_json::to_string(&resources)),
        );
    }
    annotations
}

/// The ports of one container, each once: by its name, else by all that it says.
fn port_mappings(ports: &[ContainerPort]) -> Vec<PortMapping> {
    let mut known = BTreeSet::new();
    let mut mappings = Vec::new();
    for port in ports {
        let Some(mapping) = port_mapping(port) else { continue };
        let name = port.name.clone().filter(|name| !name.is_empty());
        let key = name.unwrap_or_else(|| {
            let family = match mapping.host_ip.parse::<IpAddr>() {
                Ok(IpAddr::V4(_)) => "v4",
                Ok(IpAddr::V6(_)) => "v6",
                Err(_) => "any",
            };
            let (protocol, ip) = (mapping.protocol, &mapping.host_ip);
            let (inside, outside) = (mapping.container_port, mapping.host_port);
            format!("{family}-{protocol:?}-{ip}:{inside}:{outside}")
        });
        if known.insert(key) {
            mappings.push(mapping);
        }
    }
    mappings
}

fn port_mapping(port: &ContainerPort) -> Option<PortMapping> {
    let protocol = match port.protocol.as_deref() {
        None | Some("TCP") => PortProtocol::Tcp,
        Some("UDP") => PortProtocol::Udp,
        Some("SCTP") => PortProtocol::Sctp,
        Some(_) => return None,
    };
    let number = |port: i32| u16::try_from(port).ok();
    let mut mapping = PortMapping::new(
        protocol,
        number(port.container_port)?,
        port.host_port.and_then(number).unwrap_or(0),
    );
    mapping.host_ip = port.host_ip.clone().unwrap_or_default();
    Some(mapping)
}
