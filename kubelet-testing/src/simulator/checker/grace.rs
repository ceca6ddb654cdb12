//! Who is stopped gets its time.

use std::time::Duration;

use kubelet_core::{ContainerKind, ORPHAN_GRACE};
use tokio::time::Instant;

use super::{Checker, Ending, Instance};
use crate::simulator::Invariant;

/// Rounding of the runtime's whole seconds and of timers.
const TOLERANCE: Duration = Duration::from_millis(5);

impl Checker {
    /// A container is to be killed at `kill`, if it still runs then.
    ///
    /// That is too early before its grace has passed since it was first asked to stop (a sidecar: since the first of its
    /// pod was), unless a shorter grace was wished for meanwhile and has passed since then. The grace is that of the pod's
    /// spec, of its deletion, or of the stop of the agent; 1 s if nobody wishes for the pod and nobody can tell its own;
    /// none if all containers of the pod are restarted.
    ///
    /// Not judged is a container that was started by a call whose end nobody heard: nobody knew that it ran.
    pub(super) fn check_grace(&mut self, at: Instant, container: u64, kill: Option<Instant>) {
        let Some(instance) = self.instances.get(&container).filter(|i| i.runs() && !i.late) else {
            return;
        };
        // A grace that never ends.
        let Some(kill) = kill else { return };
        let touched = self.touched(instance, at);
        let deadline = self
            .endings(instance)
            .into_iter()
            .map(|ending| touched.max(ending.since) + ending.grace)
            .min();
        let early = deadline.is_some_and(|deadline| kill + TOLERANCE < deadline);
        if early {
            let what = format!(
                "c{container} ({} of pod {}) has only {:?} left, its time ends in {:?}",
                instance.name,
                instance.pod,
                kill.saturating_duration_since(at),
                deadline.map(|deadline| deadline.saturating_duration_since(at)),
            );
            self.breach(at, Invariant::Grace, what);
        }
    }

    /// When the stop began that this container is a part of.
    fn touched(&self, instance: &Instance, at: Instant) -> Instant {
        let own = instance.asks.first().copied().unwrap_or(at);
        let is_sidecar = self
            .books
            .get(&instance.pod)
            .and_then(|book| book.pod.container(&instance.name))
            .is_some_and(|view| view.kind() == ContainerKind::Sidecar);
        if !is_sidecar {
            return own;
        }
        let others = self.of_pod(&instance.pod);
        others
            .filter(|(_, other)| other.sandbox == instance.sandbox)
            .flat_map(|(_, other)| other.asks.iter().copied())
            .filter(|asked| instance.started.is_some_and(|started| *asked >= started))
            .min()
            .map_or(own, |first| first.min(own))
    }

    /// All that may end a container, with the time that it gets then.
    fn endings(&self, instance: &Instance) -> Vec<Ending> {
        let always = |grace| Ending {
            since: instance.made,
            grace,
        };
        let Some(book) = self.books.get(&instance.pod) else {
            return vec![always(ORPHAN_GRACE)];
        };
        let mut endings = vec![always(book.own_grace)];
        endings.extend(book.endings.iter().copied());
        endings.extend(self.stop_pods);
        // Also one that a step under way has started since: it is not seen until that step has ended. Once the restart has
        // removed who asked for it, it is over.
        let is_asked_for = book.restart_all_by.and_then(|asks| self.instances.get(&asks));
        let lasts = is_asked_for.is_some_and(|asks| asks.gone.is_none() && asks.sandbox == instance.sandbox);
        if lasts || book.restart_all.is_some_and(|asked| Some(asked) >= instance.started) {
            endings.push(always(Duration::ZERO));
        }
        endings
    }
}
