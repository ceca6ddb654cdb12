//! The stream of hints.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kubelet_core::{PodUid, RuntimeError, RuntimeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::fake::FakeRuntime;
use crate::fake::gate::sleep_until;

/// Everybody who listens. Ordered, so that faults strike in the same order in each run.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    open: BTreeMap<u64, Listener>,
    last: u64,
}

#[derive(Debug, Default)]
struct Listener {
    waiting: VecDeque<RuntimeHint>,
    broken: Option<String>,
    news: Arc<Notify>,
}

/// What becomes of one hint for one listener.
pub(crate) enum Delivery {
    Delivered,
    Lost,
    Swallowed,
    Broken(String),
}

impl Listeners {
    fn add(&mut self) -> u64 {
        self.last += 1;
        let mut listener = Listener::default();
        listener.waiting.push_back(RuntimeHint::Ready);
        self.open.insert(self.last, listener);
        self.last
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    pub(crate) fn send(&mut self, to: u64, uid: &PodUid, delivery: Delivery, capacity: usize) {
        let Some(listener) = self.open.get_mut(&to) else {
            return;
        };
        match delivery {
            Delivery::Swallowed => return,
            Delivery::Broken(text) => listener.broken = Some(text),
            Delivery::Lost => listener.lose(),
            // After `Lost` everything is looked at, which includes this pod.
            Delivery::Delivered if listener.waiting.back() == Some(&RuntimeHint::Lost) => {}
            Delivery::Delivered if listener.waiting.len() >= capacity => {
                listener.waiting.clear();
                listener.lose();
            }
            Delivery::Delivered => listener.waiting.push_back(RuntimeHint::Pod(uid.clone())),
        }
        listener.news.notify_one();
    }

    pub(crate) fn break_all(&mut self, text: &str) {
        for listener in self.open.values_mut() {
            listener.broken = Some(text.to_owned());
            listener.news.notify_one();
        }
    }

    /// Lets each listener look anew for the next instant at which something happens.
    pub(crate) fn nudge(&self) {
        for listener in self.open.values() {
            listener.news.notify_one();
        }
    }
}

impl Listener {
    fn lose(&mut self) {
        if self.waiting.back() != Some(&RuntimeHint::Lost) {
            self.waiting.push_back(RuntimeHint::Lost);
        }
    }
}

/// One listener's end of the stream; dropping it ends the listening.
struct Subscription {
    runtime: FakeRuntime,
    number: u64,
    ended: bool,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.runtime.lock().listeners.open.remove(&self.number);
    }
}

impl Subscription {
    /// The next hint. This is also what lets containers end in time while nobody calls: it sleeps until the next end.
    async fn next(&mut self) -> Option<Result<RuntimeHint, RuntimeError>> {
        if self.ended {
            return None;
        }
        loop {
            let (until, news) = {
                let mut state = self.runtime.lock();
                state.advance(Instant::now());
                let until = state.world.next_instant();
                let listener = state.listeners.open.get_mut(&self.number)?;
                if let Some(hint) = listener.waiting.pop_front() {
                    return Some(Ok(hint));
                }
                if let Some(text) = listener.broken.take() {
                    self.ended = true;
                    return Some(Err(RuntimeError::unavailable("events", text)));
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

pub(crate) fn listen(runtime: &FakeRuntime) -> BoxStream<'static, Result<RuntimeHint, RuntimeError>> {
    let number = runtime.lock().listeners.add();
    let subscription = Subscription {
        runtime: runtime.clone(),
        number,
        ended: false,
    };
    stream::unfold(subscription, |mut subscription| async move {
        let item = subscription.next().await?;
        Some((item, subscription))
    })
    .boxed()
}
