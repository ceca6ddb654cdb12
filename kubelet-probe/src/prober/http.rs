//! HTTP probes.

use std::time::Duration;

use kubelet_core::{BoundedResponse, HttpError, HttpProbe, ProbeOutcome, error_chain};

use super::USER_AGENT;
use crate::client::HyperClient;

pub(super) async fn run(client: &HyperClient, probe: &HttpProbe, limit: Duration) -> ProbeOutcome {
    let mut request = match probe.request(USER_AGENT) {
        Ok(request) => request,
        Err(error) => return ProbeOutcome::Unknown(error_chain(&error)),
    };
    request.timeout = limit;
    match client.fetch(&request).await {
        Ok(fetched) if fetched.too_many_redirects => {
            ProbeOutcome::Failure(format!("stopped after {} redirects", request.max_redirects))
        }
        Ok(fetched) => outcome_of(&fetched.response),
        Err(error @ HttpError::BadRequest { .. }) => ProbeOutcome::Unknown(error_chain(&error)),
        Err(error) => ProbeOutcome::Failure(error_chain(&error)),
    }
}

/// What an answer says.
///
/// Source: kubelet 1.36, `pkg/probe/http/http.go`. The body of a failure is not told: it may be another one's, to whom a redirect led.
fn outcome_of(answer: &BoundedResponse) -> ProbeOutcome {
    match answer.status {
        200..=299 => ProbeOutcome::success(),
        300..=399 => {
            let body = String::from_utf8_lossy(&answer.body);
            ProbeOutcome::Success {
                warning: Some(format!("Probe terminated redirects, Response body: {body}")),
            }
        }
        status => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}
