//! What the kubelet runs on: a runtime, and a folder for everything.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{ContainerId, SystemClock};
use kubelet_proto::cri::v1;
use kubelet_testing::{FakeCri, FakeRuntime};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::agent::Agent;

/// How often it is looked whether the kubelet still runs.
const CHECK: Duration = Duration::from_secs(1);

/// What the runtime has answered so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Answered {
    lists: usize,
    starts: usize,
    stopped_sandboxes: usize,
    /// When a container was last started.
    started: Option<Instant>,
    /// The container that was made last.
    made: Option<ContainerId>,
}

pub(super) struct Machine {
    fake: FakeCri,
    answered: watch::Receiver<Answered>,
    dir: TempDir,
    socket: PathBuf,
    patience: Duration,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Machine {
    pub(super) async fn start(events: bool, patience: Duration) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("side-by-side").tempdir()?;
        let mut world = FakeRuntime::builder()
            .clock(Arc::new(SystemClock))
            .all_images_present()
            .call_limit(0);
        if !events {
            world = world.without_events();
        }
        // With logs: a kubelet asks again and again for one that is not there.
        let fake = FakeCri::new(world.build());
        let answered = watch_answers(&fake);
        let socket = dir.path().join("cri.sock");
        fake.listen(&socket).await.map_err(io::Error::other)?;
        Ok(Self {
            fake,
            answered,
            dir,
            socket,
            patience,
        })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// What was answered by now, from which [`reaction`](Self::reaction) counts on.
    pub(super) fn answered(&self) -> Answered {
        self.answered.borrow().clone()
    }

    /// Until the kubelet has looked at what is there.
    pub(super) async fn until_listed(&self, agent: &mut Agent) -> io::Result<()> {
        let listed = |now: &Answered| now.lists > 0;
        self.until("the kubelet looks at what is there", agent, listed)
            .await
            .map(drop)
    }

    /// Until so many containers were started in all.
    pub(super) async fn until_started(&self, count: usize, agent: &mut Agent) -> io::Result<()> {
        let started = |now: &Answered| now.starts >= count;
        let what = format!("{count} containers are started");
        self.until(&what, agent, started).await.map(drop)
    }

    /// Until a container was started after these answers: how long after `begun`, and which.
    pub(super) async fn reaction(
        &self,
        begun: Instant,
        before: &Answered,
        agent: &mut Agent,
    ) -> io::Result<(Duration, ContainerId)> {
        let started = |now: &Answered| now.starts > before.starts;
        let now = self.until("a container is started", agent, started).await?;
        match (now.started, now.made) {
            (Some(at), Some(id)) => Ok((at.saturating_duration_since(begun), id)),
            _ => Err(agent.failure("a container was started that was never made")),
        }
    }

    /// Until a sandbox was stopped after these answers.
    pub(super) async fn until_stopped(&self, before: &Answered, agent: &mut Agent) -> io::Result<()> {
        let stopped = |now: &Answered| now.stopped_sandboxes > before.stopped_sandboxes;
        self.until("a sandbox is stopped", agent, stopped).await.map(drop)
    }

    /// Lets a container end by itself.
    pub(super) fn kill(&self, container: &ContainerId) {
        self.fake.runtime().kill_container(container, 1);
    }

    async fn until(
        &self,
        what: &str,
        agent: &mut Agent,
        mut happened: impl FnMut(&Answered) -> bool,
    ) -> io::Result<Answered> {
        let begun = Instant::now();
        let mut answered = self.answered.clone();
        loop {
            if let Ok(Ok(now)) = timeout(CHECK, answered.wait_for(&mut happened)).await {
                return Ok(now.clone());
            }
            agent.check()?;
            if begun.elapsed() > self.patience {
                return Err(agent.failure(&format!("not within {:?}: {what}", self.patience)));
            }
        }
    }
}

/// Counts answers as they are given. Nothing is looked at in between, which would take time from the runtime.
fn watch_answers(fake: &FakeCri) -> watch::Receiver<Answered> {
    let (sender, answered) = watch::channel(Answered::default());
    let sender = Arc::new(sender);
    let note = |change: fn(&mut Answered)| {
        let sender = sender.clone();
        move || sender.send_modify(change)
    };
    let listed = note(|now| now.lists += 1);
    fake.on_answer(move |_: &mut v1::ListContainersResponse| listed());
    let listed = note(|now| now.lists += 1);
    fake.on_answer(move |_: &mut v1::StreamContainersResponse| listed());
    let stopped = note(|now| now.stopped_sandboxes += 1);
    fake.on_answer(move |_: &mut v1::StopPodSandboxResponse| stopped());
    let started = note(|now| {
        now.starts += 1;
        now.started = Some(Instant::now());
    });
    fake.on_answer(move |_: &mut v1::StartContainerResponse| started());
    fake.on_answer(move |answer: &mut v1::CreateContainerResponse| {
        let id = ContainerId::from(answer.container_id.as_str());
        sender.send_modify(|now| now.made = Some(id));
    });
    answered
}
