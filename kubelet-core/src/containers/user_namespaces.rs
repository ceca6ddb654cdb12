//! Users of their own for pods that ask for them: which of the host's they are, kept in the pod's folder.
//!
//! Source: kubelet 1.36, `userns/userns_manager.go`.

mod blocks;
mod file;
mod subordinate;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::ContainerSyncer;
use crate::error::BoxError;
use crate::files::{NodeFiles, durable};
use crate::ids::PodUid;
use crate::pod::PodRecord;
use crate::runtime::{RuntimeHandler, UserNamespace};
use crate::settings::UserNamespaceSettings;
use crate::syncer::SyncError;

use blocks::Blocks;

/// The name of the file in a pod's folder.
const FILE: &str = "userns";

/// Gives blocks of users to pods.
///
/// A pod that shares its block with another could reach into it. So nothing is given before all that pods of an earlier
/// life of the agent have is known, and no block is free before its file is gone.
#[derive(Debug)]
pub(crate) struct UserNamespaces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: UserNamespaceSettings,
    files: NodeFiles,
    pods_dir: PathBuf,
    /// Nothing until the first pod asks. Held while files are read and written, by blocking threads only.
    blocks: Mutex<Option<Blocks>>,
}

impl UserNamespaces {
    /// Reads nothing yet.
    pub(crate) fn new(settings: UserNamespaceSettings, files: NodeFiles, pods_dir: PathBuf) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                files,
                pods_dir,
                blocks: Mutex::new(None),
            }),
        }
    }

    /// The users of a pod: those that it has, or new ones, which are kept before this returns.
    pub(super) async fn of_pod(&self, uid: &PodUid, max_pods: u64) -> Result<UserNamespace, BoxError> {
        let (inner, uid) = (self.inner.clone(), uid.clone());
        self.run(move || inner.of_pod(&uid, max_pods)).await
    }

    /// Takes back what a pod has, whose containers are gone.
    pub(super) async fn release(&self, uid: &PodUid) -> Result<(), BoxError> {
        let (inner, uid) = (self.inner.clone(), uid.clone());
        self.run(move || inner.release(&uid)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, BoxError> + Send + 'static,
    ) -> Result<T, BoxError> {
        match self.inner.files {
            // A simulated node waits for no disk, and has no other threads.
            NodeFiles::Nowhere => work(),
            NodeFiles::Disk => tokio::task::spawn_blocking(work).await?,
        }
    }
}

impl Inner {
    fn file_of(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir.join(uid.as_str()).join(FILE)
    }

    fn of_pod(&self, uid: &PodUid, max_pods: u64) -> Result<UserNamespace, BoxError> {
        let mut blocks = super::lock(&self.blocks);
        let blocks = match &mut *blocks {
            Some(blocks) => blocks,
            empty => empty.insert(self.read(max_pods)?),
        };
        let path = self.file_of(uid);
        // Read each time: whoever changed it would else be believed after the next start alone.
        if self.files == NodeFiles::Disk
            && let Some(text) = durable::read(&path)?
        {
            let found = file::parse(&text).and_then(|found| blocks.hold(uid, &found).map(|()| found));
            return Ok(found.map_err(|why| format!("{}: {why}", path.display()))?);
        }
        let given = match blocks.held_by(uid) {
            Some(held) => held.clone(),
            None => blocks.give(uid).ok_or("all blocks of user ids are taken")?,
        };
        if self.files == NodeFiles::Disk {
            // After an error it may be on the disk or not: the block stays with the pod, and is written again.
            durable::write(&path, &file::print(&given))?;
        }
        Ok(given)
    }

    fn release(&self, uid: &PodUid) -> Result<(), BoxError> {
        let mut blocks = super::lock(&self.blocks);
        if self.files == NodeFiles::Disk {
            durable::remove(&self.file_of(uid))?;
        }
        if let Some(blocks) = &mut *blocks {
            blocks.release(uid);
        }
        Ok(())
    }

    /// What pods have that were there before.
    fn read(&self, max_pods: u64) -> Result<Blocks, BoxError> {
        let range = match self.settings.host_ids {
            Some((first, count)) => Some((u64::from(first), u64::from(count))),
            None if self.files == NodeFiles::Nowhere => None,
            None => subordinate::ids_of_kubelet()?,
        };
        let mut blocks = Blocks::new(range, self.settings.ids_per_pod, max_pods)?;
        if self.files == NodeFiles::Disk {
            for (uid, text) in durable::of_all_pods(&self.pods_dir, FILE)? {
                let found = file::parse(&text).and_then(|found| blocks.hold(&uid, &found));
                found.map_err(|why| format!("which user ids pod {uid} has cannot be told: {why}"))?;
            }
        }
        Ok(blocks)
    }
}

