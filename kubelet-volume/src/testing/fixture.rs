//! How the suite of volume plugins calls one.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_core::k8s_openapi::api::core::v1::{PersistentVolume, Pod, Volume};
use kubelet_core::{CancellationToken, PodRecord, SourceKind, VolumeContext};

use crate::ground::mounts::{Mounts, SystemMounts};
use crate::manager::paths;
use crate::plugin::{
    Ownership, Placed, PluginNode, SetUp, TearDown, VolumeFault, VolumeMode, VolumePlugin, VolumeSpec,
};
use crate::seen::Reads;
use crate::turns::Turns;

/// Tells the suite of [`VolumePlugin`] which volume to use, and calls the plugin as the manager does.
pub struct PluginFixture {
    node: PluginNode,
    pod: Arc<PodRecord>,
    volume: Volume,
    persistent: Option<PersistentVolume>,
    mode: VolumeMode,
    also: Vec<PathBuf>,
    turns: Turns,
    kept: Vec<Box<dyn Any + Send>>,
}

impl fmt::Debug for PluginFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginFixture")
            .field("node", &self.node)
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

impl PluginFixture {
    /// A volume of a pod, for an agent whose folder is there and of no use to anybody else.
    ///
    /// # Panics
    /// If the pod cannot be, or has no such volume.
    #[must_use]
    pub fn new(context: VolumeContext, pod: &Pod, volume: &str) -> Self {
        let mut pod = pod.clone();
        kubelet_core::apply_defaults(&mut pod);
        let record = PodRecord::new(&pod, "api".into(), SourceKind::Managed);
        let record = record.unwrap_or_else(|error| panic!("the pod of the fixture: {error}"));
        let volumes = record.spec().volumes.iter().flatten();
        let found = volumes.into_iter().find(|of| of.name == volume).cloned();
        Self {
            volume: found.unwrap_or_else(|| panic!("the pod of the fixture has no volume {volume:?}")),
            node: PluginNode {
                context,
                mounts: Arc::new(SystemMounts::default()),
                secrets_on_disk: false,
                turns: Turns::default(),
            },
            pod: Arc::new(record),
            persistent: None,
            mode: VolumeMode::Filesystem,
            also: Vec::new(),
            turns: Turns::default(),
            kept: Vec::new(),
        }
    }

    /// It is a claim, bound to this.
    #[must_use]
    pub fn bound_to(mut self, volume: PersistentVolume) -> Self {
        self.persistent = Some(volume);
        self
    }

    /// Containers are given it as a device.
    #[must_use]
    pub fn block(mut self) -> Self {
        self.mode = VolumeMode::Block;
        self
    }

    /// Who mounts; by default, the kernel is asked.
    #[must_use]
    pub fn mounts(mut self, mounts: impl Mounts + 'static) -> Self {
        self.node.mounts = Arc::new(mounts);
        self
    }

    /// Secrets may be on disk where nothing can be mounted.
    #[must_use]
    pub fn secrets_on_disk(mut self) -> Self {
        self.node.secrets_on_disk = true;
        self
    }

    /// The type makes something else in the pod's folder too, since others expect it there. It has to go as well.
    #[must_use]
    pub fn also_makes(mut self, path: impl Into<PathBuf>) -> Self {
        self.also.push(path.into());
        self
    }

