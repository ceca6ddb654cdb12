//! The sandboxes and containers that the fake pretends to run.
//!
//! Nothing here waits or runs by itself: ends that lie ahead are kept in a heap, and [`World::advance`] carries out
//! those that are due, each at its own instant. Whoever looks advances the world first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::jiff::{SignedDuration, Timestamp};
use kubelet_core::{
    ContainerConfig, ContainerId, ContainerState, LinuxResources, NamespaceMode, PodUid, SandboxConfig, SandboxId,
    SandboxState,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::fake::effect::Effect;
use crate::fake::journal::{By, Happened, Journal};
use crate::fake::original::Original;
use crate::fake::program::Program;

/// Code of a process that was killed: 128 plus SIGKILL.
pub(crate) const KILLED: i32 = 137;
/// Code that containerd shows for a container whose process it lost, for example at a reboot.
pub(crate) const LOST: i32 = 255;

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) config: Arc<SandboxConfig>,
    pub(crate) handler: String,
    #[cfg_attr(not(feature = "fake-cri"), expect(dead_code, reason = "read by other faces"))]
    pub(crate) original: Original,
    pub(crate) state: SandboxState,
    pub(crate) created: Timestamp,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) marked: bool,
    pub(crate) resources: Option<(LinuxResources, Option<LinuxResources>)>,
    /// It came down by a fault, which its caller may not have seen yet.
    pub(crate) died: bool,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    pub(crate) sandbox: u64,
    pub(crate) pod: PodUid,
    pub(crate) config: Arc<ContainerConfig>,
    pub(crate) log_path: Option<PathBuf>,
    pub(crate) program: Program,
    #[cfg_attr(not(feature = "fake-cri"), expect(dead_code, reason = "read by other faces"))]
    pub(crate) original: Original,
    pub(crate) state: ContainerState,
    pub(crate) created: Timestamp,
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Option<Timestamp>,
    pub(crate) exit_code: i32,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) marked: bool,
    pub(crate) resources: Option<LinuxResources>,
    /// When it ends as things stand, and with which code.
    pub(crate) end: Option<(Instant, i32)>,
    /// It was started by a call whose end nobody heard.
    pub(crate) started_late: bool,
    asked_to_stop: bool,
    changed: Option<Arc<Notify>>,
}

impl Container {
    pub(crate) fn is_running(&self) -> bool {
        self.state == ContainerState::Running
    }

    /// Wakes when its state or its end changes.
    pub(crate) fn changed(&mut self) -> Arc<Notify> {
        self.changed.get_or_insert_default().clone()
    }

    fn wake(&self) {
        if let Some(changed) = &self.changed {
            changed.notify_waiters();
        }
    }
}

#[derive(Debug, Default)]
struct PodIndex {
    sandboxes: Vec<u64>,
    containers: Vec<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) sandboxes: BTreeMap<u64, Sandbox>,
    pub(crate) containers: BTreeMap<u64, Container>,
    pods: BTreeMap<PodUid, PodIndex>,
    ends: BinaryHeap<Reverse<(Instant, u64)>>,
    late: BTreeMap<(Instant, u64), Effect>,
    /// An instant and the wall time at it.
    anchor: Option<(Instant, Timestamp)>,
    last_sandbox: u64,
    last_container: u64,
    last_late: u64,
    /// Pods to send a hint about, in order.
    pub(crate) touched: Vec<PodUid>,
    /// What callers did against the contract.
    pub(crate) violations: Vec<String>,
    pub(crate) journal: Journal,
}

/// The number in an id that this fake gave.
fn number(text: &str, letter: char) -> Option<u64> {
    let digits = text.strip_prefix(letter)?;
    // "c01" names nothing.
    digits.parse().ok().filter(|n: &u64| n.to_string() == digits)
}

impl World {
    pub(crate) fn sandbox_number(&self, id: &SandboxId) -> Option<u64> {
        number(id.as_str(), 's').filter(|n| self.sandboxes.contains_key(n))
    }

