//! When to look at what: at everything once in a while, at single pods when asked or told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kubelet_core::{
    CancellationToken, Clock, ContainerRuntime, PlegContext, PlegHealth, PodObservation, PodUid, RelistRequest,
    RelistRequests, RuntimeError, Scope, Seq,
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::hints::{Hint, Hints};
use crate::look::{Lists, inspect, list};
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::pods::{Found, Pods};
use crate::settings::GenericPlegSettings;

/// How soon after the end of a relist an unscheduled one may begin: a runtime that loses hints all the time is not
/// listed all the time.
const UNSCHEDULED_GAP: Duration = Duration::from_millis(100);
/// From how many pods to look at on, looking at everything is cheaper.
const MANY: usize = 32;

/// Looks until it is stopped.
pub(crate) async fn run(
    settings: &GenericPlegSettings,
    pace: Pace,
    metrics: &Metrics,
    cx: PlegContext,
    stop: CancellationToken,
) {
    cx.health.set_threshold(pace.rhythm().health_threshold);
    let PlegContext {
        cache, mut requests, ..
    } = cx;
    let mut hints = Hints::new(cx.runtime.clone(), cx.random);
    let mut relister = Relister {
        settings,
        pace,
        metrics,
        runtime: cx.runtime,
        health: cx.health,
        clock: cx.clock,
        pods: Pods::new(cache, cx.signals, metrics),
        asked: BTreeMap::new(),
        line: VecDeque::new(),
        alone: BTreeSet::new(),
        due: Instant::now(),
        ended: None,
        begun: None,
        succeeded: None,
        again: false,
        unsettled: false,
        failing: false,
    };
    let mut relist: Option<BoxFuture<'static, Relisted>> = None;
    let mut looks: FuturesUnordered<BoxFuture<'static, Looked>> = FuturesUnordered::new();
    let mut inspections: FuturesUnordered<BoxFuture<'static, Inspected>> = FuturesUnordered::new();
    loop {
        while let Some(look) = relister.next_look(&mut requests) {
            looks.push(look);
        }
        while let Some(inspection) = relister.next_inspection() {
            inspections.push(inspection);
        }
        // Everything that runs is polled here and dropped on return: only reads, so nothing is left half done.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep_until(relister.due), if relist.is_none() => {
                relist = Some(relister.relist(&mut requests));
            }
            relisted = running(&mut relist) => {
                relist = None;
                relister.relisted(relisted);
            }
            Some(looked) = looks.next() => relister.looked(looked),
            Some(inspected) = inspections.next() => relister.inspected(inspected),
            request = requests.next() => {
                let since = relister.pods.begin();
                relister.take_request(request, since);
                relister.take_requests(&mut requests, since);
                if relist.is_none() && relister.asked.len() > MANY {
                    relister.relist_soon();
                }
            }
            hint = hints.next() => relister.hinted(hint, relist.is_some()),
            // After those that wait already.
            () = until(relister.pace.deaf_at()) => {
                relister.is_deaf();
                hints.is_deaf();
            }
        }
    }
}

/// Waits for the relist under way; for ever where there is none.
async fn running(relist: &mut Option<BoxFuture<'static, Relisted>>) -> Relisted {
    match relist {
        Some(relist) => relist.await,
        None => std::future::pending().await,
    }
}

/// Waits until then; for ever where there is no such time.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Relisted {
    at: Seq,
    begun: Instant,
    outcome: Result<Lists, RuntimeError>,
}

struct Looked {
    uid: PodUid,
    at: Seq,
    begun: Instant,
    outcome: Result<Lists, RuntimeError>,
}

struct Inspected {
    uid: PodUid,
    found: Found,
    outcome: Result<PodObservation, RuntimeError>,
}

