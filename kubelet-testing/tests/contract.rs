//! The suites hold for the fake, and name every promise that is written.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the failure")]

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, HostPathVolumeSource, Pod, Volume, VolumeDevice, VolumeMount,
};
use kubelet_core::{ContainerResources, Device, ImageRef, PodUid, RegistryAuth, VolumeContext};
use kubelet_testing::contract::{
    AllocatorFixture, CgroupFixture, ExecCommands, ImageFixture, ProviderFixture, RuntimeFixture, TokenFixture,
    Unmakeable, VolumeFixture, Workload, now,
};
use kubelet_testing::{
    Action, FakeAllocator, FakeCgroups, FakeImage, FakeProvider, FakeRuntime, FakeTokens, FakeVolumes, Op, PodBuilder,
    Script, VolumeOp,
};

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
    let private = || FakeImage::new().private("me", "hunter2");
    images.set_image("fake/a:1", private());
    images.set_image("fake/b:1", private());
    images.set_image("fake/slow:1", private().pull_latency(slow));
    images.set_image(
        "fake/missing:1",
        FakeImage::refused("fake/missing:1 is not in registry fake"),
    );
    let (down, up) = (images.clone(), images.clone());
    let image = |name: &str| ImageRef::new(name);
    let fixture = ImageFixture::new(image("fake/a:1"), image("fake/b:1"), image("fake/missing:1"))
        .auth(RegistryAuth::basic("me", "hunter2"))
        .slow(image("fake/slow:1"), slow)
        .outage(move || now(|| down.go_down()), move || now(|| up.come_up()));
    Some((images, fixture))
}

async fn provider() -> Option<(FakeProvider, ProviderFixture)> {
    let provider = FakeProvider::new();
    let (down, up, others) = (provider.clone(), provider.clone(), provider.clone());
    let fixture = ProviderFixture::new(Workload::image("fake/forever"))
        .exits(|code| Workload::image("fake/app:1").args([format!("exit={code}")]))
        .ignores_term(Workload::image("fake/ignore-term"))
        .outage(move || now(|| down.go_down()), move || now(|| up.come_up()))
        .foreign(move |pod| now(|| others.add_foreign(&pod)))
        .hints();
    Some((provider, fixture))
}

mod container_runtime {
    kubelet_testing::runtime_contract!(super::runtime);
}

mod image_service {
    kubelet_testing::image_contract!(super::images);
}

mod pod_provider {
    kubelet_testing::provider_contract!(super::provider);
}

async fn allocator() -> Option<(FakeAllocator, AllocatorFixture)> {
    let allocator = FakeAllocator::default();
    let given = [("u1", "app", "0"), ("u1", "side", "1"), ("u2", "app", "2")].map(|(pod, name, number)| {
        let mut given = ContainerResources::default();
        given.devices = vec![Device::new(format!("/dev/thing{number}"), "/dev/thing", "rw")];
        given.annotations.insert("thing".to_owned(), number.to_owned());
        allocator.give(&PodUid::from(pod), name, given.clone());
        (PodUid::from(pod), name.to_owned(), given)
    });
    let fixture = AllocatorFixture::new(given, (PodUid::from("u2"), "side".to_owned()));
    Some((allocator, fixture))
}

mod resource_allocator {
    kubelet_testing::allocator_contract!(super::allocator);
}

async fn cgroups() -> Option<(FakeCgroups, CgroupFixture)> {
    let cgroups = FakeCgroups::new();
    let (next, process, stranger, lost) = (cgroups.clone(), cgroups.clone(), cgroups.clone(), cgroups.clone());
    let fixture = CgroupFixture::new()
        .next_life(move || now(|| Arc::new(next.next_life()) as _))
        .process(move |uid| {
            let processes = process.clone();
            processes.add_process(&uid, "left");
            now(move || move || !processes.processes(&uid).is_empty())
        })
        .stranger(move || {
            stranger.add_orphan(&PodUid::from("stranger"), "another");
            now(|| PodUid::from("stranger"))
        })
        .lost(move |uid| now(|| lost.remove(&uid)));
    Some((cgroups, fixture))
}

mod pod_cgroups {
    kubelet_testing::cgroup_contract!(super::cgroups);
}

/// A pod that mounts volumes of these names, each as a whole and in part, and is given another as a device.
fn pod_with_volumes(name: &str, volumes: &[&str]) -> Pod {
    let named = |name: &str| Volume {
        name: name.to_owned(),
        ..Volume::default()
    };
    let mut all: Vec<Volume> = volumes.iter().chain(&["disk"]).map(|name| named(name)).collect();
    for volume in &mut all {
        match volume.name.as_str() {
            "config" => volume.config_map = Some(ConfigMapVolumeSource::default()),
            "host" => {
                volume.host_path = Some(HostPathVolumeSource {
                    path: "/srv/data".to_owned(),
                    type_: None,
                });
            }
            _ => {}
        }
    }
    let mount = |name: &str, part: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: format!("/{name}{part}"),
        sub_path: Some(part.to_owned()),
        ..VolumeMount::default()
    };
    let mounts = volumes
        .iter()
        .flat_map(|name| [mount(name, ""), mount(name, "part")])
        .collect();
    let device = VolumeDevice {
        name: "disk".to_owned(),
        device_path: "/dev/xvda".to_owned(),
    };
    PodBuilder::new(name)
        .container("app", |c| {
            c.with(|c| (c.volume_mounts, c.volume_devices) = (Some(mounts), Some(vec![device])))
        })
        .spec(|spec| spec.volumes = Some(all))
        .build()
}

