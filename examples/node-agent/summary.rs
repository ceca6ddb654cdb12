//! A pod in one line, as people know it from kubectl.

use kubelet_core::StatusUpdate;
use kubelet_core::jiff::Timestamp;
use kubelet_core::k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// What is shown of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) pod: String,
    pub(crate) state: String,
    pub(crate) ready: String,
    pub(crate) restarts: i32,
    pub(crate) started: Option<Timestamp>,
    pub(crate) note: String,
}

impl Summary {
    pub(crate) fn of(update: &StatusUpdate) -> Self {
        let status = &update.status;
        let regular = status.container_statuses.as_deref().unwrap_or_default();
        let init = status.init_container_statuses.as_deref().unwrap_or_default();
        let (reason, note) = state(status, regular, init);
        Self {
            pod: update.pod.key().to_string(),
            state: reason,
            ready: format!("{}/{}", regular.iter().filter(|c| c.ready).count(), regular.len()),
            restarts: regular.iter().map(|c| c.restart_count).sum(),
            started: status.start_time.as_ref().map(|time| time.0),
            note,
        }
    }

    pub(crate) fn age(&self, now: Timestamp) -> String {
        let Some(started) = self.started else {
            return "-".to_owned();
        };
        let seconds = now.duration_since(started).as_secs().max(0);
        match seconds {
            0..=119 => format!("{seconds}s"),
            120..=7199 => format!("{}m", seconds / 60),
            7200..=172_799 => format!("{}h", seconds / 3600),
            _ => format!("{}d", seconds / 86_400),
        }
    }
}

/// One word on how a pod is, and a sentence where there is one.
fn state(status: &PodStatus, regular: &[ContainerStatus], init: &[ContainerStatus]) -> (String, String) {
    let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
    if let Some(reason) = &status.reason {
        return (reason.clone(), one_line(status.message.as_deref()));
    }
    if matches!(phase.as_str(), "Succeeded" | "Failed") {
        return (phase, ended_note(regular));
    }
    for container in init.iter().chain(regular) {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting
            .and_then(|waiting| waiting.reason.as_deref())
            .unwrap_or_default();
        if !matches!(reason, "" | "PodInitializing" | "ContainerCreating") {
            let note = waiting.and_then(|waiting| waiting.message.as_deref());
            return (reason.to_owned(), one_line(note));
        }
    }
    let pending_init = init.iter().any(|c| {
        !c.ready && c.state.as_ref().is_none_or(|state| state.terminated.is_none()) && c.started != Some(true)
    });
    if phase == "Pending" && pending_init {
        let done = init.iter().filter(|c| c.ready).count();
        return (format!("Init:{done}/{}", init.len()), String::new());
    }
    (phase, ended_note(regular))
}

/// How a container that is not up ended.
fn ended_note(regular: &[ContainerStatus]) -> String {
    regular
        .iter()
        .filter_map(|c| Some((c, c.state.as_ref()?.terminated.as_ref()?)))
        .map(|(c, end)| {
            let message = one_line(end.message.as_deref());
            let message = if message.is_empty() {
                message
            } else {
                format!(": {message}")
            };
            // A reason that says more than the code does.
            let reason = end
                .reason
                .as_deref()
                .filter(|reason| !matches!(*reason, "Completed" | "Error"));
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!("{} ended with {}{reason}{message}", c.name, end.exit_code)
        })
        .next()
        .unwrap_or_default()
}

fn one_line(text: Option<&str>) -> String {
    text.unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}
