//! The suites hold for the fake, and name every promise that is written.

use std::time::Duration;

use kubelet_core::ImageRef;
use kubelet_testing::contract::{ExecCommands, ImageFixture, RuntimeFixture, Workload};
use kubelet_testing::{Action, FakeImage, FakeRuntime, Op, Script};

/// A hook that waits for nothing.
fn now(act: impl FnOnce()) -> std::future::Ready<()> {
    act();
    std::future::ready(())
}

/// The fake with everything that the suite can make use of.
async fn runtime() -> Option<(FakeRuntime, RuntimeFixture)> {
    let runtime = FakeRuntime::new();
    let (down, up, outlive) = (runtime.clone(), runtime.clone(), runtime.clone());
    let words = |word: &str| vec![word.to_owned()];
    let fixture = RuntimeFixture::new(
        std::env::temp_dir().join("kubelet-testing-contract"),
        Workload::image("fake/forever"),
        |code| Workload::image("fake/app:1").args([format!("exit={code}")]),
        Workload::image("fake/ignore-term"),
    )
    .images(runtime.clone())
    .unstartable(Workload::image("fake/app:1").args(["refuse-start=no such file"]))
    .exec(ExecCommands {
        succeeds: words("exit=0"),
        exits_with_3: words("exit=3"),
        sleeps: words("after=10m"),
    })
    .patience(Duration::from_secs(5))
    .outage(move || now(|| down.go_down()), move || now(|| up.come_up()))
    .next_create_outlives(move || {
        let action = Action::Outlive {
            deadline: Duration::from_millis(20),
            late: Duration::from_millis(50),
        };
        outlive.script(Script::next(Op::CreateContainer, action));
        std::future::ready(())
    });
    Some((runtime, fixture))
}

async fn images() -> Option<(FakeRuntime, ImageFixture)> {
    let images = FakeRuntime::new();
    let slow = Duration::from_secs(1);
    images.set_image("fake/slow:1", FakeImage::new().pull_latency(slow));
    images.set_image(
        "fake/missing:1",
        FakeImage::refused("fake/missing:1 is not in registry fake"),
    );
    let (down, up) = (images.clone(), images.clone());
    let image = |name: &str| ImageRef::new(name);
    let fixture = ImageFixture::new(image("fake/a:1"), image("fake/b:1"), image("fake/missing:1"))
        .slow(image("fake/slow:1"), slow)
        .outage(move || now(|| down.go_down()), move || now(|| up.come_up()));
    Some((images, fixture))
}

mod container_runtime {
    kubelet_testing::runtime_contract!(super::runtime);
}

mod image_service {
    kubelet_testing::image_contract!(super::images);
}

#[test]
fn each_suite_runs_every_promise_that_is_written() {
    let runtime = [
        include_str!("../src/contract/runtime/events.rs"),
        include_str!("../src/contract/runtime/exec.rs"),
        include_str!("../src/contract/runtime/identity.rs"),
        include_str!("../src/contract/runtime/life.rs"),
        include_str!("../src/contract/runtime/stopping.rs"),
    ];
    let images = [include_str!("../src/contract/images.rs")];
    let suites = [
        (&runtime[..], include_str!("../src/contract/runtime.rs")),
        (&images[..], images[0]),
    ];
    for (files, suite) in suites {
        let listed: Vec<&str> = suite
            .lines()
            .skip_while(|line| !line.contains("macro_rules!"))
            .map(str::trim)
            .collect();
        for line in files.iter().flat_map(|file| file.lines()) {
            if let Some(rest) = line.strip_prefix("pub async fn ") {
                let name = rest.split('(').next().unwrap();
                assert!(listed.contains(&name), "{name} is in no suite");
            }
        }
    }
}
