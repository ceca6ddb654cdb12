//! Promises about how containers come to life and end.

use kubelet_core::{ContainerRuntime, ContainerState, NETWORK_READY, RUNTIME_READY, RuntimeError, SandboxState, Scope};

use crate::contract::check::{must, skip};
use crate::contract::fixture::RuntimeFixture;
use crate::contract::runtime::bench::{Bench, LONG_GRACE};

/// Name, version, conditions and abilities; a runtime that is set up meets both conditions.
///
/// # Panics
/// If the promise is broken.
pub async fn info_has_a_name_and_is_ready(runtime: &dyn ContainerRuntime, _fixture: &RuntimeFixture) {
    let info = must("read the info", runtime.info().await);
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let named = !info.name.is_empty() && info.name.chars().all(fine);
    assert!(named, "the name {:?} cannot be part of a container id", info.name);
    assert!(!info.version.is_empty(), "there is no version");
    for kind in [RUNTIME_READY, NETWORK_READY] {
        assert_eq!(info.unmet(kind), None);
    }
}

/// A call that returned success shows in every list begun later.
///
/// # Panics
/// If the promise is broken.
pub async fn a_call_that_returned_success_shows_in_every_list_begun_later(
    runtime: &dyn ContainerRuntime,
    fixture: &RuntimeFixture,
) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    assert_eq!(
        bench.sandbox_state(&pod, &sandbox).await,
        Some(SandboxState::Ready),
        "after run_sandbox"
    );
    let id = bench.create(&pod, &sandbox, "app", &fixture.forever).await;
    assert_eq!(
        bench.state(&pod, &id).await,
        Some(ContainerState::Created),
        "after create_container"
    );
    must("start a container", runtime.start_container(&id).await);
    assert_eq!(
        bench.state(&pod, &id).await,
        Some(ContainerState::Running),
        "after start_container"
    );
    let all = must("list containers", runtime.list_containers(Scope::All).await);
    assert!(
        all.iter().any(|c| c.id == id),
        "a running container is not in the list of all"
    );
    bench.stop_soon(&id, LONG_GRACE).await;
    assert_eq!(
        bench.state(&pod, &id).await,
        Some(ContainerState::Exited),
        "after stop_container"
    );
    must("remove a container", runtime.remove_container(&id).await);
    assert_eq!(bench.state(&pod, &id).await, None, "after remove_container");
    must("stop a sandbox", runtime.stop_sandbox(&sandbox).await);
    assert_ne!(
        bench.sandbox_state(&pod, &sandbox).await,
        Some(SandboxState::Ready),
        "after stop_sandbox"
    );
    must("remove a sandbox", runtime.remove_sandbox(&sandbox).await);
    assert_eq!(bench.sandbox_state(&pod, &sandbox).await, None, "after remove_sandbox");
}

/// Containers are created in a sandbox that is ready: in another one they never run.
///
/// # Panics
/// If the promise is broken.
pub async fn containers_are_created_in_a_sandbox_that_is_ready(
    runtime: &dyn ContainerRuntime,
    fixture: &RuntimeFixture,
) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    must("stop a sandbox", runtime.stop_sandbox(&sandbox).await);
    // Some runtimes look at the sandbox only when the container is started.
    if let Ok(id) = bench.try_create(&pod, &sandbox, "app", 0, &fixture.forever).await {
        let started = runtime.start_container(&id).await;
        assert!(started.is_err(), "a container was started in a sandbox that is stopped");
    }
    let running = bench
        .containers(&pod)
        .await
        .iter()
        .any(|c| c.state == ContainerState::Running);
    assert!(!running, "a container runs in a sandbox that is stopped");
}

/// A container starts at most once: it is created anew to run again.
///
/// # Panics
/// If the promise is broken.
pub async fn a_container_starts_at_most_once(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox, id) = bench.running(&(fixture.exits)(0)).await;
    bench.until_exited(&pod, &id).await;
    let again = runtime.start_container(&id).await;
    assert!(again.is_err(), "an exited container was started again");
    assert_eq!(
        bench.state(&pod, &id).await,
        Some(ContainerState::Exited),
        "after a second start"
    );
    let next = must(
        "create it anew",
        bench.try_create(&pod, &sandbox, "app", 1, &fixture.forever).await,
    );
    must("start it anew", runtime.start_container(&next).await);
    assert_eq!(
        bench.state(&pod, &next).await,
        Some(ContainerState::Running),
        "the next attempt"
    );
}

/// `Refused` if it cannot be started; it is then exited, with the reason in its status.
///
/// # Panics
/// If the promise is broken.
pub async fn a_container_that_cannot_be_started_is_exited(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let Some(unstartable) = &fixture.unstartable else {
        return skip(
            "a_container_that_cannot_be_started_is_exited",
            "the fixture has no such workload",
        );
    };
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    let id = bench.create(&pod, &sandbox, "app", unstartable).await;
    let started = runtime.start_container(&id).await;
    assert!(
        matches!(started, Err(RuntimeError::Refused { .. })),
        "the start gives {started:?}"
    );
    assert_eq!(
        bench.state(&pod, &id).await,
        Some(ContainerState::Exited),
        "after a refused start"
    );
    let status = bench.status(&id).await;
    assert_ne!(status.exit_code, 0, "exit code of a container that never ran");
    let says_why = !status.reason.is_empty() && !status.message.is_empty();
    assert!(says_why, "the status says {:?}: {:?}", status.reason, status.message);
}

/// How its process ended, and when, is in its status.
///
/// # Panics
/// If the promise is broken.
pub async fn an_end_is_reported_with_its_code(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox) = bench.sandbox().await;
    for code in [0, 3] {
        let id = bench
            .start(&pod, &sandbox, &format!("exit-{code}"), &(fixture.exits)(code))
            .await;
        bench.until_exited(&pod, &id).await;
        let status = bench.status(&id).await;
        assert_eq!((status.state, status.exit_code), (ContainerState::Exited, code));
        let (Some(started), Some(finished)) = (status.started_at, status.finished_at) else {
            panic!(
                "started at {:?}, finished at {:?}",
                status.started_at, status.finished_at
            );
        };
        assert!(
            status.created_at <= started && started <= finished,
            "times are out of order: {status:?}"
        );
    }
}
