//! Sandboxes and containers.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use kubelet_core::{
    CgroupDriver, ContainerId, ContainerRecord, ContainerRuntime, ContainerStatus, CreateContainer, ExecOutput,
    ExecRequest, LinuxResources, PodKey, PodUid, RuntimeCondition, RuntimeError, RuntimeHandler, RuntimeHint,
    RuntimeInfo, RuntimeParts, SandboxConfig, SandboxId, SandboxRecord, SandboxStatus, Scope, Target, label,
};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::transport::Channel;
use kubelet_proto::tonic::{Code, Request};
use kubelet_proto::unix::{ConnectSettings, Endpoint, connect_lazy};
use tokio::time::{Instant, timeout};

use crate::client::{Client, answer, cut, within};
use crate::connect::{ConnectError, Version, cgroup_driver, version};
use crate::convert::{
    container_config, container_state, container_status, resources, sandbox_config, sandbox_state, sandbox_status,
    timestamp,
};
use crate::error::Op;
use crate::events::events;
use crate::features::image_mounts;
use crate::lists::{ContainerList, SandboxList};
use crate::settings::{CriSettings, whole_seconds};

/// For how long a version is believed. Source: kubelet 1.36.
const VERSION_AGE: Duration = Duration::from_secs(60);
/// What a command gets beside its timeout for its end to be told.
const EXEC_MARGIN: Duration = Duration::from_secs(2);

/// A runtime behind a socket.
///
/// Made by [`connect`](Self::connect). The connection is made anew with the next call after the runtime went away; every call
/// has a deadline, and a call whose outcome is unknown says so.
///
/// Source: kubelet 1.36, `cri-client/pkg/remote_runtime.go`.
pub struct CriRuntime {
    pub(crate) client: Client,
    endpoint: String,
    driver: Option<CgroupDriver>,
    version: Mutex<(Version, Instant)>,
}

impl fmt::Debug for CriRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CriRuntime")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl CriRuntime {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// [`ConnectError`] if the endpoint is none, or no usable runtime answers.
    pub async fn connect(endpoint: &str) -> Result<Self, ConnectError> {
        Self::connect_with(endpoint, CriSettings::default()).await
    }

    /// Connects to the socket of a runtime, such as `unix:///run/containerd/containerd.sock`, and asks it for its version
    /// and its configuration.
    ///
    /// # Errors
    /// [`ConnectError`] if the endpoint is none, or no usable runtime answers.
    pub async fn connect_with(endpoint: &str, settings: CriSettings) -> Result<Self, ConnectError> {
        let dial = |endpoint: &str| -> Result<Channel, ConnectError> {
            let endpoint: Endpoint = endpoint.parse()?;
            Ok(connect_lazy(&endpoint, ConnectSettings::default()))
        };
        let channel = dial(endpoint)?;
        let image_channel = match &settings.image_endpoint {
            Some(other) if other != endpoint => dial(other)?,
            _ => channel.clone(),
        };
        Self::over(endpoint, channel, image_channel, settings).await
    }

    /// As [`connect_with`](Self::connect_with), over a channel of the caller's, which may lead anywhere. `name` stands in logs and
    /// errors. An image endpoint in the settings is not looked at.
    ///
    /// # Errors
    /// [`ConnectError::NoAnswer`] if no usable runtime answers.
    pub async fn connect_over(name: &str, channel: Channel, settings: CriSettings) -> Result<Self, ConnectError> {
        Self::over(name, channel.clone(), channel, settings).await
    }

    async fn over(
        endpoint: &str,
        channel: Channel,
        image_channel: Channel,
        settings: CriSettings,
    ) -> Result<Self, ConnectError> {
        let client = Client::new(channel, image_channel, settings);
        let no_answer = |source| ConnectError::NoAnswer {
            endpoint: endpoint.to_owned(),
            source,
        };
        let first = version(&client).await.map_err(no_answer)?;
        let driver = cgroup_driver(&client).await.map_err(no_answer)?;
        crate::images::filesystems(&client).await.map_err(no_answer)?;
        tracing::info!(endpoint, runtime = %first.name, version = %first.version, ?driver, "runtime connected");
        Ok(Self {
            client,
            endpoint: endpoint.to_owned(),
            driver,
            version: Mutex::new((first, Instant::now())),
        })
    }

    async fn version(&self) -> Result<Version, RuntimeError> {
        let (known, at) = self.version.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if at.elapsed() < VERSION_AGE {
            return Ok(known);
        }
        let now = version(&self.client).await?;
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = (now.clone(), Instant::now());
        Ok(now)
    }
}

