//! Everything behind the fake's one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    Clock, ContainerConfig, ContainerState, ContainerStatus, PodUid, RuntimeInfo, SandboxState, SandboxStatus,
};
use tokio::time::Instant;

use crate::fake::call::{CallLog, Op, Subject};
#[cfg(feature = "fake-cri")]
use crate::fake::events::EventListeners;
use crate::fake::exec::ExecScript;
use crate::fake::fault::{FaultKind, Faults};
use crate::fake::hints::{Delivery, Listeners};
use crate::fake::images::ImageStore;
use crate::fake::journal::Happened;
use crate::fake::program::{Program, ProgramFor};
use crate::fake::world::{Container, KILLED, LOST, Sandbox, World};

pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) faults: Faults,
    pub(crate) log: CallLog,
    pub(crate) listeners: Listeners,
    #[cfg(feature = "fake-cri")]
    pub(crate) events: EventListeners,
    pub(crate) images: ImageStore,
    pub(crate) info: RuntimeInfo,
    pub(crate) latencies: BTreeMap<Op, Duration>,
    pub(crate) programs: BTreeMap<ProgramFor, Program>,
    pub(crate) exec: Option<ExecScript>,
    /// Pod and container name (empty for the sandbox) of calls that must not overlap.
    pub(crate) in_hand: BTreeSet<(PodUid, String)>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) made: Instant,
    pub(crate) hint_capacity: usize,
    pub(crate) has_events: bool,
    /// How long after its future was dropped a call still happens; absent: it does not.
    pub(crate) abandoned_after: Option<Duration>,
    /// Counts the times that calls in flight were cut off.
    pub(crate) epoch: u64,
    down: Down,
    sleeping_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Down {
    No,
    Until(Instant),
    UntilToldOtherwise,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("sandboxes", &self.world.sandboxes.len())
            .field("containers", &self.world.containers.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub(crate) fn new(seed: u64, clock: Arc<dyn Clock>, call_limit: usize) -> Self {
        Self {
            world: World::default(),
            faults: Faults::new(seed),
            log: CallLog::new(call_limit),
            listeners: Listeners::default(),
            #[cfg(feature = "fake-cri")]
            events: EventListeners::default(),
            images: ImageStore::default(),
            info: RuntimeInfo::new("fake", "1.0.0"),
            latencies: BTreeMap::new(),
            programs: BTreeMap::new(),
            exec: None,
            in_hand: BTreeSet::new(),
            clock,
            made: Instant::now(),
            hint_capacity: 1024,
            has_events: true,
            abandoned_after: None,
            epoch: 0,
            down: Down::No,
            sleeping_until: None,
        }
    }

    /// Lets the world catch up, and tells the listeners.
    pub(crate) fn advance(&mut self, now: Instant) {
        if matches!(self.down, Down::Until(at) if at <= now) {
            self.down = Down::No;
        }
        self.world.set_wall(now, self.clock.now());
        self.world.advance(now);
        self.deliver();
    }

    /// Hands the hints that have gathered to the listeners, and lets them sleep anew where the next end came nearer.
    pub(crate) fn deliver(&mut self) {
        for uid in std::mem::take(&mut self.world.touched) {
            self.hint(&uid);
        }
        #[cfg(feature = "fake-cri")]
        self.deliver_events();
        let next = self.world.next_instant();
        let sooner = match (next, self.sleeping_until) {
            (Some(next), Some(until)) => next < until,
            (Some(_), None) => true,
            (None, _) => false,
        };
        self.sleeping_until = next;
        if sooner {
            self.listeners.nudge();
            #[cfg(feature = "fake-cri")]
            self.events.nudge();
        }
    }

    pub(crate) fn hint(&mut self, uid: &PodUid) {
        for number in self.listeners.numbers() {
            let delivery = if self.strikes(FaultKind::StreamBreak) {
                Delivery::Broken(self.faults.words())
            } else if self.strikes(FaultKind::LostHint) {
                Delivery::Lost
            } else if self.strikes(FaultKind::SwallowedHint) {
                Delivery::Swallowed
            } else {
                Delivery::Delivered
            };
            self.listeners.send(number, uid, delivery, self.hint_capacity);
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down != Down::No
    }

    pub(crate) fn go_down(&mut self, until: Option<Instant>) {
        self.faults.note(FaultKind::Restart);
        self.down = until.map_or(Down::UntilToldOtherwise, Down::Until);
        self.cut_off();
    }

    pub(crate) fn come_up(&mut self) {
        self.down = Down::No;
    }

    pub(crate) fn reboot(&mut self, now: Instant) {
        self.faults.note(FaultKind::Reboot);
        self.world.journal.note(now, || Happened::Reboot);
        self.world.forget_pending();
        let all: Vec<u64> = self.world.sandboxes.keys().copied().collect();
        for n in all {
            self.world.bring_down(n, LOST, now);
        }
        self.cut_off();
        self.deliver();
    }

    /// Lets chance set off faults of the world.
    pub(crate) fn let_the_world_fail(&mut self, now: Instant) {
        for kind in FaultKind::WORLD {
            if self.faults.strikes(kind) {
                self.strike(kind, now);
            }
        }
        self.deliver();
    }

    fn strike(&mut self, kind: FaultKind, now: Instant) {
        let running = |c: &Container| c.state == ContainerState::Running;
        let ready = |s: &Sandbox| s.state == SandboxState::Ready;
        match kind {
            FaultKind::ContainerDies => {
                if let Some(n) = self.some_container(running) {
                    self.faults.note(kind);
                    self.world.end_now(n, KILLED, "Error", String::new(), now);
                }
            }
            FaultKind::ContainerVanishes => {
                if let Some(n) = self.some_container(|_| true) {
                    self.faults.note(kind);
                    self.world.take_container(n);
                }
            }
            FaultKind::SandboxDies => {
                if let Some(n) = self.some_sandbox(ready) {
                    self.faults.note(kind);
                    self.world.bring_down(n, KILLED, now);
                }
            }
            FaultKind::SandboxVanishes => {
                if let Some(n) = self.some_sandbox(|_| true) {
                    self.faults.note(kind);
                    self.world.take_sandbox(n);
                }
            }
            FaultKind::Restart if !self.is_down() => {
                let away = self.faults.some_delay();
                self.go_down(Some(now + away));
            }
            FaultKind::Reboot => self.reboot(now),
            _ => {}
        }
    }

    fn some_container(&mut self, fits: impl Fn(&Container) -> bool) -> Option<u64> {
        let found: Vec<u64> = self
            .world
            .containers
            .iter()
            .filter(|(_, c)| fits(c))
            .map(|(n, _)| *n)
            .collect();
        (!found.is_empty()).then(|| found[self.faults.below(found.len())])
    }

    fn some_sandbox(&mut self, fits: impl Fn(&Sandbox) -> bool) -> Option<u64> {
        let found: Vec<u64> = self
            .world
            .sandboxes
            .iter()
            .filter(|(_, s)| fits(s))
            .map(|(n, _)| *n)
            .collect();
        (!found.is_empty()).then(|| found[self.faults.below(found.len())])
    }

    fn cut_off(&mut self) {
        self.epoch += 1;
        let words = self.faults.words();
        self.listeners.break_all(&words);
        #[cfg(feature = "fake-cri")]
        self.events.break_all(&words);
        self.world.wake_all();
    }

    pub(crate) fn strikes(&mut self, kind: FaultKind) -> bool {
        let strikes = self.faults.strikes(kind);
        if strikes {
            self.faults.note(kind);
        }
        strikes
    }

    /// What a container does, by its arguments, what was set, and its image.
    pub(crate) fn program(&self, uid: &PodUid, config: &ContainerConfig) -> Result<Program, String> {
        Ok(self.scripted(uid, config)?.unwrap_or_default())
    }

    /// The same; nothing where nothing of them says so.
    pub(crate) fn scripted(&self, uid: &PodUid, config: &ContainerConfig) -> Result<Option<Program>, String> {
        let words = config.args.iter().map(String::as_str);
        if let Some(program) = Program::from_words(words)? {
            return Ok(Some(program));
        }
        let keys = [
            ProgramFor::Container(uid.clone(), config.name.clone()),
            ProgramFor::Name(config.name.clone()),
            ProgramFor::Image(config.image.asked.clone()),
        ];
        let set = keys.iter().find_map(|key| self.programs.get(key).cloned());
        Ok(set.or_else(|| Program::from_image(&config.image.asked)))
    }

    /// Fills in pod, name and attempt for ids that are known.
    pub(crate) fn complete(&self, subject: &mut Subject) {
        if let Some(container) = subject.container_id.as_ref().and_then(|id| self.world.container(id)) {
            subject.pod = Some(container.pod.clone());
            subject.container = Some(container.config.name.clone());
            subject.attempt = Some(container.config.attempt);
        } else if subject.pod.is_none()
            && let Some(sandbox) = subject.sandbox_id.as_ref().and_then(|id| self.world.sandbox(id))
        {
            subject.pod = Some(sandbox.config.pod_uid.clone());
            subject.attempt = Some(sandbox.config.attempt);
        }
    }

    pub(crate) fn sandbox_status(&self, sandbox: &Sandbox) -> SandboxStatus {
        let config = &sandbox.config;
        let mut status = SandboxStatus::new(
            sandbox.id.clone(),
            config.pod_uid.clone(),
            config.key.clone(),
            config.attempt,
            sandbox.state,
            sandbox.created,
        );
        status.ips.clone_from(&sandbox.ips);
        status.host_network = sandbox.ips.is_empty();
        status.handler.clone_from(&sandbox.handler);
        status.labels.clone_from(&config.labels);
        status.annotations.clone_from(&config.annotations);
        status
    }

    pub(crate) fn container_status(&self, container: &Container) -> ContainerStatus {
        let config = &container.config;
        let mut status = ContainerStatus::new(
            container.id.clone(),
            config.name.clone(),
            config.attempt,
            container.state,
            container.created,
        );
        status.sandbox_id = self.world.sandboxes.get(&container.sandbox).map(|s| s.id.clone());
        status.started_at = container.started;
        status.finished_at = container.finished;
        status.exit_code = container.exit_code;
        container.reason.clone_into(&mut status.reason);
        status.message.clone_from(&container.message);
        status.image.clone_from(&config.image.asked);
        status.image_ref = self.images.reference(&config.image.name);
        let images = config.mounts.iter().filter_map(|mount| mount.image.as_ref());
        status.mounted_images = images.map(|mount| mount.image.name.clone()).collect();
        status.labels.clone_from(&config.labels);
        status.annotations.clone_from(&config.annotations);
        status.log_path.clone_from(&container.log_path);
        status
    }
}
