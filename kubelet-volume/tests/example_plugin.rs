//! A type of volume of an integrator's own: a folder with a note in it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests: a panic is the failure")]

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{CancellationToken, PodRecord, SourceKind, VolumeContext, VolumeManager};
use kubelet_volume::testing::{self, PluginFixture, check_plugin};
use kubelet_volume::{
    Measure, Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSettings, VolumeSpec, Volumes,
};
use serde_json::json;

const DRIVER: &str = "example.com/scratch";

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    Name,
    LosesData,
    WritesElsewhere,
    LeavesNote,
    FollowsLinks,
}

/// Folders for pods, with a note beside of whose they are.
#[derive(Debug)]
struct Scratch(Flaw);

#[async_trait]
impl VolumePlugin for Scratch {
    fn name(&self) -> &'static str {
        if self.0 == Flaw::Name {
            "example.com/a/b"
        } else {
            DRIVER
        }
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        matches!(volume, VolumeSpec::Inline(volume) if volume.flex_volume.as_ref().is_some_and(|flex| flex.driver == DRIVER))
    }

    fn features(&self) -> PluginFeatures {
        let mut features = PluginFeatures::default();
        features.measure = Measure::Files;
        features.is_ephemeral = true;
        features
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let (dir, scratch, flaw) = (cx.dir.to_owned(), cx.scratch.to_owned(), self.0);
        let note = format!("of {}", cx.pod.key());
        let make = move || {
            if flaw == Flaw::LosesData && dir.exists() {
                fs::remove_dir_all(&dir)?;
            }
            if flaw == Flaw::WritesElsewhere {
                fs::write(dir.with_file_name("elsewhere"), "")?;
            }
            fs::create_dir_all(&dir)?;
            fs::create_dir_all(&scratch)?;
            fs::write(scratch.join("note"), note)
        };
        cx.blocking(move |_| make()).await?;
        Ok(Placed::at(cx.dir))
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        let (dir, scratch, flaw) = (cx.dir.to_owned(), cx.scratch.to_owned(), self.0);
        let mounts = cx.node.mounts.clone();
        cx.blocking(move |_| {
            for mount in mounts.table()?.below(&dir) {
                mounts.unmount(&mount.target)?;
            }
            if flaw == Flaw::FollowsLinks && dir.exists() {
                fs::remove_dir_all(dir.canonicalize()?)?;
            }
            remove(&dir)?;
            if flaw == Flaw::LeavesNote {
                return Ok(());
            }
            remove(&scratch)
        })
        .await
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::symlink_metadata(dir) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(dir),
        Ok(_) => Err(io::Error::other(format!("{} is no folder", dir.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn pod() -> Pod {
    let volumes = json!([{"name": "data", "flexVolume": {"driver": DRIVER}}, {"name": "other", "emptyDir": {}}]);
    let mounts = json!([{"name": "data", "mountPath": "/data"}, {"name": "other", "mountPath": "/other"}]);
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-of-a"},
        "spec": {"containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}], "volumes": volumes},
    }))
    .unwrap()
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    (dir, root)
}

fn with_flaw(flaw: Flaw) -> Option<(Scratch, PluginFixture)> {
    let (dir, root) = place();
    let fixture = PluginFixture::new(VolumeContext::new("node-1", root), &pod(), "data");
    Some((Scratch(flaw), fixture.keeping(dir)))
}

async fn scratch() -> Option<(Scratch, PluginFixture)> {
    with_flaw(Flaw::None)
}

kubelet_volume::volume_plugin_contract!(scratch);

/// The promises that a plugin with that flaw is seen to break.
fn broken(flaw: Flaw) -> Vec<&'static str> {
    let mut broken = Vec::new();
    macro_rules! try_each {
        ($($promise:ident)*) => { $(
            let run = || check_plugin(async || with_flaw(flaw), async |plugin, fixture| {
                testing::$promise(plugin, fixture).await;
            });
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                broken.push(stringify!($promise));
            }
        )* };
    }
    try_each! {
        its_name_names_a_folder setting_up_again_loses_nothing all_that_it_makes_is_in_its_folders
        nothing_is_left_after_tear_down what_is_mounted_or_linked_stays
    }
    broken
}

#[test]
fn plugins_that_break_a_promise_are_caught() {
    assert!(broken(Flaw::None).is_empty());
    for (flaw, promise) in [
        (Flaw::Name, "its_name_names_a_folder"),
        (Flaw::LosesData, "setting_up_again_loses_nothing"),
        (Flaw::WritesElsewhere, "all_that_it_makes_is_in_its_folders"),
        (Flaw::LeavesNote, "nothing_is_left_after_tear_down"),
        (Flaw::FollowsLinks, "what_is_mounted_or_linked_stays"),
    ] {
        let broken = broken(flaw);
        assert!(broken.contains(&promise), "{flaw:?}: {broken:?}");
    }
}

#[tokio::test]
async fn a_type_of_ones_own_stands_beside_the_known_ones() {
    let (_dir, root) = place();
    let own: Arc<dyn VolumePlugin> = Arc::new(Scratch(Flaw::None));
    let plugins = Volumes::known_plugins().into_iter().chain([own]);
    let make = |plugins: Vec<Arc<dyn VolumePlugin>>| {
        let volumes = Volumes::with_plugins(VolumeSettings::default(), plugins);
        volumes.open(VolumeContext::new("node-1", &root));
        volumes
    };
    let volumes = make(plugins.collect());
    let pod = Arc::new(PodRecord::new(&pod(), "api".into(), SourceKind::Managed).unwrap());
    let stop = CancellationToken::new();
    assert_eq!(volumes.lacks(&pod), None);
    volumes.mount(&pod, &stop).await.unwrap();
    let given = volumes.container(&pod, "app", &Env::default()).await.unwrap();
    let dir = root.join("pods/uid-of-a");
    assert_eq!(given.places[0].host_path, dir.join("volumes/example.com~scratch/data"));
    fs::write(given.places[0].host_path.join("file"), "written").unwrap();
    let note = fs::read_to_string(dir.join("plugins/example.com~scratch/data/note")).unwrap();
    assert_eq!(note, "of default/a");
    // Of an agent that does not have the type it is left as it is, and said.
    let others = make(Volumes::known_plugins());
    assert!(others.lacks(&pod).unwrap().contains("\"data\""));
    assert!(others.unmount(pod.uid(), &stop).await.is_err());
    assert!(given.places[0].host_path.join("file").exists());
    volumes.unmount(pod.uid(), &stop).await.unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}
