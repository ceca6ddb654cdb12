//! The links to the logs of containers. Nothing depends on them but collectors of logs: what fails is only logged.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use super::{ContainerSyncer, lock};
use crate::ids::{ContainerId, PodKey, PodUid};
use crate::logs::LogLink;
use crate::observation::ObservedContainer;
use crate::runtime::ContainerState;
use crate::syncer::PodWork;

/// What is known of a pod's links.
#[derive(Debug, Default)]
pub(super) struct PodLinks {
    /// The containers that are there and whose logs this life of the agent has linked, or tried to: each is tried once.
    linked: BTreeSet<ContainerId>,
    /// It was synced in this life.
    synced: bool,
    /// Links may be left of containers that went without this agent: they go once their logs do.
    strays: bool,
}

/// Lets one clearing do for all who ask for one before it begins.
#[derive(Debug)]
pub(super) struct ClearingTurns {
    turn: Semaphore,
    asked: AtomicU64,
    done: AtomicU64,
}

impl Default for ClearingTurns {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            asked: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }
}

impl ContainerSyncer {
    /// Links the log of a container that was just started.
    pub(super) async fn link_log(&self, pod: &PodKey, uid: &PodUid, name: &str, id: &ContainerId, log: PathBuf) {
        let Some(link) = self.node.logs.link(pod, name, id) else {
            return;
        };
        lock(&self.memory_of(uid)).links.linked.insert(id.clone());
        self.make_link(pod, link, log).await;
    }

    /// Links the logs of containers that this life of the agent did not see start, once: an agent that was killed after a
    /// start, and a start that nobody heard the end of, make no link, and somebody may have removed one meanwhile.
    pub(super) async fn link_unseen(&self, work: &PodWork) {
        if self.node.logs.links().is_none() {
            return;
        }
        let (pod, seen) = (work.pod.key(), &work.observed.containers);
        let memory = self.memory_of(work.pod.uid());
        let unseen: Vec<&ObservedContainer> = {
            let links = &mut lock(&memory).links;
            links.synced = true;
            let known = links.linked.len();
            links
                .linked
                .retain(|id| seen.iter().any(|container| container.id == *id));
            links.strays |= links.linked.len() < known;
            let unseen: Vec<_> = seen
                .iter()
                .filter(|c| c.state != ContainerState::Created && !links.linked.contains(&c.id))
                .collect();
            // An earlier life may have left links of others too.
            links.strays |= !unseen.is_empty();
            links.linked.extend(unseen.iter().map(|container| container.id.clone()));
            unseen
        };
        // Oldest first: where names are so long that two links have one, the newest stays.
        for container in unseen.into_iter().rev() {
            let link = self.node.logs.link(pod, &container.name, &container.id);
            if let (Some(link), Some(log)) = (link, container.log_path.clone()) {
                self.make_link(pod, link, log).await;
            }
        }
    }

    async fn make_link(&self, pod: &PodKey, link: LogLink, log: PathBuf) {
        if let Err(error) = self.node.files.link_log(link, log).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, %pod, "log not linked");
        }
    }

    /// Removes the link to the log of a container that is about to go.
    pub(super) async fn unlink_log(&self, pod: &PodKey, uid: &PodUid, container: &ObservedContainer) {
        let Some(link) = self.node.logs.link(pod, &container.name, &container.id) else {
            return;
        };
        match self.node.files.unlink_log(link).await {
            Ok(()) => {
                lock(&self.memory_of(uid)).links.linked.remove(&container.id);
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, container = %container.id, "link to a log not removed");
            }
        }
    }

    /// Removes the links that a pod may have left to logs which were just removed. Others may be left: their logs still are.
    pub(super) async fn clear_strays(&self, uid: &PodUid) {
        let strays = lock(&self.memory_of(uid)).links.strays;
        if strays {
            self.clear_links().await;
        }
    }

    /// The same after all its logs were removed.
    pub(super) async fn clear_links_of(&self, uid: &PodUid) {
        let links = std::mem::take(&mut lock(&self.memory_of(uid)).links);
        if links.strays || !links.synced || !links.linked.is_empty() {
            self.clear_links().await;
        }
    }

    /// Removes the links to logs that are gone: a crash, or somebody else who removed a container, leaves them.
    pub(super) async fn clear_links(&self) {
        let (Some(links), logs) = (self.node.logs.links(), self.node.logs.root()) else {
            return;
        };
        let turns = &self.clearing;
        let mine = turns.asked.fetch_add(1, Ordering::SeqCst) + 1;
        // It is never closed.
        let Ok(_turn) = turns.turn.acquire().await else {
            return;
        };
        if turns.done.load(Ordering::SeqCst) >= mine {
            return;
        }
        let asked = turns.asked.load(Ordering::SeqCst);
        let cleared = self
            .node
            .files
            .remove_dangling_links(links.to_owned(), logs.to_owned())
            .await;
        turns.done.store(asked, Ordering::SeqCst);
        if let Err(error) = cleared {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "links to logs that are gone stay"
            );
        }
    }
}
