//! What is remembered of a pod between steps. Lost with the agent, like upstream's.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::backoff::{CrashBackoff, KeyedBackoff};
use crate::settings::Settings;

#[derive(Debug)]
pub(super) struct PodMemory {
    /// Of containers that keep ending.
    pub(super) crash: CrashBackoff,
    /// Of images that cannot be pulled, by image.
    pub(super) pulls: KeyedBackoff,
    /// Why the last pull of an image failed: reason and message.
    pub(super) pull_errors: BTreeMap<String, (String, String)>,
    /// When the pod's containers were first asked to stop for good.
    pub(super) end_began: Option<Instant>,
}

impl PodMemory {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            crash: CrashBackoff::new(settings.crash_backoff.0, settings.crash_backoff.1),
            pulls: KeyedBackoff::new(settings.image_backoff.0, settings.image_backoff.1),
            pull_errors: BTreeMap::new(),
            end_began: None,
        }
    }
}