async fn volumes() -> Option<(FakeVolumes, VolumeFixture)> {
    let volumes = FakeVolumes::new();
    volumes.hold("missing", None);
    let shared = || volumes.clone();
    let (next, exists, read, write, left, made) = (shared(), shared(), shared(), shared(), shared(), shared());
    let (mend, block, free) = (shared(), shared(), shared());
    let pods = [
        pod_with_volumes("a", &["data", "config", "host"]),
        pod_with_volumes("b", &["data"]),
    ];
    let fixture = VolumeFixture::new(VolumeContext::new("node-1", "/var/lib/kubelet"), pods)
        .next_life(move || now(|| Arc::new(next.next_life()) as _))
        .exists(move |path| now(|| exists.exists(&path)))
        .read(move |path| now(|| read.read(&path)))
        .write(move |path, text| now(|| write.write(&path, &text)))
        .left(move |uid| now(|| left.of_pod(&uid)))
        .unmakeable(Unmakeable::new(
            pod_with_volumes("c", &["data", "missing", "more"]),
            ["missing"],
            ["data", "more", "disk"],
        ))
        .made(move |uid, name| now(|| made.has(&uid, &name)))
        .mend(move || now(|| mend.release("missing")))
        .block(
            move || {
                now(|| {
                    [VolumeOp::Mount, VolumeOp::Unmount]
                        .into_iter()
                        .for_each(|op| block.hang(op))
                })
            },
            move || {
                now(|| {
                    [VolumeOp::Mount, VolumeOp::Unmount]
                        .into_iter()
                        .for_each(|op| free.let_go(op))
                })
            },
        );
    Some((volumes, fixture))
}

mod volume_manager {
    kubelet_testing::volume_contract!(super::volumes);
}

async fn tokens() -> Option<(FakeTokens, TokenFixture)> {
    let tokens = FakeTokens::new();
    tokens.add_account("default", "one", "uid-1");
    tokens.add_account("default", "other", "uid-2");
    let (reviewer, down, up) = (tokens.clone(), tokens.clone(), tokens.clone());
    let fixture = TokenFixture::new("default", ("one", "uid-1"), ("other", "uid-2"))
        .reviewed(move |token| now(|| reviewer.review(&token)))
        .outage(move || now(|| down.set_down(true)), move || now(|| up.set_down(false)));
    Some((tokens, fixture))
}

mod token_source {
    kubelet_testing::token_contract!(super::tokens);
}

/// A suite, as text: the files with its promises, of which the first has its macro, and the trait with its contract.
struct Suite {
    files: &'static [&'static str],
    /// The text with the trait, and its name; the suites of runtimes and images are older than this check.
    of: Option<(&'static str, &'static str)>,
}

