//! The promises of [`AdmitHandler`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

#![allow(
    clippy::unused_async,
    reason = "promises are checked in one way, and some of these have nothing to wait for"
)]

mod fixture;

use std::sync::Arc;

use futures::StreamExt;
use kubelet_core::{Admission, AdmitHandler, AdmitRequest, Ledger, Operation, PodRecord};

use crate::contract::check::within;
use crate::contract::thread::on_a_thread;

pub use fixture::AdmitFixture;

const OPERATIONS: [Operation; 3] = [Operation::New, Operation::Restored, Operation::Resize];

/// All pods of a fixture, with what is to be answered to them when they are new.
fn pods(fixture: &AdmitFixture) -> Vec<Arc<PodRecord>> {
    let mut pods = vec![fixture.admitted.clone()];
    pods.extend(fixture.rejected.here().cloned());
    pods.extend(fixture.held_back.here().map(|(pod, _)| pod.clone()));
    pods
}

/// `admit` does not wait, and may be asked by any thread, by several at once.
///
/// # Panics
/// If the promise is broken.
pub async fn admit_does_not_wait(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    let (handler, pods) = (handler.clone(), pods(fixture));
    let (others, node) = (fixture.others.clone(), fixture.node.clone());
    on_a_thread("answers to several threads", fixture.patience, move || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for pod in pods.iter().cycle().take(100) {
                        handler.admit(&AdmitRequest::new(Operation::New, pod, &others, &node));
                    }
                });
            }
        });
    });
}

/// `admit` keeps nothing of what it was asked.
///
/// # Panics
/// If the promise is broken.
pub async fn admit_keeps_nothing(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    let pods = pods(fixture);
    let holders = || -> Vec<usize> {
        pods.iter()
            .chain(fixture.others.iter())
            .map(Arc::strong_count)
            .collect()
    };
    let before = holders();
    for operation in OPERATIONS {
        for pod in &pods {
            fixture.ask(handler, operation, pod);
        }
    }
    assert_eq!(holders(), before, "who holds on to the pods that it was asked about");
}

/// The same request gets the same answer until `changes` fires, whatever else is asked in between.
///
/// # Panics
/// If the promise is broken.
pub async fn the_same_request_gets_the_same_answer(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    let pods = pods(fixture);
    for operation in OPERATIONS {
        let first: Vec<_> = pods.iter().map(|pod| fixture.ask(handler, operation, pod)).collect();
        // In another order each time, so that no answer follows from the one before.
        for round in 0..3 {
            let order: Vec<usize> = (0..pods.len()).map(|at| (at + round) % pods.len()).rev().collect();
            for at in order {
                let again = fixture.ask(handler, operation, &pods[at]);
                assert_eq!(
                    again,
                    first[at],
                    "pod {} asked about again as {operation:?}",
                    pods[at].key()
                );
            }
        }
    }
}

/// What it does not admit it answers with one CamelCase word and a sentence.
///
/// # Panics
/// If the promise is broken.
pub async fn a_refusal_has_a_word_and_a_sentence(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    let promise = "a_refusal_has_a_word_and_a_sentence";
    let admitted = fixture.ask(handler, Operation::New, &fixture.admitted);
    assert_eq!(admitted, Admission::Admit, "the pod that is admitted, says the fixture");
    let mut answers = Vec::new();
    if let Some(pod) = fixture
        .rejected
        .or_skip(promise, "the fixture has no pod that is rejected")
    {
        let answer = fixture.ask(handler, Operation::New, pod);
        let rejects = matches!(answer, Admission::Reject { .. });
        assert!(rejects, "the pod that is rejected, says the fixture, gives {answer:?}");
        answers.push(answer);
    }
    if let Some((pod, _)) = fixture
        .held_back
        .or_skip(promise, "the fixture has no pod that is held back")
    {
        let answer = fixture.ask(handler, Operation::New, pod);
        let holds = matches!(answer, Admission::NotYet { .. });
        assert!(holds, "the pod that is held back, says the fixture, gives {answer:?}");
        answers.push(answer);
    }
    for answer in answers {
        let (Admission::Reject { reason, message } | Admission::NotYet { reason, message }) = &answer else {
            continue;
        };
        let word =
            reason.starts_with(|c: char| c.is_ascii_uppercase()) && reason.chars().all(|c| c.is_ascii_alphanumeric());
        assert!(word, "the reason {reason:?} is no CamelCase word");
        assert!(!message.trim().is_empty(), "there is no message beside {reason}");
    }
}

