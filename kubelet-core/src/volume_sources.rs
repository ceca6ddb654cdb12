//! Which sources a volume names.

use k8s_openapi::api::core::v1::Volume;

/// The JSON names of the sources that are set, in the order upstream looks at them.
///
/// `downwarAPI` is upstream's spelling in error texts.
pub(crate) fn source_names(volume: &Volume) -> impl Iterator<Item = &'static str> {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwarAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("projected", volume.projected.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, set)| set.then_some(name))
}
