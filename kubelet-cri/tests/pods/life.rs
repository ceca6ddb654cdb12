//! Pods of every kind.

use serde_json::json;

use crate::node::{Node, container, is_running, on_both, pod, sh, with};

on_both!(pods_of_every_kind_run_and_end);

async fn pods_of_every_kind_run_and_end(node: Node) {
    let agent = node.start().await;
    let forever = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.2; done";
    let sidecar = with(sh("side", forever), &json!({"restartPolicy": "Always"}));
    let greedy = with(
        sh("app", "sleep 1; tail /dev/zero"),
        &json!({"resources": {"limits": {"memory": "20Mi"}}}),
    );
    let hooked = with(
        sh("app", forever),
        &json!({"lifecycle": {
            "postStart": {"exec": {"command": ["/bin/sh", "-c", "echo began > /tmp/hook"]}},
            "preStop": {"exec": {"command": ["/bin/sh", "-c", "echo stopping >> /dev/termination-log"]}},
        }}),
    );
    let pods = vec![
        pod(
            "web",
            json!({"initContainers": [sh("prep", "echo prepared"), sidecar], "containers": [sh("app", forever), sh("other", forever)]}),
        ),
        pod(
            "crash",
            json!({"containers": [sh("app", "echo dying > /dev/termination-log; exit 3")]}),
        ),
        pod(
            "done",
            json!({"restartPolicy": "Never", "containers": [sh("app", "echo all is well")]}),
        ),
        pod(
            "failed",
            json!({"restartPolicy": "Never", "containers": [sh("app", "exit 7")]}),
        ),
        pod("oom", json!({"restartPolicy": "Never", "containers": [greedy]})),
        pod(
            "none",
            json!({"containers": [with(sh("app", "true"), &json!({"image": "localhost/nothing:1", "imagePullPolicy": "Never"}))]}),
        ),
        pod(
            "unpullable",
            json!({"containers": [with(sh("app", "true"), &json!({"image": "127.0.0.1:9/nothing:1"}))]}),
        ),
        pod("hooked", json!({"containers": [hooked]})),
        pod("host", json!({"hostNetwork": true, "containers": [sh("app", forever)]})),
    ];
    agent.pods.set(pods).await.unwrap();

    agent
        .until("web runs", |all| {
            ["side", "app", "other"].iter().all(|name| is_running(all, "web", name))
        })
        .await;
    let all = agent.statuses();
    let web = &all["web"];
    assert!(
        web.pod_ip.as_deref().is_some_and(|ip| node.is_address_of_pods(ip)),
        "{web:?}"
    );
    let prep = container(&all, "web", "prep").unwrap();
    assert_eq!(
        prep.state
            .as_ref()
            .unwrap()
            .terminated
            .as_ref()
            .unwrap()
            .reason
            .as_deref(),
        Some("Completed")
    );
    assert!(prep.container_id.as_ref().unwrap().starts_with("containerd://"));
    assert_eq!(node.log("web", "prep"), "prepared\n");

    agent
        .until("crash restarts", |all| {
            container(all, "crash", "app").is_some_and(|app| {
                let end = app.last_state.as_ref().and_then(|last| last.terminated.as_ref());
                let waits = app.state.as_ref().and_then(|state| state.waiting.as_ref());
                app.restart_count >= 1
                    && end.is_some_and(|end| end.exit_code == 3 && end.message.as_deref() == Some("dying\n"))
                    && waits.is_some_and(|waits| waits.reason.as_deref() == Some("CrashLoopBackOff"))
            })
        })
        .await;
    for (name, phase, reason, code) in [
        ("done", "Succeeded", "Completed", 0),
        ("failed", "Failed", "Error", 7),
        ("oom", "Failed", "OOMKilled", 137),
    ] {
        agent
            .until(name, |all| {
                all.get(name).is_some_and(|pod| pod.phase.as_deref() == Some(phase))
            })
            .await;
        let all = agent.statuses();
        let end = container(&all, name, "app")
            .unwrap()
            .state
            .clone()
            .unwrap()
            .terminated
            .unwrap();
        assert_eq!((end.reason.as_deref(), end.exit_code), (Some(reason), code), "{name}");
        assert!(end.started_at.unwrap().0 <= end.finished_at.unwrap().0, "{name}");
    }
    let waits_for = |name: &'static str, reasons: &'static [&'static str]| {
        agent.until(name, move |all| {
            container(all, name, "app").is_some_and(|app| {
                let waits = app.state.as_ref().and_then(|state| state.waiting.as_ref());
                waits.is_some_and(|waits| reasons.contains(&waits.reason.as_deref().unwrap_or_default()))
            })
        })
    };
    waits_for("none", &["ErrImageNeverPull"]).await;
    waits_for("unpullable", &["ErrImagePull", "ImagePullBackOff"]).await;

    agent
        .until("hooked and host run", |all| {
            is_running(all, "hooked", "app") && is_running(all, "host", "app")
        })
        .await;
    let all = agent.statuses();
    assert_eq!(all["host"].pod_ip, all["host"].host_ip);
    assert!(node.count("Started") >= 8);

    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
