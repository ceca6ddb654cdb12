//! Who listens to what happens to single containers and sandboxes, in the way of CRI.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kubelet_core::PodUid;
use kubelet_core::jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::fake::FakeRuntime;
use crate::fake::fault::FaultKind;
use crate::fake::gate::sleep_until;
use crate::fake::journal::Happened;
use crate::fake::state::State;

/// What happened to one container, or to a sandbox as if it were one.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) id: String,
    pub(crate) sandbox: u64,
    pub(crate) pod: PodUid,
    pub(crate) at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created,
    Started,
    Stopped,
    Deleted,
}

#[derive(Debug, Default)]
pub(crate) struct EventListeners {
    open: BTreeMap<u64, Listener>,
    last: u64,
    /// Sandbox and pod of each container, also for those that are gone when their end is told.
    known: BTreeMap<u64, (u64, PodUid)>,
}

#[derive(Debug, Default)]
struct Listener {
    waiting: VecDeque<Event>,
    broken: Option<String>,
    news: Arc<Notify>,
}

impl EventListeners {
    pub(crate) fn nudge(&self) {
        for listener in self.open.values() {
            listener.news.notify_one();
        }
    }

    pub(crate) fn break_all(&mut self, text: &str) {
        for listener in self.open.values_mut() {
            listener.broken = Some(text.to_owned());
            listener.news.notify_one();
        }
    }
}

impl State {
    pub(crate) fn deliver_events(&mut self) {
        for (at, happened) in self.world.journal.take_feed() {
            let at = self.world.wall(at);
            for event in self.events_of(at, &happened) {
                self.deliver_event(&event);
            }
        }
    }

    fn events_of(&mut self, at: Timestamp, happened: &Happened) -> Vec<Event> {
        let of_sandbox = |kind, n: u64, pod: &PodUid| Event {
            kind,
            id: format!("s{n}"),
            sandbox: n,
            pod: pod.clone(),
            at,
        };
        let (kind, n) = match happened {
            Happened::SandboxMade { sandbox, pod, .. } => {
                return [EventKind::Created, EventKind::Started]
                    .map(|kind| of_sandbox(kind, *sandbox, pod))
                    .into();
            }
            Happened::SandboxDown { sandbox, pod, .. } => {
                return vec![of_sandbox(EventKind::Stopped, *sandbox, pod)];
            }
            Happened::SandboxGone { sandbox, pod, .. } => {
                return vec![of_sandbox(EventKind::Deleted, *sandbox, pod)];
            }
            Happened::Made {
                container,
                sandbox,
                pod,
                ..
            } => {
                let sandbox = sandbox.as_str().trim_start_matches('s').parse().unwrap_or_default();
                self.events.known.insert(*container, (sandbox, pod.clone()));
                (EventKind::Created, *container)
            }
            Happened::Started { container, .. } => (EventKind::Started, *container),
            Happened::Ended { container, .. } => (EventKind::Stopped, *container),
            Happened::Gone { container, .. } => (EventKind::Deleted, *container),
            _ => return Vec::new(),
        };
        let known = match kind {
            EventKind::Deleted => self.events.known.remove(&n),
            _ => self.events.known.get(&n).cloned(),
        };
        let event = known.map(|(sandbox, pod)| Event {
            kind,
            id: format!("c{n}"),
            sandbox,
            pod,
            at,
        });
        event.into_iter().collect()
    }

    fn deliver_event(&mut self, event: &Event) {
        let numbers: Vec<u64> = self.events.open.keys().copied().collect();
        for number in numbers {
            let breaks = self.strikes(FaultKind::StreamBreak).then(|| self.faults.words());
            let swallowed = self.strikes(FaultKind::LostHint) || self.strikes(FaultKind::SwallowedHint);
            let capacity = self.hint_capacity;
            let Some(listener) = self.events.open.get_mut(&number) else {
                continue;
            };
            if let Some(text) = breaks {
                listener.broken = Some(text);
            } else if !swallowed && listener.waiting.len() < capacity {
                listener.waiting.push_back(event.clone());
            }
            listener.news.notify_one();
        }
    }

    fn listen_to_events(&mut self) -> u64 {
        if self.events.open.is_empty() {
            let known = self.world.containers.iter();
            self.events.known = known.map(|(n, c)| (*n, (c.sandbox, c.pod.clone()))).collect();
            self.world.journal.feed(true);
        }
        self.events.last += 1;
        self.events.open.insert(self.events.last, Listener::default());
        self.events.last
    }
}

/// One listener's end; dropping it ends the listening.
#[derive(Debug)]
pub(crate) struct EventSubscription {
    runtime: FakeRuntime,
    number: u64,
    ended: bool,
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        let mut state = self.runtime.lock();
        state.events.open.remove(&self.number);
        if state.events.open.is_empty() {
            state.events.known.clear();
            state.world.journal.feed(false);
        }
    }
}

impl EventSubscription {
    pub(crate) fn new(runtime: &FakeRuntime) -> Self {
        Self {
            number: runtime.lock().listen_to_events(),
            runtime: runtime.clone(),
            ended: false,
        }
    }

    /// The next event, as `tell` puts it with the world as it is then; a text for a stream that breaks.
    pub(crate) async fn next<T>(&mut self, tell: impl Fn(&State, Event) -> T) -> Option<Result<T, String>> {
        if self.ended {
            return None;
        }
        loop {
            let (until, news) = {
                let mut state = self.runtime.lock();
                state.advance(Instant::now());
                let until = state.world.next_instant();
                let listener = state.events.open.get_mut(&self.number)?;
                if let Some(event) = listener.waiting.pop_front() {
                    return Some(Ok(tell(&state, event)));
                }
                if let Some(text) = listener.broken.take() {
                    self.ended = true;
                    return Some(Err(text));
                }
                (until, listener.news.clone())
            };
            tokio::select! {
                biased;
                () = news.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}
