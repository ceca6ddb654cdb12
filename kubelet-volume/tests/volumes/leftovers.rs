//! What is left of pods that nobody knows.

use std::fs;

use kubelet_core::{CancellationToken, PodUid, VolumeManager, error_chain};
use kubelet_volume::{MountOptions, Mounts, SystemMounts};

use crate::harness::{Node, is_nothing, may_mount, table};

#[tokio::test]
async fn an_empty_folder_goes_a_mount_is_unmounted_and_a_file_stays() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let precious = node.root.join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("data"), "precious").unwrap();
    let volumes = node.pod_dir("orphan").join("volumes");
    for name in [
        "example.com~disk/empty",
        "example.com~disk/mounted",
        "example.com~disk/full",
        "kubernetes.io~local-volume/pv-1",
    ] {
        fs::create_dir_all(volumes.join(name)).unwrap();
    }
    fs::create_dir_all(node.pod_dir("orphan").join("plugins/example.com~disk")).unwrap();
    let mounts = SystemMounts::default();
    for name in ["example.com~disk/mounted", "kubernetes.io~local-volume/pv-1"] {
        mounts
            .bind(&precious, &volumes.join(name), &MountOptions::default())
            .unwrap();
    }
    fs::write(volumes.join("example.com~disk/full/data"), "precious").unwrap();
    let uid = PodUid::from("orphan");
    let error = node.volumes.unmount(&uid, &CancellationToken::new()).await.unwrap_err();
    let text = error_chain(&error);
    assert!(
        text.contains("example.com~disk/full") && text.contains("stays"),
        "{text}"
    );
    assert!(is_nothing(&volumes.join("example.com~disk/empty")));
    assert!(is_nothing(&volumes.join("example.com~disk/mounted")));
    assert!(is_nothing(&volumes.join("kubernetes.io~local-volume/pv-1")));
    assert!(table().below(&node.root).is_empty());
    assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "precious");
    assert_eq!(
        fs::read_to_string(volumes.join("example.com~disk/full/data")).unwrap(),
        "precious"
    );
    fs::remove_file(volumes.join("example.com~disk/full/data")).unwrap();
    node.volumes.unmount(&uid, &CancellationToken::new()).await.unwrap();
    node.nothing_is_left("orphan");
}

#[tokio::test]
async fn what_is_mounted_in_scratch_space_is_unmounted_and_never_deleted() {
    if !may_mount() {
        return;
    }
    let node = Node::start();
    let precious = node.root.join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("data"), "precious").unwrap();
    let scratch = node.pod_dir("orphan").join("volumes/kubernetes.io~empty-dir/x");
    fs::create_dir_all(scratch.join("a/b")).unwrap();
    fs::write(scratch.join("a/data"), "scratch").unwrap();
    std::os::unix::fs::symlink(&precious, scratch.join("link")).unwrap();
    // As a container leaves it that mounts something where the host sees it too.
    let mounts = SystemMounts::default();
    mounts
        .bind(&precious, &scratch.join("a/b"), &MountOptions::default())
        .unwrap();
    node.volumes
        .unmount(&PodUid::from("orphan"), &CancellationToken::new())
        .await
        .unwrap();
    node.nothing_is_left("orphan");
    assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "precious");
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_none_of_ours() {
    let node = Node::start();
    let outside = node.root.join("volumes/kubernetes.io~empty-dir/x");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(node.root.join("pods")).unwrap();
    for uid in ["..", ".", "", "a/../.."] {
        node.volumes
            .unmount(&PodUid::from(uid), &CancellationToken::new())
            .await
            .unwrap();
    }
    assert!(outside.exists());
    // A link in the place of a folder is not followed.
    fs::create_dir_all(node.pod_dir("linked")).unwrap();
    std::os::unix::fs::symlink(node.root.join("volumes"), node.pod_dir("linked").join("volumes")).unwrap();
    let gone = node
        .volumes
        .unmount(&PodUid::from("linked"), &CancellationToken::new())
        .await;
    assert!(outside.exists(), "{gone:?}");
}