const SUITES: &[Suite] = &[
    Suite {
        files: &[
            include_str!("../src/contract/runtime.rs"),
            include_str!("../src/contract/runtime/events.rs"),
            include_str!("../src/contract/runtime/exec.rs"),
            include_str!("../src/contract/runtime/identity.rs"),
            include_str!("../src/contract/runtime/life.rs"),
            include_str!("../src/contract/runtime/stopping.rs"),
        ],
        of: None,
    },
    Suite {
        files: &[include_str!("../src/contract/images.rs")],
        of: None,
    },
    Suite {
        files: &[include_str!("../src/contract/sources.rs")],
        of: Some((include_str!("../../kubelet-core/src/source.rs"), "PodSource")),
    },
    Suite {
        files: &[include_str!("../src/contract/admission.rs")],
        of: Some((include_str!("../../kubelet-core/src/admission.rs"), "AdmitHandler")),
    },
    Suite {
        files: &[include_str!("../src/contract/allocators.rs")],
        of: Some((include_str!("../../kubelet-core/src/allocator.rs"), "ResourceAllocator")),
    },
    Suite {
        files: &[include_str!("../src/contract/cgroups.rs")],
        of: Some((include_str!("../../kubelet-core/src/cgroups.rs"), "PodCgroups")),
    },
    Suite {
        files: &[include_str!("../src/contract/credentials.rs")],
        of: Some((
            include_str!("../../kubelet-core/src/images/provider.rs"),
            "CredentialProvider",
        )),
    },
    Suite {
        files: &[include_str!("../src/contract/stats.rs")],
        of: Some((include_str!("../../kubelet-core/src/stats.rs"), "StatsProvider")),
    },
    Suite {
        files: &[include_str!("../src/contract/events.rs")],
        of: Some((include_str!("../../kubelet-core/src/event.rs"), "EventSink")),
    },
    Suite {
        files: &[include_str!("../src/contract/generators.rs")],
        of: Some((
            include_str!("../../kubelet-core/src/pleg.rs"),
            "PodLifecycleEventGenerator",
        )),
    },
    Suite {
        files: &[
            include_str!("../src/contract/http.rs"),
            include_str!("../src/contract/http/answers.rs"),
            include_str!("../src/contract/http/limits.rs"),
            include_str!("../src/contract/http/proxy.rs"),
        ],
        of: Some((include_str!("../../kubelet-core/src/http.rs"), "HttpClient")),
    },
    Suite {
        files: &[
            include_str!("../src/contract/objects.rs"),
            include_str!("../src/contract/objects/reads.rs"),
            include_str!("../src/contract/objects/watches.rs"),
        ],
        of: Some((include_str!("../../kubelet-core/src/objects.rs"), "ObjectSource")),
    },
    Suite {
        files: &[
            include_str!("../src/contract/probers.rs"),
            include_str!("../src/contract/probers/answers.rs"),
            include_str!("../src/contract/probers/limits.rs"),
            include_str!("../src/contract/probers/requests.rs"),
        ],
        of: Some((include_str!("../../kubelet-core/src/probes/prober.rs"), "Prober")),
    },
    Suite {
        files: &[
            include_str!("../src/contract/providers.rs"),
            include_str!("../src/contract/providers/ends.rs"),
            include_str!("../src/contract/providers/life.rs"),
        ],
        of: Some((include_str!("../../kubelet-core/src/provider.rs"), "PodProvider")),
    },
    Suite {
        files: &[include_str!("../src/contract/status_sinks.rs")],
        of: Some((include_str!("../../kubelet-core/src/status.rs"), "StatusSink")),
    },
    Suite {
        files: &[include_str!("../src/contract/tokens.rs")],
        of: Some((include_str!("../../kubelet-core/src/tokens.rs"), "TokenSource")),
    },
    Suite {
        files: &[include_str!("../src/contract/volumes.rs")],
        of: Some((include_str!("../../kubelet-core/src/volumes.rs"), "VolumeManager")),
    },
];

/// Each promise: its name, and the paragraph that it begins with.
fn promises(suite: &Suite) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in suite.files {
        let mut docs: Vec<&str> = Vec::new();
        for line in file.lines() {
            if let Some(doc) = line.strip_prefix("///") {
                docs.push(doc);
            } else if let Some(rest) = line.strip_prefix("pub async fn ") {
                let name = rest.split('(').next().unwrap();
                let first = docs.iter().take_while(|doc| !doc.trim().is_empty());
                found.push((name.to_owned(), plain(first.copied())));
            } else if !line.starts_with("#[") {
                docs.clear();
            }
        }
    }
    found
}

/// The lines of the contract of a trait.
fn contract(text: &str, name: &str) -> Vec<String> {
    let before = text.split(&format!("\npub trait {name}:")).next().unwrap();
    let (_, section) = before.rsplit_once("/// # Contract\n").unwrap();
    let mut lines: Vec<Vec<&str>> = Vec::new();
    for doc in section.lines().map_while(|line| line.strip_prefix("///")) {
        match (doc.strip_prefix(" - "), doc.strip_prefix("   ")) {
            (Some(first), _) => lines.push(vec![first]),
            (None, Some(more)) => lines.last_mut().unwrap().push(more),
            (None, None) => break,
        }
    }
    lines.into_iter().map(plain).collect()
}

/// The words alone: how they are broken into lines and marked up does not count.
fn plain<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let text = lines
        .into_iter()
        .flat_map(str::split_whitespace)
        .collect::<Vec<_>>()
        .join(" ");
    text.chars().filter(|c| !"`[]".contains(*c)).collect()
}

#[test]
fn each_suite_runs_every_promise_that_is_written() {
    for suite in SUITES {
        let listed: Vec<&str> = suite.files[0]
            .lines()
            .skip_while(|line| !line.contains("macro_rules!"))
            .map(str::trim)
            .collect();
        for (name, _) in promises(suite) {
            let own = format!("fn {name}() {{");
            let runs = listed.iter().any(|line| *line == name || *line == own);
            assert!(runs, "{name} is in no suite");
        }
    }
}

#[test]
fn each_line_of_a_contract_is_checked_and_nothing_else_is() {
    for suite in SUITES {
        let Some((text, name)) = suite.of else { continue };
        let (lines, promises) = (contract(text, name), promises(suite));
        assert!(!lines.is_empty() && !promises.is_empty(), "{name}");
        for line in &lines {
            let checked = promises.iter().any(|(_, words)| words == line);
            assert!(checked, "no promise of the suite of {name} checks: {line}");
        }
        for (promise, words) in promises {
            assert!(
                lines.contains(&words),
                "{promise} is no line of the contract of {name}: {words}"
            );
        }
    }
}
