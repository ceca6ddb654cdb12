//! What was seen of a pod, reduced to what the engine decides on.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::jiff::Timestamp;

use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};
use crate::runtime::{ContainerAnnotations, ContainerState, ContainerStatus, SandboxState, SandboxStatus, annotation};

/// Everything that was seen of one pod in one look. An absent pod has no sandboxes and no containers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodObservation {
    /// The pod.
    pub uid: PodUid,
    /// Namespace and name, where something of the pod was there to tell.
    pub key: Option<PodKey>,
    /// The source that the pod came from, where its sandbox says so.
    pub source: Option<String>,
    /// How long its containers get to end, where they say so.
    pub termination_grace: Option<Duration>,
    /// The pod's addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// Its sandboxes, newest first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Its containers, newest first per name.
    pub containers: Vec<ObservedContainer>,
}

/// A sandbox, as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObservedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// How many sandboxes of the pod came before it.
    pub attempt: u32,
    /// Its state.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: Timestamp,
    /// Whether it shares the host's network.
    pub host_network: bool,
    /// Whether it has an address of its own.
    pub has_ip: bool,
}

/// A container, as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObservedContainer {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox that it was made in, where the runtime says so.
    pub sandbox_id: Option<SandboxId>,
    /// Its name in the pod's spec.
    pub name: String,
    /// How many containers of this name came before it.
    pub attempt: u32,
    /// Its state.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its process was started.
    pub started_at: Option<Timestamp>,
    /// When its process ended.
    pub finished_at: Option<Timestamp>,
    /// How its process ended.
    pub exit_code: i32,
    /// The runtime's reason.
    pub reason: String,
    /// The runtime's message, with the termination message appended.
    pub message: String,
    /// The image as it was asked for.
    pub image: String,
    /// The image that it runs.
    pub image_ref: String,
    /// The images that are mounted into it.
    pub mounted_images: Vec<String>,
    /// Hash of image and name, from its annotations.
    pub hash: Option<u32>,
    /// Restart count, from its annotations.
    pub restart_count: u32,
    /// Where its log is on the host.
    pub log_path: Option<PathBuf>,
    /// Host file of its termination message.
    pub termination_message_path: Option<PathBuf>,
    /// Whether the end of its log stands in for a missing termination message.
    pub fallback_to_logs: bool,
    /// The resources that it was made with, as JSON, where it says so.
    pub made_with: Option<String>,
}

impl ObservedSandbox {
    /// A ready sandbox with an address; for backends that have none of their own, and for tests.
    #[must_use]
    pub fn ready(id: SandboxId, attempt: u32, created_at: Timestamp) -> Self {
        Self {
            id,
            attempt,
            state: SandboxState::Ready,
            created_at,
            host_network: false,
            has_ip: true,
        }
    }
}

impl From<&SandboxStatus> for ObservedSandbox {
    fn from(status: &SandboxStatus) -> Self {
        Self {
            id: status.id.clone(),
            attempt: status.attempt,
            state: status.state,
            created_at: status.created_at,
            host_network: status.host_network,
            has_ip: !status.ips.is_empty(),
        }
    }
}

impl ObservedContainer {
    /// A container in a state; everything else is empty.
    pub fn new(id: ContainerId, name: impl Into<String>, state: ContainerState, created_at: Timestamp) -> Self {
        Self {
            id,
            sandbox_id: None,
            name: name.into(),
            attempt: 0,
            state,
            created_at,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_ref: String::new(),
            mounted_images: Vec::new(),
            hash: None,
            restart_count: 0,
            log_path: None,
            termination_message_path: None,
            fallback_to_logs: false,
            made_with: None,
        }
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == ContainerState::Running
    }

    /// The resources that it was made with, where it says so.
    pub(crate) fn resources_made_with(&self) -> Option<ResourceRequirements> {
        serde_json::from_str(self.made_with.as_ref()?).ok()
    }
}

impl From<ContainerStatus> for ObservedContainer {
    fn from(status: ContainerStatus) -> Self {
        let notes = ContainerAnnotations::read(&status.annotations);
        Self {
            id: status.id,
            sandbox_id: status.sandbox_id,
            name: status.name,
            attempt: status.attempt,
            state: status.state,
            created_at: status.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            exit_code: status.exit_code,
            reason: status.reason,
            message: status.message,
            image: status.image,
            image_ref: status.image_ref,
            mounted_images: status.mounted_images,
            hash: notes.hash,
            restart_count: notes.restart_count,
            log_path: status.log_path,
            termination_message_path: notes.termination_message_host_path.map(PathBuf::from),
            fallback_to_logs: notes.fallback_to_logs,
            made_with: notes.resources,
        }
    }
}

