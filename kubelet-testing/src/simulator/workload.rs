//! The pods that a simulation wishes for.

use kubelet_core::k8s_openapi::api::core::v1::{
    ContainerResizePolicy, ContainerRestartRule, ContainerRestartRuleOnExitCodes, ExecAction, Lifecycle,
    LifecycleHandler, Pod,
};

use kubelet_core::{ContainerView, ProbeKind};

use super::dice::Dice;
use super::health::command;
use crate::pods::{ContainerBuilder, PodBuilder, exec_probe};

/// The exit code after which a container with rules asks for a restart of all containers.
pub(crate) const RESTART_ALL: i32 = 43;
/// The exit code after which a container with rules is restarted.
const RESTART_ONE: i32 = 42;
/// Marks a pod that admission may hold back.
pub(crate) const HOLD: &str = "simulator/hold";
/// Marks a pod that admission rejects.
pub(crate) const REJECT: &str = "simulator/reject";
/// The first word of pre-stop hooks.
pub(crate) const PRE_STOP: &str = "pre-stop";

#[derive(Clone, Copy)]
enum Kind {
    Server,
    Crash,
    Job,
    Init,
    BadInit,
    Sidecar,
    Rules,
    Deadline,
}

fn steady(c: ContainerBuilder, dice: &Dice) -> ContainerBuilder {
    match dice.below(5) {
        0 => c.args(["ignore-term"]),
        1 => c.args([
            "forever".to_owned(),
            format!("term-after={}ms", dice.between(100, 20_000)),
        ]),
        2 => c.args([
            "forever".to_owned(),
            format!("term={}", dice.between(0, 3)),
            format!("term-after={}s", dice.between(0, 40)),
        ]),
        _ => c,
    }
}

fn ending(c: ContainerBuilder, dice: &Dice, code: u64) -> ContainerBuilder {
    c.args([format!("exit={code}"), format!("after={}ms", dice.between(0, 90_000))])
}

fn rules(c: ContainerBuilder) -> ContainerBuilder {
    let rule = |action: &str, code: i32| ContainerRestartRule {
        action: action.to_owned(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: "In".to_owned(),
            values: Some(vec![code]),
        }),
    };
    c.restart_policy("Never").with(|c| {
        c.restart_policy_rules = Some(vec![
            rule("Restart", RESTART_ONE),
            rule("RestartAllContainers", RESTART_ALL),
        ]);
    })
}

fn hook(words: &[&str]) -> LifecycleHandler {
    LifecycleHandler {
        exec: Some(ExecAction {
            command: Some(words.iter().map(|word| (*word).to_owned()).collect()),
        }),
        ..LifecycleHandler::default()
    }
}

fn hooks(c: ContainerBuilder, dice: &Dice) -> ContainerBuilder {
    let after = format!("after={}s", dice.between(0, 8));
    c.with(|c| {
        c.lifecycle = Some(Lifecycle {
            pre_stop: Some(hook(&[PRE_STOP, &after])),
            ..Lifecycle::default()
        });
    })
}

/// CPU that may be changed while the container runs; some containers are started anew for that.
fn sized(c: ContainerBuilder, dice: &Dice) -> ContainerBuilder {
    let restarts = dice.chance(30);
    c.request("cpu", "100m").limit("cpu", "100m").with(|c| {
        let policy = ContainerResizePolicy {
            resource_name: "cpu".to_owned(),
            restart_policy: "RestartContainer".to_owned(),
        };
        c.resize_policy = restarts.then(|| vec![policy]);
    })
}

/// Commands as probes, which fail as the simulation has them.
fn probes(c: ContainerBuilder, dice: &Dice) -> ContainerBuilder {
    let probe = |kind: ProbeKind, failures: u64| {
        let number = |n: u64| Some(i32::try_from(n).unwrap_or(1));
        let mut probe = exec_probe([command(kind)], 1);
        probe.period_seconds = number(dice.between(1, 20));
        probe.initial_delay_seconds = number(if dice.chance(50) { dice.between(1, 20) } else { 0 });
        probe.failure_threshold = number(failures);
        probe
    };
    let mut c = c;
    if dice.chance(60) {
        c = c.liveness(probe(ProbeKind::Liveness, dice.between(1, 4)));
    }
    if dice.chance(60) {
        c = c.readiness(probe(ProbeKind::Readiness, dice.between(1, 3)));
    }
    if dice.chance(40) {
        c = c.startup(probe(ProbeKind::Startup, dice.between(2, 10)));
    }
    c
}

