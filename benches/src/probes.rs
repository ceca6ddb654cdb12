//! A thousand probes a second on one thread: how late they are, and what they cost.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{HTTPGetAction, Pod, Probe, TCPSocketAction};
use kubelet_core::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::{ProbeAction, ProbeOutcome, ProbeTarget, Prober, async_trait};
use kubelet_probe::NetworkProber;
use kubelet_testing::{ExecAnswer, exec_probe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::measure::{Row, middle_and_p99, real, thread_cpu_time};
use crate::node::Node;
use crate::pods::{Weight, pods};
use crate::sizes::Sizes;

const PERIOD: Duration = Duration::from_secs(1);

/// When each probe ran; a probe is known by its number.
#[derive(Clone, Debug, Default)]
struct Runs(Arc<Mutex<Vec<Vec<Instant>>>>);

impl Runs {
    fn note(&self, number: usize) {
        let now = Instant::now();
        let mut runs = self.0.lock().expect("no panics");
        if runs.len() <= number {
            runs.resize(number + 1, Vec::new());
        }
        runs[number].push(now);
    }

    /// By how much each run but the first of its probe was late.
    fn lateness(&self) -> Vec<Duration> {
        let runs = self.0.lock().expect("no panics");
        let of = |runs: &Vec<Instant>| -> Vec<Duration> {
            let first = runs[0];
            let numbered = (0_u32..).zip(runs).skip(1);
            numbered
                .map(|(k, at)| at.saturating_duration_since(first + PERIOD * k))
                .collect()
        };
        runs.iter().filter(|runs| !runs.is_empty()).flat_map(of).collect()
    }
}

/// Notes when each run begins, and has it carried out.
#[derive(Debug)]
struct Noted {
    runs: Runs,
    prober: NetworkProber,
}

#[async_trait]
impl Prober for Noted {
    async fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        // A probe over TCP says who it is by its host, all of which are this machine.
        let number = match &target.action {
            ProbeAction::HttpGet(http) => http.path.trim_start_matches('/').parse().ok(),
            ProbeAction::TcpSocket(tcp) => number_of(&tcp.host),
            _ => None,
        };
        if let Some(number) = number {
            self.runs.note(number);
        }
        self.prober.probe(target).await
    }
}

/// An address of this machine for each number.
fn host_of(number: usize) -> String {
    format!("127.1.{}.{}", number / 250, number % 250 + 1)
}

fn number_of(host: &str) -> Option<usize> {
    let mut parts = host.split('.').skip(2).filter_map(|part| part.parse::<usize>().ok());
    Some(parts.next()? * 250 + parts.next()? - 1)
}

/// A server on a thread of its own, whose time does not count. Gives its port.
fn serve() -> u16 {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        real(1).block_on(async move {
            let any = SocketAddr::from(([0, 0, 0, 0], 0));
            let listener = TcpListener::bind(any).await.expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            sender.send(port).expect("somebody waits");
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut connection, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(async move {
                    let mut request = [0; 1024];
                    if connection.read(&mut request).await.is_ok_and(|length| length > 0) {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
                        // Whoever asked may have gone.
                        let _ = connection.write_all(answer).await;
                    }
                });
            }
        });
    });
    receiver.recv().expect("the server starts")
}

fn probe(kind: &str, number: usize, port: u16) -> Probe {
    let mut probe = exec_probe([format!("probe {number}")], 1);
    let port = IntOrString::Int(port.into());
    match kind {
        "http" => {
            probe.exec = None;
            probe.http_get = Some(HTTPGetAction {
                host: Some("127.0.0.1".to_owned()),
                path: Some(format!("/{number}")),
                port,
                ..HTTPGetAction::default()
            });
        }
        "tcp" => {
            probe.exec = None;
            probe.tcp_socket = Some(TCPSocketAction {
                host: Some(host_of(number)),
                port,
            });
        }
        _ => {}
    }
    probe
}

fn probed(kind: &str, count: usize, port: u16) -> Vec<Pod> {
    let mut pods = pods(Weight::Small, 0, count);
    for (number, pod) in pods.iter_mut().enumerate() {
        if let Some(spec) = &mut pod.spec {
            spec.containers[0].liveness_probe = Some(probe(kind, number, port));
        }
    }
    pods
}

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    // A probe each second of every pod.
    let count = sizes
        .pods
        .iter()
        .copied()
        .filter(|count| *count <= 1_000)
        .max()
        .unwrap_or(1);
    let port = serve();
    let idle = one(sizes, "none", count, port).0;
    for kind in ["exec", "tcp", "http"] {
        let (busy, lateness) = one(sizes, kind, count, port);
        let runs = lateness.len();
        let (middle, p99) = middle_and_p99(lateness);
        let each = busy.saturating_sub(idle) / u32::try_from(runs.max(1)).expect("not so many");
        let what = match kind {
            "exec" => "probes: commands, with the fake's own part",
            "tcp" => "probes: TCP",
            _ => "probes: HTTP",
        };
        tell(Row::new(
            what,
            count,
            format!(
                "late {middle:.1?} (median), {p99:.1?} (p99); {:.0?} of CPU for a thousand",
                each * 1_000
            ),
        ));
    }
}

/// The processor time of the kubelet's thread while it was watched, and how late its probes were.
fn one(sizes: &Sizes, kind: &str, count: usize, port: u16) -> (Duration, Vec<Duration>) {
    real(1).block_on(async {
        let runs = Runs::default();
        let prober = Noted {
            runs: runs.clone(),
            prober: NetworkProber::new(),
        };
        let node = Node::start_with(Duration::from_secs(1), |builder| builder.prober(prober));
        let noted = runs.clone();
        node.fake.on_exec(move |call| {
            let number = call.command[0]
                .strip_prefix("probe ")
                .and_then(|number| number.parse().ok());
            if let Some(number) = number {
                noted.note(number);
            }
            ExecAnswer::exit(0)
        });
        let mut pods = probed(kind, count, port);
        if kind == "none" {
            for pod in &mut pods {
                if let Some(spec) = &mut pod.spec {
                    spec.containers[0].liveness_probe = None;
                }
            }
        }
        node.pods.set(pods).await.expect("the kubelet runs");
        node.until_running(count).await;
        tokio::time::sleep(PERIOD * 2).await;
        runs.0.lock().expect("no panics").clear();
        let before = thread_cpu_time();
        // At least two runs of each probe: the first says when the others are due.
        tokio::time::sleep(Duration::from_secs(sizes.watch_seconds).max(PERIOD * 3)).await;
        let busy = thread_cpu_time() - before;
        let lateness = runs.lateness();
        node.kill().await;
        (busy, lateness)
    })
}
