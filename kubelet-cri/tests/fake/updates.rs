//! Other limits for containers and sandboxes, as they are sent.

use kubelet_core::{ContainerRuntime, LinuxResources, RuntimeError, SandboxId, Target};
use kubelet_cri::CriRuntime;
use kubelet_proto::tonic::Code;
use kubelet_testing::{CriFault, CriScript, FakeCri, Rpc};

use crate::node::{Node, pod};

fn limits(quota: i64, memory: i64) -> LinuxResources {
    let mut limits = LinuxResources::default();
    (limits.cpu_quota, limits.cpu_period) = (quota, 100_000);
    limits.memory_limit_bytes = memory;
    limits
}

/// A client of a fake in which a pod runs, and its sandbox.
async fn with_sandbox() -> (FakeCri, CriRuntime, SandboxId) {
    let node = Node::new();
    let agent = node.run(vec![pod("web")]).await;
    drop(agent);
    let id = node.world().sandboxes()[0].id.clone();
    let runtime = CriRuntime::connect_over("fake", node.cri.channel(), node.settings.clone())
        .await
        .unwrap();
    (node.cri.clone(), runtime, id)
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_told_all_of_its_pod_and_what_the_pod_costs_itself() {
    let (cri, runtime, id) = with_sandbox().await;
    let (all, overhead) = (limits(200_000, 64 << 20), limits(25_000, 16 << 20));
    let target = Target::Sandbox {
        id: &id,
        overhead: Some(&overhead),
    };
    runtime.update_resources(target, &all).await.unwrap();
    let sent = cri.runtime().updated_sandbox(&id).unwrap();
    assert_eq!(sent, (all.clone(), Some(overhead)));
    let target = Target::Sandbox {
        id: &id,
        overhead: None,
    };
    runtime.update_resources(target, &all).await.unwrap();
    let (_, overhead) = cri.runtime().updated_sandbox(&id).unwrap();
    assert_eq!(overhead, Some(LinuxResources::default()), "as when it was made");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_says_in_two_ways_that_it_has_nothing_to_do_with_sandboxes() {
    let (cri, runtime, id) = with_sandbox().await;
    let target = Target::Sandbox {
        id: &id,
        overhead: None,
    };
    let to = limits(1000, 1 << 20);
    for (code, text, is_unsupported) in [
        (Code::Unimplemented, "unknown method", true),
        (Code::Unknown, "rpc: not implemented", true),
        (Code::Unknown, "no such plugin", false),
        (Code::Internal, "oops", false),
    ] {
        cri.script(CriScript::next(
            Rpc::UpdatePodSandboxResources,
            CriFault::Error(code, text.to_owned()),
        ));
        let said = runtime.update_resources(target, &to).await.unwrap_err();
        assert_eq!(
            matches!(said, RuntimeError::Unsupported { .. }),
            is_unsupported,
            "{code:?} {text}: {said:?}"
        );
    }
}
