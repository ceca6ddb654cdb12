//! Promises about which objects there are, and which are found.

use kubelet_core::{ContainerRuntime, RuntimeError, Scope};

use crate::contract::check::{eventually, must, skip};
use crate::contract::fixture::RuntimeFixture;
use crate::contract::runtime::bench::Bench;

/// Only objects with our mark (the label `io.kubernetes.pod.uid`) are listed or touched.
///
/// A runtime may also refuse to make an object without it.
///
/// # Panics
/// If the promise is broken.
pub async fn only_objects_with_our_mark_are_listed(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (marked, sandbox) = bench.sandbox().await;
    let mut unmarked = fixture.pod();
    unmarked.sandbox.labels.clear();
    let foreign = runtime.run_sandbox(&unmarked.sandbox, &fixture.handler).await;
    if let Ok(id) = &foreign {
        fixture.note_unmarked(id.clone());
    }
    let listed = must("list sandboxes", runtime.list_sandboxes(Scope::All).await);
    assert!(
        listed.iter().any(|s| s.id == sandbox && s.pod_uid == *marked.uid()),
        "a marked sandbox is not listed"
    );
    if let Ok(id) = foreign {
        assert!(
            listed.iter().all(|s| s.id != id),
            "a sandbox without our mark is listed"
        );
    }
}

/// `Taken` means that an object of this pod, name and attempt exists: it can be found in a list.
///
/// # Panics
/// If the promise is broken.
pub async fn a_second_object_of_one_identity_is_taken_and_can_be_found(
    runtime: &dyn ContainerRuntime,
    fixture: &RuntimeFixture,
) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    let second = runtime.run_sandbox(&pod.sandbox, &fixture.handler).await;
    assert!(
        matches!(second, Err(RuntimeError::Taken { .. })),
        "a second sandbox of one attempt gives {second:?}"
    );
    let listed = must("list sandboxes", runtime.list_sandboxes(Scope::Pod(pod.uid())).await);
    let ids: Vec<_> = listed.into_iter().map(|s| s.id).collect();
    assert_eq!(
        ids,
        std::slice::from_ref(&sandbox),
        "sandboxes after a second run_sandbox"
    );

    let id = bench.create(&pod, &sandbox, "app", &fixture.forever).await;
    let second = bench.try_create(&pod, &sandbox, "app", 0, &fixture.forever).await;
    assert!(
        matches!(second, Err(RuntimeError::Taken { .. })),
        "a second container of one attempt gives {second:?}"
    );
    let found: Vec<_> = bench
        .containers(&pod)
        .await
        .into_iter()
        .map(|c| (c.id, c.name, c.attempt))
        .collect();
    assert_eq!(
        found,
        [(id, "app".to_owned(), 0)],
        "containers after a second create_container"
    );
}

/// `Uncertain` means that the call may still happen: the engine looks before it repeats. Repeating it never makes a
/// second object.
///
/// # Panics
/// If the promise is broken.
pub async fn an_uncertain_call_may_still_happen(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let Some(arrange) = &fixture.next_create_outlives else {
        return skip(
            "an_uncertain_call_may_still_happen",
            "the fixture cannot let a call outlive its deadline",
        );
    };
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    arrange(()).await;
    let first = bench.try_create(&pod, &sandbox, "app", 0, &fixture.forever).await;
    assert!(
        matches!(first, Err(RuntimeError::Uncertain { .. })),
        "a call that outlives its deadline gives {first:?}"
    );
    eventually(
        "a repeated create ends as made or taken",
        fixture.patience,
        async || match bench.try_create(&pod, &sandbox, "app", 0, &fixture.forever).await {
            Ok(_) | Err(RuntimeError::Taken { .. }) => Some(()),
            Err(RuntimeError::Busy { .. } | RuntimeError::Uncertain { .. } | RuntimeError::Unavailable { .. }) => None,
            Err(other) => panic!("a repeated create gives {other:?}"),
        },
    )
    .await;
    assert_eq!(
        bench.containers(&pod).await.len(),
        1,
        "containers after an uncertain and a repeated create"
    );
}

/// A list of one pod holds that pod's objects and no others.
///
/// # Panics
/// If the promise is broken.
pub async fn a_list_of_one_pod_holds_only_its_own(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod_a, sandbox_a) = bench.sandbox().await;
    let (pod_b, sandbox_b) = bench.sandbox().await;
    let a = bench.create(&pod_a, &sandbox_a, "app", &fixture.forever).await;
    let b = bench.create(&pod_b, &sandbox_b, "app", &fixture.forever).await;
    for (pod, sandbox, container) in [(&pod_a, &sandbox_a, &a), (&pod_b, &sandbox_b, &b)] {
        let sandboxes = must("list sandboxes", runtime.list_sandboxes(Scope::Pod(pod.uid())).await);
        let found: Vec<_> = sandboxes.iter().map(|s| (&s.id, &s.pod_uid, s.attempt)).collect();
        assert_eq!(found, [(sandbox, pod.uid(), 0)]);
        let containers = bench.containers(pod).await;
        let found: Vec<_> = containers
            .iter()
            .map(|c| (&c.id, &c.sandbox_id, &c.pod_uid, c.attempt))
            .collect();
        assert_eq!(found, [(container, sandbox, pod.uid(), 0)]);
    }
    let stranger = fixture.pod();
    assert!(
        bench.containers(&stranger).await.is_empty(),
        "a pod that was never made has containers"
    );
}