/// A pod of that name, with a UID of its own if it has one.
pub(crate) fn pod(dice: &Dice, name: &str, uid: Option<&str>) -> Pod {
    let kind = dice.weighted(
        &[
            (30, Kind::Server),
            (12, Kind::Crash),
            (16, Kind::Job),
            (14, Kind::Init),
            (3, Kind::BadInit),
            (12, Kind::Sidecar),
            (7, Kind::Rules),
            (6, Kind::Deadline),
        ],
        Kind::Server,
    );
    let mut pod = PodBuilder::new(name).label("version", format!("{}", dice.below(1_000_000)));
    pod = match uid {
        Some(uid) => pod.uid(uid),
        None => pod.without_uid(),
    };
    if dice.chance(80) {
        pod = pod.grace_seconds(*dice.pick(&[0, 1, 2, 5, 10, 30, 60]).unwrap_or(&30));
    }
    if dice.chance(8) {
        pod = pod.host_network();
    }
    if uid.is_some() && dice.chance(6) {
        pod = pod.label(HOLD, "true");
    }
    if uid.is_some() && dice.chance(2) {
        pod = pod.label(REJECT, "true");
    }
    let with_hooks = dice.chance(10);
    // Of pods that never end by policy: a stop for a probe is no end.
    let with_probes = matches!(kind, Kind::Server | Kind::Sidecar) && dice.chance(30);
    let app = |c: ContainerBuilder| {
        let c = if with_probes { probes(c, dice) } else { c };
        if with_hooks {
            hooks(steady(c, dice), dice)
        } else {
            steady(c, dice)
        }
    };
    match kind {
        Kind::Server => {
            let is_sized = uid.is_some() && dice.chance(50);
            pod = pod.container("app", |c| if is_sized { sized(app(c), dice) } else { app(c) });
            if dice.chance(40) {
                pod = pod.container("second", |c| steady(c, dice));
            }
        }
        Kind::Crash => {
            let after = format!("after={}ms", dice.between(0, 30_000));
            let mut words = vec!["exit=1".to_owned(), after];
            if dice.chance(60) {
                words.push(format!("steady-from={}", dice.between(1, 3)));
            }
            pod = pod.container("app", |c| c.args(words));
            if dice.chance(40) {
                pod = pod.container("second", |c| steady(c, dice));
            }
            if dice.chance(25) {
                pod = pod.restart_policy("OnFailure");
            }
        }
        Kind::Job => {
            let code = *dice.pick(&[0, 0, 1]).unwrap_or(&0);
            let policy = *dice.pick(&["Never", "OnFailure"]).unwrap_or(&"Never");
            pod = pod.restart_policy(policy).container("app", |c| ending(c, dice, code));
            if dice.chance(40) {
                pod = pod.container("second", |c| ending(c, dice, 0));
            }
        }
        Kind::Init => {
            for number in 0..dice.between(1, 3) {
                pod = pod.init(&format!("init-{number}"), |c| {
                    c.args(["exit=0".to_owned(), format!("after={}ms", dice.between(0, 20_000))])
                });
            }
            pod = pod.container("app", app);
            if dice.chance(30) {
                pod = pod.restart_policy("Never");
            }
        }
        Kind::BadInit => {
            pod = pod
                .init("init-0", |c| c.args(["exit=0"]))
                .init("init-1", |c| c.args(["exit=1", "after=2s"]))
                .container("app", app);
            if dice.chance(50) {
                pod = pod.restart_policy("Never");
            }
        }
        Kind::Sidecar => {
            pod = pod.sidecar("proxy", |c| {
                let c = steady(c, dice);
                if with_probes { probes(c, dice) } else { c }
            });
            if dice.chance(50) {
                pod = pod.init("init-0", |c| c.args(["exit=0", "after=3s"]));
            }
            if dice.chance(40) {
                pod = pod.sidecar("logger", |c| steady(c, dice));
            }
            if dice.chance(40) {
                pod = pod.restart_policy("Never").container("app", |c| ending(c, dice, 0));
            } else {
                pod = pod.container("app", app);
            }
        }
        Kind::Rules => {
            let code = *dice.pick(&[RESTART_ONE, RESTART_ALL, 0]).unwrap_or(&0);
            pod = pod
                .restart_policy("Never")
                .init("init-0", |c| c.args(["exit=0", "after=1s"]))
                .container("app", |c| {
                    rules(c.args([
                        format!("exit={code}"),
                        format!("after={}ms", dice.between(1_000, 60_000)),
                        "steady-from=3".to_owned(),
                    ]))
                })
                .container("second", |c| steady(c, dice));
        }
        Kind::Deadline => {
            let seconds = i64::try_from(dice.between(20, 600)).unwrap_or(60);
            pod = pod.active_deadline_seconds(seconds).container("app", app);
        }
    }
    pod.build()
}

/// Whether a container's program may end without being asked to.
pub(crate) fn ends(view: &ContainerView<'_>) -> bool {
    view.args()
        .iter()
        .any(|word| word.starts_with("exit=") || word.starts_with("after="))
}
