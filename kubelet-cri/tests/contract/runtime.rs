//! The contract of runtimes.

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
        .exec(ExecCommands::shell())
        // These take a runtime that can be told what to do.
        .not_shown(
            "an_uncertain_call_may_still_happen",
            "no call of a real runtime can be made late",
        )
        .not_shown(
            "no_answer_is_never_an_empty_list",
            "the suite goes on with the same containerd",
        );
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
                let (runtime, fixture) = connect(PLACE.get()?).await;
                let has_events = $version != Containerd::V1_6;
                let fixture = if has_events {
                    fixture
                } else {
                    fixture.not_shown("an_end_gives_a_hint", "containerd 1.6 has no events")
                };
                Some((runtime, fixture))
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
