//! What keeps a sandbox from being made, beside the runtime.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{Pod, PodSecurityContext, Sysctl};
use kubelet_core::k8s_openapi::api::node::v1::RuntimeClass;
use kubelet_core::{
    ChannelSource, ContainerResources, Containers, Device, IdMapping, Kubelet, KubeletBuilder, MapObjects, Mount,
    PodUid, ResourceSettings, RuntimeHandler, RuntimeInfo, StateDir, SwapBehavior, UserNamespace,
    UserNamespaceSettings,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeAllocator, FakeRuntime, PodBuilder};
use tokio::time::sleep;

use super::harness::Node;
use super::life::fake;

fn class(name: &str, handler: &str) -> RuntimeClass {
    let mut class = RuntimeClass::default();
    class.metadata.name = Some(name.to_owned());
    class.handler = handler.to_owned();
    class
}

fn of_class(name: &str, class: Option<&str>) -> Pod {
    PodBuilder::new(name)
        .uid(name)
        .container("app", |c| c)
        .spec(|spec| spec.runtime_class_name = class.map(str::to_owned))
        .build()
}

fn handler_of(runtime: &FakeRuntime, uid: &str) -> Option<String> {
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.into_iter().find(|s| s.pod_uid.as_str() == uid)?;
    Some(sandbox.handler)
}