pub(crate) fn selector(of: Scope<'_>) -> std::collections::BTreeMap<String, String> {
    match of {
        Scope::All => std::collections::BTreeMap::new(),
        Scope::Pod(uid) => std::collections::BTreeMap::from([(label::POD_UID.to_owned(), uid.to_string())]),
    }
}

/// A name is reserved by an object, or by a call that goes on and of which nothing shows yet.
fn reserved(what: String, is_there: bool) -> RuntimeError {
    if is_there {
        RuntimeError::Taken { what }
    } else {
        RuntimeError::Busy { what }
    }
}

/// One that is gone needs no stop and no removal.
fn or_gone(done: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match done {
        Err(RuntimeError::NotFound { .. }) => Ok(()),
        done => done,
    }
}

#[async_trait]
impl ContainerRuntime for CriRuntime {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        let op = Op::read("status", "status", "");
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        let said = answer(
            op,
            limit,
            runtime.status(within(limit, v1::StatusRequest { verbose: false })),
        )
        .await?;
        let status = said.status.ok_or_else(|| op.bad_answer("no status"))?;
        let version = self.version().await?;
        let mut info = RuntimeInfo::new(version.name, version.version);
        info.conditions = status
            .conditions
            .into_iter()
            .map(|condition| {
                if condition.status {
                    RuntimeCondition::met(condition.r#type)
                } else {
                    RuntimeCondition::unmet(condition.r#type, condition.reason, condition.message)
                }
            })
            .collect();
        info.handlers = said
            .runtime_handlers
            .into_iter()
            .map(|said| {
                let mut handler = RuntimeHandler::new(said.name);
                let features = said.features.unwrap_or_default();
                handler.recursive_read_only_mounts = features.recursive_read_only_mounts;
                handler.user_namespaces = features.user_namespaces;
                handler
            })
            .collect();
        info.handlers.sort_by(|a, b| a.name.cmp(&b.name));
        info.supplemental_groups_policy = said
            .features
            .is_some_and(|features| features.supplemental_groups_policy);
        info.image_mounts = image_mounts(&info.name, &info.version);
        info.cgroup_driver = self.driver;
        Ok(info)
    }

    async fn list_sandboxes(&self, of: Scope<'_>) -> Result<Vec<SandboxRecord>, RuntimeError> {
        let op = Op::read("list_podsandbox", "sandboxes", "");
        let request = v1::ListPodSandboxRequest {
            filter: Some(v1::PodSandboxFilter {
                label_selector: selector(of),
                ..v1::PodSandboxFilter::default()
            }),
        };
        let list = self.client.list::<_, SandboxList>(op, request).await?;
        let ours = list.into_iter().filter_map(|item| {
            let uid = item.mark.pod_uid?;
            let name = item.metadata.unwrap_or_default();
            let created_at = timestamp(item.created_at).unwrap_or_default();
            let record = SandboxRecord::new(
                SandboxId::from(item.id),
                PodUid::from(uid),
                name.attempt,
                sandbox_state(item.state),
                created_at,
            );
            Some(if name.name.is_empty() {
                record
            } else {
                record.with_key(PodKey::new(name.namespace, name.name))
            })
        });
        Ok(ours.collect())
    }

    async fn list_containers(&self, of: Scope<'_>) -> Result<Vec<ContainerRecord>, RuntimeError> {
        let op = Op::read("list_containers", "containers", "");
        let request = v1::ListContainersRequest {
            filter: Some(v1::ContainerFilter {
                label_selector: selector(of),
                ..v1::ContainerFilter::default()
            }),
        };
        let list = self.client.list::<_, ContainerList>(op, request).await?;
        let ours = list.into_iter().filter_map(|item| {
            let uid = item.mark.pod_uid?;
            let (name, attempt) = item.metadata.map(|m| (m.name, m.attempt)).unwrap_or_default();
            let created_at = timestamp(item.created_at).unwrap_or_default();
            Some(ContainerRecord::new(
                ContainerId::from(item.id),
                SandboxId::from(item.sandbox_id),
                PodUid::from(uid),
                name,
                attempt,
                container_state(item.state),
                created_at,
            ))
        });
        Ok(ours.collect())
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        let op = Op::read("podsandbox_status", "sandbox", id.as_str());
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_string(),
            verbose: false,
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        let said = answer(op, limit, runtime.pod_sandbox_status(within(limit, request))).await?;
        sandbox_status(said).map_err(|why| op.bad_answer(why))
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        let op = Op::read("container_status", "container", id.as_str());
        let request = v1::ContainerStatusRequest {
            container_id: id.to_string(),
            verbose: false,
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        let said = answer(op, limit, runtime.container_status(within(limit, request))).await?;
        let status = said.status.ok_or_else(|| op.bad_answer("container status is nil"))?;
        container_status(status).map_err(|why| op.bad_answer(why))
    }

    async fn run_sandbox(&self, config: &SandboxConfig, handler: &str) -> Result<SandboxId, RuntimeError> {
        let op = Op::change("run_podsandbox", "sandbox of pod", config.pod_uid.as_str());
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox_config(config)),
            runtime_handler: handler.to_owned(),
        };
        let limit = self.client.limit().saturating_mul(2);
        let mut runtime = self.client.runtime();
        let said = match answer(op, limit, runtime.run_pod_sandbox(within(limit, request))).await {
            Err(RuntimeError::Taken { what }) => {
                let listed = self.list_sandboxes(Scope::Pod(&config.pod_uid)).await;
                let is_there = listed.is_ok_and(|all| all.iter().any(|record| record.attempt == config.attempt));
                return Err(reserved(what, is_there));
            }
            said => said?,
        };
        if said.pod_sandbox_id.is_empty() {
            return Err(op.bad_answer("a sandbox without an id"));
        }
        Ok(SandboxId::from(said.pod_sandbox_id))
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let op = Op::change("stop_podsandbox", "sandbox", id.as_str());
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        or_gone(
            answer(op, limit, runtime.stop_pod_sandbox(within(limit, request)))
                .await
                .map(drop),
        )
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let op = Op::change("remove_podsandbox", "sandbox", id.as_str());
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        or_gone(
            answer(op, limit, runtime.remove_pod_sandbox(within(limit, request)))
                .await
                .map(drop),
        )
    }

