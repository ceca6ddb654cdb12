//! Sinks of events that break a promise.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::{Event, EventSink};
use kubelet_testing::contract::{EventFixture, now};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    WaitsForRoom,
    NeedsARuntime,
    CutsTextsAnywhere,
    LosesEvents,
    KeepsNoReason,
    NewestFirst,
}

/// Hands events to whoever listens, as long as there is room.
#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<String>,
    fault: Fault,
}

thread_local! {
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

impl EventSink for Queue {
    fn record(&self, event: Event) {
        COUNTED.set(COUNTED.get() + 1);
        let mut text = format!("{}: {}", event.reason, event.message);
        match self.fault {
            Fault::WaitsForRoom => return drop(self.sender.blocking_send(text)),
            Fault::NeedsARuntime => drop(Handle::current()),
            Fault::CutsTextsAnywhere => text = text[..text.len().min(3)].to_owned(),
            Fault::LosesEvents if COUNTED.get().is_multiple_of(2) => return,
            Fault::KeepsNoReason => text = event.message,
            _ => {}
        }
        let _ = self.sender.try_send(text);
    }
}

fn queue(fault: Fault, patience: Duration) -> (Queue, EventFixture) {
    let (sender, receiver) = mpsc::channel(64);
    let state = Arc::new(Mutex::new((receiver, Vec::new())));
    let heard = move || {
        let mut state = state.lock().unwrap();
        while let Ok(text) = state.0.try_recv() {
            if fault == Fault::NewestFirst {
                state.1.insert(0, text);
            } else {
                state.1.push(text);
            }
        }
        now(|| state.1.clone())
    };
    (
        Queue { sender, fault },
        EventFixture::new().heard(heard).patience(patience),
    )
}

async fn sound() -> Option<(Queue, EventFixture)> {
    Some(queue(Fault::None, Duration::from_secs(20)))
}

kubelet_testing::event_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Queue, EventFixture)> {
    async move || Some(queue(fault, Duration::from_secs(10)))
}

faults! { events, check_events:
    waits_for_room: with(Fault::WaitsForRoom), record_never_blocks, "a flood of events: not within";
    needs_a_runtime: with(Fault::NeedsARuntime), record_may_be_called_anywhere, "";
    cuts_texts_anywhere: with(Fault::CutsTextsAnywhere), record_takes_any_event, "char boundary";
    loses_events: with(Fault::LosesEvents), what_is_recorded_is_heard_in_order, "an event is heard: not within";
    keeps_no_reason: with(Fault::KeepsNoReason), what_is_recorded_is_heard_in_order, "the reason of an event";
    newest_first: with(Fault::NewestFirst), what_is_recorded_is_heard_in_order, "in another order";
}
