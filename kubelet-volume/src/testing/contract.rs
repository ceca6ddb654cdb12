//! The promises of [`VolumePlugin`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use futures::FutureExt;

use super::PluginFixture;
use crate::ground::mounts::MountOptions;
use crate::plugin::{Placed, VolumePlugin};

/// What is written into a volume, and must not be lost.
const TEXT: &str = "written by a container";

/// Checks one promise on a plugin of its own; `make` answers nothing where there is none.
///
/// # Panics
/// If the promise is broken.
pub fn check_plugin<P: VolumePlugin>(
    make: impl AsyncFnOnce() -> Option<(P, PluginFixture)>,
    promise: impl AsyncFnOnce(&dyn VolumePlugin, &PluginFixture),
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    runtime.block_on(async {
        if let Some((plugin, fixture)) = make().await {
            assert!(plugin.takes(&fixture.spec()), "the volume is of another type");
            promise(&plugin, &fixture).await;
        }
    });
}

/// Its name has one slash at most, no `~`, and stays what it is.
///
/// # Panics
/// If the promise is broken.
pub async fn its_name_names_a_folder(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    let name = plugin.name().to_owned();
    let slashes = name.matches('/').count();
    assert!(slashes <= 1 && !name.contains('~'), "{name:?} is no name of a plugin");
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    assert!(name.split('/').all(is_part), "{name:?} is no name of a plugin");
    fixture.set_up(plugin, None).await;
    assert_eq!(plugin.name(), name, "the name after set_up");
    fixture.tear_down(plugin).await;
    assert_eq!(plugin.name(), name, "the name after tear_down");
}

/// `set_up` may be repeated, also after a crash in the middle of it, and loses nothing that was written into the volume.
///
/// # Panics
/// If the promise is broken.
pub async fn setting_up_again_loses_nothing(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    // As a crash may have left it: the one folder is there and the other is not.
    let is_elsewhere = plugin.features().is_elsewhere;
    for folder in [fixture.dir(plugin), fixture.scratch(plugin)] {
        if !is_elsewhere && fixture.mode_is_files() {
            fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            fixture.set_up(plugin, None).await;
            fixture.tear_down(plugin).await;
        }
    }
    let first = fixture.set_up(plugin, None).await;
    is_there(&first);
    let file = first.path.join("written");
    let is_written = !first.read_only && first.path.is_dir() && fs::write(&file, TEXT).is_ok();
    // In the same life, in later ones, and in one that ended in the middle of it.
    for known in [Some(&first), None, None] {
        drop_after(2, fixture.try_set_up(plugin, None).boxed_local()).await;
        let again = fixture.set_up(plugin, known).await;
        assert_eq!(again.path, first.path, "the place changed");
        is_there(&again);
        if is_written {
            let text = fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(text, TEXT, "what was written is lost");
        }
    }
    fixture.tear_down(plugin).await;
}

fn is_there(placed: &Placed) {
    assert!(placed.path.exists(), "nothing is at {}", placed.path.display());
}

/// All that it makes for a pod is in the two folders that it is given, or is mounted there.
///
/// # Panics
/// If the promise is broken.
pub async fn all_that_it_makes_is_in_its_folders(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    let before = fixture.around(plugin);
    let known = fixture.set_up(plugin, None).await;
    fixture.set_up(plugin, Some(&known)).await;
    let after = fixture.around(plugin);
    let more: Vec<_> = after.difference(&before).collect();
    assert!(more.is_empty(), "it makes {more:?}");
    let less: Vec<_> = before.difference(&after).collect();
    assert!(less.is_empty(), "it removes {less:?}");
    let folders = fixture.folders(plugin);
    let of_node = fixture.plugin_dir(plugin);
    for mount in fixture.mounted() {
        let is_inside = mount.starts_with(&of_node) || folders.iter().any(|folder| mount.starts_with(folder));
        assert!(is_inside, "it mounts at {}", mount.display());
    }
    fixture.tear_down(plugin).await;
}

