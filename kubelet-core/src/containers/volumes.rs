//! Volumes of a pod: there before its sandbox, gone after its containers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ContainerSyncer;
use super::image_volumes::MountedImages;
use super::start_error::{CONFIG_ERROR, StartError};
use crate::env::Env;
use crate::error::error_chain;
use crate::ids::PodUid;
use crate::pod::{ContainerView, PodRecord, has_made_volumes};
use crate::runtime::{Device, Mount, RuntimeHandler};
use crate::syncer::{StepContext, SyncError};
use crate::volumes::{ContainerVolumes, PodVolumes, VolumeError, VolumePlace};

/// The least time until volumes are looked at again because they say so: a time that has passed already must not be a reason to
/// look at once, and so without end.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// Why volumes stay of pods that nobody knows, as it was told: what stays for ever is told once.
#[derive(Debug, Default)]
pub(super) struct Stays(Mutex<BTreeMap<PodUid, String>>);

impl Stays {
    fn is_news(&self, uid: &PodUid, why: &str) -> bool {
        let before = super::lock(&self.0).insert(uid.clone(), why.to_owned());
        before.as_deref() != Some(why)
    }

    fn forget(&self, uid: &PodUid) {
        super::lock(&self.0).remove(uid);
    }
}

impl ContainerSyncer {
    /// Has the volumes of a pod made or brought up to date.
    pub(super) async fn volumes_ready(&self, cx: &StepContext, pod: &Arc<PodRecord>) -> Result<PodVolumes, SyncError> {
        let Some(manager) = self.node.volumes.as_ref().filter(|_| has_made_volumes(pod.spec())) else {
            return Ok(PodVolumes::default());
        };
        let mut volumes = manager
            .mount(pod, &cx.stop)
            .await
            .map_err(|error| into_sync_error(cx, error))?;
        volumes.again_at = volumes.again_at.map(in_a_while);
        Ok(volumes)
    }

    /// Has the volumes of a pod gone, as far as there are any.
    pub(super) async fn volumes_gone(&self, cx: &StepContext, uid: &PodUid) -> Result<(), SyncError> {
        match &self.node.volumes {
            Some(manager) => manager
                .unmount(uid, &cx.stop)
                .await
                .map_err(|error| into_sync_error(cx, error)),
            None => Ok(()),
        }
    }

    /// Has volumes gone of pods that nobody knows. Gives the pods that still have some, which is told.
    pub(super) async fn unmount_leftovers(&self, pods: &[PodUid], stop: &CancellationToken) -> Vec<PodUid> {
        let Some(manager) = &self.node.volumes else {
            return Vec::new();
        };
        // One that hangs keeps the others waiting no longer than this.
        let (stop, limit) = (stop.child_token(), self.node.settings.runtime_request_timeout);
        let mut unmounts = join_all(pods.iter().map(|uid| manager.unmount(uid, &stop)));
        let outcomes = tokio::select! {
            biased;
            outcomes = &mut unmounts => outcomes,
            () = tokio::time::sleep(limit) => {
                stop.cancel();
                unmounts.await
            }
        };
        let mut stay = Vec::new();
        for (uid, outcome) in pods.iter().zip(outcomes) {
            if let Err(error) = &outcome
                && self.stays.is_news(uid, &error_chain(error))
            {
                let error: &dyn std::error::Error = error;
                tracing::warn!(pod_uid = %uid, error, "volumes of a pod that nobody wishes for stay for now");
            }
            match outcome {
                Ok(()) => self.stays.forget(uid),
                Err(_) => stay.push(uid.clone()),
            }
        }
        stay
    }

    /// What a container mounts, in the order of its spec, and the devices that its volumes are.
    pub(super) async fn volume_mounts(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        (mounted, env): (&MountedImages, &Env),
    ) -> Result<(Vec<Mount>, Vec<Device>), StartError> {
        let made = match &self.node.volumes {
            Some(manager) if has_made_volumes(pod.spec()) => {
                let limit = self.node.settings.runtime_request_timeout;
                let given = tokio::select! {
                    biased;
                    () = cx.stop.cancelled() => return Err(StartError::Stopped),
                    given = tokio::time::timeout(limit, manager.container(pod, view.name(), env)) => given,
                };
                let late = |_| StartError::failed(CONFIG_ERROR, format!("its volumes do not answer within {limit:?}"));
                given
                    .map_err(late)?
                    .map_err(|error| StartError::failed(CONFIG_ERROR, error_chain(&error)))?
            }
            _ => ContainerVolumes::default(),
        };
        let handler = if view
            .volume_mounts()
            .iter()
            .any(|mount| mount.recursive_read_only.is_some())
        {
            self.handler_features(&self.handler_that_mounts(cx, pod).await?)
        } else {
            // What else it can do does not matter.
            RuntimeHandler::new("")
        };
        let mut mounts = Vec::new();
        for (index, spec) in view.volume_mounts().iter().enumerate() {
            let mount = match self.image_mount(spec, mounted, env)? {
                Some(mount) => mount,
                None => {
                    let place = made.places.iter().find(|place| place.index == index);
                    let place = place.ok_or_else(|| {
                        let (volume, container) = (&spec.name, view.name());
                        let text = format!("cannot find volume {volume:?} to mount into container {container:?}");
                        StartError::failed(CONFIG_ERROR, text)
                    })?;
                    let mount = Mount::of_volume(spec, &place.host_path, &handler)
                        .map_err(|error| StartError::failed(CONFIG_ERROR, error_chain(&error)))?;
                    of_place(mount, place)
                }
            };
            mounts.push(mount);
        }
        Ok((mounts, made.devices))
    }
}

fn of_place(mut mount: Mount, place: &VolumePlace) -> Mount {
    mount.read_only |= place.read_only;
    mount.selinux_relabel = place.selinux_relabel;
    mount
}

fn in_a_while(at: Instant) -> Instant {
    at.max(Instant::now() + LEAST_PAUSE)
}

fn into_sync_error(cx: &StepContext, error: VolumeError) -> SyncError {
    match error {
        VolumeError::Stopped if cx.stop.is_cancelled() => SyncError::Stopped,
        // Nobody asked it to: a step that was stopped is repeated without a pause.
        VolumeError::Stopped => SyncError::Failed {
            what: "volumes were given up".to_owned(),
            retry_at: None,
            source: None,
        },
        VolumeError::RejectPod { reason, message } => SyncError::Rejected {
            reason: reason.to_owned(),
            message,
        },
        VolumeError::Waiting { retry_at, .. } => SyncError::Failed {
            what: error_chain(&error),
            retry_at: retry_at.map(in_a_while),
            source: None,
        },
        VolumeError::Failed { what, source } => SyncError::Failed {
            what,
            retry_at: None,
            source: Some(source),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::Stays;
    use crate::ids::PodUid;

    #[test]
    fn what_stays_is_told_once_for_each_reason() {
        let (stays, uid) = (Stays::default(), PodUid::from("u"));
        let told = [
            "a file is in the way",
            "a file is in the way",
            "it is busy",
            "a file is in the way",
        ];
        assert_eq!(told.map(|why| stays.is_news(&uid, why)), [true, false, true, true]);
        assert!(stays.is_news(&"other".into(), "a file is in the way"));
        stays.forget(&uid);
        assert!(stays.is_news(&uid, "a file is in the way"));
    }
}
