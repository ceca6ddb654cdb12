//! Credential providers that break a promise.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kubelet_core::{
    CredentialError, CredentialProvider, CredentialRequest, ProvidedCredential, RegistryAuth, async_trait,
};
use kubelet_testing::contract::{CredentialFixture, now};
use tokio::task::JoinSet;

use crate::faults;

const KNOWN: &str = "reg.example/app";
const HANGS: &str = "reg.example/slow";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    OneAtATime,
    BusyAfterADroppedCall,
    GoesOnAlone,
    NothingIsAnError,
    NonsenseIsAnError,
    KnowsEverything,
    OrderTurns,
    ForgetsTheFirst,
    FailureIsNothing,
    FailsForEver,
    ErrorTellsSecrets,
    DebugTellsSecrets,
}

struct Provider {
    fault: Fault,
    down: Arc<AtomicBool>,
    /// How many work on what hangs.
    at_work: Arc<AtomicUsize>,
    busy: AtomicBool,
    failed: AtomicBool,
    calls: AtomicUsize,
    alone: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Provider");
        if self.fault == Fault::DebugTellsSecrets {
            debug.field("password", &"hunter2");
        }
        debug.finish_non_exhaustive()
    }
}

/// Counts for as long as it lives.
struct AtWork(Arc<AtomicUsize>);

impl AtWork {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn known() -> Vec<RegistryAuth> {
    vec![
        RegistryAuth::basic("me", "hunter2"),
        RegistryAuth::basic("you", "letmein"),
    ]
}

#[async_trait]
impl CredentialProvider for Provider {
    fn name(&self) -> &str {
        "plain"
    }

    async fn credentials(&self, req: &CredentialRequest<'_>) -> Result<Vec<ProvidedCredential>, CredentialError> {
        let alone = matches!(self.fault, Fault::OneAtATime | Fault::BusyAfterADroppedCall);
        if alone && self.busy.swap(true, Ordering::SeqCst) {
            return Err(CredentialError::new("somebody else asks"));
        }
        tokio::task::yield_now().await;
        self.busy.store(false, Ordering::SeqCst);
        if self.down.load(Ordering::SeqCst) || (self.fault == Fault::FailsForEver && self.failed.load(Ordering::SeqCst))
        {
            self.failed.store(true, Ordering::SeqCst);
            return match self.fault {
                Fault::FailureIsNothing => Ok(Vec::new()),
                Fault::ErrorTellsSecrets => Err(CredentialError::caused("read", "at \"hunter2\"")),
                _ => Err(CredentialError::new("it is away")),
            };
        }
        match req.repository {
            KNOWN => {
                let mut known = known();
                let call = self.calls.fetch_add(1, Ordering::SeqCst);
                match self.fault {
                    Fault::OrderTurns if call % 2 == 1 => known.reverse(),
                    Fault::ForgetsTheFirst if call > 0 => drop(known.remove(0)),
                    _ => {}
                }
                Ok(known.into_iter().map(Into::into).collect())
            }
            HANGS => {
                let work = AtWork::new(&self.at_work);
                if self.fault == Fault::GoesOnAlone {
                    self.alone.lock().unwrap().spawn(async move {
                        let _work = work;
                        std::future::pending().await
                    });
                    return std::future::pending().await;
                }
                std::future::pending::<()>().await;
                drop(work);
                Ok(Vec::new())
            }
            "" if self.fault == Fault::NonsenseIsAnError => Err(CredentialError::new("no repository")),
            _ if self.fault == Fault::NothingIsAnError => Err(CredentialError::new("nothing found")),
            _ if self.fault == Fault::KnowsEverything => Ok(known().into_iter().map(Into::into).collect()),
            _ => Ok(Vec::new()),
        }
    }
}

fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Provider, CredentialFixture)> {
    async move || {
        let (down, at_work) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (breaks, mends, works) = (down.clone(), down.clone(), at_work.clone());
        let provider = Provider {
            fault,
            down,
            at_work,
            busy: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            alone: Mutex::default(),
        };
        let fixture = CredentialFixture::new(KNOWN, known(), "other.example/app")
            .hangs(HANGS, move || now(|| works.load(Ordering::SeqCst) > 0))
            .outage(
                move || now(|| breaks.store(true, Ordering::SeqCst)),
                move || now(|| mends.store(false, Ordering::SeqCst)),
            );
        // With little patience, since what is broken is waited for in vain.
        let patience = if fault == Fault::None { 20 } else { 3 };
        Some((provider, fixture.patience(Duration::from_secs(patience))))
    }
}

async fn sound() -> Option<(Provider, CredentialFixture)> {
    with(Fault::None)().await
}

kubelet_testing::credential_contract!(sound);

faults! { credentials:
    one_at_a_time: with(Fault::OneAtATime), calls_may_overlap_each_other, "among other calls";
    busy_after_a_dropped_call: with(Fault::BusyAfterADroppedCall), a_call_may_be_dropped_at_any_time, "after a call that was dropped";
    goes_on_alone: with(Fault::GoesOnAlone), a_call_may_be_dropped_at_any_time, "what a dropped call left ends";
    nothing_is_an_error: with(Fault::NothingIsAnError), nothing_to_show_is_an_empty_list, "an error instead of nothing";
    nonsense_is_an_error: with(Fault::NonsenseIsAnError), nothing_to_show_is_an_empty_list, "the repository \"\"";
    knows_everything: with(Fault::KnowsEverything), nothing_to_show_is_an_empty_list, "credentials for other.example/app";
    the_order_turns: with(Fault::OrderTurns), the_same_repository_gets_the_same_credentials, "other credentials";
    forgets_the_first: with(Fault::ForgetsTheFirst), the_same_repository_gets_the_same_credentials, "again";
    a_failure_is_nothing: with(Fault::FailureIsNothing), a_failure_is_an_error_and_the_next_call_tries_again, "broken has an answer";
    fails_for_ever: with(Fault::FailsForEver), a_failure_is_an_error_and_the_next_call_tries_again, "after a failure";
    an_error_tells_secrets: with(Fault::ErrorTellsSecrets), nothing_secret_is_told, "an error tells a secret";
    debug_tells_secrets: with(Fault::DebugTellsSecrets), nothing_secret_is_told, "Debug tells a secret";
}
