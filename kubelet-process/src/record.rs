//! What is kept on disk about sandboxes and containers. Read by later versions too: fields are only ever added.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{PodUid, SandboxId};
use serde::{Deserialize, Serialize};

/// Reason and exit code of a container whose end nobody saw.
///
/// Source: kubelet 1.36, which shows the same for a container that the runtime has lost.
pub(crate) const LOST_REASON: &str = "ContainerStatusUnknown";
/// See [`LOST_REASON`].
pub(crate) const LOST_CODE: i32 = 137;
/// Reason of a container that the kernel has killed for lack of memory.
const OOM_REASON: &str = "OOMKilled";
/// Reason of a container that could not be started.
pub(crate) const START_REASON: &str = "StartError";
/// Exit code of a container that could not be started.
pub(crate) const START_CODE: i32 = 128;

/// A sandbox. It is nothing but this record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxFile {
    pub(crate) pod_uid: PodUid,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) boot_id: String,
    #[serde(with = "stamp")]
    pub(crate) created_at: Timestamp,
    pub(crate) handler: String,
    pub(crate) host_network: bool,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// A container as it was created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerFile {
    pub(crate) sandbox_id: SandboxId,
    pub(crate) pod_uid: PodUid,
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) boot_id: String,
    #[serde(with = "stamp")]
    pub(crate) created_at: Timestamp,
    pub(crate) image: String,
    pub(crate) image_ref: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) log_path: Option<PathBuf>,
    pub(crate) stop_signal: i32,
    pub(crate) process: ProcessSpec,
}

/// What a supervisor starts. Its environment may hold secrets, so that `Debug` leaves it out.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ProcessSpec {
    /// Command and arguments; never empty.
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: String,
    /// The folder that becomes `/`; absent for the host's own files.
    pub(crate) root: Option<PathBuf>,
    pub(crate) read_only_root: bool,
    pub(crate) mounts: Vec<MountSpec>,
    /// Whom to become; absent: stay who the agent is.
    pub(crate) user: Option<UserSpec>,
    pub(crate) no_new_privileges: bool,
    pub(crate) oom_score_adj: i32,
    /// The folders of the cgroup to join; empty: none is joined.
    #[serde(default)]
    pub(crate) cgroup: Vec<PathBuf>,
}

impl fmt::Debug for ProcessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessSpec")
            .field("root", &self.root)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// A host path shown below a root folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountSpec {
    pub(crate) container_path: String,
    pub(crate) host_path: PathBuf,
    pub(crate) read_only: bool,
}

/// User, group and further groups of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserSpec {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// A process that cannot be mistaken for a later one of the same number, until the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// In clock ticks since boot, as in `/proc/<pid>/stat`.
    pub(crate) start_time: u64,
}

/// The main process of a container, as it was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessFile {
    pub(crate) main: Identity,
    #[serde(with = "stamp")]
    pub(crate) started_at: Timestamp,
}

/// How a container ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExitFile {
    pub(crate) exit_code: i32,
    pub(crate) signal: Option<i32>,
    #[serde(with = "stamp")]
    pub(crate) finished_at: Timestamp,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl ExitFile {
    /// The end of a process with a code, or by a signal.
    pub(crate) fn ended(ended: Ended, finished_at: Timestamp, message: String) -> Self {
        let exit_code = ended.code();
        let signal = match ended {
            Ended::Code(_) => None,
            Ended::Signal(signal) => Some(signal),
        };
        Self {
            exit_code,
            signal,
            finished_at,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
            message,
        }
    }

    /// The same, of one that the kernel has killed for lack of memory.
    pub(crate) fn out_of_memory(mut self) -> Self {
        self.reason = OOM_REASON.to_owned();
        self
    }

    /// A container that could not be started.
    pub(crate) fn not_started(message: String, finished_at: Timestamp) -> Self {
        Self {
            exit_code: START_CODE,
            signal: None,
            finished_at,
            reason: START_REASON.to_owned(),
            message,
        }
    }

    /// A container whose end nobody saw.
    pub(crate) fn lost(message: &str, finished_at: Timestamp) -> Self {
        Self {
            exit_code: LOST_CODE,
            signal: None,
            finished_at,
            reason: LOST_REASON.to_owned(),
            message: message.to_owned(),
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    /// The exit code as statuses show it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// Times as RFC 3339 text.
mod stamp {
    use kubelet_core::jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::{ContainerFile, ExitFile, Identity, ProcessFile, SandboxFile};

    /// What version 0.1.0 writes. Never to be changed: what it says is on disks.
    const SANDBOX: &str = r#"{"pod_uid": "u", "namespace": "default", "name": "web", "attempt": 0, "boot_id": "b",
        "created_at": "2026-01-02T03:04:05.123456789Z", "handler": "", "host_network": false,
        "labels": {"io.kubernetes.pod.uid": "u"}, "annotations": {}}"#;
    const CONTAINER: &str = r#"{"sandbox_id": "s", "pod_uid": "u", "name": "app", "attempt": 1, "boot_id": "b",
        "created_at": "2026-01-02T03:04:05Z", "image": "host", "image_ref": "host", "labels": {}, "annotations": {},
        "log_path": "/var/log/pods/x/app/1.log", "stop_signal": 15, "process": {"argv": ["true"], "env": [["A", "b"]],
        "working_dir": "", "root": null, "read_only_root": false,
        "mounts": [{"container_path": "/a", "host_path": "/b", "read_only": true}],
        "user": {"uid": 1, "gid": 1, "groups": [2]}, "no_new_privileges": true, "oom_score_adj": -997}}"#;
    const SUPERVISOR: &str = r#"{"pid": 7, "start_time": 123}"#;
    const PROCESS: &str = r#"{"main": {"pid": 8, "start_time": 124}, "started_at": "2026-01-02T03:04:06Z"}"#;
    const EXIT: &str = r#"{"exit_code": 137, "signal": 9, "finished_at": "2026-01-02T03:04:07Z", "reason": "Error",
        "message": ""}"#;

    /// Reads a record as it is, and as a later version may write it.
    fn read<T: DeserializeOwned>(text: &str) -> [T; 2] {
        let mut later: Value = serde_json::from_str(text).unwrap();
        later["of_a_later_version"] = json!({"any": ["thing"]});
        [text.to_owned(), later.to_string()].map(|text| serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn records_of_other_versions_are_read() {
        for sandbox in read::<SandboxFile>(SANDBOX) {
            assert_eq!(
                (&*sandbox.name, sandbox.created_at.subsec_nanosecond()),
                ("web", 123_456_789)
            );
        }
        for container in read::<ContainerFile>(CONTAINER) {
            assert_eq!(
                (container.attempt, container.process.user.unwrap().groups),
                (1, vec![2])
            );
            assert!(container.process.mounts[0].read_only);
        }
        assert_eq!(read::<Identity>(SUPERVISOR).map(|who| who.pid), [7, 7]);
        assert_eq!(read::<ProcessFile>(PROCESS).map(|process| process.main.pid), [8, 8]);
        assert_eq!(
            read::<ExitFile>(EXIT).map(|exit| (exit.exit_code, exit.signal)),
            [(137, Some(9)); 2]
        );
    }
}
