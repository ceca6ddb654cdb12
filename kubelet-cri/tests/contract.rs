//! The contract of runtimes, on real containerds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test: a panic is the failure")]

use std::path::PathBuf;

use kubelet_cri::CriRuntime;
use kubelet_testing::contract::{ExecCommands, RuntimeFixture, Workload};
use kubelet_testing::{BUSYBOX_IMAGE, Containerd, PrivateContainerd};

/// Where a containerd is, and where its pods may log.
type Place = (String, PathBuf);

async fn connect((endpoint, logs): &Place) -> (CriRuntime, RuntimeFixture) {
    let runtime = CriRuntime::connect(endpoint).await.unwrap();
    let sh = |script: &str| Workload::image(BUSYBOX_IMAGE).command(["/bin/sh", "-c", script]);
    let forever = sh("trap 'exit 0' TERM; while :; do sleep 1; done");
    let ignores_term = sh("trap '' TERM; while :; do sleep 1; done");
    let exits = move |code: i32| sh(&format!("exit {code}"));
    let fixture = RuntimeFixture::new(logs, forever, exits, ignores_term)
        .unstartable(Workload::image(BUSYBOX_IMAGE).command(["/no/such/program"]))
        .exec(ExecCommands::shell());
    (runtime, fixture)
}

/// One containerd for all promises: it takes seconds to come up.
fn with_containerd(version: Containerd, test: &str, check: impl FnOnce(Place)) {
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let Some(containerd) = tokio.block_on(PrivateContainerd::start_or_skip(version, test)) else {
        return;
    };
    check((containerd.endpoint(), containerd.folder().join("pod-logs")));
    tokio.block_on(containerd.stop()).unwrap();
}

macro_rules! keeps_the_contract {
    ($name:ident, $version:expr) => {
        mod $name {
            use std::sync::OnceLock;

            use super::{Containerd, CriRuntime, Place, RuntimeFixture, connect, with_containerd};

            static PLACE: OnceLock<Place> = OnceLock::new();

            async fn make() -> Option<(CriRuntime, RuntimeFixture)> {
                Some(connect(PLACE.get()?).await)
            }

            kubelet_testing::runtime_contract!(make, fn check);

            #[test]
            fn keeps_the_contract_of_runtimes() {
                with_containerd($version, stringify!($name), |place| {
                    PLACE.set(place).unwrap();
                    check();
                });
            }
        }
    };
}

keeps_the_contract!(containerd_1_6, Containerd::V1_6);
keeps_the_contract!(containerd_2, Containerd::V2);
