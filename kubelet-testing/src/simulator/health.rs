//! How well the containers of a simulation are, as their probes find it, and what the node says that it does about it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_core::{Event, EventSink, EventSubject, PodUid, ProbeKind};
use tokio::time::Instant;

use crate::fake::{ExecAnswer, FakeRuntime};

/// The first word of a probe's command.
pub(crate) fn command(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "probe-startup",
        ProbeKind::Readiness => "probe-readiness",
        _ => "probe-liveness",
    }
}

/// The probe whose command this is.
pub(crate) fn kind_of(words: &[String]) -> Option<ProbeKind> {
    let word = words.first()?;
    ProbeKind::ALL.into_iter().find(|kind| command(*kind) == word)
}

/// Which probes of which containers fail. Containers are named, so that a restart heals nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sickness(Arc<Mutex<BTreeSet<(PodUid, String, ProbeKind)>>>);

impl Sickness {
    /// Has the probes of a fake's containers fail as this says.
    pub(crate) fn of(fake: &FakeRuntime) -> Self {
        let sickness = Self::default();
        let asked = sickness.clone();
        fake.on_exec(move |call| match kind_of(&call.command) {
            Some(kind) => {
                let fails = asked.lock().contains(&(call.pod.clone(), call.container.clone(), kind));
                ExecAnswer::exit(i32::from(fails))
            }
            None => ExecAnswer::by_words(&call.command),
        });
        sickness
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(PodUid, String, ProbeKind)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sicken(&self, pod: PodUid, container: String, kind: ProbeKind) {
        self.lock().insert((pod, container, kind));
    }

    pub(crate) fn heal(&self) {
        self.lock().clear();
    }
}

/// A container that is stopped for its probe.
#[derive(Clone, Debug)]
pub(crate) struct ProbeKill {
    pub(crate) pod: PodUid,
    pub(crate) container: String,
    pub(crate) kind: ProbeKind,
}

/// Events, of which only those are kept that tell of a stop for a probe.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeKills(Arc<Mutex<Vec<(Instant, ProbeKill)>>>);

impl ProbeKills {
    pub(crate) fn take(&self) -> Vec<(Instant, ProbeKill)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl EventSink for ProbeKills {
    fn record(&self, event: Event) {
        let EventSubject::Pod {
            uid,
            field_path: Some(path),
            ..
        } = &event.subject
        else {
            return;
        };
        let kind = match &event.message {
            text if text.contains("failed liveness probe") => ProbeKind::Liveness,
            text if text.contains("failed startup probe") => ProbeKind::Startup,
            _ => return,
        };
        let name = path.split_once('{').and_then(|(_, rest)| rest.strip_suffix('}'));
        if let Some(name) = name.filter(|_| event.reason == "Killing") {
            let kill = ProbeKill {
                pod: uid.clone(),
                container: name.to_owned(),
                kind,
            };
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push((Instant::now(), kill));
        }
    }
}
