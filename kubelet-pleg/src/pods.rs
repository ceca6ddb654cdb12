//! What is known of all pods, which of them have to be inspected, and what comes of it. Decides; calls nothing.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::time::Duration;

use kubelet_core::{
    CacheWriter, ContainerId, ContainerRecord, PodObservation, PodSignals, PodUid, RuntimeError, SandboxId,
    SandboxRecord, Seq, Wake,
};
use tokio::time::Instant;
use tracing::warn;

use crate::fingerprint::Fingerprint;
use crate::look::Lists;
use crate::metrics::Metrics;
use crate::record::{Record, Tally};

/// An inspection that takes this long holds up nobody else: it does not count any more …
const SLOW: Duration = Duration::from_secs(1);
/// … as long as there are not this many times the allowed number, since a runtime that is slow as a whole is not helped
/// by more calls.
const WITH_SLOW: usize = 4;

/// What one look listed of one pod, to be inspected.
#[derive(Debug)]
pub(crate) struct Found {
    /// When the look began.
    pub(crate) at: Seq,
    pub(crate) sandboxes: Vec<SandboxId>,
    /// Each with the sandbox that it is in.
    pub(crate) containers: Vec<(ContainerId, SandboxId)>,
    fingerprint: Fingerprint,
    /// Whether only an inspection begun after this look will do.
    forced: bool,
    urgency: Urgency,
}

/// Who waits for an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// A look at everything found the change.
    Relist,
    /// Somebody asked for this pod.
    Asked,
}

/// A pod whose statuses are being fetched.
#[derive(Debug)]
struct Inspecting {
    begun: Instant,
    /// The pod vanished meanwhile: what the statuses say is past.
    void: bool,
    /// What a later look found.
    next: Option<Found>,
}

/// Everything known of pods between looks. The only user of the cache's writer.
#[derive(Debug)]
pub(crate) struct Pods<'a> {
    cache: CacheWriter,
    signals: PodSignals,
    metrics: &'a Metrics,
    /// The newest look at everything that is complete.
    all: Seq,
    records: BTreeMap<PodUid, Record>,
    /// Pods that the next look begun later inspects even if it finds them unchanged.
    forced: BTreeMap<PodUid, Seq>,
    waiting: BTreeMap<PodUid, Found>,
    /// The order in which those wait. A pod may stand in both lines; only its first turn counts.
    asked_line: VecDeque<PodUid>,
    relist_line: VecDeque<PodUid>,
    inspecting: BTreeMap<PodUid, Inspecting>,
    /// The pods in which looks have found a change since this was last asked for.
    changed: Vec<PodUid>,
}

impl<'a> Pods<'a> {
    pub(crate) fn new(cache: CacheWriter, signals: PodSignals, metrics: &'a Metrics) -> Self {
        metrics.reset();
        Self {
            cache,
            signals,
            metrics,
            all: Seq::default(),
            records: BTreeMap::new(),
            forced: BTreeMap::new(),
            waiting: BTreeMap::new(),
            asked_line: VecDeque::new(),
            relist_line: VecDeque::new(),
            inspecting: BTreeMap::new(),
            changed: Vec::new(),
        }
    }

