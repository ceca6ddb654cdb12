//! The promises of [`Runnable`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod fixture;
mod node;

use std::sync::Arc;

use kubelet_core::{CancellationToken, NodeContext, Runnable, RunnableError, error_chain};

pub use fixture::RunnableFixture;

use crate::contract::check::{eventually, within};
use node::Node;

/// Turns that a part gets to begin its work where nothing tells when it has.
const FIRST_TURNS: usize = 64;

/// It has a name, and says the same of itself each time.
///
/// # Panics
/// If the promise is broken.
#[allow(
    clippy::unused_async,
    reason = "promises are checked in one way, and this one has nothing to wait for"
)]
pub async fn it_says_the_same_of_itself_each_time(part: &Arc<dyn Runnable>, _: &RunnableFixture) {
    let (name, phase) = (part.name().to_owned(), part.phase());
    assert!(!name.is_empty(), "the part has no name");
    assert_eq!(part.name(), name, "the name of the part changes");
    assert_eq!(part.phase(), phase, "the phase of the part changes");
}

/// `run` returns soon after `stop` is cancelled: here while it works.
///
/// # Panics
/// If the promise is broken.
pub async fn run_returns_soon_after_it_is_stopped(part: &Arc<dyn Runnable>, fixture: &RunnableFixture) {
    let mut node = Node::start(fixture).await;
    let stop = CancellationToken::new();
    let returned = run_until_it_works(part, fixture, node.context(), stop.clone(), async || stop.cancel()).await;
    ended(&returned);
    node.stop().await;
}

/// `run` returns soon after `stop` is cancelled: here it was before the call.
///
/// # Panics
/// If the promise is broken.
pub async fn run_returns_soon_if_it_is_stopped_already(part: &Arc<dyn Runnable>, fixture: &RunnableFixture) {
    let mut node = Node::start(fixture).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let run = part.run(node.context(), stop);
    ended(&within("the part returns, which was stopped before", fixture.patience, run).await);
    node.stop().await;
}

/// `run` may be called again after it returned an error.
///
/// # Panics
/// If the promise is broken.
pub async fn run_may_be_called_again_after_an_error(part: &Arc<dyn Runnable>, fixture: &RunnableFixture) {
    let lacks = "the fixture does not say what makes the part fail";
    let Some(fail) = fixture.fails.or_skip("run_may_be_called_again_after_an_error", lacks) else {
        return;
    };
    let mut node = Node::start(fixture).await;
    for round in 1..=2 {
        let stop = CancellationToken::new();
        let returned = run_until_it_works(part, fixture, node.context(), stop, async || fail(()).await).await;
        let Err(error) = returned else {
            panic!("the part does not fail in round {round}: the fixture or the part is wrong");
        };
        assert!(!error_chain(&error).is_empty(), "the error says nothing");
    }
    let stop = CancellationToken::new();
    ended(&run_until_it_works(part, fixture, node.context(), stop.clone(), async || stop.cancel()).await);
    node.stop().await;
}

/// Runs the part, does something once it works, and answers what it returns.
async fn run_until_it_works(
    part: &Arc<dyn Runnable>,
    fixture: &RunnableFixture,
    context: NodeContext,
    stop: CancellationToken,
    then: impl AsyncFnOnce(),
) -> Result<(), RunnableError> {
    let run = part.run(context, stop);
    tokio::pin!(run);
    let works = async {
        if let Some(works) = fixture.works.here() {
            eventually("the part works", fixture.patience, async || {
                works(()).await.then_some(())
            })
            .await;
        } else {
            for _ in 0..FIRST_TURNS {
                tokio::task::yield_now().await;
            }
        }
        then().await;
    };
    let early = tokio::select! {
        biased;
        returned = &mut run => Some(returned),
        () = works => None,
    };
    match early {
        Some(returned) => returned,
        None => within("the part returns", fixture.patience, run).await,
    }
}

/// A part that was stopped, or whose work is done, has nothing to complain of.
fn ended(returned: &Result<(), RunnableError>) {
    if let Err(error) = returned {
        panic!("the part fails: {}", error_chain(error));
    }
}

/// Makes one `#[test]` of each promise of [`Runnable`].
///
/// Takes an async function without arguments that answers `Some((part, fixture))` with a
/// [`RunnableFixture`](crate::contract::RunnableFixture), or nothing where the part cannot be had. It is called once per
/// promise. The suite runs in real time, and hands the part the context of a kubelet that runs.
///
/// ```
/// # mod example {
/// use async_trait::async_trait;
/// use kubelet_core::{CancellationToken, NodeContext, Runnable, RunnableError, StartPhase};
/// use kubelet_testing::contract::RunnableFixture;
///
/// #[derive(Debug)]
/// struct Idler;
///
/// #[async_trait]
/// impl Runnable for Idler {
///     fn name(&self) -> &str {
///         "idler"
///     }
///     fn phase(&self) -> StartPhase {
///         StartPhase::SourcesReady
///     }
///     async fn run(&self, _node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError> {
///         stop.cancelled().await;
///         Ok(())
///     }
/// }
///
/// async fn idler() -> Option<(Idler, RunnableFixture)> {
///     Some((Idler, RunnableFixture::new().never_fails()))
/// }
///
/// kubelet_testing::runnable_contract!(idler);
/// # }
/// ```
#[macro_export]
macro_rules! runnable_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, runnables, check_runnable:
            it_says_the_same_of_itself_each_time
            run_may_be_called_again_after_an_error
            run_returns_soon_after_it_is_stopped
            run_returns_soon_if_it_is_stopped_already
        }
    };
}
