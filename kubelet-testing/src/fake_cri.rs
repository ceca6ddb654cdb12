//! The in-memory runtime behind a socket that speaks CRI.

mod convert;
mod events;
mod face;
mod image_service;
mod lists;
mod logs;
mod rpc;
mod runtime_service;
mod serve;
mod stats;
mod status;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{ContainerId, SandboxId};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::transport::Channel;
use kubelet_proto::unix::{Endpoint, ListenError, ListenSettings};

use crate::FakeRuntime;
use crate::fake_cri::face::{Face, Options};
use crate::fake_cri::serve::Server;

pub use rpc::{CriFault, CriScript, Rpc};

/// A container runtime and image service in memory that speaks CRI v1, for any kubelet.
///
/// It is another face of a [`FakeRuntime`]: sandboxes, containers, images, programs, faults and recorded calls are that one's, and
/// are driven through [`FakeCri::runtime`]. What only exists on the wire is set here: [scripts](FakeCri::script) of single calls
/// and [answers](FakeCri::on_answer) that are changed on their way.
///
/// # Containers
/// What a container does is looked for in this order: words in its `args`, such as `exit=3`; what was
/// [set](FakeRuntime::set_program); its image (`fake/exit:3`); its command, where it is one that is known: `sleep 5`, `exit 3`,
/// `true`, `false`, `echo text`, `sh -c` with a script of these. Anything else runs for ever. See
/// [`Program`](crate::Program). What a command echoes is in its log.
///
/// # As a containerd would
/// A name is reserved by what was made with it, and so is one of a call that goes on; there is no code for that, but the text
/// `name "…" is reserved for "…"`. Stopping or removing what is gone succeeds. A call whose client has gone away ends; a
/// container that was asked to stop goes on stopping. Calls that are not listed here are answered with `Unimplemented`:
/// streaming (exec, attach, port-forward), checkpoints, metrics.
///
/// # Transports
/// [`listen`](FakeCri::listen) serves on a unix socket in real time. [`channel`](FakeCri::channel) is a connection in memory, on
/// which `tokio::time::pause` works: with a socket, paused time runs ahead of what is on its way.
///
/// A clone is another handle. What it serves ends with the last one.
///
/// # Examples
/// ```
/// use kubelet_proto::cri::{runtime_client, v1};
/// use kubelet_proto::tonic::Code;
/// use kubelet_testing::{CriFault, CriScript, FakeCri, FakeRuntime, Rpc};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fake = FakeCri::new(FakeRuntime::new());
/// let fault = CriFault::Error(Code::Internal, "the disk is full".to_owned());
/// fake.script(CriScript::next(Rpc::RunPodSandbox, fault));
///
/// let mut client = runtime_client(fake.channel());
/// let refused = client.run_pod_sandbox(v1::RunPodSandboxRequest::default()).await;
/// assert_eq!(refused.unwrap_err().message(), "the disk is full");
/// assert_eq!(fake.count(Rpc::RunPodSandbox), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FakeCri {
    face: Arc<Face>,
    server: Arc<Server>,
}

impl fmt::Debug for FakeCri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeCri")
            .field("runtime", &self.face.runtime)
            .finish_non_exhaustive()
    }
}

impl FakeCri {
    /// The face of that runtime, with the defaults of [`FakeCriBuilder`].
    #[must_use]
    pub fn new(runtime: FakeRuntime) -> Self {
        Self::builder(runtime).build()
    }

    /// Sets up a face of that runtime.
    pub fn builder(runtime: FakeRuntime) -> FakeCriBuilder {
        FakeCriBuilder {
            runtime,
            options: Options::default(),
        }
    }

    /// The world behind it. A call over the wire counts there as one of its own, of the kind that it is turned into.
    #[must_use]
    pub fn runtime(&self) -> &FakeRuntime {
        &self.face.runtime
    }