    /// Keeps something as long as the fixture: a folder, say, that is removed when it is dropped.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send) -> Self {
        self.kept.push(Box::new(kept));
        self
    }

    pub(super) fn spec(&self) -> VolumeSpec<'_> {
        match &self.persistent {
            Some(volume) => VolumeSpec::Persistent {
                volume,
                read_only: false,
            },
            None => VolumeSpec::Inline(&self.volume),
        }
    }

    pub(super) fn mode_is_files(&self) -> bool {
        self.mode == VolumeMode::Filesystem
    }

    pub(super) fn root(&self) -> &Path {
        &self.node.context.root_dir
    }

    pub(super) fn mounter(&self) -> &dyn Mounts {
        &*self.node.mounts
    }

    /// The folders of the volume, and what else is made.
    pub(super) fn folders(&self, plugin: &dyn VolumePlugin) -> Vec<PathBuf> {
        let pod_dir = self.node.pod_dir(self.pod.uid());
        let also = self.also.iter().map(|path| pod_dir.join(path));
        [self.dir(plugin), self.scratch(plugin)]
            .into_iter()
            .chain(also)
            .collect()
    }

    pub(super) fn dir(&self, plugin: &dyn VolumePlugin) -> PathBuf {
        let pod_dir = self.node.pod_dir(self.pod.uid());
        paths::volume(&pod_dir, self.mode, plugin.name(), self.spec().name())
    }

    pub(super) fn scratch(&self, plugin: &dyn VolumePlugin) -> PathBuf {
        let pod_dir = self.node.pod_dir(self.pod.uid());
        paths::scratch(&pod_dir, plugin.name(), self.spec().name())
    }

    /// Where a plugin may keep what is of no single pod.
    pub(super) fn plugin_dir(&self, plugin: &dyn VolumePlugin) -> PathBuf {
        self.node.plugin_dir(plugin.name())
    }

    /// As the manager does, which knows what an earlier call in its life gave.
    pub(super) async fn try_set_up(
        &self,
        plugin: &dyn VolumePlugin,
        known: Option<&Placed>,
    ) -> Result<Placed, VolumeFault> {
        let turn = self.turns.take(&self.about()).await;
        let (dir, scratch) = (self.dir(plugin), self.scratch(plugin));
        let stop = CancellationToken::new();
        let reads = Reads::default();
        let cx = SetUp {
            node: &self.node,
            pod: &self.pod,
            volume: self.spec(),
            mode: self.mode,
            dir: &dir,
            scratch: &scratch,
            ownership: Ownership::of(&self.pod),
            fingerprint: known.and_then(|placed| placed.fingerprint),
            is_repeated: known.is_some(),
            stop: &stop,
            reads: &reads,
            turn: &turn,
        };
        if !plugin.features().is_elsewhere {
            self.make_above(&dir);
        }
        plugin.set_up(&cx).await
    }

    pub(super) async fn set_up(&self, plugin: &dyn VolumePlugin, known: Option<&Placed>) -> Placed {
        match self.try_set_up(plugin, known).await {
            Ok(placed) => placed,
            Err(error) => panic!("set_up fails: {}", kubelet_core::error_chain(&error)),
        }
    }

    pub(super) async fn try_tear_down(&self, plugin: &dyn VolumePlugin) -> Result<(), VolumeFault> {
        let turn = self.turns.take(&self.about()).await;
        let (dir, scratch) = (self.dir(plugin), self.scratch(plugin));
        let spec = self.spec();
        let cx = TearDown {
            node: &self.node,
            uid: self.pod.uid(),
            name: spec.name(),
            mode: self.mode,
            dir: &dir,
            scratch: &scratch,
            turn: &turn,
        };
        plugin.tear_down(&cx).await
    }

    pub(super) async fn tear_down(&self, plugin: &dyn VolumePlugin) {
        if let Err(error) = self.try_tear_down(plugin).await {
            panic!("tear_down fails: {}", kubelet_core::error_chain(&error));
        }
    }

    fn about(&self) -> crate::turns::About {
        crate::turns::About::volume(self.pod.uid(), self.spec().name())
    }

    pub(super) fn make_above(&self, dir: &Path) {
        let above = dir.parent().unwrap_or(self.root());
        fs::create_dir_all(above).unwrap_or_else(|error| panic!("{}: {error}", above.display()));
    }

    /// All that is below the agent's folder, without what is in the folders of the volume.
    pub(super) fn around(&self, plugin: &dyn VolumePlugin) -> BTreeSet<PathBuf> {
        let mut inside = self.folders(plugin);
        inside.push(self.plugin_dir(plugin));
        let mut found = BTreeSet::new();
        let mut left = vec![self.root().to_owned()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if inside.iter().any(|own| path.starts_with(own)) {
                    continue;
                }
                // What they are in is there for them.
                let is_above = inside.iter().any(|own| own.starts_with(&path));
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    left.push(path.clone());
                }
                if !is_above {
                    found.insert(path);
                }
            }
        }
        found
    }

    /// What is mounted below the agent's folder.
    pub(super) fn mounted(&self) -> Vec<PathBuf> {
        let table = self.mounter().table();
        let table = table.unwrap_or_else(|error| panic!("the table of mounts: {error}"));
        let below = table.below(self.root());
        below.into_iter().map(|mount| mount.target.clone()).collect()
    }
}