/// [`Admission::NotYet`] reserves nothing: later pods are admitted meanwhile.
///
/// # Panics
/// If the promise is broken.
pub async fn not_yet_reserves_nothing(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    let lacks = "the fixture has no pod that is held back";
    let Some((held, _)) = fixture.held_back.or_skip("not_yet_reserves_nothing", lacks) else {
        return;
    };
    let (handler, held) = (handler.clone(), held.clone());
    let (admitted, node) = (fixture.admitted.clone(), fixture.node.clone());
    // Within the ledger, as in a kubelet: a handler that calls it is stuck there.
    on_a_thread("answers to a ledger", fixture.patience, move || {
        let ledger = Ledger::new(vec![handler], node);
        for _ in 0..3 {
            let answer = ledger.admit(Operation::New, &held);
            assert!(
                matches!(answer, Admission::NotYet { .. }),
                "the pod that is held back gives {answer:?}"
            );
        }
        let answer = ledger.admit(Operation::New, &admitted);
        assert_eq!(answer, Admission::Admit, "another pod while one is held back");
        let answer = ledger.admit(Operation::New, &held);
        assert!(
            matches!(answer, Admission::NotYet { .. }),
            "the pod that is held back gives {answer:?} then"
        );
    });
}

/// A pod that it admits when it is new it admits as a restored one too, beside the same others on the same node.
///
/// # Panics
/// If the promise is broken.
pub async fn what_was_admitted_may_be_restored(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    for operation in [Operation::New, Operation::Restored, Operation::New] {
        let answer = fixture.ask(handler, operation, &fixture.admitted);
        assert_eq!(
            answer,
            Admission::Admit,
            "the pod that is admitted, asked about as {operation:?}"
        );
    }
}

/// `changes` fires when pods that were told [`Admission::NotYet`] are to be asked about again.
///
/// # Panics
/// If the promise is broken.
pub async fn changes_fires_when_to_ask_again(handler: &Arc<dyn AdmitHandler>, fixture: &AdmitFixture) {
    let lacks = "the fixture has no pod that is held back";
    let Some((held, let_in)) = fixture.held_back.or_skip("changes_fires_when_to_ask_again", lacks) else {
        return;
    };
    let Some(mut changes) = handler.changes() else {
        panic!("the handler holds pods back, and never tells when to ask again");
    };
    let answer = fixture.ask(handler, Operation::New, held);
    assert!(
        matches!(answer, Admission::NotYet { .. }),
        "the pod that is held back gives {answer:?}"
    );
    let_in(()).await;
    let answer = within("a change, and the pod let in", fixture.patience, async {
        loop {
            let change = changes.next().await;
            assert!(change.is_some(), "changes ended while a pod was held back");
            let answer = fixture.ask(handler, Operation::New, held);
            if !matches!(answer, Admission::NotYet { .. }) {
                return answer;
            }
        }
    })
    .await;
    assert_eq!(answer, Admission::Admit, "the pod that was held back");
}

/// Makes one `#[test]` of each promise of [`AdmitHandler`].
///
/// Takes an async function without arguments that answers `Some((handler, fixture))` with an
/// [`AdmitFixture`](crate::contract::AdmitFixture). It is called once per promise. The suite runs in real time, and asks on
/// threads of its own, on which there is no tokio runtime.
///
/// ```
/// # mod example {
/// use kubelet_core::{NodeFit, NodeView};
/// use kubelet_testing::PodBuilder;
/// use kubelet_testing::contract::AdmitFixture;
///
/// async fn node_fit() -> Option<(NodeFit, AdmitFixture)> {
///     let mut node = NodeView::new("edge-7");
///     node.allocatable.insert("pods".to_owned(), "10".parse().unwrap());
///     let elsewhere = PodBuilder::new("b").spec(|spec| spec.node_name = Some("edge-8".to_owned())).build();
///     let fixture = AdmitFixture::new(node, &PodBuilder::new("a").build()).rejected(&elsewhere);
///     Some((NodeFit::default(), fixture.never_holds_back()))
/// }
///
/// kubelet_testing::admit_contract!(node_fit);
/// # }
/// ```
#[macro_export]
macro_rules! admit_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, admission, check_admission:
            a_refusal_has_a_word_and_a_sentence
            admit_does_not_wait
            admit_keeps_nothing
            changes_fires_when_to_ask_again
            not_yet_reserves_nothing
            the_same_request_gets_the_same_answer
            what_was_admitted_may_be_restored
        }
    };
}
