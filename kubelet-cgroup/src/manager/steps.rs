//! What is done in steps: folders on threads that may wait for the kernel, units where there are any.

use std::path::PathBuf;
use std::sync::Arc;

use kubelet_core::{CgroupError, CgroupLimits, PodUid, QosClass};

use super::turn::{Subject, Turn, blocking};
use super::{CgroupManager, Open, in_pod, lock};
use crate::enforcement::Reserved;
use crate::kill::Upto;

/// Whose units are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those of which something is not there.
    Missing,
}

/// When a value is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refresh {
    /// If it is another one than before.
    Changed,
    /// In any case: somebody may have changed it.
    Always,
}

impl CgroupManager {
    /// Makes the cgroups of classes.
    pub(super) async fn make_classes(&self, open: &Arc<Open>, which: Which) -> Result<(), CgroupError> {
        if let Some(units) = &open.units {
            let looked = open.clone();
            let paths = blocking(move || match which {
                Which::All => Ok(looked.classes()),
                Which::Missing => looked.missing_classes(),
            });
            for path in paths.await? {
                units.start(&path, &CgroupLimits::default()).await?;
            }
        }
        let open = open.clone();
        blocking(move || open.make_classes()).await
    }

    /// Makes the cgroup of a pod. Its unit has these limits then; its files are somebody else's.
    pub(super) async fn make_pod(
        &self,
        turn: &Arc<Turn>,
        open: &Arc<Open>,
        (class, uid): (QosClass, &PodUid),
        limits: &CgroupLimits,
    ) -> Result<(), CgroupError> {
        if let Some(units) = &open.units {
            // Somebody may have removed that of its class.
            self.make_classes(open, Which::Missing).await?;
            let (marked, uid) = (open.clone(), uid.clone());
            let path = open.path(class, &uid);
            turn.blocking(move |_| marked.mark_pod(class, &uid)).await?;
            units.start(&path, limits).await?;
        }
        let (made, uid) = (open.clone(), uid.clone());
        turn.blocking(move |_| made.make_pod(class, &uid)).await
    }

    /// Gives a cgroup that is there limits.
    pub(super) async fn give(&self, open: &Arc<Open>, path: PathBuf, limits: &CgroupLimits) -> Result<(), CgroupError> {
        if let Some(units) = &open.units {
            units.set(&path, limits).await?;
        }
        // After it: it may round them.
        let (open, limits) = (open.clone(), limits.clone());
        blocking(move || open.set(&path, &limits)).await
    }

    pub(super) async fn reserve(
        &self,
        open: &Arc<Open>,
        reserved: &Reserved,
        limits: &CgroupLimits,
    ) -> Result<(), CgroupError> {
        let (looked, reserved, limits) = (open.clone(), reserved.clone(), limits.clone());
        let (path, limits) = blocking(move || looked.reserved(&reserved, &limits)).await?;
        self.give(open, path, &limits).await
    }

    /// Gives the class of Burstable pods the share of what they request together.
    pub(super) async fn refresh_burstable(&self, open: &Arc<Open>, when: Refresh) -> Result<(), CgroupError> {
        // One after the other, so that an older sum does not replace a newer one.
        let turn = self.turn(Subject::Burstable).await;
        let milli = lock(&self.shared.known)
            .burstable
            .values()
            .fold(0_u64, |sum, milli| sum.saturating_add(*milli));
        let shares = kubelet_core::cpu_shares(i64::try_from(milli).unwrap_or(i64::MAX));
        {
            let mut given = lock(&self.shared.burstable_shares);
            if when == Refresh::Changed && *given == Some(shares) {
                return Ok(());
            }
            // Until it is: a call that is dropped in between has given one of the two.
            *given = None;
        }
        let mut limits = CgroupLimits::default();
        limits.cpu_shares = Some(shares);
        let path = open.class(QosClass::Burstable);
        if let Some(units) = &open.units {
            units.set(&path, &limits).await?;
        }
        let open = open.clone();
        turn.blocking(move |shared| {
            open.set(&path, &limits)?;
            *lock(&shared.burstable_shares) = Some(shares);
            Ok(())
        })
        .await
    }

    /// Stops the units of a pod, after all in them was killed. The folder with the mark stays until they have stopped: what a crash
    /// leaves in between is listed by the next life.
    pub(super) async fn stop_units(&self, open: &Arc<Open>, uid: &PodUid) -> Result<(), CgroupError> {
        let Some(units) = &open.units else {
            return Ok(());
        };
        let (cleared, this) = (open.clone(), uid.clone());
        let pass = self.until_gone(uid, in_pod(uid), move |_| cleared.clear_pod(&this, Upto::Mark));
        let turn = pass.await?;
        let (looked, this) = (open.clone(), uid.clone());
        for path in turn.blocking(move |_| Ok(looked.removable(&this))).await? {
            units.stop(&path).await?;
        }
        Ok(())
    }
}
