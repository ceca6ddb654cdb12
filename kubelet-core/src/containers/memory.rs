//! What is remembered of a pod between steps. Lost with the agent, like upstream's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::links::PodLinks;
use crate::backoff::{CrashBackoff, CrashBackoffSettings, KeyedBackoff};
use crate::cgroups::PodLimits;
use crate::ids::{ContainerId, SandboxId};
use crate::settings::Settings;

/// What a container waits out: the end of one attempt, or the failure of one pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BackoffWindow {
    /// After the end of this container.
    Crash(ContainerId),
    /// Until this image may be pulled again.
    Pull(String, Instant),
}

/// How a pull failed.
#[derive(Clone, Debug)]
pub(super) struct FailedPull {
    pub(super) reason: Cow<'static, str>,
    pub(super) text: String,
    /// Until then it is shown as it is, and after that as what the back-off is for.
    pub(super) shown_until: Instant,
}

#[derive(Debug)]
pub(super) struct PodMemory {
    /// Of containers that keep ending.
    pub(super) crash: CrashBackoff,
    /// Of images that cannot be pulled, by image.
    pub(super) pulls: KeyedBackoff<String>,
    /// The back-off that was last told of, by container. A pod is synced more than once in each, if only since the first
    /// sync removes an older container and has the pod looked at again.
    told_backoff: BTreeMap<String, BackoffWindow>,
    /// The sandbox of which it was last told that another takes its place. A pod that waits for volumes comes to that at each try.
    told_changed: Option<SandboxId>,
    /// How the last pull of an image failed.
    pub(super) pull_errors: BTreeMap<String, FailedPull>,
    /// The sandbox in which the init containers have done their work.
    pub(super) initialized_in: Option<SandboxId>,
    /// When the pod's containers were first asked to stop for good.
    pub(super) end_began: Option<Instant>,
    /// Containers whose end was told and whose pre-stop hook has had its time, so that a repeated stop does neither again;
    /// with what the hook took of their grace.
    pub(super) prepared_to_stop: BTreeMap<ContainerId, Duration>,
    /// Containers that are to be stopped since their post-start hook failed, and that may still run.
    pub(super) hook_failed: BTreeSet<ContainerId>,
    /// Sandboxes that do not last.
    pub(super) sandboxes: KeyedBackoff<()>,
    /// Restarts of all containers.
    pub(super) resets: KeyedBackoff<()>,
    /// How often in a row the outcome of making or starting something was unknown, by container; empty: the sandbox.
    pub(super) uncertain: BTreeMap<String, u32>,
    /// The links to its logs.
    pub(super) links: PodLinks,
    /// The limits that its cgroup was given last in this life of the agent.
    pub(super) cgroup: Option<PodLimits>,
}

/// The pauses after calls whose outcome is unknown: from 2 s on, doubled, up to 30 s.
fn uncertain_pause(times: u32) -> Duration {
    Duration::from_secs(2_u64.saturating_pow(times.max(1)).min(30))
}

impl PodMemory {
    /// Notes that an outcome is unknown once more. Gives the pause before the next look, and whether it is time to say so.
    pub(super) fn uncertain_again(&mut self, what: &str) -> (Duration, u32) {
        let times = self.uncertain.entry(what.to_owned()).or_default();
        *times += 1;
        (uncertain_pause(*times), *times)
    }

    /// Whether this back-off of a container is yet to be told of; it is not asked for twice.
    pub(super) fn tells_backoff(&mut self, container: &str, window: BackoffWindow) -> bool {
        let told = self.told_backoff.insert(container.to_owned(), window.clone());
        told.as_ref() != Some(&window)
    }

    /// Whether it is yet to be told that another takes the place of this sandbox; it is not asked for twice.
    pub(super) fn tells_changed(&mut self, sandbox: &SandboxId) -> bool {
        self.told_changed.replace(sandbox.clone()).as_ref() != Some(sandbox)
    }

    pub(super) fn new(settings: &Settings) -> Self {
        let mut crash = CrashBackoffSettings::default();
        (crash.initial, crash.max) = settings.crash_backoff;
        Self {
            crash: CrashBackoff::new(crash),
            pulls: KeyedBackoff::new(settings.image_backoff.0, settings.image_backoff.1),
            told_backoff: BTreeMap::new(),
            told_changed: None,
            pull_errors: BTreeMap::new(),
            initialized_in: None,
            end_began: None,
            prepared_to_stop: BTreeMap::new(),
            hook_failed: BTreeSet::new(),
            sandboxes: KeyedBackoff::new(settings.crash_backoff.0, settings.crash_backoff.1),
            resets: KeyedBackoff::new(settings.crash_backoff.0, settings.crash_backoff.1),
            uncertain: BTreeMap::new(),
            links: PodLinks::default(),
            cgroup: None,
        }
    }
}
