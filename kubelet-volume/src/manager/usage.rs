//! Measuring what volumes use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubelet_core::{CancellationToken, PodUid, VolumeUsage};
use tokio::time::Instant;

use super::Shared;
use super::pods::Made;
use crate::ground::usage::{device_bytes, fs_info, usage};
use crate::plugin::{Measure, VolumeMode};
use crate::turns::About;

/// A large tree is looked through in pieces, with pauses between them.
const PAUSE_AFTER: u64 = 10_000;
/// How long the volumes of one pod may take.
const LONGEST: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);

impl Shared {
    /// Measures all volumes every so often: one after the other, so that disks are not kept busy with it.
    pub(super) async fn measure(&self, stop: &CancellationToken) {
        let every = self.settings.measure_every;
        if every.is_zero() {
            return;
        }
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let uids: Vec<PodUid> = self.pods.lock().keys().cloned().collect();
            for uid in uids {
                if stop.is_cancelled() {
                    return;
                }
                self.measure_pod(&uid, stop).await;
            }
        }
    }

    async fn measure_pod(&self, uid: &PodUid, stop: &CancellationToken) {
        // One that does not answer keeps its thread, and gets no other.
        let Some(turn) = self.turns.try_take(&About::Usage(uid.clone())) else {
            return;
        };
        let volumes: Vec<(String, Made)> = {
            let pods = self.pods.lock();
            let known = pods.get(uid).into_iter().flat_map(|pod| &pod.volumes);
            known
                .filter_map(|(name, state)| Some((name.clone(), state.made.clone()?)))
                .filter(|(_, made)| made.plugin.features().measure != Measure::Nothing)
                .collect()
        };
        let given_up = Arc::new(AtomicBool::new(false));
        let flag = given_up.clone();
        let measured = tokio::task::spawn_blocking(move || {
            let known = volumes.iter().map(|(name, made)| measure_one(name, made, &flag));
            let all = known.collect::<Vec<_>>();
            drop(turn);
            all
        });
        let measured = tokio::select! {
            biased;
            () = stop.cancelled() => {
                given_up.store(true, Ordering::Relaxed);
                return;
            }
            // What does not answer is not waited for; its thread ends when it does.
            () = tokio::time::sleep(LONGEST) => {
                given_up.store(true, Ordering::Relaxed);
                return;
            }
            measured = measured => measured,
        };
        let Ok(measured) = measured else { return };
        if let Some(pod) = self.pods.lock().get_mut(uid) {
            pod.usage = Some((Instant::now(), Arc::from(measured)));
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it is on a thread of its own, and real time is what it saves"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// What one volume uses; what cannot be measured is not told.
fn measure_one(name: &str, made: &Made, cancelled: &AtomicBool) -> VolumeUsage {
    let features = made.plugin.features();
    let mut told = VolumeUsage::new(name);
    told.claim.clone_from(&made.claim);
    told.is_ephemeral = made.placed.is_ephemeral.unwrap_or(features.is_ephemeral);
    told.age = Duration::ZERO;
    let path = &made.placed.path;
    if made.mode == VolumeMode::Block {
        told.capacity_bytes = device_bytes(path).ok();
        return told;
    }
    match fs_info(path) {
        Ok(found) => {
            told.capacity_bytes = Some(found.capacity_bytes);
            told.available_bytes = Some(found.available_bytes);
            told.inodes = Some(found.inodes);
            told.inodes_free = Some(found.inodes_free);
            if features.measure == Measure::FileSystem {
                told.used_bytes = Some(found.used_bytes);
                told.inodes_used = Some(found.inodes_used);
            }
        }
        Err(error) => tracing::debug!(volume = name, error = &error as &dyn std::error::Error, "not measured"),
    }
    if features.measure == Measure::Files {
        match usage(path, cancelled, PAUSE_AFTER, &mut pause) {
            Ok(found) => {
                told.used_bytes = Some(found.bytes);
                told.inodes_used = Some(found.inodes);
            }
            Err(error) => tracing::debug!(volume = name, error = &error as &dyn std::error::Error, "not measured"),
        }
    }
    told
}
