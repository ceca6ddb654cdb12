//! What must be known of a pod after a restart and cannot be learnt from the runtime: a standing in for the API server,
//! which a node may lack.
//!
//! A checkpoint is the pod's last status, written before that status is published when it says something that must
//! never be unsaid: a final phase, a higher restart count, or that a pod which must not run twice has run.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;

use crate::ids::PodUid;
use crate::pod::{PodRecord, RestartPolicy};
use crate::state_dir::{StateDir, StateError};
use crate::status::pod_is_terminal;

const FOLDER: &str = "pods";

/// Reads and writes checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    state: StateDir,
}

impl Checkpoints {
    pub(crate) fn new(state: StateDir) -> Self {
        Self { state }
    }

    fn path(uid: &PodUid) -> String {
        format!("{FOLDER}/{uid}.json")
    }

    /// The last checkpoint of a pod. One that cannot be read counts as absent, with a warning: the runtime still tells
    /// most of it.
    pub(crate) async fn load(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        let bytes = match self.state.read(&Self::path(uid)).await {
            Ok(bytes) => bytes?,
            Err(error) => {
                tracing::warn!(pod_uid = %uid, error = &error as &dyn std::error::Error, "pod checkpoint unreadable");
                return None;
            }
        };
        match serde_json::from_slice(&bytes) {
            Ok(status) => Some(Arc::new(status)),
            Err(error) => {
                tracing::warn!(pod_uid = %uid, error = &error as &dyn std::error::Error, "pod checkpoint malformed");
                None
            }
        }
    }

    /// Writes a checkpoint, durably.
    pub(crate) async fn save(&self, uid: &PodUid, status: &PodStatus) -> Result<(), StateError> {
        let bytes = serde_json::to_vec(status).unwrap_or_default();
        self.state.write(&Self::path(uid), bytes).await
    }

    /// Forgets a pod.
    pub(crate) async fn remove(&self, uid: &PodUid) -> Result<(), StateError> {
        self.state.remove(&Self::path(uid)).await
    }

    /// The pods that have a checkpoint.
    pub(crate) async fn known(&self) -> Result<Vec<PodUid>, StateError> {
        Ok(self
            .state
            .list(FOLDER)
            .await?
            .iter()
            .filter_map(|name| name.strip_suffix(".json"))
            .map(PodUid::from)
            .collect())
    }
}

/// What a checkpoint must not lose: a pod's final phase, its restart counts, and whether it has started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Essence {
    final_phase: Option<String>,
    restarts: Vec<(String, i32)>,
    has_run: bool,
    has_deadline: bool,
}

impl Essence {
    /// The essence of a status.
    pub(crate) fn of(pod: &PodRecord, status: &PodStatus) -> Self {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let statuses = lists.into_iter().flatten().flatten();
        let has_run = pod.facts().restart_policy != RestartPolicy::Always
            && statuses.clone().any(|c| {
                c.state
                    .as_ref()
                    .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            });
        Self {
            final_phase: status.phase.clone().filter(|_| pod_is_terminal(status)),
            restarts: statuses
                .filter(|c| c.restart_count > 0)
                .map(|c| (c.name.clone(), c.restart_count))
                .collect(),
            has_run,
            has_deadline: pod.facts().active_deadline.is_some() && status.start_time.is_some(),
        }
    }

    /// Whether there is something to keep.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
