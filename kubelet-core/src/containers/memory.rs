//! What is remembered of a pod between steps. Lost with the agent, like upstream's.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::backoff::{CrashBackoff, CrashBackoffSettings, KeyedBackoff};
use crate::ids::SandboxId;
use crate::settings::Settings;

#[derive(Debug)]
pub(super) struct PodMemory {
    /// Of containers that keep ending.
    pub(super) crash: CrashBackoff,
    /// Of images that cannot be pulled, by image.
    pub(super) pulls: KeyedBackoff<String>,
    /// Why the last pull of an image failed: reason and message.
    pub(super) pull_errors: BTreeMap<String, (String, String)>,
    /// The sandbox in which the init containers have done their work.
    pub(super) initialized_in: Option<SandboxId>,
    /// When the pod's containers were first asked to stop for good.
    pub(super) end_began: Option<Instant>,
}

impl PodMemory {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut crash = CrashBackoffSettings::default();
        (crash.initial, crash.max) = settings.crash_backoff;
        Self {
            crash: CrashBackoff::new(crash),
            pulls: KeyedBackoff::new(settings.image_backoff.0, settings.image_backoff.1),
            pull_errors: BTreeMap::new(),
            initialized_in: None,
            end_began: None,
        }
    }
}
