//! How a test drives and questions the fake.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    ContainerConfig, ContainerId, ContainerStatus, ImageRecord, ImageSpace, LinuxResources, RuntimeInfo, SandboxConfig,
    SandboxId, SandboxStatus, Target,
};
use tokio::time::Instant;

use crate::fake::FakeRuntime;
use crate::fake::call::{Call, Op};
use crate::fake::exec::{ExecAnswer, ExecCall, ExecScript};
use crate::fake::fault::{FaultKind, Script};
use crate::fake::images::FakeImage;
use crate::fake::journal::Happened;
use crate::fake::program::{Program, ProgramFor};
use crate::fake::state::State;
use crate::fake::world::KILLED;

/// What containers, commands and images do.
impl FakeRuntime {
    /// What containers do whose arguments do not say so. Counts for those created from now on.
    pub fn set_program(&self, of: ProgramFor, program: Program) {
        self.lock().programs.insert(of, program);
    }

    /// How commands go, instead of what their own words say. The closure may call this fake.
    pub fn on_exec(&self, decide: impl Fn(&ExecCall) -> ExecAnswer + Send + Sync + 'static) {
        self.lock().exec = Some(ExecScript(Arc::new(decide)));
    }

    /// How pulls of the image of that name go.
    pub fn set_image(&self, name: impl Into<String>, image: FakeImage) {
        self.lock().images.script(name.into(), image);
    }

    /// Makes an image present, with the names in the record.
    pub fn add_image(&self, image: ImageRecord) {
        self.lock().images.insert(image);
    }

    /// How much room the image service says that there is; nothing, as by default: it does not say.
    pub fn set_image_space(&self, space: Option<ImageSpace>) {
        self.lock().images.space = space;
    }

    /// The images that are present, by id.
    #[must_use]
    pub fn images(&self) -> Vec<ImageRecord> {
        self.lock().images.present()
    }

    /// What `info` answers from now on.
    pub fn set_info(&self, info: RuntimeInfo) {
        self.lock().info = info;
    }

    /// How long each call of that kind takes; zero by default.
    pub fn set_latency(&self, op: Op, latency: Duration) {
        self.lock().latencies.insert(op, latency);
    }

    /// Whether a changing call happens although its future was dropped, and how long after. Absent, as by default: it
    /// does not.
    pub fn set_abandoned_calls_happen(&self, after: Option<Duration>) {
        self.lock().abandoned_after = after;
    }
}

/// Faults.
impl FakeRuntime {
    /// Does something to the next calls of one kind, before chance has its turn. Scripts of one kind act in the order
    /// in which they were added.
    pub fn script(&self, script: Script) {
        self.lock().faults.add(script);
    }

    /// Switches a kind of fault on with a probability between 0 and 1, or off with 0. It counts per call for faults of
    /// calls, per hint and listener for those of hints, and per call, of whatever kind, for those of the world.
    pub fn set_fault_rate(&self, kind: FaultKind, probability: f64) {
        self.lock().faults.set_rate(kind, probability);
    }

    /// Switches off all random faults. Scripts stay.
    pub fn stop_faults(&self) {
        let mut state = self.lock();
        for kind in FaultKind::ALL {
            state.faults.set_rate(kind, 0.0);
        }
    }

    /// The longest random delay: of `Delay`, of the deadline and lateness of `Uncertain`, of the absence of `Restart`.
    /// 2 s by default.
    pub fn set_longest_delay(&self, delay: Duration) {
        self.lock().faults.longest_delay = delay;
    }

    /// How much longer a list takes under `SlowList`; 10 s by default.
    pub fn set_slow_list(&self, delay: Duration) {
        self.lock().faults.slow_list = delay;
    }

    /// How often each kind was shown, by chance, script or method.
    #[must_use]
    pub fn fault_counts(&self) -> BTreeMap<FaultKind, u64> {
        let state = self.lock();
        FaultKind::ALL
            .into_iter()
            .map(|kind| (kind, state.faults.count(kind)))
            .collect()
    }

    /// Lets a running container end at once with that code.
    pub fn kill_container(&self, id: &ContainerId, exit_code: i32) {
        self.end_container(id, exit_code, if exit_code == 0 { "Completed" } else { "Error" });
    }

    /// Lets a running container end as the kernel's memory killer ends it.
    pub fn oom_kill_container(&self, id: &ContainerId) {
        self.end_container(id, KILLED, "OOMKilled");
    }

    /// Lets a container be gone, as if somebody else had removed it.
    pub fn vanish_container(&self, id: &ContainerId) {
        self.disturb(|state, _| {
            if let Some(n) = state.world.container_number(id) {
                state.faults.note(FaultKind::ContainerVanishes);
                state.world.take_container(n);
            }
        });
    }

    /// Lets a sandbox die behind the caller's back, with its containers.
    pub fn stop_sandbox_behind(&self, id: &SandboxId) {
        self.disturb(|state, now| {
            if let Some(n) = state.world.sandbox_number(id) {
                state.faults.note(FaultKind::SandboxDies);
                state.world.bring_down(n, KILLED, now);
            }
        });
    }

    /// Lets a sandbox be gone with its containers.
    pub fn vanish_sandbox(&self, id: &SandboxId) {
        self.disturb(|state, _| {
            if let Some(n) = state.world.sandbox_number(id) {
                state.faults.note(FaultKind::SandboxVanishes);
                state.world.take_sandbox(n);
            }
        });
    }

    /// Lets the runtime go away: streams break, calls in flight end as uncertain (reads as unavailable) and have not
    /// happened, later ones are unavailable. Containers go on.
    pub fn go_down(&self) {
        self.disturb(|state, _| state.go_down(None));
    }