/// A status carries labels and annotations as its object was made with.
///
/// # Panics
/// If the promise is broken.
pub async fn a_status_brings_back_labels_and_annotations(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let mut pod = fixture.pod();
    pod.sandbox.labels.insert("example.com/tier".into(), "edge".into());
    // Annotations may be long and hold any text: the engine keeps JSON in them.
    let note = format!("{{\"exec\":[\"a\\n\",\"{}\"]}}", "ü".repeat(2000));
    pod.sandbox.annotations.insert("example.com/note".into(), note.clone());
    let sandbox = must(
        "run a sandbox",
        runtime.run_sandbox(&pod.sandbox, &fixture.handler).await,
    );
    let mut config = pod.container("app", 0, &fixture.forever);
    config.annotations.insert("example.com/note".into(), note);
    fixture.prepare_log(&pod, &config);
    fixture.pull(&config.image).await;
    let req = kubelet_core::CreateContainer::new(&sandbox, &pod.sandbox, &config);
    let id = must("create a container", runtime.create_container(req).await);

    let of_sandbox = must("read the status of a sandbox", runtime.sandbox_status(&sandbox).await);
    assert_eq!((&of_sandbox.pod_uid, &of_sandbox.key), (pod.uid(), &pod.sandbox.key));
    assert_eq!(of_sandbox.labels, pod.sandbox.labels, "labels of the sandbox");
    assert_eq!(
        of_sandbox.annotations, pod.sandbox.annotations,
        "annotations of the sandbox"
    );
    let of_container = bench.status(&id).await;
    assert_eq!((of_container.name.as_str(), of_container.attempt), ("app", 0));
    assert_eq!(of_container.labels, config.labels, "labels of the container");
    assert_eq!(
        of_container.annotations, config.annotations,
        "annotations of the container"
    );
}

/// The status of what is gone is `NotFound`.
///
/// # Panics
/// If the promise is broken.
pub async fn what_is_gone_is_not_found(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    let id = bench.create(&pod, &sandbox, "app", &fixture.forever).await;
    must("remove a container", runtime.remove_container(&id).await);
    must("stop a sandbox", runtime.stop_sandbox(&sandbox).await);
    must("remove a sandbox", runtime.remove_sandbox(&sandbox).await);
    let container = runtime.container_status(&id).await.map(drop);
    assert!(
        matches!(container, Err(RuntimeError::NotFound { .. })),
        "status of a removed container: {container:?}"
    );
    let gone = runtime.sandbox_status(&sandbox).await.map(drop);
    assert!(
        matches!(gone, Err(RuntimeError::NotFound { .. })),
        "status of a removed sandbox: {gone:?}"
    );
    let start = runtime.start_container(&id).await;
    assert!(start.is_err(), "a removed container was started");
}

/// `Unavailable` if there was no answer: never an empty list instead.
///
/// # Panics
/// If the promise is broken.
pub async fn no_answer_is_never_an_empty_list(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let Some((down, up)) = &fixture.outage else {
        return skip(
            "no_answer_is_never_an_empty_list",
            "the fixture cannot take the runtime away",
        );
    };
    let bench = Bench::new(runtime, fixture);
    let (pod, _, id) = bench.running(&fixture.forever).await;
    down(()).await;
    let unanswered = [
        (
            "list_sandboxes",
            runtime.list_sandboxes(Scope::All).await.map(|l| l.len()),
        ),
        (
            "list_containers",
            runtime.list_containers(Scope::All).await.map(|l| l.len()),
        ),
        (
            "list_containers of a pod",
            runtime.list_containers(Scope::Pod(pod.uid())).await.map(|l| l.len()),
        ),
        ("container_status", runtime.container_status(&id).await.map(|_| 1)),
    ];
    up(()).await;
    for (op, answer) in unanswered {
        let unavailable = matches!(answer, Err(RuntimeError::Unavailable { .. }));
        assert!(unavailable, "{op} of a runtime that is away gives {answer:?}");
    }
    eventually("the runtime answers again", fixture.patience, async || {
        runtime.list_containers(Scope::All).await.ok().map(drop)
    })
    .await;
}
