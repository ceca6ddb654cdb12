//! The types of volumes that this crate knows.

mod config_map;
mod downward_api;
mod empty_dir;
mod group;
mod host_path;
mod local;
mod memory;
mod nested;
mod nfs;
mod payload;
mod projected;
mod secret;
mod trust;

use std::sync::Arc;

use crate::plugin::VolumePlugin;

/// All of them.
pub(crate) fn all() -> Vec<Arc<dyn VolumePlugin>> {
    vec![
        Arc::new(empty_dir::EmptyDir),
        Arc::new(host_path::HostPath),
        Arc::new(config_map::ConfigMaps),
        Arc::new(secret::Secrets),
        Arc::new(downward_api::DownwardApi),
        Arc::new(projected::Projected),
        Arc::new(local::Local),
        Arc::new(nfs::Nfs),
    ]
}