    /// Serves on a socket at that path, until [`go_down`](Self::go_down) or the end of the last handle.
    ///
    /// # Errors
    /// If nothing can listen there.
    pub async fn listen(&self, path: impl AsRef<Path>) -> Result<(), ListenError> {
        let path = path.as_ref();
        let endpoint = Endpoint::new(path).map_err(|error| ListenError::Failed {
            op: "listen on",
            path: path.to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, error),
        })?;
        self.server.listen(endpoint, ListenSettings::default()).await
    }

    /// A connection in memory, which is made at the first call, and anew with the next call after it was cut.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn channel(&self) -> Channel {
        serve::channel(&self.server)
    }

    /// Ends as a runtime that is killed: its socket is gone, connections are cut, calls in flight have no answer. Containers go
    /// on.
    pub async fn go_down(&self) {
        self.server.go_down().await;
    }

    /// Serves again, where it did before, with the same sandboxes and containers.
    ///
    /// # Errors
    /// If nothing can listen there any more.
    pub async fn come_up(&self) -> Result<(), ListenError> {
        self.server.come_up().await
    }
}

/// Faults of the wire.
impl FakeCri {
    /// Does something to the next calls of one kind. Scripts of one kind act in the order in which they were added.
    pub fn script(&self, script: CriScript) {
        self.face.faults().add(script);
    }

    /// How long each call of that kind takes before anything else happens; zero by default.
    pub fn set_latency(&self, rpc: Rpc, latency: Duration) {
        self.face.faults().set_latency(rpc, latency);
    }

    /// Changes every answer of one type on its way, such as `v1::ContainerStatusResponse`: takes messages out, puts unknown values
    /// in, makes a list huge. The closure may drive the runtime, for something to happen between two calls. Of calls that answer
    /// with a stream it changes each item.
    pub fn on_answer<A: Any>(&self, change: impl Fn(&mut A) + Send + Sync + 'static) {
        self.face.on_answer(change);
    }

    /// Decides what becomes of each event: none, the same, more, or one about something that is not there.
    pub fn on_event(
        &self,
        deliver: impl Fn(v1::ContainerEventResponse) -> Vec<v1::ContainerEventResponse> + Send + Sync + 'static,
    ) {
        self.face.on_event(Some(Arc::new(deliver)));
    }

    /// Takes back all scripts, latencies and changes of answers and events.
    pub fn heal(&self) {
        self.face.heal();
    }
}

/// What was asked for.
impl FakeCri {
    /// How many calls of that kind there were, also those that failed.
    #[must_use]
    pub fn count(&self, rpc: Rpc) -> u64 {
        self.face.faults().count(rpc)
    }

    /// What a sandbox was made from, as it was sent.
    #[must_use]
    pub fn sandbox_config(&self, id: &SandboxId) -> Option<v1::PodSandboxConfig> {
        self.face.sandbox_config(id)
    }

    /// What a container was made from, as it was sent.
    #[must_use]
    pub fn container_config(&self, id: &ContainerId) -> Option<v1::ContainerConfig> {
        self.face.container_config(id)
    }
}

/// Sets up a [`FakeCri`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FakeCriBuilder {
    runtime: FakeRuntime,
    options: Options,
}

impl FakeCriBuilder {
    /// Writes no logs. By default the log of a container is made when it starts, where its config has a path.
    pub fn without_logs(mut self) -> Self {
        self.options.logs = false;
        self
    }

    /// Has no calls that answer with a list in pieces (`StreamContainers` and the like), as runtimes before CRI of Kubernetes
    /// 1.36.
    pub fn without_list_streams(mut self) -> Self {
        self.options.list_streams = false;
        self
    }

    /// Sends the statuses of a sandbox's containers along with its own, as runtimes with events do.
    pub fn statuses_with_containers(mut self) -> Self {
        self.options.statuses_with_containers = true;
        self
    }

    /// Makes the face. It serves nothing yet.
    #[must_use]
    pub fn build(self) -> FakeCri {
        let face = Arc::new(Face::new(self.runtime, self.options));
        FakeCri {
            server: Arc::new(Server::new(face.clone())),
            face,
        }
    }
}