    /// The pods in which looks have found a change since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<PodUid> {
        std::mem::take(&mut self.changed)
    }

    /// A point in the order of looks: taken before a look, and for a wish.
    pub(crate) fn begin(&self) -> Seq {
        self.cache.begin()
    }

    /// The next look begun after `since` inspects this pod in any case.
    pub(crate) fn force(&mut self, uid: &PodUid, since: Seq) {
        // With a record, so that a look at everything comes by this pod even if it is gone.
        self.records.entry(uid.clone()).or_default();
        let forced = self.forced.entry(uid.clone()).or_insert(since);
        *forced = since.max(*forced);
    }

    /// A look at everything, begun `at`, is compared. No change is silently made fresh: each is marked before that.
    pub(crate) fn looked_at_all(&mut self, at: Seq, lists: Lists) {
        let Lists {
            mut sandboxes,
            mut containers,
        } = lists;
        sandboxes.sort_unstable_by(|a, b| a.pod_uid.cmp(&b.pod_uid));
        containers.sort_unstable_by(|a, b| a.pod_uid.cmp(&b.pod_uid));
        let (mut sandboxes, mut containers) = (&sandboxes[..], &containers[..]);
        loop {
            let uids = [
                sandboxes.first().map(|s| &s.pod_uid),
                containers.first().map(|c| &c.pod_uid),
            ];
            let Some(uid) = uids.into_iter().flatten().min() else {
                break;
            };
            let (its_sandboxes, others) = sandboxes.split_at(sandboxes.partition_point(|s| s.pod_uid <= *uid));
            let (its_containers, rest) = containers.split_at(containers.partition_point(|c| c.pod_uid <= *uid));
            self.compare(uid, at, its_sandboxes, its_containers, Urgency::Relist);
            (sandboxes, containers) = (others, rest);
        }
        let unlisted: Vec<PodUid> = self
            .records
            .iter()
            .filter(|(_, record)| record.at < at)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in &unlisted {
            self.compare(uid, at, &[], &[], Urgency::Relist);
        }
        let forced = &self.forced;
        self.records
            .retain(|uid, record| !record.absent || record.at > at || forced.contains_key(uid));
        self.all = self.all.max(at);
        self.cache.looked_at_all(at);
    }

    /// Nothing could be looked at.
    pub(crate) fn cannot_look(&self, why: &RuntimeError) {
        self.cache.cannot_look(why);
    }

    /// A look at one pod, begun `at`, has ended. Answers whether it is settled, or waits for the next look.
    pub(crate) fn looked_at_one(&mut self, uid: &PodUid, at: Seq, outcome: Result<Lists, RuntimeError>) -> bool {
        match outcome {
            Ok(Lists {
                mut sandboxes,
                mut containers,
            }) => {
                // A runtime that brings more than it was asked for must not mix up pods.
                sandboxes.retain(|sandbox| sandbox.pod_uid == *uid);
                containers.retain(|container| container.pod_uid == *uid);
                self.compare(uid, at, &sandboxes, &containers, Urgency::Asked);
                true
            }
            // A younger look succeeded meanwhile, so that nobody waits for this one.
            Err(_) if self.is_outdated(uid, at) => true,
            Err(error) => {
                warn!(error = &error as &dyn Error, pod_uid = %uid, "cannot look at a pod");
                self.cache.put(uid, at, Err(error));
                self.force(uid, at);
                false
            }
        }
    }

    fn is_outdated(&self, uid: &PodUid, at: Seq) -> bool {
        at < self.all || self.records.get(uid).is_some_and(|record| at < record.at)
    }

    fn compare(
        &mut self,
        uid: &PodUid,
        at: Seq,
        sandboxes: &[SandboxRecord],
        containers: &[ContainerRecord],
        urgency: Urgency,
    ) {
        if self.is_outdated(uid, at) {
            return;
        }
        let forced = self.forced.get(uid).is_some_and(|since| *since < at);
        if forced {
            self.forced.remove(uid);
        }
        let absent = sandboxes.is_empty() && containers.is_empty();
        let tally = Tally::of(sandboxes, containers);
        let record = self.records.entry(uid.clone()).or_default();
        self.metrics.recount(record.tally, tally);
        record.tally = tally;
        record.at = at;
        let was_absent = std::mem::replace(&mut record.absent, absent);
        if absent {
            let nothing_new = was_absent && record.shows_nothing() && !forced;
            if !was_absent {
                self.changed.push(uid.clone());
            }
            record.gone();
            self.vanished(uid, at, urgency, nothing_new);
            return;
        }
        let fingerprint = Fingerprint::of_records(sandboxes, containers);
        let inspecting = self.inspecting.get_mut(uid);
        if inspecting.is_none() && !self.waiting.contains_key(uid) && !forced && record.shows(fingerprint) {
            if urgency == Urgency::Asked {
                self.cache.unchanged(uid, at);
            }
            return;
        }
        if !forced && !self.waiting.contains_key(uid) && !record.shows(fingerprint) {
            self.changed.push(uid.clone());
        }
        let key = sandboxes.iter().find_map(|sandbox| sandbox.key.as_ref());
        self.cache.stale(uid, at, key);
        let mut found = Found {
            at,
            sandboxes: sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect(),
            containers: containers
                .iter()
                .map(|container| (container.id.clone(), container.sandbox_id.clone()))
                .collect(),
            fingerprint,
            forced,
            urgency,
        };
        match inspecting {
            Some(inspecting) => {
                if let Some(before) = &inspecting.next {
                    found.forced |= before.forced;
                    found.urgency = found.urgency.max(before.urgency);
                }
                inspecting.next = Some(found);
            }
            None => self.enqueue(uid, found),
        }
    }

    /// A look begun `at` found nothing of the pod.
    fn vanished(&mut self, uid: &PodUid, at: Seq, urgency: Urgency, nothing_new: bool) {
        let waited = self.waiting.remove(uid).is_some();
        if let Some(inspecting) = self.inspecting.get_mut(uid) {
            // Not waited for, however long it takes: the answer is known.
            inspecting.void = true;
            inspecting.next = None;
        }
        if !nothing_new || waited {
            self.cache.put(uid, at, Ok(PodObservation::absent(uid.clone())));
            self.signals.wake(uid, Wake::Runtime);
        } else if urgency == Urgency::Asked {
            self.cache.unchanged(uid, at);
        }
    }

    fn enqueue(&mut self, uid: &PodUid, mut found: Found) {
        let before = self.waiting.get(uid).map(|before| before.urgency);
        let urgency = found.urgency.max(before.unwrap_or(Urgency::Relist));
        found.urgency = urgency;
        if before != Some(urgency) {
            match urgency {
                Urgency::Asked => self.asked_line.push_back(uid.clone()),
                Urgency::Relist => self.relist_line.push_back(uid.clone()),
            }
        }
        self.waiting.insert(uid.clone(), found);
    }

    /// The next pod to inspect, which is none that is being inspected, if so many at a time leave room for one. Those asked
    /// for come first.
    pub(crate) fn next_to_inspect(&mut self, max_parallel: usize) -> Option<(PodUid, Found)> {
        let all = self.inspecting.len();
        if all >= max_parallel {
            let slow = self
                .inspecting
                .values()
                .filter(|one| one.begun.elapsed() >= SLOW)
                .count();
            if all - slow >= max_parallel || all >= max_parallel.saturating_mul(WITH_SLOW) {
                return None;
            }
        }
        while let Some(uid) = self.asked_line.pop_front().or_else(|| self.relist_line.pop_front()) {
            if let Some(found) = self.waiting.remove(&uid) {
                let inspecting = Inspecting {
                    begun: Instant::now(),
                    void: false,
                    next: None,
                };
                self.inspecting.insert(uid.clone(), inspecting);
                return Some((uid, found));
            }
        }
        None
    }

    /// The inspection of what was found has ended. Answers whether the matter is settled, or waits for the next look.
    pub(crate) fn inspected(
        &mut self,
        uid: &PodUid,
        found: &Found,
        outcome: Result<PodObservation, RuntimeError>,
    ) -> bool {
        let Some(Inspecting { void, mut next, .. }) = self.inspecting.remove(uid) else {
            return true;
        };
        let mut settled = true;
        match outcome {
            _ if void => {}
            Ok(seen) => {
                let shown = Fingerprint::of_observation(&seen);
                settled = shown == found.fingerprint;
                self.records
                    .entry(uid.clone())
                    .or_default()
                    .inspected(found.fingerprint, shown);
                // A later list that says the same proves that this is as of then too. Where it does not, or where more
                // than lists show is asked for, its own inspection follows.
                let at = match next.take_if(|next| next.fingerprint == shown && !next.forced) {
                    Some(next) => next.at,
                    None => found.at,
                };
                self.cache.put(uid, at, Ok(seen));
                self.signals.wake(uid, Wake::Runtime);
            }
            Err(error) => {
                warn!(error = &error as &dyn Error, pod_uid = %uid, "cannot inspect a pod");
                self.cache.put(uid, found.at, Err(error));
                settled = false;
                if next.is_none() {
                    self.force(uid, found.at);
                }
            }
        }
        if let Some(next) = next {
            self.enqueue(uid, next);
        }
        settled
    }
}