/// `tear_down` leaves neither of them, and may be repeated; what is not there is no error.
///
/// # Panics
/// If the promise is broken.
pub async fn nothing_is_left_after_tear_down(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    fixture.tear_down(plugin).await;
    for _ in 0..2 {
        let placed = fixture.set_up(plugin, None).await;
        if !placed.read_only && placed.path.is_dir() && !plugin.features().is_elsewhere {
            // Whether that can be written does not matter.
            let _ = fs::create_dir(placed.path.join("folder"));
            let _ = fs::write(placed.path.join("folder/file"), TEXT);
        }
        for _ in 0..2 {
            fixture.tear_down(plugin).await;
            nothing_is_left(plugin, fixture);
        }
    }
}

fn nothing_is_left(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    let folders = fixture.folders(plugin);
    let mounted = fixture.mounted();
    for folder in &folders {
        assert!(!is_at(folder), "{} is left", folder.display());
        let inside: Vec<_> = mounted.iter().filter(|mount| mount.starts_with(folder)).collect();
        assert!(inside.is_empty(), "{inside:?} are left mounted");
    }
}

/// Be it a link that leads nowhere.
fn is_at(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// It never removes what is mounted, nor what is reached through a link.
///
/// # Panics
/// If the promise is broken.
pub async fn what_is_mounted_or_linked_stays(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    if plugin.features().is_elsewhere {
        return;
    }
    let precious = fixture.root().join("precious");
    let made = fs::create_dir_all(&precious).and_then(|()| fs::write(precious.join("file"), TEXT));
    made.unwrap_or_else(|error| panic!("{}: {error}", precious.display()));
    let is_whole = |after: &str| {
        let text = fs::read_to_string(precious.join("file")).unwrap_or_default();
        assert_eq!(text, TEXT, "{} {after}", precious.display());
    };
    let dir = fixture.dir(plugin);
    // In the place of the folder itself.
    fixture.make_above(&dir);
    symlink(&precious, &dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    // Whether it removes the link or says that this is no folder does not matter.
    let _ = fixture.try_tear_down(plugin).await;
    is_whole("after tear_down of a link to it");
    let _ = fs::remove_file(&dir);
    fixture.tear_down(plugin).await;
    let placed = fixture.set_up(plugin, None).await;
    if placed.path == dir && dir.is_dir() {
        let is_linked = symlink(&precious, dir.join("link")).is_ok();
        // By whoever may.
        let inner = dir.join("inner");
        let is_mounted = fs::create_dir(&inner).is_ok()
            && fixture
                .mounter()
                .bind(&precious, &inner, &MountOptions::default())
                .is_ok();
        let gone = fixture.try_tear_down(plugin).await;
        is_whole("after tear_down of what it is linked from or mounted in");
        if is_mounted && gone.is_err() {
            let _ = fixture.mounter().unmount(&inner);
        }
        if is_linked && gone.is_err() {
            let _ = fs::remove_file(dir.join("link"));
        }
        if gone.is_err() {
            let _ = fs::remove_dir(&inner);
        }
    }
    fixture.tear_down(plugin).await;
    nothing_is_left(plugin, fixture);
    is_whole("after another tear_down");
    let _ = fs::remove_dir_all(&precious);
}

/// Work on files is done by `blocking`, so that a dropped call ends before the next begins.
///
/// # Panics
/// If the promise is broken.
pub async fn dropped_calls_end_before_others_begin(plugin: &dyn VolumePlugin, fixture: &PluginFixture) {
    for polls in 0..6 {
        drop_after(polls, fixture.try_set_up(plugin, None).boxed_local()).await;
        fixture.tear_down(plugin).await;
        nothing_is_left(plugin, fixture);
        drop_after(polls, fixture.try_set_up(plugin, None).boxed_local()).await;
        let placed = fixture.set_up(plugin, None).await;
        is_there(&placed);
        drop_after(polls, fixture.try_tear_down(plugin).boxed_local()).await;
        is_there(&fixture.set_up(plugin, None).await);
        drop_after(polls, fixture.try_tear_down(plugin).boxed_local()).await;
        fixture.tear_down(plugin).await;
        nothing_is_left(plugin, fixture);
    }
}

/// Polls a call that often, and drops it.
async fn drop_after<T>(polls: u32, mut call: impl Future<Output = T> + Unpin) {
    for _ in 0..polls {
        if (&mut call).now_or_never().is_some() {
            return;
        }
        tokio::task::yield_now().await;
    }
}
