//! Pods, observations and actions as short texts, so that a table of cases can be read.

use serde_json::{Value, json};

use super::{ContainerKillCause, PodActions, SandboxAction};
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::jiff::Timestamp;
use crate::observation::{ObservedContainer, ObservedSandbox, PodObservation};
use crate::pod::{PodRecord, container_hash};
use crate::probes::{ContainerProbes, PodProbes};
use crate::runtime::{ContainerState, SandboxState};

/// A pod such as `OnFailure: i:setup s:proxy c:app/Never/42 e:debug`: its restart policy, then its containers: init,
/// sidecar, regular or ephemeral, each with its own policy, the exit code that restarts all, if any, and its probes: `u` for
/// startup, `l` for liveness.
pub(super) fn pod(text: &str) -> PodRecord {
    pod_with(text, json!({}))
}

pub(super) fn pod_with(text: &str, more: Value) -> PodRecord {
    let (policy, containers) = text.split_once(':').unwrap();
    let mut spec = json!({"restartPolicy": policy, "initContainers": [], "containers": [], "ephemeralContainers": []});
    for container in containers.split_whitespace() {
        let (kind, rest) = container.split_once(':').unwrap();
        let mut parts = rest.split('/');
        let mut value = json!({"name": parts.next(), "image": "img"});
        if let Some(policy) = parts.next().or((kind == "s").then_some("Always")) {
            value["restartPolicy"] = policy.into();
        }
        if let Some(code) = parts.next().filter(|code| !code.is_empty()) {
            let code: i32 = code.parse().unwrap();
            value["restartPolicyRules"] =
                json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [code]}}]);
        }
        for probe in parts.next().unwrap_or_default().chars() {
            let field = if probe == 'u' { "startupProbe" } else { "livenessProbe" };
            value[field] = json!({"exec": {"command": ["true"]}});
        }
        let list = match kind {
            "i" | "s" => "initContainers",
            "c" => "containers",
            _ => "ephemeralContainers",
        };
        spec[list].as_array_mut().unwrap().push(value);
    }
    let mut whole = json!({"spec": spec});
    for (section, fields) in more.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            whole[section][field] = value.clone();
        }
    }
    crate::pod::testing::record(whole)
}

/// What was seen, newest first: sandboxes such as `s1 !s0` (`!`: not ready, `~`: no address, `^`: host network), then
/// containers such as `app#1 exited:3 s0 stale`.
pub(super) fn seen(sandboxes: &str, containers: &str) -> PodObservation {
    let mut observed = PodObservation::absent(PodUid::from("uid-1"));
    observed.sandboxes = sandboxes.split_whitespace().map(sandbox).collect();
    observed.containers = containers
        .split(',')
        .filter(|text| !text.trim().is_empty())
        .map(container)
        .collect();
    observed
}

/// What probes have come to, of containers such as `app#1 !l` or `app#1 u`.
pub(super) fn probes(containers: &str) -> PodProbes {
    let list = containers
        .split(',')
        .map(str::split_whitespace)
        .filter_map(|mut words| {
            let mut of = ContainerProbes::new(ContainerId::from(words.next()?));
            for word in words {
                match word {
                    "u" => of.startup = Some(true),
                    "!u" => of.startup = Some(false),
                    "l" => of.liveness = Some(true),
                    _ => of.liveness = Some(false),
                }
            }
            Some(of)
        });
    PodProbes::new(list.collect())
}

fn sandbox(text: &str) -> ObservedSandbox {
    let id = text.trim_start_matches(['!', '~', '^']);
    let mut sandbox = ObservedSandbox::ready(SandboxId::from(id), id[1..].parse().unwrap(), Timestamp::UNIX_EPOCH);
    if text.starts_with('!') {
        sandbox.state = SandboxState::NotReady;
    }
    sandbox.host_network = text.starts_with('^');
    sandbox.has_ip = !text.starts_with(['~', '^']);
    sandbox
}

fn container(text: &str) -> ObservedContainer {
    let mut words = text.split_whitespace();
    let id = words.next().unwrap();
    let (name, attempt) = id.split_once('#').unwrap();
    let (state, code) = match words.next().unwrap() {
        "created" => (ContainerState::Created, 0),
        "running" => (ContainerState::Running, 0),
        "unknown" => (ContainerState::Unknown, 0),
        exited => (
            ContainerState::Exited,
            exited.strip_prefix("exited:").unwrap().parse().unwrap(),
        ),
    };
    let mut seen = ObservedContainer::new(ContainerId::from(id), name, state, Timestamp::UNIX_EPOCH);
    seen.attempt = attempt.parse().unwrap();
    seen.exit_code = code;
    seen.hash = Some(container_hash(name, "img"));
    for word in words {
        match word {
            "stale" => seen.hash = Some(1),
            "hashless" => seen.hash = None,
            "oom" => seen.reason = "OOMKilled".to_owned(),
            "-" => {}
            sandbox => seen.sandbox_id = Some(SandboxId::from(sandbox)),
        }
    }
    seen
}

/// Actions in the order in which they are carried out, such as `kill-pod rm:app#0 create:1<s0 init:setup`. A container
/// that is adopted is `start:app=app#1`.
pub(super) fn text(actions: &PodActions) -> String {
    let mut words: Vec<String> = Vec::new();
    if actions.kill_pod {
        words.push("kill-pod".to_owned());
    }
    for kill in &actions.kill {
        let why = match kill.cause {
            ContainerKillCause::Superfluous => "superfluous",
            ContainerKillCause::DefinitionChanged => "changed",
            ContainerKillCause::UnknownState => "unknown",
            ContainerKillCause::Liveness => "liveness",
            ContainerKillCause::Startup => "startup",
            ContainerKillCause::Resize => "resize",
        };
        words.push(format!("kill:{}({why})", kill.id));
    }
    for reset in &actions.reset {
        let running = reset.running.as_ref().map_or(String::new(), |id| format!("({id})"));
        words.push(format!("reset:{}{running}", reset.name));
    }
    words.extend(actions.remove_containers.iter().map(|id| format!("rm:{id}")));
    words.extend(actions.remove_sandboxes.iter().map(|id| format!("rm-sandbox:{id}")));
    match &actions.sandbox {
        SandboxAction::None => {}
        SandboxAction::Keep(id) => words.push(format!("keep:{id}")),
        SandboxAction::Create { attempt, replaces } => {
            let replaces = replaces.as_ref().map_or(String::new(), |id| format!("<{id}"));
            words.push(format!("create:{attempt}{replaces}"));
        }
    }
    for (kind, list) in [
        ("eph", &actions.ephemeral),
        ("init", &actions.init),
        ("start", &actions.regular),
    ] {
        words.extend(list.iter().map(|start| {
            let adopt = start.adopt.as_ref().map_or(String::new(), |id| format!("={id}"));
            format!("{kind}:{}{adopt}", start.name)
        }));
    }
    words.join(" ")
}
