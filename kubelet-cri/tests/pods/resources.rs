//! What a container is given beside its spec, and whom it sees.

use kubelet_core::{
    ContainerConfig, ContainerId, ContainerResources, ContainerRuntime, CreateContainer, Device, ExecRequest, ImageRef,
    Mount, NamespaceMode, PodKey, PodUid, SandboxConfig,
};
use kubelet_cri::CriRuntime;
use kubelet_testing::{BUSYBOX_IMAGE, Containerd, FakeAllocator};
use serde_json::json;

use crate::node::{Node, container, is_running, on_both, pod, sh, with};

on_both!(a_container_has_what_it_was_given);

/// A description of one device, which changes an environment and adds a file to `/dev`.
const CDI: &str = r#"{
    "cdiVersion": "0.5.0", "kind": "test.example/thing",
    "devices": [{"name": "one", "containerEdits": {
        "env": ["THING=one"],
        "deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/null"}]
    }}]
}"#;

async fn a_container_has_what_it_was_given(node: Node) {
    let has_cdi = node.containerd.version() != Containerd::V1_6;
    let handlers = node.runtime().await.info().await.unwrap().handlers;
    let mounts_recursively = handlers
        .iter()
        .any(|handler| handler.name.is_empty() && handler.recursive_read_only_mounts);
    let allocator = FakeAllocator::default();
    let mut given = ContainerResources::default();
    given.devices.push(Device::new("/dev/given", "/dev/zero", "rw"));
    given.env.push(("GIVEN".to_owned(), "by the allocator".to_owned()));
    given.env.push(("OWN".to_owned(), "not this".to_owned()));
    given.cpuset_cpus = "0".to_owned();
    let mut mount = Mount::new("/host-dev", "/dev");
    mount.read_only = true;
    mount.recursive_read_only = mounts_recursively;
    given.mounts.push(mount);
    if has_cdi {
        std::fs::write(node.containerd.cdi_dir().join("thing.json"), CDI).unwrap();
        given.cdi_devices.push("test.example/thing=one".to_owned());
    }
    allocator.give(&PodUid::from("uid-of-given"), "app", given);

    let agent = node.start_with(|builder| builder.allocator(allocator.clone())).await;
    let script = "echo GIVEN=$GIVEN OWN=$OWN THING=$THING; stat -c '%n %F %t %T' /dev/given /dev/thing; \
                  grep Cpus_allowed_list /proc/self/status; head -c 1 /dev/given | od -An -tx1; \
                  touch /host-dev/x 2>&1; touch /host-dev/shm/x 2>&1 && rm /host-dev/shm/x && echo shm is writable; echo end";
    let app = with(
        sh("app", script),
        &json!({"env": [{"name": "OWN", "value": "of the spec"}]}),
    );
    let forever = "trap 'exit 0' TERM; sleep 4711 & wait";
    let shared = json!({"shareProcessNamespace": true, "containers": [sh("app", forever), sh("other", "sleep 4712")]});
    let pods = vec![
        pod("given", json!({"restartPolicy": "Never", "containers": [app]})),
        pod("shared", shared),
    ];
    agent.pods.set(pods).await.unwrap();
    agent
        .until("given ends", |all| {
            all.get("given")
                .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
        })
        .await;
    let text = node.log("given", "app");
    let thing = if has_cdi { "one" } else { "" };
    for expected in [
        format!("GIVEN=by the allocator OWN=of the spec THING={thing}\n"),
        "/dev/given character special file 1 5\n".to_owned(),
        "Cpus_allowed_list:\t0\n".to_owned(),
        " 00\n".to_owned(),
        "touch: /host-dev/x: Read-only file system\n".to_owned(),
    ] {
        assert!(text.contains(&expected), "no {expected:?} in {text}");
    }
    assert_eq!(
        text.contains("/dev/thing character special file 1 3\n"),
        has_cdi,
        "{text}"
    );
    assert_eq!(text.contains("shm is writable"), !mounts_recursively, "{text}");

    agent
        .until("shared runs", |all| {
            is_running(all, "shared", "app") && is_running(all, "shared", "other")
        })
        .await;
    let id = container(&agent.statuses(), "shared", "other")
        .unwrap()
        .container_id
        .clone();
    let id = id.unwrap();
    let runtime = node.runtime().await;
    let seen = processes(&runtime, &ContainerId::from(id.strip_prefix("containerd://").unwrap())).await;
    assert!(seen.contains("sleep 4711") && seen.contains("/pause"), "{seen}");
    agent.stop_with_pods(&node).await;
    sees_a_target(&node, &runtime).await;
    node.containerd.stop().await.unwrap();
}

/// What a container sees of processes.
async fn processes(runtime: &CriRuntime, id: &ContainerId) -> String {
    let output = runtime.exec(id, ExecRequest::new(["ps"])).await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A container with another one for a target is in that one's process namespace, in which neither its sandbox is nor it
/// would be by itself.
async fn sees_a_target(node: &Node, runtime: &CriRuntime) {
    let mut sandbox = SandboxConfig::new(PodUid::from("by-hand"), PodKey::new("default", "by-hand"), 0);
    sandbox.log_directory = node.root_dir().join("by-hand");
    sandbox.security.namespaces.pid = NamespaceMode::Container;
    let sandbox_id = runtime.run_sandbox(&sandbox, "").await.unwrap();
    let start = async |name: &str, target: Option<&ContainerId>| {
        let mut config = ContainerConfig::new(name, 0, ImageRef::new(BUSYBOX_IMAGE));
        config.command = ["/bin/sleep", "4713"].map(str::to_owned).to_vec();
        config.log_path = format!("{name}.log").into();
        config.security.namespaces.pid = match target {
            None => NamespaceMode::Container,
            Some(_) => NamespaceMode::Target,
        };
        config.security.pid_target = target.cloned();
        let request = CreateContainer::new(&sandbox_id, &sandbox, &config);
        let id = runtime.create_container(request).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        id
    };
    let app = start("app", None).await;
    let debugger = start("debugger", Some(&app)).await;
    let alone = start("alone", None).await;
    for (id, count) in [(&debugger, 2), (&alone, 1)] {
        let seen = processes(runtime, id).await;
        assert_eq!(seen.matches("sleep 4713").count(), count, "{seen}");
        assert!(!seen.contains("/pause"), "{seen}");
    }
    // The debugger dies with its target, also just while it is asked to stop itself, which may be told as a failure.
    if runtime.stop_sandbox(&sandbox_id).await.is_err() {
        runtime.stop_sandbox(&sandbox_id).await.unwrap();
    }
    runtime.remove_sandbox(&sandbox_id).await.unwrap();
}
