//! The sync loop: turns what sources say and what is seen into wishes, one worker per pod.

mod dispatch;
mod leftovers;
mod preemption;
mod resize;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, SelectAll};
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::names::NameGuard;
use super::shared::Shared;
use super::worker::{Worker, WorkerEnd};
use crate::cache::Seq;
use crate::config::PodConfig;
use crate::ids::{PodUid, SourceName};
use crate::pod::PodRecord;
use crate::signals::PodSignalReceiver;
use crate::source::{SourceItem, SourceKind};
use crate::syncer::{PendingResize, PodWish, Termination};

/// A request from outside the loop. Bounded: an embedder that asks faster than the loop answers waits.
#[derive(Debug)]
pub(crate) enum Command {
    /// Ends a pod, as an eviction does.
    Kill { uid: PodUid, termination: Termination },
}

/// Where a pod that a source names stands.
#[derive(Debug)]
struct Entry {
    /// The newest version.
    pod: Arc<PodRecord>,
    /// The same with the resources that it was granted, while it asks for others.
    granted: Option<Arc<PodRecord>>,
    /// Why it is not granted those.
    pending: Option<Arc<PendingResize>>,
    /// Whether a worker runs for it.
    working: bool,
    /// It was named again, under the same UID, after its end had begun: it starts anew once that is done.
    again: bool,
    /// It has left its source, and its worker clears up.
    left: bool,
    /// It waits for admission.
    not_yet: Option<(String, String)>,
}

/// Something of an earlier life, or of nobody: known from the runtime alone.
#[derive(Debug)]
struct Leftover {
    /// The source that it came from, where it says so.
    source: Option<SourceName>,
    /// Held for it, so that no other static pod of that name starts beside it; shared by all that is left of the name.
    name: Option<Arc<NameGuard>>,
    /// A worker ends it, or what is left of it is cleared up.
    working: bool,
}

impl Leftover {
    /// Of which only what is on disk is left, and about to go: whoever is wished for under its UID waits for that.
    fn being_cleared() -> Self {
        Self {
            source: None,
            name: None,
            working: true,
        }
    }
}

/// What is done beside the loop, since it waits for a disk.
#[derive(Debug)]
enum Chore {
    /// Of these pods something is left beside the backend.
    LeftBehind(Vec<PodUid>),
    /// The same, of pods that could not be told of at first.
    LeftBehindUnseen(Vec<PodUid>),
    /// These pods were cleared up after, but for what stays of some; with the pause until that is tried again.
    Swept {
        uids: Vec<PodUid>,
        stay: Vec<PodUid>,
        pause: Duration,
    },
    /// It is to be tried again for these, and after that pause once more.
    SweepAgain(Vec<PodUid>, Duration),
    /// Nothing is left of these pods, which have left the node in this life.
    Departed(Vec<PodUid>),
}

/// The loop and all that it alone decides on.
#[derive(Debug)]
pub(crate) struct SyncLoop {
    shared: Arc<Shared>,
    config: PodConfig,
    kinds: BTreeMap<SourceName, SourceKind>,
    entries: BTreeMap<PodUid, Entry>,
    leftovers: BTreeMap<PodUid, Leftover>,
    /// The names that leftovers hold, or held.
    leftover_names: BTreeMap<String, Weak<NameGuard>>,
    /// Checkpoints of an earlier life, until their pods are named or known to be gone.
    restored: BTreeMap<PodUid, Arc<PodStatus>>,
    workers: JoinSet<WorkerEnd>,
    chores: JoinSet<Chore>,
    /// Pods of which only a checkpoint is left. Removed together: what a disk takes long for is to make a removal last.
    departed: Vec<PodUid>,
    departing: bool,
    /// What an earlier life left behind has been looked for.
    swept: bool,
    sources_ready: watch::Sender<bool>,
    stop: CancellationToken,
    /// Whether everything has been looked at, so that it is known what runs.
    looked: bool,
    /// Pods ask for resources that nobody has decided on yet.
    untried_resizes: bool,
    /// How often a resize was refused.
    resizes_refused: u64,
    /// What is there and could not be inspected yet, and the waits for that.
    unseen: BTreeSet<PodUid>,
    late_looks: FuturesUnordered<BoxFuture<'static, PodUid>>,
    /// Critical pods that wait, each with one that is to end for it, and when that should have happened.
    awaited: BTreeSet<(PodUid, PodUid)>,
    overdue: FuturesUnordered<BoxFuture<'static, (PodUid, PodUid)>>,
}

/// What feeds the loop.
pub(crate) struct Feeds {
    pub(crate) sources: SelectAll<BoxStream<'static, (SourceName, SourceItem)>>,
    pub(crate) signals: PodSignalReceiver,
    pub(crate) admission: SelectAll<BoxStream<'static, ()>>,
    pub(crate) commands: mpsc::Receiver<Command>,
}

impl std::fmt::Debug for Feeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// How long the start waits for the inspection of what is there, so that all is decided on at once, in order. Whoever
/// takes longer is waited for by itself.
const FIRST_LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// How long a pod that takes longer may keep others waiting that only it leaves no room for.
const LATE_LOOK_PATIENCE: Duration = Duration::from_secs(30);

