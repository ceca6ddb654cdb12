//! What all calls go through.

use std::any::Any;
use std::fmt;
use std::future::{self, Future};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_core::{ContainerId, RuntimeError, SandboxId};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::{Code, Request, Response, Status};
use tokio::time;

use crate::FakeRuntime;
use crate::fake_cri::rpc::{CriFault, CriFaults, Rpc, status};

/// What a face can do.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) logs: bool,
    pub(crate) list_streams: bool,
    pub(crate) statuses_with_containers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            logs: true,
            list_streams: true,
            statuses_with_containers: false,
        }
    }
}

type AnswerHook = Arc<dyn Fn(&mut dyn Any) + Send + Sync>;
pub(crate) type EventHook = Arc<dyn Fn(v1::ContainerEventResponse) -> Vec<v1::ContainerEventResponse> + Send + Sync>;

pub(crate) struct Face {
    pub(crate) runtime: FakeRuntime,
    pub(crate) options: Options,
    faults: Mutex<CriFaults>,
    hooks: Arc<Mutex<Hooks>>,
}

#[derive(Default)]
struct Hooks {
    answers: Vec<AnswerHook>,
    event: Option<EventHook>,
}

impl fmt::Debug for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Face")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Face {
    pub(crate) fn new(runtime: FakeRuntime, options: Options) -> Self {
        Self {
            runtime,
            options,
            faults: Mutex::default(),
            hooks: Arc::default(),
        }
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, CriFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hooks(&self) -> MutexGuard<'_, Hooks> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn on_answer<A: Any>(&self, change: impl Fn(&mut A) + Send + Sync + 'static) {
        self.hooks().answers.push(Arc::new(move |answer: &mut dyn Any| {
            if let Some(answer) = answer.downcast_mut() {
                change(answer);
            }
        }));
    }

    pub(crate) fn on_event(&self, hook: Option<EventHook>) {
        self.hooks().event = hook;
    }

    /// What decides on the next event, asked anew for each.
    pub(crate) fn hooks_of_events(&self) -> impl Fn() -> Option<EventHook> + Send + 'static {
        let hooks = self.hooks.clone();
        move || hooks.lock().unwrap_or_else(PoisonError::into_inner).event.clone()
    }

    pub(crate) fn heal(&self) {
        *self.hooks() = Hooks::default();
        self.faults().heal();
    }

    /// Lets the hooks change an answer. None runs under a lock: it may drive the fake.
    pub(crate) fn change<A: Any>(&self, answer: &mut A) {
        let hooks = self.hooks().answers.clone();
        for hook in hooks {
            hook(answer);
        }
    }

    /// One call: planned, delayed, perhaps failed, then carried out and answered.
    pub(crate) async fn answer<Q, A, F>(
        &self,
        rpc: Rpc,
        request: Request<Q>,
        work: impl FnOnce(Q) -> F,
    ) -> Result<Response<A>, Status>
    where
        Q: fmt::Debug,
        A: Any,
        F: Future<Output = Result<A, Status>>,
    {
        let request = request.into_inner();
        let plan = self.faults().plan(rpc, &request);
        if !plan.delay.is_zero() {
            time::sleep(plan.delay).await;
        }
        match &plan.fault {
            Some(CriFault::Error(code, text)) => return Err(status(*code, text)),
            Some(CriFault::Hang) => future::pending().await,
            _ => {}
        }
        let answer = work(request).await;
        match plan.fault {
            Some(CriFault::LostAnswer) => future::pending().await,
            Some(CriFault::LateAnswer(by)) => time::sleep(by).await,
            Some(CriFault::DoneAndError(code, text)) => return Err(status(code, &text)),
            _ => {}
        }
        let mut answer = answer?;
        self.change(&mut answer);
        Ok(Response::new(answer))
    }

    pub(crate) fn sandbox_config(&self, id: &SandboxId) -> Option<v1::PodSandboxConfig> {
        let state = self.runtime.lock();
        state.world.sandbox(id)?.original.get().cloned()
    }

    pub(crate) fn container_config(&self, id: &ContainerId) -> Option<v1::ContainerConfig> {
        let state = self.runtime.lock();
        state.world.container(id)?.original.get().cloned()
    }
}

/// An error in the words and codes of a containerd. `name` is of what was to be made.
pub(crate) fn refuse(error: &RuntimeError, name: &str) -> Status {
    let reserved = |by: &str| {
        Status::unknown(format!(
            "failed to reserve name {name:?}: name {name:?} is reserved for {by:?}"
        ))
    };
    match error {
        RuntimeError::NotFound { what } => {
            Status::not_found(format!("an error occurred when try to find {what}: not found"))
        }
        RuntimeError::Uncertain { op, .. } => Status::deadline_exceeded(format!("{op}: context deadline exceeded")),
        RuntimeError::Taken { what } if !name.is_empty() => reserved(what),
        RuntimeError::Busy { what } if !name.is_empty() => reserved(what),
        RuntimeError::Taken { what } => Status::already_exists(what.as_str()),
        RuntimeError::Busy { what } => Status::aborted(what.as_str()),
        RuntimeError::Refused { message, .. } => Status::unknown(message.as_str()),
        RuntimeError::Unsupported { op } => Status::unimplemented(*op),
        other => Status::new(Code::Unavailable, other.to_string()),
    }
}
