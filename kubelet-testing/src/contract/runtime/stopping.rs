//! Promises about stopping and removing.

use std::time::Duration;

use futures::future::{join, join_all};
use kubelet_core::{ContainerId, ContainerRuntime, ContainerState, ExecRequest, SandboxState, Scope};
use tokio::time::Instant;

use crate::contract::check::{must, within};
use crate::contract::fixture::RuntimeFixture;
use crate::contract::runtime::bench::{Bench, LONG_GRACE};

/// Calls are repeated after a crash: stopping or removing what is gone succeeds.
///
/// # Panics
/// If the promise is broken.
pub async fn stopping_or_removing_what_is_gone_succeeds(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (_, sandbox, id) = bench.running(&fixture.forever).await;
    for time in ["once", "again"] {
        bench.stop_soon(&id, Duration::ZERO).await;
        must(&format!("stop a sandbox {time}"), runtime.stop_sandbox(&sandbox).await);
    }
    for time in ["once", "again"] {
        must(
            &format!("remove a container {time}"),
            runtime.remove_container(&id).await,
        );
    }
    bench.stop_soon(&id, LONG_GRACE).await;
    for time in ["once", "again"] {
        must(
            &format!("remove a sandbox {time}"),
            runtime.remove_sandbox(&sandbox).await,
        );
    }
    must("stop a sandbox that is gone", runtime.stop_sandbox(&sandbox).await);
}

/// Stops a container, killing it once `grace` has passed. Returns when it has ended.
///
/// # Panics
/// If the promise is broken.
pub async fn a_stop_kills_once_its_grace_has_passed(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, _, stubborn) = bench.running(&fixture.ignores_term).await;
    settle().await;
    let began = Instant::now();
    let grace = Duration::from_secs(1);
    let stop = runtime.stop_container(&stubborn, grace);
    must(
        "stop a container",
        within("a stop with 1 s of grace", grace + fixture.patience, stop).await,
    );
    assert!(
        began.elapsed() >= grace,
        "it was killed after {:?} of {grace:?}",
        began.elapsed()
    );
    assert_eq!(bench.state(&pod, &stubborn).await, Some(ContainerState::Exited));
    assert_eq!(
        bench.status(&stubborn).await.exit_code,
        137,
        "exit code of a killed container"
    );
}

/// Zero grace kills at once.
///
/// # Panics
/// If the promise is broken.
pub async fn a_stop_without_grace_kills_at_once(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, _, id) = bench.running(&fixture.ignores_term).await;
    bench.stop_soon(&id, Duration::ZERO).await;
    assert_eq!(bench.state(&pod, &id).await, Some(ContainerState::Exited));
    assert_eq!(
        bench.status(&id).await.exit_code,
        137,
        "exit code of a killed container"
    );
}

/// A second stop with less grace takes effect while the first still waits.
///
/// # Panics
/// If the promise is broken.
pub async fn a_second_stop_with_less_grace_takes_effect_while_the_first_still_waits(
    runtime: &dyn ContainerRuntime,
    fixture: &RuntimeFixture,
) {
    let bench = Bench::new(runtime, fixture);
    let (pod, _, id) = bench.running(&fixture.ignores_term).await;
    settle().await;
    let first = runtime.stop_container(&id, LONG_GRACE);
    let second = async {
        // Late enough for the first to have asked.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(
            bench.state(&pod, &id).await,
            Some(ContainerState::Running),
            "before the second stop"
        );
        runtime.stop_container(&id, Duration::ZERO).await
    };
    let (first, second) = within("both stops", fixture.patience, join(first, second)).await;
    must("the second stop", second);
    must("the first stop", first);
    assert_eq!(bench.state(&pod, &id).await, Some(ContainerState::Exited));
}

