//! What a plugin is given.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubelet_core::{
    Freshness, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, PodRecord, PodUid, Token, TokenRequest,
    VolumeContext,
};
use tokio_util::sync::CancellationToken;

use super::{VolumeFault, VolumeMode, VolumeSpec};
use crate::ground::mounts::Mounts;
use crate::ground::ownership::ChangePolicy;
use crate::seen::Reads;
use crate::turns::{Turn, Turns};

/// How long a source of objects or tokens may take. Upstream waits ten seconds for its caches.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node that plugins work for. A cheap clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PluginNode {
    /// What the manager was told of it.
    pub context: VolumeContext,
    /// Who mounts.
    pub mounts: Arc<dyn Mounts>,
    /// Whether secrets may be on disk where nothing can be mounted.
    pub secrets_on_disk: bool,
    pub(crate) turns: Turns,
}

impl PluginNode {
    /// The folder of a plugin's own, for what is of no single pod.
    #[must_use]
    pub fn plugin_dir(&self, plugin: &str) -> PathBuf {
        self.context.root_dir.join("plugins").join(plugin)
    }

    /// Reads an object, within a bounded time, and notes how it was found.
    pub(crate) async fn read(&self, key: ObjectKey, want: Freshness, reads: &Reads) -> Result<Object, ObjectError> {
        reads.begin(&key);
        let Some(objects) = &self.context.objects else {
            return Err(ObjectError::NotServed { kind: key.kind });
        };
        match tokio::time::timeout(PATIENCE, objects.get(&key, want)).await {
            Ok(found) => {
                reads.end(&key, &found);
                found
            }
            Err(_) => Err(ObjectError::Unavailable {
                what: key.to_string(),
                source: format!("no answer within {PATIENCE:?}").into(),
            }),
        }
    }

    pub(crate) fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.context.root_dir.join("pods").join(uid.as_str())
    }
}

/// Whose files of a volume are, as its pod says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ownership {
    /// The group that they are given.
    pub fs_group: Option<u32>,
    /// The user of all containers, where they have one and the same.
    pub fs_user: Option<u32>,
    /// Whether all files are looked at each time.
    pub change: ChangePolicy,
}

impl Ownership {
    pub(crate) fn of(pod: &PodRecord) -> Self {
        let id = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
        let context = pod.spec().security_context.as_ref();
        let of_pod = context.and_then(|c| c.run_as_user);
        let mut users = pod
            .containers()
            .map(|view| view.security_context().and_then(|c| c.run_as_user).or(of_pod));
        let first = users.next().flatten();
        let change = context.and_then(|c| c.fs_group_change_policy.as_deref());
        Self {
            fs_group: id(context.and_then(|c| c.fs_group)),
            fs_user: id(first.filter(|user| users.all(|other| other == Some(*user)))),
            change: match change {
                Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
                _ => ChangePolicy::Always,
            },
        }
    }
}

/// A volume that is to be set up for a pod.
#[derive(Debug)]
#[non_exhaustive]
pub struct SetUp<'a> {
    /// The node.
    pub node: &'a PluginNode,
    /// The pod.
    pub pod: &'a PodRecord,
    /// What it is to be.
    pub volume: VolumeSpec<'a>,
    /// As what containers are given it.
    pub mode: VolumeMode,
    /// Its folder, or its link where it is a device. What it is in is there.
    pub dir: &'a Path,
    /// A folder beside, for what the plugin keeps of it. It is not there yet.
    pub scratch: &'a Path,
    /// Whose its files are.
    pub ownership: Ownership,
    /// What the last set-up in this life of the agent gave.
    pub fingerprint: Option<u64>,
    /// Whether it was set up in this life of the agent.
    pub is_repeated: bool,
    pub(crate) stop: &'a CancellationToken,
    pub(crate) reads: &'a Reads,
    pub(crate) turn: &'a Arc<Turn>,
}