    async fn create_container(&self, req: CreateContainer<'_>) -> Result<ContainerId, RuntimeError> {
        let op = Op::change("create_container", "container", &req.container.name);
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: req.sandbox_id.to_string(),
            config: Some(container_config(req.container)),
            sandbox_config: Some(sandbox_config(req.sandbox)),
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        let said = match answer(op, limit, runtime.create_container(within(limit, request))).await {
            Err(RuntimeError::Taken { what }) => {
                let (name, attempt) = (&req.container.name, req.container.attempt);
                let listed = self.list_containers(Scope::Pod(&req.sandbox.pod_uid)).await;
                let is_this = |record: &ContainerRecord| record.name == *name && record.attempt == attempt;
                return Err(reserved(what, listed.is_ok_and(|all| all.iter().any(is_this))));
            }
            said => said?,
        };
        if said.container_id.is_empty() {
            return Err(op.bad_answer("a container without an id"));
        }
        Ok(ContainerId::from(said.container_id))
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let op = Op::change("start_container", "container", id.as_str());
        let request = v1::StartContainerRequest {
            container_id: id.to_string(),
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        answer(op, limit, runtime.start_container(within(limit, request)))
            .await
            .map(drop)
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let op = Op::change("stop_container", "container", id.as_str());
        let request = v1::StopContainerRequest {
            container_id: id.to_string(),
            timeout: whole_seconds(grace),
        };
        let limit = self.client.limit().saturating_add(grace);
        let mut runtime = self.client.runtime();
        or_gone(
            answer(op, limit, runtime.stop_container(within(limit, request)))
                .await
                .map(drop),
        )
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let op = Op::change("remove_container", "container", id.as_str());
        let request = v1::RemoveContainerRequest {
            container_id: id.to_string(),
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        or_gone(
            answer(op, limit, runtime.remove_container(within(limit, request)))
                .await
                .map(drop),
        )
    }

    async fn exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        let op = Op::change("exec_sync", "container", id.as_str());
        // A command without a timeout has no deadline; one whose end is not told in time is given up.
        let limit = req.timeout.map(|timeout| timeout.saturating_add(EXEC_MARGIN));
        let message = v1::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: req.command,
            timeout: req.timeout.map_or(0, whole_seconds),
        };
        let mut runtime = self.client.runtime();
        let call = runtime.exec_sync(Request::new(message));
        let said = match limit {
            Some(limit) => match timeout(limit, call).await {
                Ok(said) => said,
                Err(_) => return Ok(ExecOutput::timed_out()),
            },
            None => call.await,
        };
        match said {
            Ok(said) => {
                let said = said.into_inner();
                Ok(ExecOutput::new(
                    said.exit_code,
                    cut(said.stdout, req.output_limit_bytes),
                    cut(said.stderr, req.output_limit_bytes),
                ))
            }
            Err(status) if status.code() == Code::DeadlineExceeded => Ok(ExecOutput::timed_out()),
            Err(status) => Err(op.error(status)),
        }
    }