    /// Ends [`FakeRuntime::go_down`], and a random absence.
    pub fn come_up(&self) {
        self.disturb(|state, _| state.come_up());
    }

    /// Lets the machine start anew: running containers are exited with code 255, sandboxes not ready, calls in flight
    /// are cut off and what was still on its way is forgotten. The runtime answers at once.
    pub fn reboot(&self) {
        self.disturb(State::reboot);
    }

    /// Lets the machine start anew without what it kept: all sandboxes and containers are gone, calls in flight are cut off
    /// and what was still on its way is forgotten. Images stay. The runtime answers at once.
    pub fn lose_everything(&self) {
        self.disturb(|state, now| {
            state.reboot(now);
            let all: Vec<u64> = state.world.sandboxes.keys().copied().collect();
            for n in all {
                state.world.take_sandbox(n);
            }
        });
    }

    /// Ends all streams of hints with an error.
    pub fn break_streams(&self) {
        self.disturb(|state, _| {
            state.faults.note(FaultKind::StreamBreak);
            let words = state.faults.words();
            state.listeners.break_all(&words);
            #[cfg(feature = "fake-cri")]
            state.events.break_all(&words);
        });
    }

    fn end_container(&self, id: &ContainerId, exit_code: i32, reason: &'static str) {
        self.disturb(|state, now| {
            let running = state.world.container(id).is_some_and(|c| c.is_running());
            if let Some(n) = state.world.container_number(id).filter(|_| running) {
                state.faults.note(FaultKind::ContainerDies);
                state.world.end_now(n, exit_code, reason, String::new(), now);
            }
        });
    }

    /// Begins to record what happens.
    pub(crate) fn keep_journal(&self) {
        self.lock().world.journal.keep();
    }

    /// What happened since this was last asked, in order.
    pub(crate) fn take_journal(&self) -> Vec<(Instant, Happened)> {
        let mut state = self.lock();
        state.advance(Instant::now());
        state.world.journal.take()
    }

    /// Notes what happened beside the runtime, in order with what happened in it.
    pub(crate) fn note(&self, happened: Happened) {
        let mut state = self.lock();
        let now = Instant::now();
        state.advance(now);
        state.world.journal.note(now, || happened);
    }

    fn disturb(&self, how: impl FnOnce(&mut State, Instant)) {
        let now = Instant::now();
        let mut state = self.lock();
        state.advance(now);
        how(&mut state, now);
        state.deliver();
    }
}

/// What happened, and what is there. None of these counts as a call or meets a fault.
impl FakeRuntime {
    /// The newest calls, oldest first, as many as the builder said.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().log.kept()
    }

    /// Forgets the recorded calls and counts from 0 again.
    pub fn clear_calls(&self) {
        self.lock().log.clear();
    }

    /// How many calls of that kind there were.
    #[must_use]
    pub fn count(&self, op: Op) -> u64 {
        self.lock().log.count(op)
    }

    /// How many calls of that kind are under way.
    #[must_use]
    pub fn in_flight(&self, op: Op) -> u64 {
        self.lock().log.running(op)
    }

    /// What the caller did against the contract, oldest first:
    /// overlapping changes of one container, or of a pod's sandbox; a second sandbox beside a ready one; a container
    /// created in a sandbox that is not ready or another pod's; a container started twice, or beside a running one of
    /// its name; objects made or touched without our mark.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().world.violations.clone()
    }

    /// All sandboxes in full, with the statuses of their containers, in the order in which they were made.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<SandboxStatus> {
        let mut state = self.lock();
        state.advance(Instant::now());
        let state = &*state;
        let in_full = |(n, sandbox)| {
            let mut status: SandboxStatus = state.sandbox_status(sandbox);
            let inside = state.world.containers_in(n).into_iter();
            let inside = inside.filter_map(|c| state.world.containers.get(&c));
            status.containers = Some(inside.map(|c| state.container_status(c)).collect());
            status
        };
        state
            .world
            .sandboxes
            .iter()
            .map(|(n, s)| (*n, s))
            .map(in_full)
            .collect()
    }

    /// All containers in full, in the order in which they were made.
    #[must_use]
    pub fn containers(&self) -> Vec<ContainerStatus> {
        let mut state = self.lock();
        state.advance(Instant::now());
        state
            .world
            .containers
            .values()
            .map(|c| state.container_status(c))
            .collect()
    }

    /// What a sandbox was made from.
    #[must_use]
    pub fn sandbox_config(&self, id: &SandboxId) -> Option<Arc<SandboxConfig>> {
        self.lock().world.sandbox(id).map(|s| s.config.clone())
    }

    /// What a container was made from.
    #[must_use]
    pub fn container_config(&self, id: &ContainerId) -> Option<Arc<ContainerConfig>> {
        self.lock().world.container(id).map(|c| c.config.clone())
    }

    /// The limits that were last set by `update_resources`. Of a sandbox the overhead is not asked about: see
    /// [`updated_sandbox`](Self::updated_sandbox).
    #[must_use]
    pub fn updated_resources(&self, of: Target<'_>) -> Option<LinuxResources> {
        let state = self.lock();
        match of {
            Target::Container(id) => state.world.container(id)?.resources.clone(),
            Target::Sandbox { id, .. } => state.world.sandbox(id)?.resources.as_ref().map(|(to, _)| to.clone()),
        }
    }

    /// The limits of a sandbox that were last set by `update_resources`, and the overhead that came with them.
    #[must_use]
    pub fn updated_sandbox(&self, id: &SandboxId) -> Option<(LinuxResources, Option<LinuxResources>)> {
        self.lock().world.sandbox(id)?.resources.clone()
    }
}