    pub(crate) fn container_number(&self, id: &ContainerId) -> Option<u64> {
        number(id.as_str(), 'c').filter(|n| self.containers.contains_key(n))
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.sandboxes.get(&number(id.as_str(), 's')?)
    }

    pub(crate) fn container(&self, id: &ContainerId) -> Option<&Container> {
        self.containers.get(&number(id.as_str(), 'c')?)
    }

    pub(crate) fn container_mut(&mut self, id: &ContainerId) -> Option<&mut Container> {
        self.containers.get_mut(&number(id.as_str(), 'c')?)
    }

    pub(crate) fn sandboxes_of(&self, uid: &PodUid) -> Vec<u64> {
        self.pods.get(uid).map(|pod| pod.sandboxes.clone()).unwrap_or_default()
    }

    pub(crate) fn containers_of(&self, uid: &PodUid) -> Vec<u64> {
        self.pods.get(uid).map(|pod| pod.containers.clone()).unwrap_or_default()
    }

    pub(crate) fn containers_in(&self, sandbox: u64) -> Vec<u64> {
        let Some(found) = self.sandboxes.get(&sandbox) else {
            return Vec::new();
        };
        let mut inside = self.containers_of(&found.config.pod_uid);
        inside.retain(|n| self.containers.get(n).is_some_and(|c| c.sandbox == sandbox));
        inside
    }

    /// Says which wall time it is at an instant, for what happens at it and shortly before.
    pub(crate) fn set_wall(&mut self, at: Instant, wall: Timestamp) {
        self.anchor = Some((at, wall));
    }

    /// The wall time at an instant. Kept with what happened then: worked out anew at each look, it would waver.
    pub(crate) fn wall(&self, at: Instant) -> Timestamp {
        let Some((instant, wall)) = self.anchor else {
            return Timestamp::UNIX_EPOCH;
        };
        let back = instant.saturating_duration_since(at);
        let back = SignedDuration::try_from(back).unwrap_or(SignedDuration::MAX);
        wall.checked_sub(back).unwrap_or(Timestamp::MIN)
    }

    pub(crate) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    pub(crate) fn touch(&mut self, uid: &PodUid) {
        if self.touched.last() != Some(uid) {
            self.touched.push(uid.clone());
        }
    }

    /// When something happens next by itself.
    pub(crate) fn next_instant(&self) -> Option<Instant> {
        let end = self.ends.peek().map(|Reverse((at, _))| *at);
        let late = self.late.keys().next().map(|(at, _)| *at);
        [end, late].into_iter().flatten().min()
    }

    /// Carries out what is due, in order of time.
    pub(crate) fn advance(&mut self, now: Instant) {
        while let Some(at) = self.next_instant().filter(|at| *at <= now) {
            // A late effect at the instant of an end comes after it.
            if self.ends.peek().is_some_and(|Reverse((end, _))| *end == at) {
                if let Some(Reverse((at, n))) = self.ends.pop() {
                    self.end_if_due(n, at);
                }
            } else if let Some((_, effect)) = self.late.pop_first() {
                let known = self.violations.len();
                self.journal.late = true;
                // The caller was told that the outcome is unknown: there is nobody to give the result to.
                let _ = self.apply(&effect, at);
                // Whatever stood in its way meanwhile is not the caller's fault.
                self.violations.truncate(known);
                self.journal.late = false;
            }
        }
    }

    /// Lets something happen at a later time.
    pub(crate) fn schedule(&mut self, at: Instant, effect: Effect) {
        self.last_late += 1;
        self.late.insert((at, self.last_late), effect);
    }

    pub(crate) fn pending(&self) -> impl Iterator<Item = &Effect> {
        self.late.values()
    }

    pub(crate) fn forget_pending(&mut self) {
        self.late.clear();
    }

