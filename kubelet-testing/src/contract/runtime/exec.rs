//! Promises about commands in containers.

use std::time::Duration;

use kubelet_core::{ContainerRuntime, ExecRequest, RuntimeError};

use crate::contract::check::{must, skip, within};
use crate::contract::fixture::RuntimeFixture;
use crate::contract::runtime::bench::Bench;

/// Runs a command in a running container and collects its output; the exit code is that of the command.
///
/// # Panics
/// If the promise is broken.
pub async fn an_exec_reports_how_its_command_ended(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let Some(commands) = &fixture.exec else {
        return skip("an_exec_reports_how_its_command_ended", "the fixture has no commands");
    };
    let bench = Bench::new(runtime, fixture);
    let (_, _, id) = bench.running(&fixture.forever).await;
    for (command, code) in [(&commands.succeeds, 0), (&commands.exits_with_3, 3)] {
        let exec = runtime.exec(&id, ExecRequest::new(command.clone()));
        let output = must("exec", within("exec", fixture.patience, exec).await);
        assert!(!output.timed_out, "{command:?} timed out without a timeout");
        assert_eq!(output.exit_code, code, "exit code of {command:?}");
    }
}

/// Ends at the request's own timeout, whatever happens. A timeout is not an error.
///
/// # Panics
/// If the promise is broken.
pub async fn an_exec_ends_at_its_own_timeout(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let Some(commands) = &fixture.exec else {
        return skip("an_exec_ends_at_its_own_timeout", "the fixture has no commands");
    };
    let bench = Bench::new(runtime, fixture);
    let (_, _, id) = bench.running(&fixture.forever).await;
    let timeout = Duration::from_secs(1);
    let req = ExecRequest::new(commands.sleeps.clone()).with_timeout(timeout);
    let exec = runtime.exec(&id, req);
    let output = must(
        "exec",
        within("an exec with a timeout", timeout + fixture.patience, exec).await,
    );
    assert!(output.timed_out, "the exec ended before its time: {output:?}");
}

/// `NotFound` if the container is gone, `Refused` if it does not run.
///
/// # Panics
/// If the promise is broken.
pub async fn an_exec_where_nothing_runs_fails(runtime: &dyn ContainerRuntime, fixture: &RuntimeFixture) {
    let bench = Bench::new(runtime, fixture);
    let words = fixture
        .exec
        .as_ref()
        .map_or(vec!["true".to_owned()], |c| c.succeeds.clone());
    let (_, _, id) = bench.running(&fixture.forever).await;
    bench.stop_soon(&id, Duration::ZERO).await;
    let exec = runtime.exec(&id, ExecRequest::new(words.clone()));
    let stopped = within("exec", fixture.patience, exec).await;
    assert!(
        matches!(stopped, Err(RuntimeError::Refused { .. })),
        "an exec in a container that does not run gives {stopped:?}"
    );
    must("remove a container", runtime.remove_container(&id).await);
    let exec = runtime.exec(&id, ExecRequest::new(words));
    let gone = within("exec", fixture.patience, exec).await;
    assert!(
        matches!(gone, Err(RuntimeError::NotFound { .. })),
        "an exec in a container that is gone gives {gone:?}"
    );
}