impl PodObservation {
    /// Nothing was there.
    #[must_use]
    pub fn absent(uid: PodUid) -> Self {
        Self {
            uid,
            key: None,
            source: None,
            termination_grace: None,
            ips: Vec::new(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
        }
    }

    /// Puts together what a look at a pod brought. Only the newest sandbox, and only if it is ready, gives addresses.
    ///
    /// Source: kubelet 1.36, `kuberuntime_manager.go`.
    #[must_use]
    pub fn from_statuses(uid: PodUid, mut sandboxes: Vec<SandboxStatus>, containers: Vec<ContainerStatus>) -> Self {
        sandboxes
            .sort_by(|a, b| (b.attempt, b.created_at, b.id.as_str()).cmp(&(a.attempt, a.created_at, a.id.as_str())));
        let newest = sandboxes.first();
        let ips = newest
            .filter(|sandbox| sandbox.state == SandboxState::Ready)
            .map(|sandbox| sandbox.ips.clone())
            .unwrap_or_default();
        let key = newest.map(|sandbox| sandbox.key.clone());
        let source = newest.and_then(|sandbox| sandbox.annotations.get(annotation::CONFIG_SOURCE).cloned());
        let graces = containers.iter().filter_map(|container| {
            let seconds = ContainerAnnotations::read(&container.annotations).termination_grace?;
            u64::try_from(seconds).ok().map(Duration::from_secs)
        });
        let termination_grace = graces.max();
        let mut seen: Vec<ObservedContainer> = containers.into_iter().map(ObservedContainer::from).collect();
        seen.sort_by(|a, b| {
            (a.name.as_str(), b.attempt, b.created_at, b.id.as_str()).cmp(&(
                b.name.as_str(),
                a.attempt,
                a.created_at,
                a.id.as_str(),
            ))
        });
        seen.shrink_to_fit();
        Self {
            uid,
            key,
            source,
            termination_grace,
            ips,
            sandboxes: sandboxes.iter().map(ObservedSandbox::from).collect(),
            containers: seen,
        }
    }

    /// The newest container of a name.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The containers of a name, newest first.
    pub fn of_name<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ObservedContainer> {
        self.containers.iter().filter(move |c| c.name == name)
    }

    /// The newest sandbox.
    #[must_use]
    pub fn newest_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.first()
    }

    /// Whether any container runs, or is in a state in which it may run.
    #[must_use]
    pub fn may_run(&self) -> bool {
        self.containers
            .iter()
            .any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }

    /// Whether nothing runs and no sandbox is ready.
    #[must_use]
    pub fn is_down(&self) -> bool {
        !self.may_run() && self.sandboxes.iter().all(|s| s.state != SandboxState::Ready)
    }

    /// Whether there is nothing of the pod at all.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::PodObservation;
    use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};
    use crate::runtime::{ContainerState, ContainerStatus, SandboxState, SandboxStatus, annotation};

    fn sandbox(id: &str, attempt: u32, state: SandboxState) -> SandboxStatus {
        let mut status = SandboxStatus::new(
            SandboxId::from(id),
            PodUid::from("u"),
            PodKey::new("ns", "p"),
            attempt,
            state,
            Timestamp::UNIX_EPOCH,
        );
        status.ips = vec!["10.0.0.1".parse().unwrap()];
        status
    }

    #[test]
    fn only_a_ready_newest_sandbox_gives_addresses() {
        let of = |newest| {
            PodObservation::from_statuses(
                PodUid::from("u"),
                vec![sandbox("a", 0, SandboxState::Ready), sandbox("b", 1, newest)],
                Vec::new(),
            )
        };
        assert_eq!(of(SandboxState::Ready).ips.len(), 1);
        assert!(of(SandboxState::NotReady).ips.is_empty());
    }

    #[test]
    fn the_longest_grace_of_its_containers_is_that_of_the_pod() {
        let of = |graces: &[Option<&str>]| {
            let containers = graces.iter().enumerate().map(|(attempt, grace)| {
                let attempt = u32::try_from(attempt).unwrap();
                let (id, state) = (ContainerId::from("c"), ContainerState::Running);
                let mut status = ContainerStatus::new(id, "c".to_owned(), attempt, state, Timestamp::UNIX_EPOCH);
                let note = grace.map(|grace| (annotation::POD_TERMINATION_GRACE.to_owned(), grace.to_owned()));
                status.annotations.extend(note);
                status
            });
            let seen = PodObservation::from_statuses(PodUid::from("u"), Vec::new(), containers.collect());
            seen.termination_grace.map(|grace| grace.as_secs())
        };
        assert_eq!(of(&[Some("5"), Some("30"), None]), Some(30));
        assert_eq!(of(&[Some("-5"), Some("soon"), None]), None);
    }

    #[test]
    fn containers_come_newest_first_per_name() {
        let container = |id: &str, name: &str, attempt| {
            ContainerStatus::new(
                ContainerId::from(id),
                name.to_owned(),
                attempt,
                ContainerState::Exited,
                Timestamp::UNIX_EPOCH,
            )
        };
        let seen = PodObservation::from_statuses(
            PodUid::from("u"),
            Vec::new(),
            vec![container("1", "b", 0), container("2", "a", 1), container("3", "a", 2)],
        );
        let order: Vec<&str> = seen.containers.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(order, ["3", "2", "1"]);
        assert_eq!(seen.newest("a").unwrap().attempt, 2);
    }
}
