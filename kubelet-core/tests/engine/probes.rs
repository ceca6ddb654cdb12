//! What probes do to their containers and to what is told of them.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{HTTPGetAction, Pod, Probe};
use kubelet_core::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::{ExecOutput, ProbeAction, ProbeOutcome, ProbeTarget, Prober, StateDir, async_trait};
use kubelet_testing::{ExecAnswer, FakeRuntime, Op, PodBuilder, exec_probe};
use tokio::time::{Instant, sleep};

use super::harness::{Cluster, Node};
use super::life::fake;

/// Commands that fail for now; all others succeed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failing(Arc<Mutex<BTreeSet<String>>>);

impl Failing {
    pub(crate) fn of(runtime: &FakeRuntime) -> Self {
        let failing = Self::default();
        let asked = failing.clone();
        runtime.on_exec(move |call| {
            let fails = asked.0.lock().unwrap().contains(&call.command[0]);
            if fails {
                ExecAnswer::output(ExecOutput::new(1, "it is", " bad"))
            } else {
                ExecAnswer::exit(0)
            }
        });
        failing
    }

    pub(crate) fn fail(&self, command: &str) {
        self.0.lock().unwrap().insert(command.to_owned());
    }

    pub(crate) fn pass(&self, command: &str) {
        self.0.lock().unwrap().remove(command);
    }
}

/// When commands of that name were run.
pub(crate) fn runs(runtime: &FakeRuntime, command: &str) -> Vec<Duration> {
    let calls = runtime.calls();
    let execs = calls.iter().filter(|call| call.op == Op::Exec);
    execs
        .filter(|call| call.subject.command.first().map(String::as_str) == Some(command))
        .map(|call| call.at)
        .collect()
}

fn starts(runtime: &FakeRuntime) -> Vec<Duration> {
    let calls = runtime.calls();
    let starts = calls.iter().filter(|call| call.op == Op::StartContainer);
    starts.map(|call| call.at).collect()
}

fn with(mut probe: Probe, change: impl FnOnce(&mut Probe)) -> Probe {
    change(&mut probe);
    probe
}