    pub(crate) fn add_sandbox(
        &mut self,
        config: Arc<SandboxConfig>,
        handler: String,
        original: Original,
        marked: bool,
        now: Instant,
    ) -> SandboxId {
        self.last_sandbox += 1;
        let n = self.last_sandbox;
        let id = SandboxId::new(format!("s{n}"));
        let ips = match config.security.namespaces.network {
            NamespaceMode::Node => Vec::new(),
            _ => vec![IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + (n & 0x00ff_ffff) as u32))],
        };
        let uid = config.pod_uid.clone();
        let late = self.journal.late;
        self.journal.note(now, || Happened::SandboxMade {
            late,
            sandbox: n,
            pod: uid.clone(),
            key: config.key.clone(),
            attempt: config.attempt,
        });
        self.pods.entry(uid.clone()).or_default().sandboxes.push(n);
        let sandbox = Sandbox {
            id: id.clone(),
            config,
            handler,
            original,
            state: SandboxState::Ready,
            created: self.wall(now),
            ips,
            marked,
            resources: None,
            died: false,
        };
        self.sandboxes.insert(n, sandbox);
        self.touch(&uid);
        id
    }

    pub(crate) fn add_container(
        &mut self,
        sandbox: u64,
        pod: PodUid,
        config: Arc<ContainerConfig>,
        (program, original): (Program, Original),
        marked: bool,
        now: Instant,
    ) -> ContainerId {
        self.last_container += 1;
        let n = self.last_container;
        let id = ContainerId::new(format!("c{n}"));
        self.journal.note(now, || Happened::Made {
            container: n,
            sandbox: SandboxId::new(format!("s{sandbox}")),
            pod: pod.clone(),
            name: config.name.clone(),
            attempt: config.attempt,
            image: config.image.asked.clone(),
        });
        let folder = self.sandboxes.get(&sandbox).map(|s| s.config.log_directory.clone());
        let log_path = folder
            .filter(|_| !config.log_path.as_os_str().is_empty())
            .map(|folder| folder.join(&config.log_path));
        self.pods.entry(pod.clone()).or_default().containers.push(n);
        let container = Container {
            id: id.clone(),
            sandbox,
            pod: pod.clone(),
            config,
            log_path,
            program,
            original,
            state: ContainerState::Created,
            created: self.wall(now),
            started: None,
            finished: None,
            exit_code: 0,
            reason: "",
            message: String::new(),
            marked,
            resources: None,
            end: None,
            started_late: false,
            asked_to_stop: false,
            changed: None,
        };
        self.containers.insert(n, container);
        self.touch(&pod);
        id
    }

    pub(crate) fn set_running(&mut self, n: u64, now: Instant) {
        let wall = self.wall(now);
        let Some(container) = self.containers.get_mut(&n) else {
            return;
        };
        container.state = ContainerState::Running;
        container.started = Some(wall);
        let late = self.journal.late;
        container.started_late = late;
        self.journal.note(now, || Happened::Started { container: n, late });
        let natural = container.program.natural_end(container.config.attempt);
        let uid = container.pod.clone();
        container.wake();
        self.touch(&uid);
        if let Some((after, code)) = natural {
            self.plan_end(n, now + after, code);
        }
        self.advance(now);
    }

    /// Asks a running container to stop, and plans to kill it once `grace` has passed.
    pub(crate) fn ask_to_stop(&mut self, n: u64, grace: Duration, now: Instant) {
        let Some(container) = self.containers.get_mut(&n) else {
            return;
        };
        if container.state != ContainerState::Running {
            return;
        }
        let answer = container.program.on_term.filter(|_| !container.asked_to_stop);
        container.asked_to_stop = true;
        let kill = now.checked_add(grace);
        self.journal.note(now, || Happened::Stopping { container: n, kill });
        if let Some((after, code)) = answer.filter(|_| !grace.is_zero()) {
            self.plan_end(n, now + after, code);
        }
        // A grace beyond what an instant can hold is one that never ends.
        if let Some(kill) = kill {
            self.plan_end(n, kill, KILLED);
        }
        self.advance(now);
    }

    /// Ends a container at once, if it runs.
    pub(crate) fn end_now(&mut self, n: u64, code: i32, reason: &'static str, message: String, at: Instant) {
        let by = self.journal.hand();
        self.end(n, (code, reason, message), by, at);
    }

    fn end(&mut self, n: u64, (code, reason, message): (i32, &'static str, String), by: By, at: Instant) {
        let wall = self.wall(at);
        let Some(container) = self.containers.get_mut(&n) else {
            return;
        };
        if matches!(container.state, ContainerState::Exited) {
            return;
        }
        self.journal.note(at, || Happened::Ended { container: n, code, by });
        container.state = ContainerState::Exited;
        container.finished = Some(wall);
        container.exit_code = code;
        container.reason = reason;
        container.message = message;
        container.end = None;
        container.wake();
        let uid = container.pod.clone();
        self.touch(&uid);
    }

    /// Kills what runs in a sandbox and makes it not ready.
    pub(crate) fn bring_down(&mut self, sandbox: u64, code: i32, at: Instant) {
        for n in self.containers_in(sandbox) {
            if self
                .containers
                .get(&n)
                .is_some_and(|c| c.state == ContainerState::Running)
            {
                self.end_now(n, code, "Error", String::new(), at);
            }
        }
        if let Some(found) = self.sandboxes.get_mut(&sandbox)
            && found.state != SandboxState::NotReady
        {
            found.state = SandboxState::NotReady;
            let uid = found.config.pod_uid.clone();
            let by = self.journal.hand();
            found.died = by == By::Fault;
            self.journal.note(at, || Happened::SandboxDown {
                sandbox,
                pod: uid.clone(),
                by,
            });
            self.touch(&uid);
        }
    }

    pub(crate) fn take_container(&mut self, n: u64) {
        let Some(container) = self.containers.remove(&n) else {
            return;
        };
        container.wake();
        let by = self.journal.hand();
        self.journal
            .note(Instant::now(), || Happened::Gone { container: n, by });
        if let Some(pod) = self.pods.get_mut(&container.pod) {
            pod.containers.retain(|other| *other != n);
        }
        self.forget_empty(&container.pod);
        self.touch(&container.pod);
    }

    pub(crate) fn take_sandbox(&mut self, n: u64) {
        for container in self.containers_in(n) {
            self.take_container(container);
        }
        let Some(sandbox) = self.sandboxes.remove(&n) else {
            return;
        };
        let uid = &sandbox.config.pod_uid;
        let by = self.journal.hand();
        self.journal.note(Instant::now(), || Happened::SandboxGone {
            sandbox: n,
            pod: uid.clone(),
            by,
        });
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.sandboxes.retain(|other| *other != n);
        }
        self.forget_empty(uid);
        self.touch(uid);
    }

    /// Wakes everybody who waits for a container, since calls in flight are cut off.
    pub(crate) fn wake_all(&self) {
        for container in self.containers.values() {
            container.wake();
        }
    }

    fn plan_end(&mut self, n: u64, at: Instant, code: i32) {
        let Some(container) = self.containers.get_mut(&n) else {
            return;
        };
        if container.end.is_some_and(|(planned, _)| planned <= at) {
            return;
        }
        container.end = Some((at, code));
        container.wake();
        self.ends.push(Reverse((at, n)));
    }

    /// The heap keeps ends that were replaced by sooner ones, and those of containers that ended otherwise.
    fn end_if_due(&mut self, n: u64, at: Instant) {
        let due = self
            .containers
            .get(&n)
            .and_then(|c| Some((c.end?, c.asked_to_stop)))
            .filter(|((planned, _), _)| *planned == at);
        if let Some(((_, code), asked)) = due {
            let reason = if code == 0 { "Completed" } else { "Error" };
            let by = if asked { By::Stop } else { By::Itself };
            self.end(n, (code, reason, String::new()), by, at);
        }
    }

    fn forget_empty(&mut self, uid: &PodUid) {
        if self
            .pods
            .get(uid)
            .is_some_and(|pod| pod.sandboxes.is_empty() && pod.containers.is_empty())
        {
            self.pods.remove(uid);
        }
    }
}
