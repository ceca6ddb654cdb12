//! Fields of volumes.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, ProjectedVolumeSource, Volume};

use super::image::pull_policy;
use super::set_text;
use crate::volume_sources::source_names;

/// What files of secrets, config maps and the like may be without a mode of their own.
const FILE_MODE: i32 = 0o644;

pub(super) fn set(volume: &mut Volume) {
    // A source with a misspelt name was dropped when the manifest was read, so it ends here too.
    if source_names(volume).next().is_none() {
        volume.empty_dir.get_or_insert_default();
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        set_files(source.items.as_mut());
    }
    if let Some(source) = &mut volume.projected {
        set_projected(source);
    }
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.image {
        let policy = pull_policy(source.reference.as_deref().unwrap_or_default());
        set_text(&mut source.pull_policy, policy);
    }
    if let Some(source) = &mut volume.ephemeral
        && let Some(template) = &mut source.volume_claim_template
    {
        template.spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    }
    set_remote(volume);
}

fn set_projected(source: &mut ProjectedVolumeSource) {
    source.default_mode.get_or_insert(FILE_MODE);
    for projection in source.sources.iter_mut().flatten() {
        if let Some(downward) = &mut projection.downward_api {
            set_files(downward.items.as_mut());
        }
        if let Some(token) = &mut projection.service_account_token {
            token.expiration_seconds.get_or_insert(3600);
        }
    }
}

fn set_files(files: Option<&mut Vec<DownwardAPIVolumeFile>>) {
    for file in files.into_iter().flatten() {
        if let Some(field) = &mut file.field_ref {
            set_text(&mut field.api_version, "v1");
        }
    }
}

fn set_remote(volume: &mut Volume) {
    if let Some(source) = &mut volume.iscsi {
        set_text(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        set_text(&mut source.pool, "rbd");
        set_text(&mut source.user, "admin");
        set_text(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.azure_disk {
        let text = |text: &str| text.to_owned();
        source.caching_mode.get_or_insert_with(|| text("ReadWrite"));
        source.fs_type.get_or_insert_with(|| text("ext4"));
        source.kind.get_or_insert_with(|| text("Shared"));
        source.read_only.get_or_insert(false);
    }
    if let Some(source) = &mut volume.scale_io {
        set_text(&mut source.storage_mode, "ThinProvisioned");
        set_text(&mut source.fs_type, "xfs");
    }
}