pub(crate) fn is_ready(node: &Node, pod: &str) -> bool {
    let status = node.status(pod);
    let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

#[tokio::test(start_paused = true)]
async fn each_run_is_due_a_whole_number_of_periods_after_the_first() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pods: Vec<Pod> = [1, 7]
        .into_iter()
        .map(|period| {
            PodBuilder::new(format!("p{period}"))
                .container("app", |c| c.liveness(exec_probe([format!("check-{period}")], period)))
                .build()
        })
        .collect();
    // Some runs take longer than a period.
    runtime.on_exec(|call| match call.command[0].as_str() {
        "check-1" => ExecAnswer::exit(0).after(Duration::from_millis(700)),
        _ => ExecAnswer::exit(0),
    });
    node.pods.set(pods).await.unwrap();
    node.running("p7").await;
    sleep(Duration::from_secs(600)).await;
    for period in [1, 7] {
        let runs = runs(&runtime, &format!("check-{period}"));
        assert!(runs.len() as u64 >= 590 / period, "{}", runs.len());
        for (k, at) in (0..).zip(&runs) {
            assert_eq!(*at, runs[0] + Duration::from_secs(period) * k, "run {k}");
        }
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_is_restarted_after_as_many_failures_in_a_row_as_its_threshold() {
    let runtime = fake();
    let failing = Failing::of(&runtime);
    let node = Node::start(&runtime, StateDir::in_memory());
    let probe = with(exec_probe(["alive"], 10), |probe| {
        probe.failure_threshold = Some(3);
        probe.termination_grace_period_seconds = Some(7);
    });
    let pod = PodBuilder::new("web")
        .container("app", |c| c.liveness(probe).args(["ignore-term"]))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("web").await;
    failing.fail("alive");
    sleep(Duration::from_secs(20)).await;
    failing.pass("alive");
    sleep(Duration::from_secs(10)).await;
    failing.fail("alive");
    sleep(Duration::from_secs(19)).await;
    assert_eq!(node.restarts("web", "app"), Some(0), "never three in a row");
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    failing.pass("alive");
    let runs = runs(&runtime, "alive");
    let calls = runtime.calls();
    let stop = calls.iter().find(|call| call.op == Op::StopContainer).unwrap();
    assert!(runs.contains(&stop.at), "at the third failure: {runs:?}, {:?}", stop.at);
    assert_eq!(stop.subject.grace, Some(Duration::from_secs(7)));
    assert_eq!(
        node.events.messages("Killing"),
        ["Container app failed liveness probe, will be restarted"]
    );
    assert_eq!(
        node.events.messages("Unhealthy")[..5],
        ["Liveness probe failed: it is bad"; 5]
    );
    sleep(Duration::from_secs(300)).await;
    assert_eq!(node.restarts("web", "app"), Some(1), "what was is forgotten");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_startup_probe_holds_the_others_up_and_kills_what_does_not_come_up() {
    let runtime = fake();
    let failing = Failing::of(&runtime);
    failing.fail("up");
    failing.fail("alive");
    let node = Node::start(&runtime, StateDir::in_memory());
    let startup = with(exec_probe(["up"], 5), |probe| probe.failure_threshold = Some(4));
    let pod = PodBuilder::new("web")
        .container("app", |c| {
            c.startup(startup)
                .liveness(exec_probe(["alive"], 1))
                .readiness(exec_probe(["ready"], 1))
        })
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.until("restarted", |node| node.restarts("web", "app") == Some(1))
        .await;
    assert_eq!(
        node.events.messages("Killing"),
        ["Container app failed startup probe, will be restarted"]
    );
    assert!(runs(&runtime, "alive").is_empty() && runs(&runtime, "ready").is_empty());
    let container = node.container("web", "app").unwrap();
    assert_eq!((container.started, container.ready), (Some(false), false));
    failing.pass("alive");
    failing.pass("up");
    node.until("ready", |node| is_ready(node, "web")).await;
    assert_eq!(node.container("web", "app").unwrap().started, Some(true));
    let ups = runs(&runtime, "up");
    // At once, not a period later.
    assert_eq!(runs(&runtime, "ready")[0], ups[ups.len() - 1]);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(runs(&runtime, "up").len(), ups.len(), "it has come up for good");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_its_probe_and_each_change_is_told_once() {
    let runtime = fake();
    let failing = Failing::of(&runtime);
    failing.fail("ready");
    let cluster = Cluster::default();
    let sink = cluster.clone();
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| builder.status_sink(sink));
    let readiness = with(exec_probe(["ready"], 2), |probe| {
        probe.success_threshold = Some(2);
        probe.failure_threshold = Some(2);
    });
    let pod = PodBuilder::new("web")
        .container("app", |c| c.readiness(readiness))
        .container("other", |c| c)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("web").await;
    for _ in 0..3 {
        sleep(Duration::from_secs(30)).await;
        assert!(!is_ready(&node, "web"));
        failing.pass("ready");
        node.until("ready", |node| is_ready(node, "web")).await;
        sleep(Duration::from_secs(30)).await;
        assert!(is_ready(&node, "web"));
        failing.fail("ready");
        // One failure is not enough.
        sleep(Duration::from_secs(1)).await;
        assert!(is_ready(&node, "web"));
        node.until("unready", |node| !is_ready(node, "web")).await;
    }
    assert_eq!(node.restarts("web", "app"), Some(0));
    let told = cluster.0.lock().unwrap().clone();
    let readies: Vec<(String, String)> = told
        .iter()
        .flat_map(|update| update.status.conditions.iter().flatten())
        .filter(|condition| condition.type_ == "Ready")
        .map(|condition| {
            let since = condition.last_transition_time.as_ref().map(|time| time.0.to_string());
            (condition.status.clone(), since.unwrap_or_default())
        })
        .collect();
    let mut changes = readies.clone();
    changes.dedup();
    let states: Vec<&str> = changes.iter().map(|(status, _)| status.as_str()).collect();
    assert_eq!(states, ["False", "True", "False", "True", "False", "True", "False"]);
    let running = told
        .iter()
        .filter(|update| update.status.phase.as_deref() == Some("Running"));
    assert_eq!(running.count(), 7, "a write for each change, and none beside");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_with_a_startup_probe_orders_the_start() {
    let runtime = fake();
    let failing = Failing::of(&runtime);
    failing.fail("up");
    let node = Node::start(&runtime, StateDir::in_memory());
    let startup = with(exec_probe(["up"], 3), |probe| probe.failure_threshold = Some(100));
    let pod = PodBuilder::new("web")
        .sidecar("proxy", |c| c.startup(startup))
        .init("setup", |c| c.args(["exit=0", "after=1s"]))
        .container("app", |c| c)
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(starts(&runtime).len(), 1);
    assert_eq!(node.phase("web").as_deref(), Some("Pending"));
    failing.pass("up");
    node.until("ready", |node| is_ready(node, "web")).await;
    assert_eq!(starts(&runtime).len(), 3);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_stopped_may_still_change_its_readiness_but_restarts_nothing() {
    let runtime = fake();
    let failing = Failing::of(&runtime);
    let node = Node::start(&runtime, StateDir::in_memory());
    let pod = PodBuilder::new("web")
        .grace_seconds(60)
        .container("app", |c| {
            c.liveness(exec_probe(["alive"], 1))
                .readiness(exec_probe(["ready"], 1))
                .args(["on-term=0", "term-after=20s"])
                .with(|c| {
                    let hook = serde_json::from_value(serde_json::json!({"preStop": {"sleep": {"seconds": 15}}}));
                    c.lifecycle = Some(hook.unwrap());
                })
        })
        .build();
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.until("ready", |node| is_ready(node, "web")).await;
    node.pods.set(vec![super::harness::deleted(pod, 60)]).await.unwrap();
    node.until("it is being stopped", |node| node.events.count("Killing") == 1)
        .await;
    let asked = runs(&runtime, "alive").len();
    failing.fail("ready");
    failing.fail("alive");
    let begun = Instant::now();
    node.until("unready", |node| !is_ready(node, "web")).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "during the pre-stop hook");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(runs(&runtime, "alive").len(), asked);
    node.until("gone", |node| node.phase("web").as_deref() == Some("Succeeded"))
        .await;
    assert_eq!(starts(&runtime).len(), 1);
    node.stop().await;
}

/// Does what the host of its target says.
#[derive(Debug, Default)]
struct Scripted(Mutex<Vec<(ProbeTarget, Instant)>>);

#[async_trait]
impl Prober for Scripted {
    async fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        self.0.lock().unwrap().push((target.clone(), Instant::now()));
        let ProbeAction::HttpGet(http) = &target.action else {
            return ProbeOutcome::success();
        };
        match http.path.as_str() {
            "/hang" => std::future::pending().await,
            "/panic" => panic!("a bug of a prober"),
            "/unknown" => ProbeOutcome::Unknown("who knows".to_owned()),
            "/odd" => ProbeOutcome::Success {
                warning: Some("odd".to_owned()),
            },
            _ => ProbeOutcome::success(),
        }
    }
}

fn http(path: &str, period: i32) -> Probe {
    let get = HTTPGetAction {
        path: Some(path.to_owned()),
        port: IntOrString::Int(80),
        ..HTTPGetAction::default()
    };
    with(exec_probe(["none"], period), |probe| {
        probe.exec = None;
        probe.http_get = Some(get);
    })
}

#[tokio::test(start_paused = true)]
async fn a_prober_that_hangs_panics_or_does_not_know_hurts_only_its_own_pod() {
    let runtime = fake();
    let prober = Arc::new(Scripted::default());
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        builder.prober(prober.clone())
    });
    let pods = ["hang", "panic", "unknown", "odd", "fine"].map(|path| {
        PodBuilder::new(path)
            .container("app", |c| c.liveness(http(&format!("/{path}"), 5)))
            .build()
    });
    node.pods.set(pods.to_vec()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    for (pod, restarted) in [
        ("hang", true),
        ("panic", false),
        ("unknown", false),
        ("odd", false),
        ("fine", false),
    ] {
        assert_eq!(node.restarts(pod, "app") > Some(0), restarted, "{pod}");
    }
    let told = node.events.messages("Unhealthy");
    for text in [
        "Liveness probe failed: no answer within 1s",
        "Liveness probe errored and resulted in unknown state: the probe panicked",
        "Liveness probe errored and resulted in unknown state: who knows",
    ] {
        assert!(told.contains(&text.to_owned()), "{told:?}");
    }
    assert!(
        node.events
            .messages("ProbeWarning")
            .contains(&"Liveness probe warning: odd".to_owned())
    );
    let asked = prober.0.lock().unwrap().clone();
    let of = |path: &str| {
        let fits = |(target, _): &&(ProbeTarget, Instant)| matches!(&target.action, ProbeAction::HttpGet(http) if http.path == path);
        asked.iter().filter(fits).count()
    };
    assert_eq!(of("/unknown"), 3 * of("/fine"), "three tries for each run");
    let metrics = node.handle.metrics();
    let total = metrics
        .samples()
        .iter()
        .filter(|sample| sample.name == "prober_probe_total");
    let outcomes: BTreeSet<(String, String)> = total
        .map(|sample| {
            let label = |name| sample.labels.iter().find(|(n, _)| *n == name).unwrap().1.clone();
            (label("pod"), label("result"))
        })
        .collect();
    for (pod, result) in [("hang", "failed"), ("fine", "successful"), ("unknown", "unknown")] {
        assert!(outcomes.contains(&(pod.to_owned(), result.to_owned())), "{outcomes:?}");
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_probes_of_one_pod_that_hang_hold_up_no_other_pod() {
    let runtime = fake();
    let prober = Arc::new(Scripted::default());
    let node = Node::start_with(&runtime, StateDir::in_memory(), |builder| {
        let mut settings = kubelet_core::Settings::default();
        settings.parallel_probes = 16;
        builder.prober(prober.clone()).settings(settings)
    });
    let slow = |path| {
        with(http(path, 1), |probe| {
            probe.timeout_seconds = Some(600);
            probe.failure_threshold = Some(1000);
        })
    };
    let mut greedy = PodBuilder::new("greedy");
    for number in 0..20 {
        greedy = greedy.container(&format!("c{number}"), |c| c.readiness(slow("/hang")));
    }
    let modest = PodBuilder::new("modest").container("app", |c| c.readiness(http("/fine", 1)));
    node.pods.set(vec![greedy.build(), modest.build()]).await.unwrap();
    node.until("ready", |node| is_ready(node, "modest")).await;
    sleep(Duration::from_secs(60)).await;
    let asked = prober.0.lock().unwrap().clone();
    let hang = |(target, _): &&(ProbeTarget, Instant)| matches!(&target.action, ProbeAction::HttpGet(http) if http.path == "/hang");
    let hanging = asked.iter().filter(hang).count();
    assert_eq!(hanging, 2, "an eighth");
    assert!(asked.len() - hanging >= 60);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_prober_a_pod_with_network_probes_is_refused_and_commands_need_none() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    let pods = vec![
        PodBuilder::new("http")
            .container("app", |c| c.liveness(http("/", 5)))
            .build(),
        PodBuilder::new("exec")
            .container("app", |c| c.liveness(exec_probe(["true"], 5)))
            .build(),
    ];
    node.pods.set(pods).await.unwrap();
    node.running("exec").await;
    let refused = node.status("http").unwrap();
    assert_eq!(refused.reason.as_deref(), Some("PartMissing"));
    assert!(
        refused
            .message
            .as_deref()
            .unwrap()
            .contains("no prober (kubelet-probe)")
    );
    node.stop().await;
}
