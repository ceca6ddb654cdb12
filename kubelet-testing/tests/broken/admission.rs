//! Admission handlers that break a promise.

use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use kubelet_core::futures::stream::{self, BoxStream, StreamExt};
use kubelet_core::{Admission, AdmitHandler, AdmitRequest, NodeView, Operation, PodRecord};
use kubelet_testing::PodBuilder;
use kubelet_testing::contract::{AdmitFixture, now};
use tokio::sync::watch;

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    WaitsForTheGate,
    KeepsWhatItSaw,
    AnswersOnceOnly,
    ReasonIsASentence,
    HasNoMessage,
    HeldBackHoldsUpOthers,
    RefusesTheRestored,
    NeverTellsOfChanges,
    ChangesEnd,
}

/// Lets nobody in whose name is `bad`, and nobody whose name is `later` while its gate is shut.
#[derive(Debug)]
struct Gate {
    open: watch::Sender<bool>,
    fault: Fault,
    seen: Mutex<Vec<Arc<PodRecord>>>,
    never: (Mutex<()>, Condvar),
    holding: OnceLock<()>,
}

impl AdmitHandler for Gate {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        let name = &*req.pod.key().name;
        let first = !self.seen.lock().unwrap().iter().any(|pod| pod.uid() == req.pod.uid());
        if matches!(self.fault, Fault::KeepsWhatItSaw | Fault::AnswersOnceOnly) {
            self.seen.lock().unwrap().push(req.pod.clone());
        }
        let reason = if self.fault == Fault::ReasonIsASentence {
            "it is bad"
        } else {
            "BadName"
        };
        let message = if self.fault == Fault::HasNoMessage {
            ""
        } else {
            "pods of this name are not welcome"
        };
        match name {
            "bad" if self.fault == Fault::AnswersOnceOnly && !first => Admission::Admit,
            "bad" => Admission::reject(reason, message),
            "later" if !*self.open.borrow() => {
                if self.fault == Fault::WaitsForTheGate {
                    let held = self.never.0.lock().unwrap();
                    drop(self.never.1.wait(held));
                }
                let _ = self.holding.set(());
                Admission::not_yet("GateShut", "the gate is shut")
            }
            _ if self.fault == Fault::HeldBackHoldsUpOthers && self.holding.get().is_some() => {
                Admission::not_yet("InLine", "another pod came first")
            }
            _ if self.fault == Fault::RefusesTheRestored && req.operation == Operation::Restored => {
                Admission::reject("Full", "there is no room")
            }
            _ => Admission::Admit,
        }
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        let changes = stream::unfold(self.open.subscribe(), |mut open| async move {
            open.changed().await.ok()?;
            Some(((), open))
        });
        match self.fault {
            Fault::NeverTellsOfChanges => None,
            Fault::ChangesEnd => Some(stream::empty().boxed()),
            _ => Some(changes.boxed()),
        }
    }
}

fn gate(fault: Fault, patience: Duration) -> (Gate, AdmitFixture) {
    let open = watch::Sender::new(false);
    let gate = Gate {
        open: open.clone(),
        fault,
        seen: Mutex::default(),
        never: Default::default(),
        holding: OnceLock::new(),
    };
    let pod = |name| PodBuilder::new(name).build();
    let fixture = AdmitFixture::new(NodeView::new("edge-7"), &pod("fine"))
        .rejected(&pod("bad"))
        .held_back(&pod("later"), move || now(|| open.send_modify(|open| *open = true)))
        .others([&pod("other")])
        .patience(patience);
    (gate, fixture)
}

async fn sound() -> Option<(Gate, AdmitFixture)> {
    Some(gate(Fault::None, Duration::from_secs(20)))
}

kubelet_testing::admit_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Gate, AdmitFixture)> {
    async move || Some(gate(fault, Duration::from_secs(10)))
}

faults! { admission, check_admission:
    waits_for_the_gate: with(Fault::WaitsForTheGate), admit_does_not_wait, "answers to several threads";
    keeps_what_it_saw: with(Fault::KeepsWhatItSaw), admit_keeps_nothing, "who holds on";
    answers_once_only: with(Fault::AnswersOnceOnly), the_same_request_gets_the_same_answer, "default/bad asked about again";
    a_reason_that_is_a_sentence: with(Fault::ReasonIsASentence), a_refusal_has_a_word_and_a_sentence, "it is bad";
    no_message: with(Fault::HasNoMessage), a_refusal_has_a_word_and_a_sentence, "no message beside BadName";
    one_that_waits_holds_up_others: with(Fault::HeldBackHoldsUpOthers), not_yet_reserves_nothing, "another pod while one";
    refuses_the_restored: with(Fault::RefusesTheRestored), what_was_admitted_may_be_restored, "Restored";
    never_tells_of_changes: with(Fault::NeverTellsOfChanges), changes_fires_when_to_ask_again, "never tells when";
    changes_end: with(Fault::ChangesEnd), changes_fires_when_to_ask_again, "changes ended";
}