impl ContainerSyncer {
    /// The users of a pod that has its own.
    pub(super) async fn user_namespace(&self, pod: &PodRecord) -> Result<Option<UserNamespace>, SyncError> {
        if pod.spec().host_users != Some(false) {
            return Ok(None);
        }
        let node = self.node.ledger.node();
        let max_pods = node.capacity.get("pods").map_or(0, |pods| pods.value());
        let users = self.node.users.of_pod(pod.uid(), u64::try_from(max_pods).unwrap_or(0));
        match users.await {
            Ok(users) => Ok(Some(users)),
            Err(error) => Err(SyncError::failed("cannot give the pod users of its own", error)),
        }
    }

    /// Refuses a pod that wants users of its own of a handler that cannot give them.
    pub(super) fn check_users(&self, pod: &PodRecord, handler: &str) -> Result<(), SyncError> {
        if pod.spec().host_users != Some(false) {
            return Ok(());
        }
        let why = match handler {
            _ if pod.facts().host_network => "the host's network is no network of theirs".to_owned(),
            _ if self.handler_features(handler).user_namespaces => return Ok(()),
            "" => "the default handler of the runtime does not support user namespaces".to_owned(),
            named => format!("runtime handler {named:?} does not support user namespaces"),
        };
        Err(SyncError::failed("cannot give the pod users of its own", why))
    }

    /// What a handler can do, as far as the runtime says.
    pub(super) fn handler_features(&self, name: &str) -> RuntimeHandler {
        let known = super::lock(&self.abilities);
        let found = known.handlers.iter().find(|handler| handler.name == name);
        found.cloned().unwrap_or_else(|| RuntimeHandler::new(name))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::UserNamespaces;
    use crate::files::NodeFiles;
    use crate::ids::PodUid;
    use crate::settings::UserNamespaceSettings;

    fn users(dir: &Path, count: u32) -> UserNamespaces {
        let settings = UserNamespaceSettings {
            host_ids: Some((65_536, 65_536 * count)),
            ..UserNamespaceSettings::default()
        };
        UserNamespaces::new(settings, NodeFiles::Disk, dir.join("pods"))
    }

    async fn host_id(users: &UserNamespaces, uid: &str) -> Result<u32, String> {
        let users = users.of_pod(&PodUid::from(uid), 2).await;
        users
            .map(|users| users.uids[0].host_id)
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_pod_keeps_its_users_over_restarts_until_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let first = users(dir.path(), 2);
        let (a, b) = (host_id(&first, "a").await.unwrap(), host_id(&first, "b").await.unwrap());
        assert_eq!((a, b), (65_536, 131_072));
        let text = std::fs::read_to_string(dir.path().join("pods/a/userns")).unwrap();
        assert_eq!(
            text,
            r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#
        );
        // Another life of the agent, in which the second pod comes first.
        let second = users(dir.path(), 2);
        assert_eq!(
            host_id(&second, "c").await.unwrap_err(),
            "all blocks of user ids are taken"
        );
        assert_eq!(host_id(&second, "b").await, Ok(b));
        assert_eq!(host_id(&second, "a").await, Ok(a));
        second.release(&PodUid::from("a")).await.unwrap();
        second.release(&PodUid::from("a")).await.unwrap();
        assert!(!dir.path().join("pods/a/userns").exists());
        assert_eq!(host_id(&second, "c").await, Ok(a));
    }

    #[tokio::test]
    async fn nothing_is_given_while_it_is_not_known_what_others_have() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pods/.odd/userns");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{").unwrap();
        let users = users(dir.path(), 2);
        let error = host_id(&users, "a").await.unwrap_err();
        assert!(error.contains(".odd"), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(host_id(&users, "a").await, Ok(65_536));
    }

    #[tokio::test]
    async fn a_file_that_somebody_changed_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let users = users(dir.path(), 2);
        host_id(&users, "a").await.unwrap();
        host_id(&users, "b").await.unwrap();
        std::fs::copy(dir.path().join("pods/a/userns"), dir.path().join("pods/b/userns")).unwrap();
        let error = host_id(&users, "b").await.unwrap_err();
        assert!(error.contains("another pod"), "{error}");
    }

    #[tokio::test]
    async fn a_simulated_node_gives_users_too() {
        let users = UserNamespaces::new(UserNamespaceSettings::default(), NodeFiles::Nowhere, "/pods".into());
        assert_eq!(host_id(&users, "a").await, Ok(65_536));
        assert_eq!(host_id(&users, "b").await, Ok(131_072));
        assert_eq!(host_id(&users, "a").await, Ok(65_536));
    }
}