#[tokio::test(start_paused = true)]
async fn a_runtime_class_chooses_the_handler_once_it_exists() {
    let runtime = fake();
    let objects = MapObjects::new();
    objects.set(class("sandboxed", "kata"));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects.clone()));
    let pods = [("plain", None), ("kata", Some("sandboxed")), ("late", Some("late"))];
    let pods = pods.map(|(name, class)| of_class(name, class));
    node.pods.set(pods.to_vec()).await.unwrap();
    node.running("plain").await;
    node.running("kata").await;
    assert_eq!(handler_of(&runtime, "plain").as_deref(), Some(""));
    assert_eq!(handler_of(&runtime, "kata").as_deref(), Some("kata"));
    node.until("the pod says what it waits for", |node| {
        node.waits_for("late", "app").as_deref() == Some("CreatePodSandboxError")
    })
    .await;
    let told = node.events.messages("FailedCreatePodSandBox");
    assert!(told[0].ends_with(r#"runtimeclass "late" not found"#), "{told:?}");
    assert_eq!(node.phase("late").as_deref(), Some("Pending"));
    objects.set(class("late", "gvisor"));
    node.running("late").await;
    assert_eq!(handler_of(&runtime, "late").as_deref(), Some("gvisor"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_source_of_classes_the_pod_is_refused() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![of_class("kata", Some("sandboxed"))]).await.unwrap();
    node.until("refused", |node| node.phase("kata").as_deref() == Some("Failed"))
        .await;
    let status = node.status("kata").unwrap();
    assert_eq!(status.reason.as_deref(), Some("PartMissing"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_kernel_takes_is_told_and_the_pod_waits() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.cluster_domain("cluster.local"));
    let pod = PodBuilder::new("web")
        .uid("web")
        .container("app", |c| c)
        .spec(|spec| {
            spec.hostname = Some("h".repeat(40));
            spec.subdomain = Some("s".repeat(20));
            spec.set_hostname_as_fqdn = Some(true);
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("the pod says what it waits for", |node| {
        node.waits_for("web", "app").as_deref() == Some("CreatePodSandboxError")
    })
    .await;
    let told = node.events.messages("FailedCreatePodSandBox");
    assert!(told[0].contains("longer than 64 characters"), "{told:?}");
    sleep(Duration::from_secs(60)).await;
    assert!(runtime.sandboxes().is_empty());
    assert_eq!(node.phase("web").as_deref(), Some("Pending"));
    node.stop().await;
}

/// A runtime whose default handler gives users to pods, and whose other one does not.
fn with_users(runtime: &FakeRuntime) {
    let mut info = RuntimeInfo::new("fake", "1.0.0");
    let mut able = RuntimeHandler::new("");
    able.user_namespaces = true;
    info.handlers = vec![able, RuntimeHandler::new("kata")];
    runtime.set_info(info);
}

fn of_own_users(name: &str, class: Option<&str>) -> Pod {
    let mut pod = of_class(name, class);
    pod.spec.as_mut().unwrap().host_users = Some(false);
    pod
}

fn users_of(runtime: &FakeRuntime, uid: &str) -> Option<UserNamespace> {
    let sandboxes = runtime.sandboxes();
    let sandbox = sandboxes.into_iter().find(|s| s.pod_uid.as_str() == uid)?;
    let users = runtime.sandbox_config(&sandbox.id)?.security.user_namespace.clone();
    for container in sandbox.containers.into_iter().flatten() {
        let config = runtime.container_config(&container.id)?;
        assert_eq!(
            config.security.user_namespace, users,
            "the container is in the sandbox's"
        );
        assert!(!config.mounts.is_empty());
        for mount in &config.mounts {
            assert_eq!(mount.id_mappings, users, "its files are too: {mount:?}");
        }
    }
    users
}

#[tokio::test(start_paused = true)]
async fn pods_of_their_own_users_share_none_and_give_them_back() {
    let runtime = fake();
    with_users(&runtime);
    let node = Node::start(&runtime, StateDir::in_memory());
    let pods = vec![of_own_users("a", None), of_own_users("b", None), of_class("host", None)];
    node.pods.set(pods.clone()).await.unwrap();
    for name in ["a", "b", "host"] {
        node.running(name).await;
    }
    let block = |host| Some(UserNamespace::of_block(IdMapping::new(host, 0, 65_536)));
    let mut both = [users_of(&runtime, "a"), users_of(&runtime, "b")];
    both.sort_by_key(|users| users.as_ref().unwrap().uids[0].host_id);
    assert_eq!(both, [block(65_536), block(131_072)]);
    assert_eq!(users_of(&runtime, "host"), None);
    let freed = users_of(&runtime, "a");
    node.pods.set(pods[1..].to_vec()).await.unwrap();
    node.until("a has gone", |node| node.named("a").is_none()).await;
    node.pods
        .set(vec![pods[1].clone(), of_own_users("c", None)])
        .await
        .unwrap();
    node.running("c").await;
    assert_eq!(users_of(&runtime, "c"), freed);
    assert!(runtime.violations().is_empty(), "{:?}", runtime.violations());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_user_namespaces_runs_no_pod_as_the_hosts_users() {
    let runtime = fake();
    let objects = MapObjects::new();
    objects.set(class("sandboxed", "kata"));
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.objects(objects.clone()));
    node.pods
        .set(vec![
            of_own_users("plain", None),
            of_own_users("kata", Some("sandboxed")),
        ])
        .await
        .unwrap();
    for (pod, words) in [("plain", "default handler"), ("kata", r#"handler "kata""#)] {
        node.until("refused", |node| {
            let waits = node.container(pod, "app").and_then(|c| c.state?.waiting);
            waits.is_some_and(|waits| {
                waits.reason.as_deref() == Some("CreatePodSandboxError") && waits.message.unwrap().contains(words)
            })
        })
        .await;
    }
    assert!(runtime.sandboxes().is_empty());
    // The runtime was updated.
    with_users(&runtime);
    node.running("plain").await;
    assert!(users_of(&runtime, "plain").is_some());
    assert!(users_of(&runtime, "kata").is_none());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn strict_groups_are_for_runtimes_that_say_they_keep_to_them() {
    let strict = || {
        let mut pod = of_class("strict", None);
        pod.spec.as_mut().unwrap().security_context = Some(PodSecurityContext {
            supplemental_groups_policy: Some("Strict".to_owned()),
            ..PodSecurityContext::default()
        });
        pod
    };
    for keeps in [false, true] {
        let runtime = fake();
        let mut info = RuntimeInfo::new("fake", "1.0.0");
        info.supplemental_groups_policy = keeps;
        runtime.set_info(info);
        let node = Node::start(&runtime, StateDir::in_memory());
        node.pods.set(vec![strict()]).await.unwrap();
        let phase = if keeps { "Running" } else { "Failed" };
        node.until(phase, |node| node.phase("strict").as_deref() == Some(phase))
            .await;
        let reason = node.status("strict").unwrap().reason.clone();
        assert_eq!(
            reason.as_deref(),
            (!keeps).then_some("SupplementalGroupsPolicyNotSupported")
        );
        assert_eq!(runtime.sandboxes().is_empty(), !keeps);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn sysctls_beyond_the_safe_ones_need_leave() {
    let runtime = fake();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| {
        b.allowed_unsafe_sysctls(["net/core/*"])
    });
    let with = |name: &str, sysctl: &str| {
        let mut pod = of_class(name, None);
        let sysctl = Sysctl {
            name: sysctl.to_owned(),
            value: "1".to_owned(),
        };
        pod.spec.as_mut().unwrap().security_context = Some(PodSecurityContext {
            sysctls: Some(vec![sysctl]),
            ..PodSecurityContext::default()
        });
        pod
    };
    node.pods
        .set(vec![with("good", "net/core/somaxconn"), with("bad", "kernel.msgmax")])
        .await
        .unwrap();
    node.running("good").await;
    let sandbox = runtime.sandboxes().remove(0);
    let config = runtime.sandbox_config(&sandbox.id).unwrap();
    assert_eq!(config.sysctls["net.core.somaxconn"], "1");
    node.until("refused", |node| node.phase("bad").as_deref() == Some("Failed"))
        .await;
    assert_eq!(node.status("bad").unwrap().reason.as_deref(), Some("SysctlForbidden"));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_is_made_with_what_it_was_given() {
    let runtime = fake();
    let allocator = FakeAllocator::default();
    let mut given = ContainerResources::default();
    given.devices.push(Device::new("/dev/a", "/dev/b", "r"));
    given.cdi_devices.push("vendor.example/class=one".to_owned());
    given.mounts.push(Mount::new("/given", "/from"));
    given.env = vec![("GIVEN".into(), "1".into()), ("OWN".into(), "theirs".into())];
    given.annotations = [("given".to_owned(), "yes".to_owned())].into();
    given
        .annotations
        .insert("io.kubernetes.container.restartCount".to_owned(), "77".to_owned());
    given.cpuset_cpus = "2-3".to_owned();
    given.cpuset_mems = "0".to_owned();
    given.exclusive_cpus = true;
    allocator.give(&PodUid::from("web"), "app", given);
    let node = Node::start_with(&runtime, StateDir::in_memory(), |b| b.allocator(allocator.clone()));
    let pod = PodBuilder::new("web")
        .uid("web")
        .container("app", |c| c.env("OWN", "mine").limit("cpu", "2").args(["$(GIVEN)"]))
        .container("other", |c| c.limit("cpu", "1"))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("web").await;
    let sandbox = runtime.sandboxes().remove(0);
    assert_eq!(runtime.sandbox_config(&sandbox.id).unwrap().resources.cpu_quota, -1);
    let configs = sandbox.containers.unwrap();
    let configs = configs.iter().map(|c| runtime.container_config(&c.id).unwrap());
    let (app, other): (Vec<_>, Vec<_>) = configs.partition(|config| config.name == "app");
    let (app, other) = (&app[0], &other[0]);
    assert_eq!(app.devices, [Device::new("/dev/a", "/dev/b", "r")]);
    assert_eq!(app.cdi_devices, ["vendor.example/class=one"]);
    assert_eq!(app.mounts[0], Mount::new("/given", "/from"));
    let env: Vec<_> = app.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(env, ["GIVEN=1", "OWN=mine"]);
    assert_eq!(app.args, ["1"]);
    assert_eq!(app.annotations["given"], "yes");
    assert_eq!(app.annotations["io.kubernetes.container.restartCount"], "0");
    assert_eq!(
        (app.resources.cpuset_cpus.as_str(), app.resources.cpuset_mems.as_str()),
        ("2-3", "0")
    );
    assert_eq!((app.resources.cpu_quota, other.resources.cpu_quota), (-1, 100_000));
    assert!(other.devices.is_empty() && other.resources.cpuset_cpus.is_empty());
    node.stop().await;
}

#[test]
fn settings_that_cannot_be_are_named_when_the_kubelet_is_built() {
    let build = |shape: fn(KubeletBuilder) -> KubeletBuilder| {
        let (_, source) = ChannelSource::new("api");
        let containers = Containers::new(FakeRuntime::new(), GenericPleg::default());
        let builder = Kubelet::builder("node-1", containers)
            .source(source)
            .state_only(StateDir::in_memory());
        shape(builder).build().map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(build(|b| b), Ok(()));
    let refused = [
        (
            build(|b| b.allowed_unsafe_sysctls(["vm.*"])),
            r#"allowed unsafe sysctls: "vm.*" is not known to be of a pod's own namespaces alone"#,
        ),
        (
            build(|b| {
                let mut resources = ResourceSettings::default();
                resources.cpu_cfs_quota_period = Duration::from_secs(2);
                b.resources(resources)
            }),
            "CPU quota period: 2s is not from 1 ms to 1 s",
        ),
        (
            build(|b| {
                let mut users = UserNamespaceSettings::default();
                users.ids_per_pod = 1000;
                b.user_namespaces(users)
            }),
            "user namespaces: 1000 ids per pod are no multiple of 65536",
        ),
        (
            // A node that has no machine has no cgroups either.
            build(|b| {
                let mut resources = ResourceSettings::default();
                resources.swap = SwapBehavior::LimitedSwap;
                b.resources(resources)
            }),
            "swap behavior: LimitedSwap needs cgroup v2",
        ),
    ];
    for (built, expected) in refused {
        assert_eq!(built, Err(expected.to_owned()));
    }
}
