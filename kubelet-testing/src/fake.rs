//! The in-memory runtime.

mod call;
pub(crate) mod command;
mod control;
pub(crate) mod effect;
#[cfg(feature = "fake-cri")]
pub(crate) mod events;
mod exec;
mod fault;
mod gate;
mod hints;
mod images;
pub(crate) mod journal;
pub(crate) mod original;
mod program;
pub(crate) mod runtime;
pub(crate) mod state;
pub(crate) mod world;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_core::jiff::Timestamp;
use kubelet_core::{Clock, ImageMounts, RuntimeInfo, RuntimeParts, TokioClock};

use crate::fake::state::State;

pub use call::{Call, ErrorKind, Op, Outcome, Subject};
pub use exec::{ExecAnswer, ExecCall};
pub use fault::{Action, FaultKind, Script};
pub(crate) use gate::sleep_until;
pub use images::FakeImage;
pub use program::{Program, ProgramFor};

/// An in-memory container runtime and image service. A clone is another handle to the same runtime.
///
/// It keeps the contracts of [`ContainerRuntime`](kubelet_core::ContainerRuntime) and
/// [`ImageService`](kubelet_core::ImageService), unless a fault says otherwise, and notes in
/// [`FakeRuntime::violations`] where its caller does not.
///
/// # Containers
/// Each follows a [`Program`], which a pod manifest alone can script. Ids are `s1`, `s2`, … for sandboxes and `c1`,
/// `c2`, … for containers, in the order in which they are made; lists are in that order too.
///
/// # Time
/// Everything follows `tokio::time`, paused or not; it starts no task. What lies ahead, such as the end of a
/// container, happens at its own time but is worked out only when somebody looks: a call, or a listener to `events`,
/// whose stream sleeps until the next end. So a hint comes in time although nobody calls. Wall times come from the
/// [`Clock`] that the builder takes.
///
/// # Determinism
/// On one thread, with paused time and the same seed, two runs with the same calls are the same. Error texts are
/// random words: decide on variants.
///
/// # Cancellation
/// A call whose future is dropped does nothing, unless [`FakeRuntime::set_abandoned_calls_happen`] says that it
/// happens later. A container that was asked to stop goes on stopping.
#[derive(Clone)]
pub struct FakeRuntime {
    shared: Arc<Mutex<State>>,
}

impl fmt::Debug for FakeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FakeRuntime").field(&*self.lock()).finish()
    }
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self::new()
    }
}

impl From<FakeRuntime> for RuntimeParts {
    fn from(runtime: FakeRuntime) -> Self {
        Arc::new(runtime).into()
    }
}

impl FakeRuntime {
    /// A runtime without faults, latency and images; see [`FakeRuntimeBuilder`] for the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Sets up a runtime.
    pub fn builder() -> FakeRuntimeBuilder {
        FakeRuntimeBuilder::default()
    }

    /// The one lock. A test that panicked with it in hand must not hide its own message behind a poisoned lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets up a [`FakeRuntime`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct FakeRuntimeBuilder {
    seed: u64,
    clock: Option<Arc<dyn Clock>>,
    call_limit: usize,
    hint_capacity: usize,
    has_events: bool,
    all_images_present: bool,
    info: RuntimeInfo,
}

impl Default for FakeRuntimeBuilder {
    fn default() -> Self {
        let mut info = RuntimeInfo::new("fake", "1.0.0");
        info.image_mounts = ImageMounts::SubPaths;
        Self {
            seed: 0,
            clock: None,
            call_limit: 100_000,
            hint_capacity: 1024,
            has_events: true,
            all_images_present: false,
            info,
        }
    }
}

impl FakeRuntimeBuilder {
    /// Where random choices start; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Where wall times come from. By default a [`TokioClock`] that starts at 2026-01-01T00:00:00Z.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How many calls are kept, the newest; 100,000 by default, 0 for none. Counters work in any case.
    pub fn call_limit(mut self, calls: usize) -> Self {
        self.call_limit = calls;
        self
    }

    /// How many hints wait for a slow listener before they become one `Lost`; 1,024 by default.
    pub fn hint_capacity(mut self, hints: usize) -> Self {
        self.hint_capacity = hints;
        self
    }

    /// A runtime whose `events` is unsupported, so that it must be relisted.
    pub fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Every image is present without a pull, unless it was scripted or removed. By default none is.
    pub fn all_images_present(mut self) -> Self {
        self.all_images_present = true;
        self
    }

    /// What `info` answers; by default runtime `fake` 1.0.0 with both conditions met, which mounts images.
    pub fn info(mut self, info: RuntimeInfo) -> Self {
        self.info = info;
        self
    }

    /// Makes the runtime. Its time starts now.
    #[must_use]
    pub fn build(self) -> FakeRuntime {
        let clock = self.clock.unwrap_or_else(|| {
            let start = Timestamp::from_second(1_767_225_600).unwrap_or(Timestamp::UNIX_EPOCH);
            Arc::new(TokioClock::starting_at(start))
        });
        let mut state = State::new(self.seed, clock, self.call_limit);
        state.hint_capacity = self.hint_capacity;
        state.has_events = self.has_events;
        state.images.all_present = self.all_images_present;
        state.info = self.info;
        FakeRuntime {
            shared: Arc::new(Mutex::new(state)),
        }
    }
}
