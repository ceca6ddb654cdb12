//! Sinks of events: the tracing subscriber, and several sinks at once.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use kubelet_core::{Event, EventSink, FanOutEvents, TracingEvents};
use kubelet_testing::contract::{EventFixture, now};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// What was heard by the one subscriber of this process.
static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("kubelet_core::event")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        HEARD.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

async fn tracing() -> Option<(TracingEvents, EventFixture)> {
    // Whoever was first has set the same one.
    let _ = tracing::subscriber::set_global_default(Listener);
    Some((
        TracingEvents,
        EventFixture::new().heard(|| now(|| HEARD.lock().unwrap().clone())),
    ))
}

/// Keeps what it is told.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

impl EventSink for Kept {
    fn record(&self, event: Event) {
        self.0
            .lock()
            .unwrap()
            .push(format!("{}: {}", event.reason, event.message));
    }
}

async fn fan_out() -> Option<(FanOutEvents, EventFixture)> {
    let (first, second) = (Kept::default(), Kept::default());
    let sink = FanOutEvents::new(vec![Arc::new(first.clone()), Arc::new(second.clone())]);
    let heard = move || {
        let (first, second) = (first.0.lock().unwrap().clone(), second.0.lock().unwrap().clone());
        assert_eq!(first, second, "what the two sinks were told");
        now(|| second)
    };
    Some((sink, EventFixture::new().heard(heard)))
}

mod of_tracing {
    kubelet_testing::event_contract!(super::tracing);
}

mod of_several_sinks {
    kubelet_testing::event_contract!(super::fan_out);
}