/// Stopping a sandbox kills what still runs in it.
///
/// # Panics
/// If the promise is broken.
pub async fn stopping_a_sandbox_kills_what_still_runs_in_it(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox, stubborn) = bench.running(&fixture.ignores_term).await;
    let other = bench.start(&pod, &sandbox, "other", &fixture.forever).await;
    let stop = runtime.stop_sandbox(&sandbox);
    must("stop a sandbox", within("stop a sandbox", fixture.patience, stop).await);
    assert_ne!(bench.sandbox_state(&pod, &sandbox).await, Some(SandboxState::Ready));
    for id in [&stubborn, &other] {
        assert_eq!(
            bench.state(&pod, id).await,
            Some(ContainerState::Exited),
            "a container of a stopped sandbox"
        );
    }
}

/// Removing a running container or sandbox stops it first.
///
/// # Panics
/// If the promise is broken.
pub async fn removing_a_running_container_or_sandbox_stops_it_first(
    runtime: &dyn ContainerRuntime,
    fixture: &RuntimeFixture,
) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox, id) = bench.running(&fixture.ignores_term).await;
    let other = bench.start(&pod, &sandbox, "other", &fixture.ignores_term).await;
    let remove = runtime.remove_container(&id);
    must(
        "remove a running container",
        within("remove a running container", fixture.patience, remove).await,
    );
    assert_eq!(bench.state(&pod, &id).await, None);
    assert_eq!(
        bench.state(&pod, &other).await,
        Some(ContainerState::Running),
        "another container of the pod"
    );
    let remove = runtime.remove_sandbox(&sandbox);
    must(
        "remove a running sandbox",
        within("remove a running sandbox", fixture.patience, remove).await,
    );
    assert_eq!(bench.sandbox_state(&pod, &sandbox).await, None);
    assert!(
        bench.containers(&pod).await.is_empty(),
        "containers of a removed sandbox"
    );
}

/// The logs of a container are kept when it is removed. (Holds trivially for one that wrote none.)
///
/// # Panics
/// If the promise is broken.
pub async fn logs_outlive_their_container(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, _, id) = bench.running(&(fixture.exits)(0)).await;
    bench.until_exited(&pod, &id).await;
    let log = bench.status(&id).await.log_path;
    let written = log.filter(|path| path.exists());
    must("remove a container", runtime.remove_container(&id).await);
    if let Some(path) = written {
        assert!(path.exists(), "the log {} went with its container", path.display());
    }
}

/// Reads, exec and stop may overlap anything.
///
/// # Panics
/// If the promise is broken.
pub async fn reads_exec_and_stop_may_overlap_anything(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let (pod, sandbox, id) = bench.running(&fixture.ignores_term).await;
    settle().await;
    let stop = runtime.stop_container(&id, LONG_GRACE);
    let meanwhile = async {
        let reads = join_all((0..10).map(|_| read_everything(runtime, bench, &id)));
        within("reads during a stop", fixture.patience, reads).await;
        let sleep = fixture.exec.as_ref().map(|commands| commands.sleeps.clone());
        let work = async {
            // Creating and starting another container goes on as well.
            let other = bench.start(&pod, &sandbox, "other", &fixture.forever).await;
            assert_eq!(bench.state(&pod, &other).await, Some(ContainerState::Running));
        };
        let exec = async {
            if let Some(command) = sleep {
                let req = ExecRequest::new(command).with_timeout(Duration::from_secs(1));
                must("exec during a stop", runtime.exec(&id, req).await);
            }
        };
        within("work and exec during a stop", fixture.patience, join(work, exec)).await;
        must("stop without grace", runtime.stop_container(&id, Duration::ZERO).await);
    };
    let (stopped, ()) = within("everything", fixture.patience * 3, join(stop, meanwhile)).await;
    must("stop a container", stopped);
}

async fn read_everything(runtime: &dyn ContainerRuntime, bench: Bench<'_>, id: &ContainerId) {
    must("list sandboxes", runtime.list_sandboxes(Scope::All).await);
    must("list containers", runtime.list_containers(Scope::All).await);
    must("read the info", runtime.info().await);
    assert_eq!(
        bench.status(id).await.state,
        ContainerState::Running,
        "a container that takes no notice of a stop"
    );
}

/// Gives a process that was just started the time to ignore the signal that asks it to stop. Nothing tells when it does.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}
