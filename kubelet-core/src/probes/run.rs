//! One run of a probe, and what it costs at most.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, timeout_at};

use super::prober::{ProbeOutcome, Prober};
use super::state::{Run, RunEnd};
use super::target::Target;
use crate::backoff::go_duration;
use crate::error::error_chain;
use crate::ids::ContainerId;
use crate::runtime::{ContainerRuntime, ExecOutput, ExecRequest};

/// How much of what a command writes is shown, in bytes. Source: kubelet 1.36, `probe/exec/exec.go`.
const OUTPUT_LIMIT: usize = 10 << 10;

/// How often a run is tried that nobody can tell the outcome of. Source: kubelet 1.36, `prober/prober.go`.
const TRIES: u32 = 3;

/// Who carries out probes.
#[derive(Clone, Debug)]
pub(super) struct Hands {
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) prober: Option<Arc<dyn Prober>>,
}

impl Hands {
    /// Runs a probe to its end, all tries within its timeout. A panic is a bug, in a part that somebody else wrote; it must cost
    /// no other probe anything.
    pub(super) async fn carry_out(&self, run: &Run) -> RunEnd {
        let work = AssertUnwindSafe(self.try_out(run)).catch_unwind();
        tokio::select! {
            biased;
            () = run.cut.cancelled() => RunEnd::Cut,
            outcome = work => RunEnd::Done(outcome.unwrap_or_else(|_| {
                tracing::error!(container = %run.container, kind = %run.kind, "a probe panicked");
                ProbeOutcome::Unknown("the probe panicked".to_owned())
            })),
        }
    }

    async fn try_out(&self, run: &Run) -> ProbeOutcome {
        let target = match &run.target {
            Ok(target) => target,
            Err(why) => return ProbeOutcome::Unknown(why.clone()),
        };
        let deadline = Instant::now() + run.timeout;
        let mut last = ProbeOutcome::Unknown(String::new());
        for _ in 0..TRIES {
            last = match timeout_at(deadline, self.try_once(&run.container, target, deadline)).await {
                Ok(outcome) => outcome,
                Err(_) => ProbeOutcome::Failure(timed_out(target, run.timeout)),
            };
            if !matches!(last, ProbeOutcome::Unknown(_)) {
                break;
            }
        }
        last
    }

    async fn try_once(&self, container: &ContainerId, target: &Target, deadline: Instant) -> ProbeOutcome {
        let command = match (target, &self.prober) {
            (Target::Exec(command), _) => command,
            (Target::Network(target), Some(prober)) => return prober.probe(target).await,
            (Target::Network(_), None) => {
                return ProbeOutcome::Unknown("this node has no prober (kubelet-probe)".to_owned());
            }
        };
        let limit = deadline.saturating_duration_since(Instant::now());
        let mut request = ExecRequest::new(command).with_timeout(limit);
        request.output_limit_bytes = OUTPUT_LIMIT;
        match self.runtime.exec(container, request).await {
            // Told with the whole timeout, as by whoever waits for it.
            Ok(output) if output.timed_out => std::future::pending().await,
            Ok(output) if output.exit_code == 0 => ProbeOutcome::success(),
            Ok(output) => ProbeOutcome::Failure(text_of(&output)),
            Err(error) => ProbeOutcome::Unknown(error_chain(&error)),
        }
    }
}

fn timed_out(target: &Target, timeout: Duration) -> String {
    let after = go_duration(timeout);
    match target {
        Target::Exec(command) => {
            let command = command.join(" ");
            format!("command timed out: {command:?} timed out after {after}")
        }
        Target::Network(_) => format!("no answer within {after}"),
    }
}

/// What a command wrote, cut to the limit.
fn text_of(output: &ExecOutput) -> String {
    let mut bytes = output.stdout.to_vec();
    bytes.extend_from_slice(&output.stderr);
    bytes.truncate(OUTPUT_LIMIT);
    String::from_utf8_lossy(&bytes).into_owned()
}