    async fn update_resources(&self, of: Target<'_>, to: &LinuxResources) -> Result<(), RuntimeError> {
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        match of {
            Target::Container(id) => {
                let op = Op::change("update_container", "container", id.as_str());
                let request = v1::UpdateContainerResourcesRequest {
                    container_id: id.to_string(),
                    linux: Some(resources(to)),
                    ..v1::UpdateContainerResourcesRequest::default()
                };
                answer(op, limit, runtime.update_container_resources(within(limit, request)))
                    .await
                    .map(drop)
            }
            Target::Sandbox { id, overhead } => {
                let op = Op::change("update_podsandbox", "sandbox", id.as_str());
                let request = v1::UpdatePodSandboxResourcesRequest {
                    pod_sandbox_id: id.to_string(),
                    overhead: Some(overhead.map(resources).unwrap_or_default()),
                    resources: Some(resources(to)),
                };
                let said = answer(op, limit, runtime.update_pod_sandbox_resources(within(limit, request))).await;
                match said {
                    // Some say so with a text alone, under `Unknown`.
                    Err(RuntimeError::Refused { message, .. }) if message.contains("not implemented") => {
                        Err(RuntimeError::unsupported(op.name))
                    }
                    said => said.map(drop),
                }
            }
        }
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let op = Op::change("reopen_container_log", "container", id.as_str());
        let request = v1::ReopenContainerLogRequest {
            container_id: id.to_string(),
        };
        let limit = self.client.limit();
        let mut runtime = self.client.runtime();
        answer(op, limit, runtime.reopen_container_log(within(limit, request)))
            .await
            .map(drop)
    }

    fn events(&self) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
        events(self.client.clone())
    }
}

impl From<CriRuntime> for RuntimeParts {
    fn from(both: CriRuntime) -> Self {
        Self::from(Arc::new(both))
    }
}
