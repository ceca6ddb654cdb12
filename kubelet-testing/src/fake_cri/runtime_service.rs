//! The runtime service.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    CgroupDriver, ContainerConfig, ContainerId, ContainerRuntime as _, ExecRequest, PodUid, RuntimeError, SandboxId,
    Target,
};
use kubelet_proto::cri::v1;
use kubelet_proto::cri::v1::runtime_service_server::RuntimeService;
use kubelet_proto::tonic::codegen::BoxStream;
use kubelet_proto::tonic::{Request, Response, Status, async_trait};

use crate::fake::Op;
use crate::fake::Program;
use crate::fake::command::Script;
use crate::fake::effect::{no_container, no_sandbox};
use crate::fake::original::Original;
use crate::fake::runtime::{of_container, of_sandbox};
use crate::fake_cri::convert::{container_config, pod_uid, resources, sandbox_config};
use crate::fake_cri::events::events;
use crate::fake_cri::face::{Face, refuse};
use crate::fake_cri::rpc::Rpc;
use crate::fake_cri::status::{nanos, sandbox_status};
use crate::fake_cri::{logs, stats};

/// An error about what exists or is gone.
fn plain(error: RuntimeError) -> Status {
    refuse(&error, "")
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.try_into().unwrap_or_default())
}

impl Face {
    async fn run(&self, request: v1::RunPodSandboxRequest) -> Result<v1::RunPodSandboxResponse, Status> {
        let handler = request.runtime_handler;
        let from = request
            .config
            .ok_or_else(|| Status::invalid_argument("no sandbox config"))?;
        let metadata = from
            .metadata
            .clone()
            .ok_or_else(|| Status::invalid_argument("no sandbox metadata"))?;
        let known = handler.is_empty() || self.runtime.lock().info.handlers.iter().any(|h| h.name == handler);
        if !known {
            return Err(Status::unknown(format!(
                "failed to get sandbox runtime: no runtime for {handler:?} is configured"
            )));
        }
        let config = Arc::new(sandbox_config(&from, &metadata));
        let name = format!(
            "{}_{}_{}_{}",
            metadata.name, metadata.namespace, metadata.uid, metadata.attempt
        );
        let made = self
            .runtime
            .make_sandbox(config, &handler, Original::new(Arc::new(from)))
            .await;
        Ok(v1::RunPodSandboxResponse {
            pod_sandbox_id: made.map_err(|error| refuse(&error, &name))?.to_string(),
        })
    }

    async fn create(&self, request: v1::CreateContainerRequest) -> Result<v1::CreateContainerResponse, Status> {
        let from = request
            .config
            .ok_or_else(|| Status::invalid_argument("no container config"))?;
        let metadata = from
            .metadata
            .clone()
            .ok_or_else(|| Status::invalid_argument("no container metadata"))?;
        let sandbox = SandboxId::from(request.pod_sandbox_id);
        let of_pod = request
            .sandbox_config
            .and_then(|sandbox| sandbox.metadata)
            .unwrap_or_default();
        let pod = match self.runtime.lock().world.sandbox(&sandbox) {
            Some(found) if of_pod.name.is_empty() => found.config.pod_uid.clone(),
            _ => pod_uid(&of_pod),
        };
        let config = Arc::new(container_config(&from, &metadata));
        let program = self.program(&pod, &config);
        let name = format!(
            "{}_{}_{}_{}_{}",
            metadata.name, of_pod.name, of_pod.namespace, of_pod.uid, metadata.attempt
        );
        let made = (program, Original::new(Arc::new(from)));
        let made = self.runtime.make_container(&sandbox, &pod, config, made).await;
        Ok(v1::CreateContainerResponse {
            container_id: made.map_err(|error| refuse(&error, &name))?.to_string(),
        })
    }

    /// What a container does: as the fake is told, else what its command says.
    fn program(&self, pod: &PodUid, config: &ContainerConfig) -> Result<Program, String> {
        let scripted = self.runtime.lock().scripted(pod, config)?;
        Ok(scripted.or_else(|| Some(command(config)?.program)).unwrap_or_default())
    }

    async fn start(&self, id: ContainerId) -> Result<(), RuntimeError> {
        self.runtime.start_container(&id).await?;
        self.log(&id, true);
        Ok(())
    }

