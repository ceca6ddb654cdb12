//! The promises of [`EventSink`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

#![allow(
    clippy::unused_async,
    reason = "promises are checked in one way, and some of these have nothing to wait for"
)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{Event, EventSink, EventSubject, EventType, PodKey, PodUid};

use crate::contract::check::eventually;
use crate::contract::fixture::random_uid;
use crate::contract::hook::{Given, Hook, hook};
use crate::contract::thread::on_a_thread;

/// More events than any queue should hold.
const FLOOD: usize = 20_000;

/// Tells the suite of [`EventSink`] how to hear what the sink that it checks was told.
pub struct EventFixture {
    heard: Given<Hook<(), Vec<String>>>,
    patience: Duration,
}

impl fmt::Debug for EventFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFixture")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Default for EventFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl EventFixture {
    /// A fixture that does not say how events can be heard: that promise is skipped.
    #[must_use]
    pub fn new() -> Self {
        Self {
            heard: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// How to look up what was heard on the other side, in the order of its arrival: texts that have the reason and the
    /// message of their event in them. It may have heard of others too. It is called only by the promise about it: to the
    /// others nobody listens.
    #[must_use]
    pub fn heard<F>(mut self, heard: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        self.heard = Given::Here(hook(move |()| heard()));
        self
    }

    /// For a sink whose events nobody can hear.
    #[must_use]
    pub fn unheard(mut self) -> Self {
        self.heard = Given::Never;
        self
    }

    /// How long a flood of events may take to record, and one to arrive; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// An event about a pod.
fn event(message: impl Into<String>) -> Event {
    let subject = EventSubject::Pod {
        uid: PodUid::from("uid-web"),
        key: PodKey::new("default", "web"),
        field_path: Some("spec.containers{app}".to_owned()),
    };
    Event::new(subject, EventType::Normal, "ContractChecked", message)
}

/// `record` never blocks: what cannot be kept is dropped by the sink, which counts it.
///
/// # Panics
/// If the promise is broken.
pub async fn record_never_blocks(sink: &Arc<dyn EventSink>, fixture: &EventFixture) {
    // The runtime does nothing meanwhile, so that a task of the sink cannot make room.
    let sink = sink.clone();
    on_a_thread("a flood of events", fixture.patience, move || {
        for number in 0..FLOOD {
            sink.record(event(format!("event {number} of a flood")));
        }
    });
}

/// It may be called by any thread, by several at once, inside a tokio runtime and outside.
///
/// # Panics
/// If the promise is broken.
pub async fn record_may_be_called_anywhere(sink: &Arc<dyn EventSink>, fixture: &EventFixture) {
    sink.record(event("recorded inside a runtime"));
    let sink = sink.clone();
    on_a_thread("events of several threads", fixture.patience, move || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sink = &sink;
                scope.spawn(move || {
                    for number in 0..100 {
                        sink.record(event(format!("event {number} of thread {thread}")));
                    }
                });
            }
        });
    });
}

/// It takes an event about anything, with any text.
///
/// # Panics
/// If the promise is broken.
pub async fn record_takes_any_event(sink: &Arc<dyn EventSink>, fixture: &EventFixture) {
    let sink = sink.clone();
    on_a_thread("events of all kinds", fixture.patience, move || {
        let pod = |field_path| EventSubject::Pod {
            uid: PodUid::from(""),
            key: PodKey::new("", ""),
            field_path,
        };
        let subjects = [
            pod(None),
            pod(Some(String::new())),
            EventSubject::Manifest("/etc/kubernetes/manifests/a.yaml".to_owned()),
            EventSubject::Manifest(String::new()),
            EventSubject::Node,
        ];
        let long = "long ".repeat(200_000);
        for subject in subjects {
            for event_type in [EventType::Normal, EventType::Warning] {
                for text in [
                    "",
                    " ",
                    "two\nlines\r\n",
                    "{}",
                    "%s {0}",
                    "\u{0}\u{1b}[31m",
                    "ä\u{301}",
                    &long,
                ] {
                    sink.record(Event::new(subject.clone(), event_type, text.to_owned(), text));
                }
            }
        }
    });
}

/// What is recorded while the sink keeps up is heard on the other side, in order.
///
/// # Panics
/// If the promise is broken.
pub async fn what_is_recorded_is_heard_in_order(sink: &Arc<dyn EventSink>, fixture: &EventFixture) {
    let lacks = "the fixture does not say how events can be heard";
    let Some(heard) = fixture.heard.or_skip("what_is_recorded_is_heard_in_order", lacks) else {
        return;
    };
    let mark = random_uid();
    for number in 1..=3 {
        let message = format!("event {number} of {mark}");
        sink.record(event(message.as_str()));
        eventually("an event is heard", fixture.patience, async || {
            let all = heard(()).await;
            let of_ours: Vec<_> = all.iter().filter(|text| text.contains(&mark)).collect();
            let there = of_ours.iter().any(|text| text.contains(&message));
            if there {
                let whole = of_ours.iter().all(|text| text.contains("ContractChecked"));
                assert!(whole, "the reason of an event is not heard: {of_ours:?}");
                let places = (1..=number).map(|number| {
                    let message = format!("event {number} of {mark}");
                    of_ours.iter().position(|text| text.contains(&message))
                });
                assert!(places.is_sorted(), "events are heard in another order: {of_ours:?}");
            }
            there.then_some(())
        })
        .await;
    }
}

/// Makes one `#[test]` of each promise of [`EventSink`].
///
/// Takes an async function without arguments that answers `Some((sink, fixture))` with an
/// [`EventFixture`](crate::contract::EventFixture), or nothing where the sink cannot be had. It is called once per promise.
/// The suite runs in real time, and records on threads of its own too, on which there is no tokio runtime.
///
/// ```
/// # mod example {
/// use kubelet_core::TracingEvents;
/// use kubelet_testing::contract::EventFixture;
///
/// async fn tracing() -> Option<(TracingEvents, EventFixture)> {
///     Some((TracingEvents, EventFixture::new().unheard()))
/// }
///
/// kubelet_testing::event_contract!(tracing);
/// # }
/// ```
#[macro_export]
macro_rules! event_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, events, check_events:
            record_may_be_called_anywhere
            record_never_blocks
            record_takes_any_event
            what_is_recorded_is_heard_in_order
        }
    };
}
