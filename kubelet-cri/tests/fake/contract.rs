//! The contracts of runtimes and of image services, over a real socket.

use std::time::Duration;

use kubelet_core::{ImageRef, RegistryAuth, StatsError, StatsProvider, StatsScope, StatsSnapshot, async_trait};
use kubelet_cri::CriRuntime;
use kubelet_testing::contract::{ExecCommands, ImageFixture, RuntimeFixture, StatsFixture, Workload};
use kubelet_testing::{Action, FakeCri, FakeImage, FakeRuntime, Op, Script};
use tempfile::TempDir;

use crate::usage;

/// A fake behind a socket, a client of it, and the folder of both.
async fn connect(world: FakeRuntime) -> (FakeCri, CriRuntime, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cri.sock");
    let fake = FakeCri::new(world);
    fake.listen(&socket).await.unwrap();
    let runtime = CriRuntime::connect(&format!("unix://{}", socket.display()))
        .await
        .unwrap();
    (fake, runtime, folder)
}

async fn runtime() -> Option<(CriRuntime, RuntimeFixture)> {
    let world = FakeRuntime::new();
    let (fake, runtime, folder) = connect(world.clone()).await;
    let logs = folder.path().join("logs");
    let (down, up) = (fake.clone(), (fake, folder));
    let shell = |script: &str| Workload::image("fake/busybox:1").command(["/bin/sh", "-c", script]);
    let fixture = RuntimeFixture::new(
        logs,
        shell("trap 'exit 0' TERM; while :; do sleep 1; done"),
        move |code| shell(&format!("exit {code}")),
        shell("trap '' TERM; sleep infinity"),
    )
    .unstartable(Workload::image("fake/app:1").args(["refuse-start=no such file"]))
    .exec(ExecCommands::shell())
    .patience(Duration::from_secs(10))
    .outage(
        move || {
            let fake = down.clone();
            async move { fake.go_down().await }
        },
        move || {
            // Holds the folder too: of a field alone the closure would leave the rest behind.
            let (fake, _) = &up;
            let fake = fake.clone();
            async move { fake.come_up().await.unwrap() }
        },
    )
    .next_create_outlives(move || {
        let action = Action::Outlive {
            deadline: Duration::from_millis(20),
            late: Duration::from_millis(50),
        };
        world.script(Script::next(Op::CreateContainer, action));
        std::future::ready(())
    });
    Some((runtime, fixture))
}

async fn images() -> Option<(CriRuntime, ImageFixture)> {
    let world = FakeRuntime::new();
    let slow = Duration::from_secs(1);
    let private = || FakeImage::new().private("me", "hunter2");
    world.set_image("fake/a:1", private());
    world.set_image("fake/b:1", private());
    world.set_image("fake/slow:1", private().pull_latency(slow));
    world.set_image("fake/missing:1", FakeImage::refused("fake/missing:1: not found"));
    let (fake, images, folder) = connect(world).await;
    let (down, up) = (fake.clone(), (fake, folder));
    let image = |name: &str| ImageRef::new(name);
    let fixture = ImageFixture::new(image("fake/a:1"), image("fake/b:1"), image("fake/missing:1"))
        .auth(RegistryAuth::basic("me", "hunter2"))
        .slow(image("fake/slow:1"), slow)
        .outage(
            move || {
                let fake = down.clone();
                async move { fake.go_down().await }
            },
            move || {
                // Holds the folder too: of a field alone the closure would leave the rest behind.
                let (fake, _) = &up;
                let fake = fake.clone();
                async move { fake.come_up().await.unwrap() }
            },
        );
    Some((images, fixture))
}

mod container_runtime {
    kubelet_testing::runtime_contract!(super::runtime);
}

mod image_service {
    kubelet_testing::image_contract!(super::images);
}

/// A client, and the fake behind it for as long as the client is used.
#[derive(Debug)]
struct Measures {
    runtime: CriRuntime,
    _fake: FakeCri,
    _folder: TempDir,
}

#[async_trait]
impl StatsProvider for Measures {
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
        self.runtime.collect(want).await
    }
}

async fn stats() -> Option<(Measures, StatsFixture)> {
    let (fake, runtime, folder) = connect(FakeRuntime::builder().all_images_present().build()).await;
    let forever = Workload::image("fake/forever");
    let pods = RuntimeFixture::new(
        folder.path().join("logs"),
        forever.clone(),
        |_| Workload::image("fake/app:1"),
        forever.clone(),
    );
    let measured = usage::make(&runtime, &pods, &forever).await;
    let measures = Measures {
        runtime,
        _fake: fake,
        _folder: folder,
    };
    Some((measures, measured.fixture().patience(Duration::from_secs(10))))
}

mod stats_provider {
    kubelet_testing::stats_contract!(super::stats);
}