/// Waits until everything has been listed once, and a little for what is there to be inspected. Gives what was not.
async fn first_look(shared: &Shared) -> BTreeSet<PodUid> {
    shared.cache.first_look().await;
    let mut unseen: BTreeSet<PodUid> = shared.cache.present().into_iter().collect();
    let look = |uid: PodUid| async move {
        let seen = shared.cache.since(&uid, Seq::default()).await;
        (uid, seen.is_ok())
    };
    let mut looks: FuturesUnordered<_> = unseen.iter().cloned().map(look).collect();
    let all_seen = async {
        while let Some((uid, is_seen)) = looks.next().await {
            // A pod that cannot be looked at keeps nobody waiting.
            if is_seen {
                unseen.remove(&uid);
            }
        }
    };
    let waited = tokio::time::timeout(FIRST_LOOK_PATIENCE, all_seen).await;
    drop(looks);
    if waited.is_err() {
        tracing::warn!(
            pods = unseen.len(),
            "not every pod of an earlier life could be inspected yet"
        );
    }
    unseen
}

impl SyncLoop {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: PodConfig,
        kinds: BTreeMap<SourceName, SourceKind>,
        sources_ready: watch::Sender<bool>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            shared,
            config,
            kinds,
            entries: BTreeMap::new(),
            leftovers: BTreeMap::new(),
            leftover_names: BTreeMap::new(),
            restored: BTreeMap::new(),
            workers: JoinSet::new(),
            chores: JoinSet::new(),
            departed: Vec::new(),
            departing: false,
            swept: false,
            sources_ready,
            stop,
            looked: false,
            untried_resizes: false,
            resizes_refused: 0,
            unseen: BTreeSet::new(),
            late_looks: FuturesUnordered::new(),
            awaited: BTreeSet::new(),
            overdue: FuturesUnordered::new(),
        }
    }

    /// Runs until `stop`, then gives back the workers that have not ended yet.
    pub(crate) async fn run(mut self, mut feeds: Feeds) -> JoinSet<WorkerEnd> {
        self.load_checkpoints().await;
        let shared = self.shared.clone();
        let stop = self.stop.clone();
        let first_look = first_look(&shared);
        tokio::pin!(first_look);
        loop {
            self.forget_departed();
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.end().await,
                Some(ended) = self.workers.join_next() => match ended {
                    Ok(end) => self.worker_ended(end),
                    Err(error) => self.worker_panicked(&error),
                },
                Some(Ok(done)) = self.chores.join_next() => self.chore_done(done),
                unseen = &mut first_look, if !self.looked => self.first_look(unseen),
                Some(uid) = self.late_looks.next() => self.looked_into(&uid),
                Some(pair) = self.overdue.next() => self.should_have_ended(pair),
                Some((source, item)) = feeds.sources.next(), if !feeds.sources.is_empty() => {
                    self.source_says(&source, item).await;
                }
                woken = feeds.signals.next() => {
                    for uid in woken.into_keys() {
                        self.woken(&uid);
                    }
                }
                Some(()) = feeds.admission.next(), if !feeds.admission.is_empty() => self.ask_again(),
                () = shared.freed.notified() => self.ask_again(),
                Some(command) = feeds.commands.recv() => self.command(command),
            }
        }
    }

    /// Finishes what is done beside the loop, so that the next start finds nothing of pods that are gone.
    async fn end(mut self) -> JoinSet<WorkerEnd> {
        while self.chores.join_next().await.is_some() {}
        let departed = std::mem::take(&mut self.departed);
        self.shared.forget_checkpoints(&departed).await;
        self.workers
    }

    async fn load_checkpoints(&mut self) {
        match self.shared.checkpoints.known().await {
            Ok(uids) => {
                for uid in uids {
                    if let Some(status) = self.shared.checkpoints.load(&uid).await {
                        self.restored.insert(uid, status);
                    }
                }
            }
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "pod checkpoints unreadable"),
        }
    }

    /// Starts a worker for a wish.
    fn spawn(&mut self, uid: &PodUid, wish: PodWish, name: Option<Arc<NameGuard>>) {
        let restored = self
            .restored
            .get(uid)
            .cloned()
            .or_else(|| wish.pod.as_ref().and_then(|pod| pod.api_status().cloned()));
        let span = match &wish.pod {
            Some(pod) => tracing::info_span!("pod", pod = %pod.key(), pod_uid = %uid),
            None => tracing::info_span!("orphan", pod_uid = %uid),
        };
        let (worker, link) = Worker::new(
            uid.clone(),
            self.shared.clone(),
            wish,
            name,
            restored,
            self.stop.clone(),
        );
        self.shared.workers().insert(uid.clone(), link);
        self.workers.spawn(worker.run().instrument(span));
    }

    /// Changes the wish of a pod's worker, if it has one.
    fn wish(&self, uid: &PodUid, change: impl FnOnce(&mut PodWish)) {
        if let Some(link) = self.shared.workers().get(uid) {
            link.wish.send_modify(change);
        }
    }

    fn worker_panicked(&mut self, error: &tokio::task::JoinError) {
        if error.is_panic() {
            // Workers catch the panics of their turns, so that this is one in the engine's own frame around them. The pod
            // stays as it is until the agent restarts; others go on.
            tracing::error!(error = error as &dyn std::error::Error, "a pod worker panicked");
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Kill { uid, termination } => {
                self.shared.ledger.mark_leaving(&uid);
                self.wish(&uid, |wish| wish.end(termination));
            }
        }
    }
}
