//! What a container sees of its config, from inside.

use serde_json::json;

use crate::node::{Node, container, on_both, pod, sh, with};

on_both!(a_container_is_confined_as_its_pod_says);

async fn a_container_is_confined_as_its_pod_says(node: Node) {
    let agent = node.start().await;
    let script = "id -u; id -g; id -G; hostname; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                  cat /proc/sys/net/ipv4/ip_local_port_range; touch /x 2>&1; cat /etc/resolv.conf; \
                  grep -v '^#' /etc/hosts; echo end";
    let app = with(
        sh("app", script),
        &json!({
            "securityContext": {
                "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}},
        }),
    );
    let refused = with(sh("app", "true"), &json!({"securityContext": {"runAsNonRoot": true}}));
    let confined = pod(
        "confined",
        json!({
            "restartPolicy": "Never",
            "hostname": "inside",
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["a.example", "b.example"]}],
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["x.example"], "options": [{"name": "ndots", "value": "2"}]},
            "securityContext": {
                "runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 2000, "supplementalGroups": [3000],
                "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 30000"}],
            },
            "containers": [app],
        }),
    );
    agent
        .pods
        .set(vec![confined, pod("refused", json!({"containers": [refused]}))])
        .await
        .unwrap();
    agent
        .until("it ends", |all| {
            all.get("confined")
                .is_some_and(|pod| pod.phase.as_deref() == Some("Succeeded"))
        })
        .await;
    let text = node.log("confined", "app");
    // The pod has none any more.
    let ip = text
        .lines()
        .find_map(|line| line.strip_suffix("\tinside"))
        .unwrap()
        .to_owned();
    assert!(node.is_address_of_pods(&ip), "{ip}");
    for expected in [
        "1000\n1001\n".to_owned(),
        "inside\n".to_owned(),
        "CapEff:\t0000000000000000\n".to_owned(),
        "CapBnd:\t0000000000000000\n".to_owned(),
        "NoNewPrivs:\t1\n".to_owned(),
        "Seccomp:\t2\n".to_owned(),
        "20000\t30000\n".to_owned(),
        "Read-only file system".to_owned(),
        "nameserver 192.0.2.53\n".to_owned(),
        "search x.example\n".to_owned(),
        "options ndots:2\n".to_owned(),
        "127.0.0.1\tlocalhost\n".to_owned(),
        "192.0.2.7\ta.example\tb.example\n".to_owned(),
    ] {
        assert!(text.contains(&expected), "no {expected:?} in {text}");
    }
    let groups = text.lines().nth(2).unwrap();
    assert!(
        ["1001", "2000", "3000"]
            .iter()
            .all(|group| groups.split(' ').any(|g| g == *group)),
        "{groups}"
    );
    agent
        .until("root is refused", |all| {
            container(all, "refused", "app").is_some_and(|app| {
                let waits = app.state.as_ref().and_then(|state| state.waiting.as_ref());
                waits.is_some_and(|waits| waits.reason.as_deref() == Some("CreateContainerConfigError"))
            })
        })
        .await;
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
