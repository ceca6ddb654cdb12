//! Runtime handlers, and what they can do.

use kubelet_core::k8s_openapi::api::node::v1::RuntimeClass;
use kubelet_core::{ContainerRuntime, MapObjects, PodUid, Scope};
use kubelet_testing::{Containerd, SECOND_HANDLER};
use serde_json::json;

use crate::node::{Node, is_running, on_both, pod, sh, waits_for};

on_both!(a_pod_is_run_by_the_handler_of_its_class_with_what_that_can_do);

fn class(name: &str, handler: &str) -> RuntimeClass {
    serde_json::from_value(json!({"metadata": {"name": name}, "handler": handler})).unwrap()
}

/// The handler of a pod's sandbox, as the runtime tells it.
async fn handler_of(node: &Node, pod: &str) -> String {
    let runtime = node.runtime().await;
    let uid = PodUid::from(format!("uid-of-{pod}"));
    let sandboxes = runtime.list_sandboxes(Scope::Pod(&uid)).await.unwrap();
    runtime.sandbox_status(&sandboxes[0].id).await.unwrap().handler
}

async fn a_pod_is_run_by_the_handler_of_its_class_with_what_that_can_do(node: Node) {
    let info = node.runtime().await.info().await.unwrap();
    let handlers = &info.handlers;
    let names: Vec<&str> = handlers.iter().map(|handler| handler.name.as_str()).collect();
    match node.containerd.version() {
        // It does not tell.
        Containerd::V1_6 => assert!(names.is_empty(), "{names:?}"),
        _ => assert_eq!(names, ["", "runc", SECOND_HANDLER]),
    }

    let objects = MapObjects::new();
    objects.set(class("second", SECOND_HANDLER));
    objects.set(class("broken", "no-such-handler"));
    let agent = node.start_with(|builder| builder.objects(objects.clone())).await;
    let forever = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
    let of_class = |class: &str| {
        pod(
            class,
            json!({"runtimeClassName": class, "containers": [sh("app", forever)]}),
        )
    };
    let script = "cat /proc/self/uid_map /proc/self/gid_map; stat -c '%n %u %g' /etc/hosts; echo end";
    let users = |name: &str, class: Option<&str>| {
        pod(
            name,
            json!({
                "hostUsers": false, "restartPolicy": "Never", "runtimeClassName": class,
                "containers": [sh("app", script)],
            }),
        )
    };
    let sysctl = pod(
        "sysctl",
        json!({
            "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]},
            "containers": [sh("app", forever)],
        }),
    );
    let groups = pod(
        "groups",
        json!({
            "restartPolicy": "Never",
            "securityContext": {"runAsUser": 1000, "supplementalGroups": [3000], "supplementalGroupsPolicy": "Strict"},
            "containers": [sh("app", "id -G")],
        }),
    );
    let pods = vec![
        of_class("second"),
        of_class("broken"),
        of_class("missing"),
        users("users", None),
        users("second-users", Some("second")),
        sysctl,
        groups,
    ];
    agent.pods.set(pods).await.unwrap();
    agent.until("second runs", |all| is_running(all, "second", "app")).await;
    assert_eq!(handler_of(&node, "second").await, SECOND_HANDLER);

    for (name, words) in [
        ("broken", "no-such-handler"),
        ("missing", r#"runtimeclass "missing" not found"#),
    ] {
        agent
            .until(name, |all| {
                waits_for(all, name, "app")
                    .is_some_and(|(reason, why)| reason == "CreatePodSandboxError" && why.contains(words))
            })
            .await;
    }
    let refused = |pod: &'static str, reason: &'static str| {
        agent.until(reason, move |all| {
            all.get(pod)
                .is_some_and(|status| status.reason.as_deref() == Some(reason))
        })
    };
    refused("sysctl", "SysctlForbidden").await;
    if info.supplemental_groups_policy {
        agent
            .until("groups ends", |all| {
                all.get("groups")
                    .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
            })
            .await;
        let text = node.log("groups", "app");
        assert!(text.split_whitespace().any(|group| group == "3000"), "{text}");
    } else {
        refused("groups", "SupplementalGroupsPolicyNotSupported").await;
    }

    for (name, handler) in [("users", ""), ("second-users", SECOND_HANDLER)] {
        let file = node.root_dir().join(format!("pods/uid-of-{name}/userns"));
        if !handlers.iter().any(|h| h.name == handler && h.user_namespaces) {
            agent
                .until(name, |all| {
                    waits_for(all, name, "app").is_some_and(|(reason, why)| {
                        reason == "CreatePodSandboxError" && why.contains("does not support user namespaces")
                    })
                })
                .await;
            assert!(!file.exists());
            continue;
        }
        agent
            .until(name, |all| {
                all.get(name)
                    .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
            })
            .await;
        let text = node.log(name, "app");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!((words[0], words[2]), ("0", "65536"), "{text}");
        let host: u32 = words[1].parse().unwrap();
        assert!(host >= 65_536 && host.is_multiple_of(65_536), "{text}");
        assert_eq!(words[3..6], words[0..3], "{text}");
        assert!(text.contains("/etc/hosts 0 0\n"), "{text}");
    }
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
