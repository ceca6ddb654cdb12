//! Pulls from a private registry.

use crate::containerd::archive::OciArchive;
use crate::containerd::components::Containerd;
use crate::containerd::instance::PrivateContainerd;
use crate::containerd::processes;
use crate::containerd::registry::PrivateRegistry;

#[tokio::test]
async fn only_who_has_credentials_pulls() {
    let test = "pulls with credentials";
    let Some(registry) = PrivateRegistry::start_or_skip(test).await else {
        return;
    };
    let image = OciArchive::busybox().unwrap();
    let name = registry.push(&image, "team/busybox", "1").await.unwrap();
    assert_eq!(name, format!("{}/team/busybox:1", registry.address()));
    for version in Containerd::ALL {
        let Some(containerd) = PrivateContainerd::start_or_skip(version, test).await else {
            continue;
        };
        let pull = ["images", "pull", "--plain-http"];
        let refused = containerd
            .ctr(pull.into_iter().chain([name.as_str()]))
            .await
            .unwrap_err();
        let refused = kubelet_core::error_chain(&refused).to_string();
        assert!(
            refused.contains("401") || refused.contains("no basic auth"),
            "{refused}"
        );
        let credentials = format!("{}:{}", registry.user(), registry.password());
        containerd
            .ctr(pull.into_iter().chain(["--user", &credentials, &name]))
            .await
            .unwrap();
        containerd.stop().await.unwrap();
    }
    let folder = registry.folder().to_owned();
    assert!(!processes::of(&folder).is_empty());
    registry.stop().await.unwrap();
    assert_eq!(processes::of(&folder), [0_u32; 0]);
    assert!(!folder.exists());
}