/// When to look at what.
struct Relister<'a> {
    settings: &'a GenericPlegSettings,
    pace: Pace,
    metrics: &'a Metrics,
    runtime: Arc<dyn ContainerRuntime>,
    health: PlegHealth,
    clock: Arc<dyn Clock>,
    pods: Pods<'a>,
    /// The pods to look at alone, with the time of the newest wish, and the order in which they wait.
    asked: BTreeMap<PodUid, Seq>,
    line: VecDeque<PodUid>,
    /// The pods that are being looked at alone.
    alone: BTreeSet<PodUid>,
    /// When the next look at everything begins, unless one runs.
    due: Instant,
    /// When the last one ended, and began.
    ended: Option<Instant>,
    begun: Option<Instant>,
    /// When the last one that succeeded began.
    succeeded: Option<Instant>,
    /// Whether another one follows the running one without waiting for the period.
    again: bool,
    /// Whether something waits for the next one that the running one is too old for.
    unsettled: bool,
    /// Whether the last one failed, so that a lasting fault is told once.
    failing: bool,
}

impl Relister<'_> {
    /// The begin of a look, which grants all wishes made before it: those not taken yet are taken now. In this order, so
    /// that whoever asks for an inspection and then takes a mark never gets a look without one.
    fn begin(&mut self, requests: &mut RelistRequests) -> Seq {
        let since = self.pods.begin();
        let at = self.pods.begin();
        self.take_requests(requests, since);
        at
    }

    fn take_requests(&mut self, requests: &mut RelistRequests, since: Seq) {
        while let Some(request) = requests.try_next() {
            self.take_request(request, since);
        }
    }

    fn take_request(&mut self, request: RelistRequest, since: Seq) {
        if request.reinspect {
            self.pods.force(&request.uid, since);
        }
        self.ask(request.uid, since);
    }

    fn ask(&mut self, uid: PodUid, since: Seq) {
        if self.asked.insert(uid.clone(), since).is_none() {
            self.line.push_back(uid);
        }
    }

    /// The next look at one pod, if one is asked for and may run. A pod is looked at once at a time, so that a wish which
    /// comes during a look is granted by the next one.
    fn next_look(&mut self, requests: &mut RelistRequests) -> Option<BoxFuture<'static, Looked>> {
        if self.alone.len() >= self.settings.max_parallel.get() {
            return None;
        }
        let place = self.line.iter().position(|uid| !self.alone.contains(uid))?;
        let uid = self.line.remove(place)?;
        let (at, begun) = (self.begin(requests), Instant::now());
        // Only now: what `begin` took is granted by this look.
        self.asked.remove(&uid);
        self.alone.insert(uid.clone());
        let (runtime, timeout) = (self.runtime.clone(), self.settings.list_timeout);
        Some(Box::pin(async move {
            let outcome = list(&*runtime, Scope::Pod(&uid), timeout).await;
            Looked {
                uid,
                at,
                begun,
                outcome,
            }
        }))
    }

    fn looked(&mut self, looked: Looked) {
        self.alone.remove(&looked.uid);
        let settled = self.pods.looked_at_one(&looked.uid, looked.at, looked.outcome);
        self.metrics.looked_at_one(looked.begun.elapsed());
        self.found_changes();
        if !settled {
            self.relist_in_a_while();
        }
    }

    fn inspected(&mut self, inspected: Inspected) {
        let settled = self.pods.inspected(&inspected.uid, &inspected.found, inspected.outcome);
        if !settled {
            self.relist_in_a_while();
        }
    }

    /// What a look at one pod found may be untold yet.
    fn found_changes(&mut self) {
        let now = Instant::now();
        for uid in self.pods.take_changed() {
            self.pace.changed(uid, now);
        }
    }

    fn hinted(&mut self, hint: Hint, is_relisting: bool) {
        let now = Instant::now();
        let look_at_all = match hint {
            Hint::Look(uid) => {
                self.pace.told_of(&uid, now);
                let since = self.pods.begin();
                self.ask(uid, since);
                false
            }
            Hint::LookAtAll => {
                self.pace.told_of_all();
                true
            }
            Hint::Connected { gap } => {
                self.metrics.connected();
                self.pace.connected(now);
                gap || self.pace.must_catch_up()
            }
            Hint::Cut => {
                self.metrics.cut();
                self.without_events();
                false
            }
        };
        if look_at_all && is_relisting {
            // The one under way may have listed before what was missed happened.
            self.again = true;
        } else if look_at_all {
            self.relist_soon();
        }
    }

    fn is_deaf(&mut self) {
        let missed = self.pace.deaf();
        warn!(
            pods = missed.len(),
            pod_uid = missed.first().map(tracing::field::display),
            "runtime events do not tell of changes, looking more often"
        );
        self.without_events();
    }

    /// The short rhythm holds from now on, also for the time in which a look at everything must succeed.
    fn without_events(&mut self) {
        let before = self.pace.rhythm();
        self.pace.cut();
        let rhythm = self.pace.rhythm();
        if rhythm != before {
            self.relist_in_a_while();
            let since_last = self.succeeded.map_or(Duration::ZERO, |begun| begun.elapsed());
            self.health.set_threshold(since_last + rhythm.health_threshold);
        }
    }

    /// Looks at everything after the short period, whatever holds now.
    fn relist_in_a_while(&mut self) {
        self.unsettled = true;
        self.due = self.due.min(Instant::now() + self.pace.short().period);
    }

    fn next_inspection(&mut self) -> Option<BoxFuture<'static, Inspected>> {
        let (uid, found) = self.pods.next_to_inspect(self.settings.max_parallel.get())?;
        let (runtime, timeout) = (self.runtime.clone(), self.settings.inspect_timeout);
        Some(Box::pin(async move {
            let outcome = inspect(&*runtime, &uid, &found.sandboxes, &found.containers, timeout).await;
            Inspected { uid, found, outcome }
        }))
    }

    fn relist_soon(&mut self) {
        let earliest = self.ended.map_or(self.due, |ended| ended + UNSCHEDULED_GAP);
        self.due = self.due.min(earliest);
    }

    fn relist(&mut self, requests: &mut RelistRequests) -> BoxFuture<'static, Relisted> {
        let (at, begun) = (self.begin(requests), Instant::now());
        self.unsettled = false;
        let before = self.begun.replace(begun);
        self.metrics
            .begun(self.clock.now(), before.map(|before| begun - before));
        let (runtime, timeout) = (self.runtime.clone(), self.settings.list_timeout);
        Box::pin(async move {
            let outcome = list(&*runtime, Scope::All, timeout).await;
            Relisted { at, begun, outcome }
        })
    }

    fn relisted(&mut self, relisted: Relisted) {
        let Relisted { at, begun, outcome } = relisted;
        match outcome {
            Ok(lists) => {
                self.pods.looked_at_all(at, lists);
                self.found_changes();
                self.pace.looked_at_all(begun);
                self.succeeded = Some(begun);
                self.health.set_threshold(self.pace.rhythm().health_threshold);
                // Wishes older than this look are granted by it.
                self.asked.retain(|_, since| *since > at);
                self.line.retain(|uid| self.asked.contains_key(uid));
                self.health.looked(begun);
                self.metrics.looked_at_all(begun.elapsed());
                if std::mem::take(&mut self.failing) {
                    info!("the runtime can be listed again");
                }
            }
            Err(error) => {
                self.health.failed(&error);
                self.pods.cannot_look(&error);
                let error = &error as &dyn Error;
                if std::mem::replace(&mut self.failing, true) {
                    debug!(error, "the runtime still cannot be listed");
                } else {
                    warn!(error, "the runtime cannot be listed");
                }
            }
        }
        let now = Instant::now();
        self.ended = Some(now);
        let period = if self.failing || self.unsettled {
            self.pace.short()
        } else {
            self.pace.rhythm()
        }
        .period;
        self.due = now + period;
        let again = std::mem::take(&mut self.again) || self.asked.len() > MANY;
        // A runtime that does not answer is not asked more often for that.
        if again && !self.failing {
            self.relist_soon();
        }
    }
}