    /// Makes a container's log, and writes what its command echoes when it has just begun. A log that cannot be written hurts
    /// nobody here.
    fn log(&self, id: &ContainerId, begins: bool) {
        if !self.options.logs {
            return;
        }
        let (path, text, at) = {
            let state = self.runtime.lock();
            let Some(container) = state.world.container(id) else {
                return;
            };
            let text = command(&container.config)
                .filter(|_| begins)
                .map(|script| script.output);
            (container.log_path.clone(), text.unwrap_or_default(), state.clock.now())
        };
        let Some(path) = path else {
            return;
        };
        if let Err(error) = logs::write(&path, at, &text) {
            tracing::debug!(path = %path.display(), error = &error as &dyn std::error::Error, "log not written");
        }
    }

    async fn exec(&self, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse, Status> {
        let mut command = ExecRequest::new(request.cmd);
        if request.timeout > 0 {
            command = command.with_timeout(seconds(request.timeout));
        }
        let id = ContainerId::from(request.container_id);
        let output = self.runtime.exec(&id, command).await.map_err(plain)?;
        if output.timed_out {
            return Err(Status::deadline_exceeded(format!(
                "failed to exec in container: timeout {}s exceeded: context deadline exceeded",
                request.timeout
            )));
        }
        Ok(v1::ExecSyncResponse {
            stdout: output.stdout,
            stderr: output.stderr,
            exit_code: output.exit_code,
        })
    }
}

fn command(config: &ContainerConfig) -> Option<Script> {
    let words: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
    Script::read(&words)
}

#[async_trait]
impl RuntimeService for Face {
    async fn version(&self, request: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        self.answer(Rpc::Version, request, async |_| {
            let info = self.runtime.lock().info.clone();
            Ok(v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: info.name,
                runtime_version: info.version,
                runtime_api_version: "v1".to_owned(),
            })
        })
        .await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        self.answer(Rpc::Status, request, async |request: v1::StatusRequest| {
            let info = self.runtime.info().await.map_err(plain)?;
            let conditions = info.conditions.into_iter().map(|condition| v1::RuntimeCondition {
                r#type: condition.kind,
                status: condition.status,
                reason: condition.reason,
                message: condition.message,
            });
            let handlers = info.handlers.into_iter().map(|handler| v1::RuntimeHandler {
                name: handler.name,
                features: Some(v1::RuntimeHandlerFeatures::default()),
            });
            let mut response = v1::StatusResponse {
                status: Some(v1::RuntimeStatus {
                    conditions: conditions.collect(),
                }),
                runtime_handlers: handlers.collect(),
                features: Some(v1::RuntimeFeatures {
                    supplemental_groups_policy: true,
                    ..v1::RuntimeFeatures::default()
                }),
                ..v1::StatusResponse::default()
            };
            if request.verbose {
                let made = format!("{:?}", self.runtime.lock());
                response.info.insert("config".to_owned(), "{}".to_owned());
                response.info.insert("state".to_owned(), format!("{made:?}"));
            }
            Ok(response)
        })
        .await
    }

