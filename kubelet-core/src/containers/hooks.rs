//! Lifecycle hooks: commands and sleeps. HTTP hooks come with the part that sends requests.

use std::time::Duration;

use k8s_openapi::api::core::v1::LifecycleHandler;

use super::ContainerSyncer;
use crate::ids::ContainerId;
use crate::runtime::ExecRequest;
use crate::syncer::StepNotes;

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("command ended with code {code}: {output}")]
    ExitCode { code: i32, output: String },
    #[error("command did not end in time")]
    TimedOut,
    #[error(transparent)]
    Runtime(#[from] crate::runtime::RuntimeError),
    #[error("hook has no handler that this node can run")]
    NoHandler,
}

/// How much of a failed hook's output its log line shows.
const SHOWN_OUTPUT: usize = 1024;

impl ContainerSyncer {
    /// Runs a hook to its end. Its caller bounds the wait by dropping it.
    ///
    /// Source: kubelet 1.36, `lifecycle/handlers.go`: the command is not expanded, and only its code counts.
    pub(super) async fn run_hook(
        &self,
        notes: &StepNotes,
        id: &ContainerId,
        hook: &LifecycleHandler,
        limit: Option<Duration>,
    ) -> Result<(), HookError> {
        if let Some(exec) = &hook.exec {
            let mut request = ExecRequest::new(exec.command.clone().unwrap_or_default());
            request.timeout = limit;
            let output = self.call_exec(notes, id, request).await?;
            if output.timed_out {
                return Err(HookError::TimedOut);
            }
            if output.exit_code != 0 {
                let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.push_str(&String::from_utf8_lossy(&output.stderr));
                let end = (0..=SHOWN_OUTPUT.min(text.len()))
                    .rev()
                    .find(|end| text.is_char_boundary(*end));
                text.truncate(end.unwrap_or(0));
                return Err(HookError::ExitCode {
                    code: output.exit_code,
                    output: text,
                });
            }
            return Ok(());
        }
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
            return Ok(());
        }
        Err(HookError::NoHandler)
    }
}
