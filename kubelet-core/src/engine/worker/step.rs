//! Running steps: never dropped while the kubelet runs, only asked to stop.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::Worker;
use crate::pod::PodRecord;
use crate::syncer::{AcquireError, Doomed, PodWork, Remains, StepContext, SyncError, Synced};

/// What a change of the wish means to a running step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnChange {
    /// A new pod or a termination asks it to stop: it works for what is no longer wished.
    Stop,
    /// It watches the wish by itself.
    GoOn,
}

impl Worker {
    pub(super) async fn acquire(&mut self, work: &PodWork) -> Result<(), AcquireError> {
        let syncer = self.shared.syncer.clone();
        let cx = self.step_context();
        let step = {
            let cx = cx.clone();
            Box::pin(async move { syncer.acquire(&cx, work).await })
        };
        self.run_step(cx, step, OnChange::Stop, Some(&work.pod)).await
    }

    pub(super) async fn sync_step(&mut self, work: &PodWork) -> Result<Synced, SyncError> {
        let syncer = self.shared.syncer.clone();
        let cx = self.step_context();
        let begun = Instant::now();
        let step = {
            let cx = cx.clone();
            Box::pin(async move { syncer.sync(&cx, work).await })
        };
        let outcome = self.run_step(cx, step, OnChange::Stop, Some(&work.pod)).await;
        self.shared.metrics.syncs.increment();
        self.shared.metrics.sync_duration.observe(begun.elapsed());
        outcome
    }

    /// Also shows what probes find meanwhile: a pod that is being stopped may still be ready.
    pub(super) async fn terminate_step(&mut self, pod: Doomed<'_>) -> Result<(), SyncError> {
        let syncer = self.shared.syncer.clone();
        let cx = self.step_context();
        let step = {
            let cx = cx.clone();
            Box::pin(async move { syncer.terminate(&cx, pod).await })
        };
        let probed = match pod {
            Doomed::Pod(work) => Some(&work.pod).filter(|pod| pod.facts().has_probes),
            Doomed::Orphan(_) => None,
        };
        self.run_step(cx, step, OnChange::GoOn, probed).await
    }

    pub(super) async fn finish_step(&mut self, pod: Doomed<'_>, remains: Remains) -> Result<(), SyncError> {
        let syncer = self.shared.syncer.clone();
        let cx = self.step_context();
        let step = {
            let cx = cx.clone();
            Box::pin(async move { syncer.finish(&cx, pod, remains).await })
        };
        self.run_step(cx, step, OnChange::GoOn, None).await
    }

    fn step_context(&self) -> StepContext {
        let mut cx = StepContext::new(
            self.stop.child_token(),
            self.wish.clone(),
            self.notes.clone(),
            self.shared.events.clone(),
        );
        cx.kubelet_stop = self.stop.clone();
        cx
    }

    /// Runs a step to its end. A change of the wish may ask it to stop; a look at the pod meanwhile refreshes its status,
    /// so that a long pull hides nothing. Steps are boxed, so that an idle worker is small.
    async fn run_step<T>(
        &mut self,
        cx: StepContext,
        mut step: BoxFuture<'_, T>,
        on_change: OnChange,
        pod: Option<&Arc<PodRecord>>,
    ) -> T {
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut step => break outcome,
                changed = self.wish.changed() => {
                    self.dirty = true;
                    if changed.is_err() {
                        // This worker holds a sender of its own.
                        continue;
                    }
                    let outdated = self.wish.borrow_and_update().outdates_step(&self.taken);
                    if on_change == OnChange::Stop && outdated {
                        cx.stop.cancel();
                    }
                    if let Some(pod) = pod {
                        self.refresh_during_step(pod, on_change).await;
                    }
                }
            }
        };
        drop(step);
        if self.notes.take_acted() {
            // Taken after the last change: only a later look shows all of it.
            self.mark = self.shared.cache.mark();
            self.shared.relist.relist(&self.uid);
        }
        outcome
    }

    async fn refresh_during_step(&mut self, pod: &Arc<PodRecord>, of: OnChange) {
        let Some(observed) = self.shared.cache.current(&self.uid) else {
            return;
        };
        let status = match of {
            OnChange::Stop => self.status_of(pod, &observed),
            OnChange::GoOn => self.ending_status(pod, &observed, &self.taken),
        };
        // A final phase is only drawn from a look that is later than the step.
        if !crate::status::pod_is_terminal(&status) {
            self.publish(pod, status).await;
        }
    }
}
