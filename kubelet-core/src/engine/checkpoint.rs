//! What must be known of a pod after a restart and cannot be learnt from the runtime: a standing in for the API server,
//! which a node may lack.
//!
//! A checkpoint is the pod's last status, written before that status is published when it says something that must
//! never be unsaid: a final phase, a higher restart count, what probes have found, or that a pod which must not run twice has
//! run.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::PodStatus;

use crate::ids::PodUid;
use crate::pod::{PodRecord, RestartPolicy};
use crate::state_dir::{StateDir, StateError};
use crate::status::{is_resizing, pod_is_terminal, told_containers, told_running};

const FOLDER: &str = "pods";

/// Reads and writes checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    state: StateDir,
    /// The pods that may have one, so that the end of one that has none waits for no disk.
    held: Arc<Held>,
}

#[derive(Debug, Default)]
struct Held {
    uids: Mutex<BTreeSet<PodUid>>,
    /// They could not be listed: any pod may have one.
    unknown: AtomicBool,
}

impl Held {
    fn uids(&self) -> MutexGuard<'_, BTreeSet<PodUid>> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a pod's file: its UID, but for what a name in a [`StateDir`] may not hold.
fn file_name(uid: &PodUid) -> String {
    let mut name = String::with_capacity(uid.as_str().len() + 5);
    for (place, letter) in uid.as_str().char_indices() {
        match letter {
            '%' | '/' | '\0' => name.push_str(&format!("%{:02X}", u32::from(letter))),
            '.' if place == 0 => name.push_str("%2E"),
            _ => name.push(letter),
        }
    }
    name + ".json"
}

/// The UID that a file is named after; nothing if no pod's file is named so.
fn uid_of(file_name: &str) -> Option<PodUid> {
    let mut parts = file_name.strip_suffix(".json")?.split('%');
    let mut uid = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        uid.push(char::from(u8::from_str_radix(code, 16).ok()?));
        uid.push_str(rest);
    }
    Some(PodUid::from(uid))
}

impl Checkpoints {
    pub(crate) fn new(state: StateDir) -> Self {
        Self {
            state,
            held: Arc::default(),
        }
    }

    fn path(uid: &PodUid) -> String {
        format!("{FOLDER}/{}", file_name(uid))
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
        self.held.uids().insert(uid.clone());
        self.state.write(&Self::path(uid), bytes).await
    }

    /// Whether a pod may have a checkpoint.
    pub(crate) fn may_hold(&self, uid: &PodUid) -> bool {
        self.held.unknown.load(Ordering::Relaxed) || self.held.uids().contains(uid)
    }

    /// Forgets pods, durably once it returns. None of them may have one written meanwhile.
    pub(crate) async fn remove(&self, uids: &[PodUid]) -> Result<(), StateError> {
        self.state.remove_all(uids.iter().map(Self::path).collect()).await?;
        let mut held = self.held.uids();
        for uid in uids {
            held.remove(uid);
        }
        Ok(())
    }

    /// The pods that have a checkpoint.
    pub(crate) async fn known(&self) -> Result<Vec<PodUid>, StateError> {
        // Until they are listed.
        self.held.unknown.store(true, Ordering::Relaxed);
        let names = self.state.list(FOLDER).await?;
        let uids: Vec<PodUid> = names.iter().filter_map(|name| uid_of(name)).collect();
        self.held.uids().extend(uids.iter().cloned());
        self.held.unknown.store(false, Ordering::Relaxed);
        Ok(uids)
    }
}

/// What a checkpoint must not lose: a pod's final phase, its restart counts, whether it has started, and what its probes have
/// found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Essence {
    final_phase: Option<String>,
    restarts: Vec<(String, i32)>,
    has_run: bool,
    has_deadline: bool,
    /// A hash of what its containers have, of a pod that may ask for other resources, also while nobody listens.
    resources: Option<u64>,
    /// They are being changed: what they have is not known for certain until that is done.
    is_resizing: bool,
    /// What the probes of running containers have come to: the runtime cannot tell.
    probed: Vec<(String, bool, bool)>,
}

impl Essence {
    /// The essence of a status.
    pub(crate) fn of(pod: &PodRecord, status: &PodStatus) -> Self {
        let has_run = pod.facts().restart_policy != RestartPolicy::Always
            && told_containers(status).any(|c| {
                c.state
                    .as_ref()
                    .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            });
        Self {
            final_phase: status.phase.clone().filter(|_| pod_is_terminal(status)),
            restarts: told_containers(status)
                .filter(|c| c.restart_count > 0)
                .map(|c| (c.name.clone(), c.restart_count))
                .collect(),
            has_run,
            has_deadline: pod.facts().active_deadline.is_some() && status.start_time.is_some(),
            resources: actual(pod, status),
            is_resizing: is_resizing(status),
            probed: told_containers(status)
                .filter(|c| pod.facts().has_probes && told_running(c))
                .map(|c| (c.name.clone(), c.started.unwrap_or(false), c.ready))
                .collect(),
        }
    }

    /// Whether there is something to keep.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn actual(pod: &PodRecord, status: &PodStatus) -> Option<u64> {
    let has_some = pod.spec().resources.is_some() || pod.containers().any(|view| view.resources().is_some());
    if !has_some {
        return None;
    }
    // Compared within one life of the agent alone.
    let mut hash = DefaultHasher::new();
    let of_containers = told_containers(status).map(|told| (told.name.as_str(), told.resources.as_ref()));
    for (name, resources) in of_containers.chain([("", status.resources.as_ref())]) {
        name.hash(&mut hash);
        for list in [
            resources.and_then(|of| of.requests.as_ref()),
            resources.and_then(|of| of.limits.as_ref()),
        ] {
            hash.write_usize(list.map_or(0, BTreeMap::len));
            for (name, amount) in list.into_iter().flatten() {
                (name, &amount.0).hash(&mut hash);
            }
        }
    }
    Some(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::{Checkpoints, PodStatus, file_name, uid_of};
    use crate::ids::PodUid;
    use crate::state_dir::StateDir;

    #[test]
    fn a_plain_uid_names_its_file_as_it_is_and_any_other_can_be_read_back() {
        let plain = PodUid::from("7e3f-1_a.b");
        assert_eq!(file_name(&plain), "7e3f-1_a.b.json");
        for uid in ["7e3f-1_a.b", ".hidden", "..", "a/b", "50%", "%2E", "ü.", "\0"] {
            let uid = PodUid::from(uid);
            let name = file_name(&uid);
            assert!(!name.starts_with('.') && !name.contains(['/', '\0']), "{name}");
            assert_eq!(uid_of(&name), Some(uid));
        }
        for name in ["a", "%2.json", "%zz.json", "%ü.json"] {
            assert_eq!(uid_of(name), None, "{name}");
        }
    }

    #[tokio::test]
    async fn a_uid_with_a_leading_dot_has_a_checkpoint() {
        let state = StateDir::in_memory();
        let checkpoints = Checkpoints::new(state.clone());
        let (uid, other) = (PodUid::from(".u"), PodUid::from("v"));
        for uid in [&uid, &other] {
            checkpoints.save(uid, &PodStatus::default()).await.unwrap();
        }
        let later = Checkpoints::new(state);
        assert_eq!(later.known().await.unwrap(), [uid.clone(), other.clone()]);
        assert!(later.load(&uid).await.is_some() && later.may_hold(&uid));
        later.remove(&[uid.clone(), other.clone()]).await.unwrap();
        assert!(later.known().await.unwrap().is_empty());
        assert!(!later.may_hold(&uid) && later.load(&other).await.is_none());
    }
}
