//! What a runtime may answer badly costs no pod but the one that it is about, and that one only for as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kubelet_core::{ContainerRuntime, ContainerState, ExecRequest, Scope};
use kubelet_cri::{CriRuntime, CriSettings};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::Code;
use kubelet_testing::{CriFault, CriScript, FakeCri, Op, Rpc};

use crate::node::{Log, Node, builder, first, pod, runs};

/// Whether a container's labels are of that pod.
fn is_of(labels: &std::collections::BTreeMap<String, String>, pod: &str) -> bool {
    labels.get("io.kubernetes.pod.name").is_some_and(|name| name == pod)
}

/// A crash loop goes on in the pod `other` for as long as the answers are bad: others are not held up.
async fn others_go_on(node: &Node, agent: &crate::node::Agent) {
    let before = node.world().count(Op::StartContainer);
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert!(node.world().count(Op::StartContainer) > before);
    let all = agent.statuses();
    assert!(first(&all, "other").unwrap().restart_count >= 2, "{all:?}");
}

fn other() -> kubelet_core::k8s_openapi::api::core::v1::Pod {
    builder("other")
        .container("app", |c| c.args(["exit=1", "after=5s"]))
        .build()
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_state_stays_unknown_is_asked_to_stop_and_not_made_again() {
    // The protocol's own value, and one that nobody knows.
    for unknown in [3, 17] {
        let node = Node::new();
        let agent = node.run(vec![pod("web"), other()]).await;
        node.cri.on_answer(move |said: &mut v1::ContainerStatusResponse| {
            if let Some(status) = said.status.as_mut().filter(|status| is_of(&status.labels, "web")) {
                status.state = unknown;
            }
        });
        node.cri.on_answer(move |said: &mut v1::ListContainersResponse| {
            for container in said.containers.iter_mut().filter(|c| is_of(&c.labels, "web")) {
                container.state = unknown;
            }
        });
        others_go_on(&node, &agent).await;
        let of_web = node
            .world()
            .containers()
            .into_iter()
            .filter(|c| is_of(&c.labels, "web"));
        assert_eq!(of_web.count(), 1);
        let stops = node.world().count(Op::StopContainer);
        assert!((1..40).contains(&stops), "{stops}");
        node.cri.heal();
        // That its state was unknown may have been told as an end of its own.
        agent
            .until("web is restarted", |all| {
                runs(all, "web") && first(all, "web").is_some_and(|app| (1..=2).contains(&app.restart_count))
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_values_where_nothing_depends_on_them_hurt_nobody() {
    let node = Node::new();
    node.cri.on_answer(|said: &mut v1::ContainerStatusResponse| {
        if let Some(status) = &mut said.status {
            status.stop_signal = 999;
            status.mounts.push(v1::Mount {
                propagation: 42,
                ..v1::Mount::default()
            });
        }
    });
    node.cri.on_answer(|said: &mut v1::PodSandboxStatusResponse| {
        let options = said
            .status
            .as_mut()
            .and_then(|s| s.linux.as_mut()?.namespaces.as_mut()?.options.as_mut());
        if let Some(options) = options {
            options.pid = 77;
        }
    });
    let agent = node.run(vec![pod("web")]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(runs(&agent.statuses(), "web"));
    assert_eq!(node.world().count(Op::CreateContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_lacks_what_it_must_have_says_nothing() {
    let takes: [fn(&mut v1::ContainerStatusResponse); 5] = [
        |said| said.status = None,
        |said| said.status.as_mut().unwrap().metadata = None,
        |said| said.status.as_mut().unwrap().image = None,
        |said| said.status.as_mut().unwrap().id.clear(),
        |said| said.status.as_mut().unwrap().created_at = 0,
    ];
    for (number, take) in takes.into_iter().enumerate() {
        let node = Node::new();
        let agent = node.run(vec![pod("web"), other()]).await;
        let before = node.running();
        let (log, _guard) = Log::keep();
        node.cri.on_answer(move |said: &mut v1::ContainerStatusResponse| {
            if said.status.as_ref().is_some_and(|status| is_of(&status.labels, "web")) {
                take(said);
            }
        });
        // What makes the pod be looked at again.
        let mut changed = pod("web");
        changed
            .metadata
            .labels
            .get_or_insert_default()
            .insert("tier".to_owned(), "edge".to_owned());
        agent.pods.upsert(changed).await.unwrap();
        let id = node
            .world()
            .containers()
            .into_iter()
            .find(|c| is_of(&c.labels, "web"))
            .unwrap()
            .id;
        node.world().kill_container(&id, 3);
        others_go_on(&node, &agent).await;
        let lines = log.with("cannot inspect a pod");
        assert!(
            lines
                .iter()
                .any(|line| line.contains("uid-of-web") && line.contains("not usable")),
            "{number}: {lines:?}"
        );
        assert!(!node.running().contains_key("web/app"), "{number}");
        node.cri.heal();
        agent
            .until("web is restarted", |all| {
                runs(all, "web") && first(all, "web").is_some_and(|app| app.restart_count == 1)
            })
            .await;
        assert_ne!(node.running().get("web/app"), before.get("web/app"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_status_that_lacks_what_it_must_have_says_nothing() {
    let node = Node::new();
    let agent = node.run(vec![pod("web"), other()]).await;
    let (log, _guard) = Log::keep();
    node.cri.on_answer(|said: &mut v1::PodSandboxStatusResponse| {
        if said.status.as_ref().is_some_and(|status| is_of(&status.labels, "web")) {
            said.status = None;
        }
    });
    let id = node
        .world()
        .containers()
        .into_iter()
        .find(|c| is_of(&c.labels, "web"))
        .unwrap()
        .id;
    node.world().kill_container(&id, 3);
    others_go_on(&node, &agent).await;
    assert!(!log.with("cannot inspect a pod").is_empty());
    assert_eq!(node.world().count(Op::RunSandbox), 2);
    node.cri.heal();
    agent.until_runs("web").await;
    assert_eq!(node.world().count(Op::RunSandbox), 2);
}

#[tokio::test(start_paused = true)]
async fn answers_without_an_id_are_followed_by_a_look_and_make_nothing_twice() {
    let node = Node::new();
    let (sandbox, container) = (AtomicBool::new(true), AtomicBool::new(true));
    node.cri.on_answer(move |said: &mut v1::RunPodSandboxResponse| {
        if sandbox.swap(false, Ordering::Relaxed) {
            said.pod_sandbox_id.clear();
        }
    });
    node.cri.on_answer(move |said: &mut v1::CreateContainerResponse| {
        if container.swap(false, Ordering::Relaxed) {
            said.container_id.clear();
        }
    });
    let agent = node.run(vec![pod("web")]).await;
    assert_eq!(node.world().sandboxes().len(), 1);
    assert_eq!(node.world().containers().len(), 1);
    assert_eq!(first(&agent.statuses(), "web").unwrap().restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_status_without_conditions_is_a_runtime_that_is_not_ready() {
    let node = Node::new();
    let agent = node.run(vec![pod("web")]).await;
    node.cri.on_answer(|said: &mut v1::StatusResponse| said.status = None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    agent.pods.set(vec![pod("web"), pod("late")]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!runs(&agent.statuses(), "late"));
    assert_eq!(node.running().len(), 1);
    node.cri.heal();
    agent.until_runs("late").await;
    assert!(runs(&agent.statuses(), "web"));
}

/// A runtime with so many containers, each with an annotation of that length.
async fn with_many(count: usize, length: usize, cri: FakeCri) -> CriRuntime {
    let runtime = CriRuntime::connect_over("fake", cri.channel(), kubelet_cri::CriSettings::default()).await;
    cri.on_answer(move |said: &mut v1::ListContainersResponse| grow(&mut said.containers, count, length));
    let first = AtomicBool::new(true);
    cri.on_answer(move |said: &mut v1::StreamContainersResponse| {
        // As many in all; a piece has a tenth.
        if first.swap(false, Ordering::Relaxed) {
            grow(&mut said.containers, count / 10, length);
        }
    });
    runtime.unwrap()
}

fn grow(list: &mut Vec<v1::Container>, count: usize, length: usize) {
    let one = list[0].clone();
    for number in list.len()..count {
        let mut another = one.clone();
        another.id = format!("more-{number}");
        another.annotations.insert("note".to_owned(), "x".repeat(length));
        list.push(another);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_larger_than_four_mebibytes_is_read() {
    let node = Node::new();
    let _agent = node.run(vec![pod("web")]).await;
    let runtime = with_many(8_000, 1_000, node.cri.clone()).await;
    assert_eq!(runtime.list_containers(Scope::All).await.unwrap().len(), 8_000);
}

#[tokio::test(start_paused = true)]
async fn a_list_larger_than_a_message_may_be_is_read_in_pieces() {
    let node = Node::new();
    let _agent = node.run(vec![pod("web")]).await;
    let runtime = with_many(20_000, 1_000, node.cri.clone()).await;
    let (log, _guard) = Log::keep();
    assert_eq!(runtime.list_containers(Scope::All).await.unwrap().len(), 2_000);
    assert_eq!(log.with("read in pieces").len(), 1);
    let whole = node.cri.count(Rpc::ListContainers);
    // It is not asked for in one piece again.
    assert_eq!(runtime.list_containers(Scope::All).await.unwrap().len(), 1);
    assert_eq!(node.cri.count(Rpc::ListContainers), whole);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_too_large_for_an_old_runtime_stops_nothing() {
    let node = Node::with(|world| FakeCri::builder(world).without_logs().without_list_streams().build());
    let agent = node.run(vec![pod("web")]).await;
    let before = node.running();
    let (log, _guard) = Log::keep();
    node.cri.on_answer(|said: &mut v1::ListContainersResponse| {
        if !said.containers.is_empty() {
            grow(&mut said.containers, 20_000, 1_000);
        }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let lines = log.with("the runtime cannot be listed");
    assert!(lines.len() == 1 && lines[0].contains("too large"), "{lines:?}");
    node.cri.heal();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(node.running(), before);
    agent.until_runs("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_between_two_calls_is_made_again() {
    let node = Node::new();
    // After its list and before its status, again and again for a while.
    let (world, left) = (node.world().clone(), Arc::new(AtomicUsize::new(3)));
    node.cri.on_answer(move |said: &mut v1::ListContainersResponse| {
        let running =
            |c: &&v1::Container| c.state == i32::from(v1::ContainerState::ContainerRunning) && is_of(&c.labels, "web");
        if let Some(container) = said.containers.iter().find(running)
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
        {
            world.vanish_container(&container.id.as_str().into());
        }
    });
    let agent = node.start().await;
    agent.pods.set(vec![pod("web"), pod("other")]).await.unwrap();
    agent.static_pods.set(Vec::new()).await.unwrap();
    agent.until_runs("other").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    agent.until_runs("web").await;
    assert_eq!(node.running().len(), 2);
    assert_eq!(node.world().count(Op::RunSandbox), 2);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_between_create_and_start_is_made_again() {
    let node = Node::new();
    let (world, once) = (node.world().clone(), AtomicBool::new(true));
    node.cri.on_answer(move |said: &mut v1::CreateContainerResponse| {
        if once.swap(false, Ordering::Relaxed) {
            world.vanish_container(&said.container_id.as_str().into());
        }
    });
    let agent = node.run(vec![pod("web")]).await;
    assert!(runs(&agent.statuses(), "web"));
    assert_eq!(node.running().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn hints_for_an_unknown_pod_and_hints_that_say_nothing_hurt_nobody() {
    let node = Node::new();
    node.cri.on_event(|event| {
        let mut unknown = event.clone();
        unknown.container_id = "nobody".to_owned();
        unknown.container_event_type = 99;
        unknown.containers_statuses.clear();
        if let Some(sandbox) = &mut unknown.pod_sandbox_status {
            sandbox.labels = [("io.kubernetes.pod.uid".to_owned(), "nobody".to_owned())].into();
        }
        let nothing = v1::ContainerEventResponse::default();
        // Twice, and not in order.
        vec![unknown, event.clone(), nothing, event]
    });
    let agent = node.run(vec![pod("web"), other()]).await;
    others_go_on(&node, &agent).await;
    assert!(runs(&agent.statuses(), "web"));
    assert_eq!(first(&agent.statuses(), "web").unwrap().restart_count, 0);
    assert_eq!(node.world().violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_events_that_stalls_or_breaks_costs_a_relist_at_most() {
    let node = Node::new();
    let agent = node.run(vec![pod("web")]).await;
    node.cri.on_event(|_| Vec::new());
    for number in 1..=3 {
        let id = node
            .world()
            .containers()
            .into_iter()
            .find(|c| c.state == ContainerState::Running)
            .unwrap()
            .id;
        node.world().kill_container(&id, 1);
        agent
            .until("restarted", |all| {
                runs(all, "web") && first(all, "web").is_some_and(|app| app.restart_count == number)
            })
            .await;
        node.world().break_streams();
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_create_timed_out_is_adopted_though_its_name_is_reserved() {
    let mut node = Node::new();
    node.settings.request_timeout = Duration::from_secs(10);
    // It is made, and nobody hears of it.
    node.cri
        .script(CriScript::next(Rpc::CreateContainer, CriFault::LostAnswer));
    node.cri
        .script(CriScript::next(Rpc::RunPodSandbox, CriFault::LostAnswer));
    let agent = node.run(vec![pod("web"), pod("other")]).await;
    assert_eq!(node.world().sandboxes().len(), 2);
    assert_eq!(node.world().containers().len(), 2);
    assert_eq!(first(&agent.statuses(), "web").unwrap().restart_count, 0);
    assert_eq!(node.world().violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_create_goes_on_after_its_timeout_is_adopted_once_it_shows() {
    let node = Node::new();
    let action = kubelet_testing::Action::Outlive {
        deadline: Duration::from_secs(10),
        late: Duration::from_secs(30),
    };
    // In between its name is reserved, and no list shows it.
    node.world()
        .script(kubelet_testing::Script::next(Op::CreateContainer, action));
    let agent = node.run(vec![pod("web"), other()]).await;
    let containers = node.world().containers();
    let of_web = containers.iter().filter(|c| is_of(&c.labels, "web"));
    assert_eq!(of_web.map(|c| c.attempt).collect::<Vec<_>>(), [0]);
    assert_eq!(first(&agent.statuses(), "web").unwrap().restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn codes_that_say_no_are_told_on_the_pod_and_tried_again() {
    let node = Node::new();
    for code in [
        Code::Internal,
        Code::InvalidArgument,
        Code::Unknown,
        Code::FailedPrecondition,
    ] {
        let fault = CriFault::Error(code, "the disk is full".to_owned());
        node.cri
            .script(CriScript::next(Rpc::CreateContainer, fault).about("uid-of-web"));
    }
    let agent = node.run(vec![pod("other")]).await;
    agent.pods.set(vec![pod("web"), pod("other")]).await.unwrap();
    agent
        .until("web says why", |all| {
            let waits = first(all, "web").and_then(|app| app.state?.waiting);
            waits.is_some_and(|waits| {
                waits
                    .message
                    .is_some_and(|message| message.contains("the disk is full"))
            })
        })
        .await;
    agent.until_runs("web").await;
    assert!(node.events.count("Failed") >= 1);
}

#[tokio::test(start_paused = true)]
async fn an_exec_that_never_ends_is_over_soon_after_its_timeout() {
    let node = Node::new();
    let _agent = node.run(vec![pod("web")]).await;
    let runtime = CriRuntime::connect_over("fake", node.cri.channel(), CriSettings::default())
        .await
        .unwrap();
    let id = node.world().containers()[0].id.clone();
    node.cri.script(CriScript::next(Rpc::ExecSync, CriFault::Hang));
    let begun = tokio::time::Instant::now();
    let request = ExecRequest::new(["true"]).with_timeout(Duration::from_secs(1));
    assert!(runtime.exec(&id, request).await.unwrap().timed_out);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(
        runtime.exec(&id, ExecRequest::new(["true"])).await.is_ok(),
        "and the next goes its way"
    );
}
