//! Lifecycle hooks: commands, HTTP requests and sleeps.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler};
use tokio::time::Instant;

use super::ContainerSyncer;
use crate::event::{Event, EventSubject, EventType};
use crate::http::HttpError;
use crate::ids::ContainerId;
use crate::pod::{ContainerView, PodRecord};
use crate::probes::http_get;
use crate::runtime::{ExecOutput, ExecRequest};
use crate::syncer::{StepContext, StepNotes};

/// A pod, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodAt<'a> {
    pub(super) pod: &'a PodRecord,
    /// Its own addresses, as they were seen.
    ips: &'a [IpAddr],
}

impl<'a> PodAt<'a> {
    pub(super) fn new(pod: &'a PodRecord, ips: &'a [IpAddr]) -> Self {
        Self { pod, ips }
    }
}

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("command ended with code {code}: {output}")]
    ExitCode { code: i32, output: String },
    #[error("command did not end in time")]
    TimedOut,
    #[error(transparent)]
    Runtime(#[from] crate::runtime::RuntimeError),
    #[error("nobody can be asked: {0}")]
    Nowhere(String),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("hook has no handler that this node can run")]
    NoHandler,
}

/// How much of a failed hook's output its log line shows.
const SHOWN_OUTPUT: usize = 1024;

/// What requests say of who sends them. Source: kubelet 1.36.
const USER_AGENT: &str = "kube-lifecycle/1.36";

/// The time of a request that may take as long as it likes: its caller ends the wait. No longest time that there is, since a
/// client may add it to its clock.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

impl ContainerSyncer {
    /// Runs a hook to its end. Its caller bounds the wait by dropping it.
    ///
    /// Source: kubelet 1.36, `lifecycle/handlers.go`: a command is not expanded, and only its code counts; that there is an answer
    /// to a request, and not which.
    pub(super) async fn run_hook(
        &self,
        cx: &StepContext,
        at: PodAt<'_>,
        view: &ContainerView<'_>,
        id: &ContainerId,
        hook: &LifecycleHandler,
        limit: Option<Duration>,
    ) -> Result<(), HookError> {
        if let Some(exec) = &hook.exec {
            let mut request = ExecRequest::new(exec.command.clone().unwrap_or_default());
            request.timeout = limit;
            return ended_well(&self.call_exec(&cx.notes, id, request).await?);
        }
        if let Some(http) = &hook.http_get {
            let limit = limit.unwrap_or(NO_LIMIT);
            if let Some(place) = self.ask(&cx.notes, at, view, id, http, limit).await? {
                cx.events.record(Event::new(
                    EventSubject::pod(at.pod),
                    EventType::Warning,
                    "LifecycleHTTPFallback",
                    format!("request to HTTPS lifecycle hook {place} got HTTP response, retry with HTTP succeeded"),
                ));
            }
            return Ok(());
        }
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
            return Ok(());
        }
        Err(HookError::NoHandler)
    }

    /// Sends the request of a hook. Gives host and port if it was answered only in plain HTTP, which it was not meant for.
    async fn ask(
        &self,
        notes: &StepNotes,
        at: PodAt<'_>,
        view: &ContainerView<'_>,
        id: &ContainerId,
        http: &HTTPGetAction,
        limit: Duration,
    ) -> Result<Option<String>, HookError> {
        let client = self.node.http_client.as_deref().ok_or(HookError::NoHandler)?;
        let mut get = http_get(http, view, self.address_of(at)).map_err(HookError::Nowhere)?;
        let begun = Instant::now();
        let mut request = get.request(USER_AGENT)?;
        request.timeout = limit;
        match self.call_http(notes, id, client, request).await {
            Ok(_answer) => return Ok(None),
            Err(HttpError::PlainHttp { .. }) if get.tls => {}
            Err(error) => return Err(error.into()),
        }
        // Hooks were sent in plain HTTP whatever their scheme once, and there are pods that go by that. What is meant for TLS alone
        // does not go along.
        get.tls = false;
        get.headers
            .retain(|(name, _)| !name.eq_ignore_ascii_case("Authorization"));
        let mut request = get.request(USER_AGENT)?;
        request.timeout = limit.saturating_sub(begun.elapsed());
        self.call_http(notes, id, client, request).await?;
        Ok(Some(get.place()))
    }

    /// Where a pod is reached.
    fn address_of(&self, at: PodAt<'_>) -> Option<IpAddr> {
        let own = at.ips.first().copied();
        if !at.pod.facts().host_network {
            return own;
        }
        let node = self.node.ledger.node().addresses.first().copied();
        // What listens on the host listens here.
        node.or(own).or(Some(Ipv4Addr::LOCALHOST.into()))
    }
}

fn ended_well(output: &ExecOutput) -> Result<(), HookError> {
    if output.timed_out {
        return Err(HookError::TimedOut);
    }
    if output.exit_code == 0 {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let end = (0..=SHOWN_OUTPUT.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    Err(HookError::ExitCode {
        code: output.exit_code,
        output: text,
    })
}
