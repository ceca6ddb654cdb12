//! For tests of volume plugins.

mod contract;
mod fixture;

pub use crate::ground::mounts::scripted::{MountCall, MountOp, ScriptedMounts};
pub use contract::{
    all_that_it_makes_is_in_its_folders, check_plugin, dropped_calls_end_before_others_begin, its_name_names_a_folder,
    nothing_is_left_after_tear_down, setting_up_again_loses_nothing, what_is_mounted_or_linked_stays,
};
pub use fixture::PluginFixture;

/// Makes one `#[test]` of each promise of [`VolumePlugin`](crate::VolumePlugin).
///
/// Takes an async function without arguments that answers `Some((plugin, fixture))` with a [`PluginFixture`], or nothing. It is
/// called once per promise. The suite runs in real time.
///
/// ```
/// # mod example {
/// use std::sync::Arc;
///
/// use kubelet_core::VolumeContext;
/// use kubelet_volume::testing::PluginFixture;
/// use kubelet_volume::{VolumePlugin, Volumes};
///
/// async fn mine() -> Option<(Arc<dyn VolumePlugin>, PluginFixture)> {
///     let pod = serde_json::from_value(serde_json::json!({
///         "metadata": {"name": "a", "namespace": "default", "uid": "uid-of-a"},
///         "spec": {
///             "containers": [{"name": "app", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
///             "volumes": [{"name": "data", "emptyDir": {}}],
///         },
///     }));
///     // One's own type of volume, and a folder of the test's own.
///     let plugin = Volumes::known_plugins().remove(0);
///     let context = VolumeContext::new("node-1", "/tmp/mine");
///     Some((plugin, PluginFixture::new(context, &pod.unwrap(), "data")))
/// }
///
/// kubelet_volume::volume_plugin_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! volume_plugin_contract {
    ($make:path) => {
        $crate::volume_plugin_contract! { $make:
            its_name_names_a_folder
            setting_up_again_loses_nothing
            all_that_it_makes_is_in_its_folders
            nothing_is_left_after_tear_down
            what_is_mounted_or_linked_stays
            dropped_calls_end_before_others_begin
        }
    };
    ($make:path: $($promise:ident)*) => { $(
        #[test]
        fn $promise() {
            $crate::testing::check_plugin($make, async |plugin, fixture| {
                $crate::testing::$promise(plugin, fixture).await;
            });
        }
    )* };
}
