//! What commands in fake containers do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{ContainerId, ExecOutput, ExecRequest, PodUid, RuntimeError};
use tokio::time;

use crate::fake::FakeRuntime;
use crate::fake::call::{Op, Subject};
use crate::fake::command;
use crate::fake::effect::no_container;
use crate::fake::gate::Passage;
use crate::fake::journal::Happened;
use crate::fake::program::Program;
use crate::fake::world::KILLED;

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// A command that is to run in a fake container.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecCall {
    /// The container.
    pub container_id: ContainerId,
    /// Its pod.
    pub pod: PodUid,
    /// Its name.
    pub container: String,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// How a command in a fake container goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecAnswer {
    /// How long it takes.
    pub after: Duration,
    /// How it ends; a text refuses it.
    pub result: Result<ExecOutput, String>,
}

impl ExecAnswer {
    /// Ends at once with that code and no output.
    #[must_use]
    pub fn exit(code: i32) -> Self {
        Self::output(ExecOutput::new(code, "", ""))
    }

    /// Ends at once with that output.
    #[must_use]
    pub fn output(output: ExecOutput) -> Self {
        Self {
            after: Duration::ZERO,
            result: Ok(output),
        }
    }

    /// Cannot be started, for that reason.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self {
            after: Duration::ZERO,
            result: Err(reason.into()),
        }
    }

    /// How a command goes by its own words, as it does without a script.
    #[must_use]
    pub fn by_words(command: &[String]) -> Self {
        by_command(command)
    }

    /// Ends after that time.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }
}

/// Decides how a command goes.
#[derive(Clone)]
pub(crate) struct ExecScript(pub(crate) Arc<dyn Fn(&ExecCall) -> ExecAnswer + Send + Sync>);

impl fmt::Debug for ExecScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecScript")
    }
}

/// Without a script the command says itself how it goes, with the words `exit` and `after` of a [`Program`], or as one of the
/// commands that are known (`sleep 5`, `false`, `sh -c 'exit 3'`); any other succeeds at once.
fn by_command(command: &[String]) -> ExecAnswer {
    match Program::from_words(command.iter().map(String::as_str)) {
        Ok(Some(program)) => {
            let (after, code) = program.end.unwrap_or_default();
            ExecAnswer::exit(code).after(after)
        }
        Ok(None) => match command::Script::read(command) {
            Some(script) => {
                let (after, code) = script.program.end.unwrap_or((FOR_EVER, 0));
                ExecAnswer::output(ExecOutput::new(code, script.output, "")).after(after)
            }
            None => ExecAnswer::exit(0),
        },
        Err(text) => ExecAnswer::refused(text),
    }
}

impl FakeRuntime {
    pub(crate) async fn run_exec(&self, id: &ContainerId, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
        let subject = Subject {
            container_id: Some(id.clone()),
            command: req.command.clone(),
            ..Subject::default()
        };
        let command = req.command.clone();
        let mut passage = Passage::begin(self, Op::Exec, subject, None);
        let result = match req.timeout {
            // Around everything, so that it ends in time whatever the faults are.
            Some(limit) => time::timeout(limit, carry_out(&mut passage, id, req.command))
                .await
                .unwrap_or_else(|_| Ok(ExecOutput::timed_out())),
            None => carry_out(&mut passage, id, req.command).await,
        };
        let limit = req.output_limit_bytes;
        let result = result.map(|mut output| {
            output.stdout.truncate(limit);
            output.stderr.truncate(limit);
            output
        });
        if let Ok(output) = &result {
            let success = output.exit_code == 0 && !output.timed_out;
            let mut state = self.lock();
            if let Some(container) = state.world.container_number(id) {
                let ended = || Happened::Execed {
                    container,
                    command,
                    success,
                };
                state.world.journal.note(time::Instant::now(), ended);
            }
        }
        passage.finish(result)
    }
}

async fn carry_out(
    passage: &mut Passage<'_>,
    id: &ContainerId,
    command: Vec<String>,
) -> Result<ExecOutput, RuntimeError> {
    passage.wait().await;
    let (call, script) = passage.settle(|state, _, _| {
        let container = state.world.container(id).ok_or_else(|| no_container(id))?;
        if !container.is_running() {
            return Err(RuntimeError::refused(format!("container {id} does not run")));
        }
        let call = ExecCall {
            container_id: id.clone(),
            pod: container.pod.clone(),
            container: container.config.name.clone(),
            command,
        };
        Ok((call, state.exec.clone()))
    })?;
    // Outside the lock: a script may ask the fake itself.
    let answer = match script {
        Some(ExecScript(decide)) => decide(&call),
        None => by_command(&call.command),
    };
    if !answer.after.is_zero() {
        tokio::select! {
            biased;
            () = time::sleep(answer.after) => {}
            ended = passage.until_ended(id) => {
                ended?;
                // It dies with its container.
                return Ok(ExecOutput::new(KILLED, "", ""));
            }
        }
    }
    answer.result.map_err(RuntimeError::refused)
}
