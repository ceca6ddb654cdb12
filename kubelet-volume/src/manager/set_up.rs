//! Making one volume: what it is to become, and who makes it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use kubelet_core::k8s_openapi::api::core::v1::Volume;
use kubelet_core::{CancellationToken, PodRecord, error_chain};

use super::claims::{Resolved, check_affinity};
use super::pods::{Made, Stage, VolumeState};
use super::{Shared, paths};
use crate::ground::crash::step;
use crate::plugin::{Ownership, Placed, PluginNode, SetUp, VolumeFault, VolumeMode, VolumePlugin};
use crate::seen::Reads;
use crate::turns::About;

/// Why a volume was not set up, and what is there all the same.
pub(super) struct Failed {
    pub(super) fault: VolumeFault,
    pub(super) there: Option<Made>,
    pub(super) stage: Stage,
    /// What it is called: that of the persistent volume, once that is known.
    pub(super) name: String,
}

/// What a volume of a pod is to become.
struct Task {
    resolved: Resolved,
    plugin: Arc<dyn VolumePlugin>,
    mode: VolumeMode,
    /// The name of its folder.
    inner: String,
}

impl Shared {
    /// Makes a volume, or brings it up to date.
    pub(super) async fn set_up(
        &self,
        pod: &PodRecord,
        volume: &Volume,
        (known, reads): (&VolumeState, &Reads),
        stop: &CancellationToken,
    ) -> Result<Made, Failed> {
        let failed = |stage: Stage, name: &str| {
            let name = name.to_owned();
            move |fault: VolumeFault| Failed {
                fault,
                there: None,
                stage,
                name: name.clone(),
            }
        };
        let node = self.node().map_err(|error| VolumeFault::new(error.to_string()));
        let node = node.map_err(failed(Stage::Process, &volume.name))?;
        let task = self.process(node, pod, volume, reads).await;
        let task = task.map_err(failed(Stage::Process, &volume.name))?;
        check_affinity(node, &task.resolved).map_err(failed(Stage::NodeAffinity, &task.inner))?;
        let failed = failed(Stage::SetUp(task.mode), &task.inner);
        let limit = self.settings.patience;
        let mut made = pin!(self.make((node, pod, volume), &task, (known, reads), stop));
        let made = match tokio::time::timeout(limit, &mut made).await {
            Ok(made) => made,
            // Containers go on with what is there.
            Err(_) if known.made.is_some() => {
                return Err(failed(VolumeFault::new(format!("not done within {limit:?}"))));
            }
            // To give many files to a group may take long. It goes on, and whoever wonders is told.
            Err(_) => {
                let fault = VolumeFault::new(format!("not done within {limit:?}, and goes on"));
                let late = failed(fault);
                self.tell(pod, &late, &error_chain(&late.fault));
                made.await
            }
        };
        made.map_err(|(fault, there)| Failed { there, ..failed(fault) })
    }

    /// Finds out what a volume is to become.
    async fn process(
        &self,
        node: &PluginNode,
        pod: &PodRecord,
        volume: &Volume,
        reads: &Reads,
    ) -> Result<Task, VolumeFault> {
        let resolved = self.resolve(node, pod, volume, reads).await?;
        let spec = resolved.spec(volume);
        let plugin = self.plugin_for(&spec).cloned().ok_or_else(|| {
            let kind = resolved.kind(volume);
            VolumeFault::new(format!(
                "no volume plugin matched: nobody here makes volumes of type {kind:?}"
            ))
        })?;
        let mode = resolved.mode(pod, volume)?;
        let inner = spec.name().to_owned();
        if !paths::is_folder_name(&inner) {
            return Err(VolumeFault::new(format!("{inner:?} is no name of a volume")));
        }
        Ok(Task {
            resolved,
            plugin,
            mode,
            inner,
        })
    }

    async fn make(
        &self,
        (node, pod, volume): (&PluginNode, &PodRecord, &Volume),
        task: &Task,
        (known, reads): (&VolumeState, &Reads),
        stop: &CancellationToken,
    ) -> Result<Made, (VolumeFault, Option<Made>)> {
        let bare = |fault| (fault, None);
        let (plugin, mode, inner) = (&task.plugin, task.mode, &task.inner);
        let (features, spec) = (plugin.features(), task.resolved.spec(volume));
        if mode == VolumeMode::Block && !features.block {
            let text = format!("volumes of {} cannot be given as devices", plugin.name());
            return Err(bare(VolumeFault::new(text)));
        }
        if !features.mount_options && !spec.mount_options().is_empty() {
            let text = "mount options are not supported for this volume type";
            return Err(bare(VolumeFault::new(text)));
        }
        let alone = self.check_once_pod(node, pod, &volume.name, &task.resolved).await;
        alone.map_err(bare)?;
        let pod_dir = node.pod_dir(pod.uid());
        let dir = paths::volume(&pod_dir, mode, plugin.name(), inner);
        let scratch = paths::scratch(&pod_dir, plugin.name(), inner);
        // It may be a thread's that hangs, and that nobody waits for any more.
        let (limit, about) = (self.settings.patience, About::volume(pod.uid(), inner));
        let late = |_| {
            bare(VolumeFault::new(format!(
                "what was begun before is not done within {limit:?}"
            )))
        };
        let turn = tokio::time::timeout(limit, self.turns.take(&about))
            .await
            .map_err(late)?;
        let cx = SetUp {
            node,
            pod,
            volume: spec,
            mode,
            dir: &dir,
            scratch: &scratch,
            ownership: Ownership::of(pod),
            fingerprint: known.made.as_ref().and_then(|made| made.placed.fingerprint),
            is_repeated: known.made.is_some(),
            stop,
            reads,
            turn: &turn,
        };
        // Once is enough: a volume that is looked at at each sync costs the disk nothing.
        if !features.is_elsewhere && known.made.is_none() {
            let above = dir.clone();
            cx.blocking(move |_| make_above(&above)).await.map_err(bare)?;
        }
        step("what a volume is in is made");
        let made = |mut placed: Placed| {
            placed.read_only |= task.resolved.read_only();
            Made {
                plugin: plugin.clone(),
                inner: inner.clone(),
                mode,
                claim: task.resolved.claim().map(str::to_owned),
                read_only: placed.read_only,
                groups: task.resolved.groups(),
                placed,
            }
        };
        plugin.set_up(&cx).await.map(made).map_err(|mut fault| {
            let there = fault.there.take().map(|placed| made(*placed));
            (fault, there)
        })
    }
}

/// The mode of the folders around volumes. Source: kubelet 1.36, `kubelet_getters.go`.
const FOLDER_MODE: u32 = 0o750;

/// Makes the folder that a volume's own is in.
fn make_above(dir: &Path) -> std::io::Result<()> {
    let Some(above) = dir.parent() else { return Ok(()) };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(above)
        .map_err(|error| std::io::Error::new(error.kind(), format!("cannot make {}: {error}", above.display())))
}