impl SetUp<'_> {
    /// Reads an object of the pod's namespace, or of the cluster. The volume is set up again when it changes, if its plugin asks for
    /// that.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn object(&self, kind: ObjectKind, name: &str) -> Result<Object, ObjectError> {
        let namespace = if kind.is_namespaced() {
            &*self.pod.key().namespace
        } else {
            ""
        };
        let key = ObjectKey::new(kind, namespace, name);
        // Never older than the pod. Later on too: what is at hand, and what a watch tells of it, may lag behind what the first set-up
        // had to ask for.
        let want = self.pod.created_at().map_or(Freshness::Cached, Freshness::NotOlderThan);
        self.node.read(key, want, self.reads).await
    }

    /// Reads all objects of a kind that is in no namespace. Their changes are not followed.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn objects(&self, kind: ObjectKind) -> Result<Vec<Object>, ObjectError> {
        let Some(objects) = &self.node.context.objects else {
            return Err(ObjectError::NotServed { kind });
        };
        match tokio::time::timeout(PATIENCE, objects.list(&ObjectQuery::new(kind))).await {
            Ok(found) => found,
            Err(_) => Err(ObjectError::Unavailable {
                what: format!("all objects of kind {}", kind.resource()),
                source: format!("no answer within {PATIENCE:?}").into(),
            }),
        }
    }

    /// Gets a token of the pod's service account.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn token(&self, request: &TokenRequest) -> Result<Token, ObjectError> {
        let kind = ObjectKind::ServiceAccount;
        let Some(tokens) = &self.node.context.tokens else {
            return Err(ObjectError::NotServed { kind });
        };
        match tokio::time::timeout(PATIENCE, tokens.token(request)).await {
            Ok(found) => found,
            Err(_) => Err(ObjectError::Unavailable {
                what: format!("a token of service account {}", request.service_account),
                source: format!("no token within {PATIENCE:?}").into(),
            }),
        }
    }

    /// Whether it is to end soon.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Does something on a thread that may wait for the disk. If nobody waits for it any more, which the flag that it is given says
    /// then, it should end soon; until it has, nothing else is done about this volume.
    ///
    /// # Errors
    /// What it gives.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AtomicBool) -> io::Result<T> + Send + 'static,
    ) -> Result<T, VolumeFault> {
        blocking(self.turn.clone(), work).await
    }
}

/// A volume of a pod that is to go.
#[derive(Debug)]
#[non_exhaustive]
pub struct TearDown<'a> {
    /// The node.
    pub node: &'a PluginNode,
    /// The pod.
    pub uid: &'a PodUid,
    /// The name that its folder has.
    pub name: &'a str,
    /// As what containers were given it.
    pub mode: VolumeMode,
    /// Its folder, or its link where it is a device.
    pub dir: &'a Path,
    /// The folder of what the plugin keeps of it.
    pub scratch: &'a Path,
    pub(crate) turn: &'a Arc<Turn>,
}

impl TearDown<'_> {
    /// As [`SetUp::blocking`].
    ///
    /// # Errors
    /// What it gives.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AtomicBool) -> io::Result<T> + Send + 'static,
    ) -> Result<T, VolumeFault> {
        blocking(self.turn.clone(), work).await
    }
}

/// Says to whoever works that nobody waits any more.
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    turn: Arc<Turn>,
    work: impl FnOnce(&AtomicBool) -> io::Result<T> + Send + 'static,
) -> Result<T, VolumeFault> {
    let given_up = GiveUp(Arc::default());
    let flag = given_up.0.clone();
    let done = tokio::task::spawn_blocking(move || {
        // What has not begun when nobody waits any more is not to begin.
        let done = if flag.load(Ordering::Relaxed) {
            Err(io::ErrorKind::Interrupted.into())
        } else {
            work(&flag)
        };
        drop(turn);
        done
    });
    match done.await {
        // What failed on which path is in its text.
        Ok(done) => done.map_err(|error| VolumeFault::new(error.to_string())),
        Err(error) => Err(VolumeFault::of("work on a volume ended early", error)),
    }
}