    async fn runtime_config(
        &self,
        request: Request<v1::RuntimeConfigRequest>,
    ) -> Result<Response<v1::RuntimeConfigResponse>, Status> {
        self.answer(Rpc::RuntimeConfig, request, async |_| {
            let driver = match self.runtime.lock().info.cgroup_driver {
                Some(CgroupDriver::Systemd) => v1::CgroupDriver::Systemd,
                Some(_) => v1::CgroupDriver::Cgroupfs,
                None => return Err(Status::unimplemented("unknown method RuntimeConfig")),
            };
            Ok(v1::RuntimeConfigResponse {
                linux: Some(v1::LinuxRuntimeConfiguration {
                    cgroup_driver: driver.into(),
                }),
            })
        })
        .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Result<Response<v1::UpdateRuntimeConfigResponse>, Status> {
        self.answer(Rpc::UpdateRuntimeConfig, request, async |_| {
            Ok(v1::UpdateRuntimeConfigResponse {})
        })
        .await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        self.answer(Rpc::RunPodSandbox, request, |request| self.run(request))
            .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Result<Response<v1::StopPodSandboxResponse>, Status> {
        self.answer(
            Rpc::StopPodSandbox,
            request,
            async |request: v1::StopPodSandboxRequest| {
                let stopped = self.runtime.stop_sandbox(&request.pod_sandbox_id.into()).await;
                stopped.map(|()| v1::StopPodSandboxResponse {}).map_err(plain)
            },
        )
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Result<Response<v1::RemovePodSandboxResponse>, Status> {
        self.answer(
            Rpc::RemovePodSandbox,
            request,
            async |request: v1::RemovePodSandboxRequest| {
                let removed = self.runtime.remove_sandbox(&request.pod_sandbox_id.into()).await;
                removed.map(|()| v1::RemovePodSandboxResponse {}).map_err(plain)
            },
        )
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        self.answer(
            Rpc::PodSandboxStatus,
            request,
            async |request: v1::PodSandboxStatusRequest| {
                let id = SandboxId::from(request.pod_sandbox_id);
                let along = self.options.statuses_with_containers;
                let read = self.runtime.read(Op::SandboxStatus, of_sandbox(&id), |state| {
                    let n = state.world.sandbox_number(&id).ok_or_else(|| no_sandbox(&id))?;
                    Ok(v1::PodSandboxStatusResponse {
                        status: Some(sandbox_status(&state.world.sandboxes[&n])),
                        containers_statuses: if along { state.cri_statuses_in(n) } else { Vec::new() },
                        timestamp: nanos(state.clock.now()),
                        ..v1::PodSandboxStatusResponse::default()
                    })
                });
                read.await.map_err(plain)
            },
        )
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        self.answer(
            Rpc::ListPodSandbox,
            request,
            async |request: v1::ListPodSandboxRequest| {
                let items = self.sandboxes(request.filter).await.map_err(plain)?;
                Ok(v1::ListPodSandboxResponse { items })
            },
        )
        .await
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Result<Response<BoxStream<v1::StreamPodSandboxesResponse>>, Status> {
        self.in_pieces(
            Rpc::StreamPodSandboxes,
            request,
            async |request: v1::StreamPodSandboxesRequest| self.sandboxes(request.filter).await.map_err(plain),
            |pod_sandboxes| v1::StreamPodSandboxesResponse { pod_sandboxes },
        )
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<v1::UpdatePodSandboxResourcesResponse>, Status> {
        let rpc = Rpc::UpdatePodSandboxResources;
        self.answer(rpc, request, async |request: v1::UpdatePodSandboxResourcesRequest| {
            let to = request.resources.as_ref().map(resources).unwrap_or_default();
            let id = SandboxId::from(request.pod_sandbox_id);
            let overhead = request.overhead.as_ref().map(resources);
            let target = Target::Sandbox {
                id: &id,
                overhead: overhead.as_ref(),
            };
            let updated = self.runtime.update_resources(target, &to).await;
            updated
                .map(|()| v1::UpdatePodSandboxResourcesResponse {})
                .map_err(plain)
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Result<Response<v1::CreateContainerResponse>, Status> {
        self.answer(Rpc::CreateContainer, request, |request| self.create(request))
            .await
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Result<Response<v1::StartContainerResponse>, Status> {
        self.answer(
            Rpc::StartContainer,
            request,
            async |request: v1::StartContainerRequest| {
                let started = self.start(request.container_id.into()).await;
                started.map(|()| v1::StartContainerResponse {}).map_err(plain)
            },
        )
        .await
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        self.answer(
            Rpc::StopContainer,
            request,
            async |request: v1::StopContainerRequest| {
                let id = request.container_id.into();
                let stopped = self.runtime.stop_container(&id, seconds(request.timeout)).await;
                stopped.map(|()| v1::StopContainerResponse {}).map_err(plain)
            },
        )
        .await
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Result<Response<v1::RemoveContainerResponse>, Status> {
        self.answer(
            Rpc::RemoveContainer,
            request,
            async |request: v1::RemoveContainerRequest| {
                let removed = self.runtime.remove_container(&request.container_id.into()).await;
                removed.map(|()| v1::RemoveContainerResponse {}).map_err(plain)
            },
        )
        .await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        self.answer(
            Rpc::ContainerStatus,
            request,
            async |request: v1::ContainerStatusRequest| {
                let id = ContainerId::from(request.container_id);
                let read = self.runtime.read(Op::ContainerStatus, of_container(&id), |state| {
                    let container = state.world.container(&id).ok_or_else(|| no_container(&id))?;
                    Ok(v1::ContainerStatusResponse {
                        status: Some(state.cri_status(container)),
                        ..v1::ContainerStatusResponse::default()
                    })
                });
                read.await.map_err(plain)
            },
        )
        .await
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        self.answer(
            Rpc::ListContainers,
            request,
            async |request: v1::ListContainersRequest| {
                let containers = self.containers(request.filter).await.map_err(plain)?;
                Ok(v1::ListContainersResponse { containers })
            },
        )
        .await
    }

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Result<Response<BoxStream<v1::StreamContainersResponse>>, Status> {
        self.in_pieces(
            Rpc::StreamContainers,
            request,
            async |request: v1::StreamContainersRequest| self.containers(request.filter).await.map_err(plain),
            |containers| v1::StreamContainersResponse { containers },
        )
        .await
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Result<Response<v1::UpdateContainerResourcesResponse>, Status> {
        let rpc = Rpc::UpdateContainerResources;
        self.answer(rpc, request, async |request: v1::UpdateContainerResourcesRequest| {
            let to = request.linux.as_ref().map(resources).unwrap_or_default();
            let id = ContainerId::from(request.container_id);
            let updated = self.runtime.update_resources(Target::Container(&id), &to).await;
            updated.map(|()| v1::UpdateContainerResourcesResponse {}).map_err(plain)
        })
        .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Result<Response<v1::ReopenContainerLogResponse>, Status> {
        self.answer(
            Rpc::ReopenContainerLog,
            request,
            async |request: v1::ReopenContainerLogRequest| {
                let id = ContainerId::from(request.container_id);
                self.runtime.reopen_log(&id).await.map_err(plain)?;
                self.log(&id, false);
                Ok(v1::ReopenContainerLogResponse {})
            },
        )
        .await
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Result<Response<v1::ExecSyncResponse>, Status> {
        self.answer(Rpc::ExecSync, request, |request| self.exec(request)).await
    }

    async fn get_container_events(
        &self,
        request: Request<v1::GetEventsRequest>,
    ) -> Result<Response<BoxStream<v1::ContainerEventResponse>>, Status> {
        let opened = self.answer(Rpc::GetContainerEvents, request, async |_| {
            self.runtime.begin_events().map_err(plain)
        });
        opened.await?;
        Ok(Response::new(events(self.runtime.clone(), self.hooks_of_events())))
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Result<Response<v1::ContainerStatsResponse>, Status> {
        self.answer(
            Rpc::ContainerStats,
            request,
            async |request: v1::ContainerStatsRequest| {
                let stats = Some(stats::container(&self.runtime, &request.container_id).map_err(plain)?);
                Ok(v1::ContainerStatsResponse { stats })
            },
        )
        .await
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Result<Response<v1::ListContainerStatsResponse>, Status> {
        self.answer(
            Rpc::ListContainerStats,
            request,
            async |request: v1::ListContainerStatsRequest| {
                let stats = stats::containers(&self.runtime, request.filter);
                Ok(v1::ListContainerStatsResponse { stats })
            },
        )
        .await
    }

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Result<Response<BoxStream<v1::StreamContainerStatsResponse>>, Status> {
        self.in_pieces(
            Rpc::StreamContainerStats,
            request,
            async |request: v1::StreamContainerStatsRequest| Ok(stats::containers(&self.runtime, request.filter)),
            |container_stats| v1::StreamContainerStatsResponse { container_stats },
        )
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Result<Response<v1::PodSandboxStatsResponse>, Status> {
        self.answer(
            Rpc::PodSandboxStats,
            request,
            async |request: v1::PodSandboxStatsRequest| {
                let stats = Some(stats::sandbox(&self.runtime, &request.pod_sandbox_id).map_err(plain)?);
                Ok(v1::PodSandboxStatsResponse { stats })
            },
        )
        .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Result<Response<v1::ListPodSandboxStatsResponse>, Status> {
        let rpc = Rpc::ListPodSandboxStats;
        self.answer(rpc, request, async |request: v1::ListPodSandboxStatsRequest| {
            let stats = stats::sandboxes(&self.runtime, request.filter);
            Ok(v1::ListPodSandboxStatsResponse { stats })
        })
        .await
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Result<Response<BoxStream<v1::StreamPodSandboxStatsResponse>>, Status> {
        self.in_pieces(
            Rpc::StreamPodSandboxStats,
            request,
            async |request: v1::StreamPodSandboxStatsRequest| Ok(stats::sandboxes(&self.runtime, request.filter)),
            |pod_sandbox_stats| v1::StreamPodSandboxStatsResponse { pod_sandbox_stats },
        )
        .await
    }
}
