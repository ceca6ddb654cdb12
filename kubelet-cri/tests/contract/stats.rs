//! The contract of those who measure.

use kubelet_core::ContainerRuntime;
use kubelet_cri::CriRuntime;
use kubelet_testing::contract::{RuntimeFixture, StatsFixture, Workload};
use kubelet_testing::{BUSYBOX_IMAGE, Containerd, PrivateContainerd};

use crate::usage::{self, Measured};

/// One containerd for all promises: it takes seconds to come up.
fn with_containerd(version: Containerd, test: &str, check: impl FnOnce(String, Measured)) {
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let Some(containerd) = tokio.block_on(PrivateContainerd::start_or_skip(version, test)) else {
        return;
    };
    let sh = |script: &str| Workload::image(BUSYBOX_IMAGE).command(["/bin/sh", "-c", script]);
    let forever = sh("trap 'exit 0' TERM; while :; do sleep 1; done");
    let logs = containerd.folder().join("pod-logs");
    let pods = RuntimeFixture::new(logs, forever.clone(), move |_| sh("exit 0"), forever.clone());
    let (runtime, measured) = tokio.block_on(async {
        let runtime = CriRuntime::connect(&containerd.endpoint()).await.unwrap();
        let measured = usage::make(&runtime, &pods, &forever).await;
        (runtime, measured)
    });
    check(containerd.endpoint(), measured.clone());
    tokio.block_on(async {
        pods.clean_up(&runtime).await;
        runtime.stop_sandbox(&measured.unmarked.0).await.unwrap();
        runtime.remove_sandbox(&measured.unmarked.0).await.unwrap();
        containerd.stop().await.unwrap();
    });
}

macro_rules! keeps_the_contract {
    ($name:ident, $version:expr) => {
        mod $name {
            use std::sync::OnceLock;

            use super::{Containerd, CriRuntime, Measured, StatsFixture, with_containerd};

            static PLACE: OnceLock<(String, Measured)> = OnceLock::new();

            async fn make() -> Option<(CriRuntime, StatsFixture)> {
                let (endpoint, measured) = PLACE.get()?;
                Some((CriRuntime::connect(endpoint).await.unwrap(), measured.fixture()))
            }

            kubelet_testing::stats_contract!(make, fn check);

            #[test]
            fn keeps_the_contract_of_those_who_measure() {
                with_containerd($version, stringify!($name), |endpoint, measured| {
                    PLACE.set((endpoint, measured)).unwrap();
                    check();
                });
            }
        }
    };
}

keeps_the_contract!(containerd_1_6, Containerd::V1_6);
keeps_the_contract!(containerd_2, Containerd::V2);
