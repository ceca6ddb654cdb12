//! Servers that mean harm: each run ends in time, and its connection with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kubelet_core::{GrpcProbe, HttpProbe, ProbeAction, ProbeOutcome, ProbeTarget, Prober};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{LONG, run, why};
use crate::prober::NetworkProber;

/// How long a run has that is to end by its timeout.
const BRIEF: Duration = Duration::from_millis(200);
/// More than lies on its way, and less than what one without bounds takes in that time.
const ON_ITS_WAY: usize = 32 << 20;

/// Writes `start`, then `more` again and again, and notes how much was taken and when the client has gone.
struct Hostile {
    port: u16,
    written: Arc<AtomicUsize>,
    asked: Arc<Notify>,
    left: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl Hostile {
    async fn start(start: Vec<u8>, more: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (written, asked, left) = <(Arc<AtomicUsize>, Arc<Notify>, Arc<Notify>)>::default();
        let mut tasks = JoinSet::new();
        let (count, tell_asked, tell_left) = (written.clone(), asked.clone(), left.clone());
        tasks.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut some = [0; 64];
                let _ = stream.read(&mut some).await;
                tell_asked.notify_one();
                let (mut reader, mut writer) = stream.split();
                let write = async {
                    writer.write_all(&start).await?;
                    while !more.is_empty() {
                        writer.write_all(&more).await?;
                        count.fetch_add(more.len(), Ordering::Relaxed);
                    }
                    std::future::pending::<std::io::Result<()>>().await
                };
                let read = async { while matches!(reader.read(&mut some).await, Ok(1..)) {} };
                tokio::select! {
                    biased;
                    _ = write => {}
                    () = read => {}
                }
                tell_left.notify_one();
            }
        });
        Self {
            port,
            written,
            asked,
            left,
            _tasks: tasks,
        }
    }

    fn grpc(&self) -> ProbeAction {
        ProbeAction::Grpc(GrpcProbe::new("127.0.0.1", self.port, ""))
    }

    fn http(&self) -> ProbeAction {
        ProbeAction::HttpGet(HttpProbe::new("127.0.0.1", self.port, "/"))
    }

    fn https(&self) -> ProbeAction {
        let mut probe = HttpProbe::new("127.0.0.1", self.port, "/");
        probe.tls = true;
        ProbeAction::HttpGet(probe)
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

fn settings() -> Vec<u8> {
    frame(4, 0, 0, &[])
}

/// The headers of an answer: `:status: 200` and a content type, as literals.
fn headers() -> Vec<u8> {
    let mut block = vec![0x88];
    for (name, value) in [("content-type", "application/grpc")] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

fn after(start: &[Vec<u8>]) -> Vec<u8> {
    start.concat()
}

#[tokio::test]
async fn floods_and_silence_cost_a_grpc_probe_no_more_than_its_time() {
    let answered = || after(&[settings(), frame(1, 4, 1, &headers())]);
    let message = [0, 0, 0, 0, 2, 8, 1];
    let cases = [
        ("says nothing", Vec::new(), Vec::new()),
        ("stops after its settings", settings(), Vec::new()),
        ("stops after its headers", answered(), Vec::new()),
        (
            "has no trailers",
            after(&[answered(), frame(0, 0, 1, &message)]),
            Vec::new(),
        ),
        (
            "stops in its message",
            after(&[answered(), frame(0, 0, 1, &message[..5])]),
            Vec::new(),
        ),
        ("floods with settings", Vec::new(), settings().repeat(100)),
        ("floods with pings", settings(), frame(6, 0, 0, &[0; 8]).repeat(100)),
        (
            "floods with what nobody knows",
            settings(),
            frame(99, 0, 0, &[0; 1000]).repeat(10),
        ),
        ("floods with messages", answered(), frame(0, 0, 1, &message).repeat(100)),
        ("floods with empty data", answered(), frame(0, 0, 1, &[]).repeat(100)),
        (
            "floods with a message",
            after(&[answered(), frame(0, 0, 1, &[0, 0, 1, 0, 0])]),
            frame(0, 0, 1, &[0; 4096]),
        ),
        (
            "claims a huge message",
            after(&[answered(), frame(0, 0, 1, &[0, 255, 255, 255, 255])]),
            frame(0, 0, 1, &[0; 4096]),
        ),
        (
            "floods with headers",
            after(&[settings(), frame(1, 0, 1, &headers())]),
            frame(9, 0, 1, b"\0\x01a\x01b").repeat(10),
        ),
        ("floods with half a header", settings(), frame(1, 0, 1, &[0; 16])),
        (
            "floods with a frame without end",
            vec![255, 255, 255, 0, 0, 0, 0, 0, 1],
            vec![0; 4096],
        ),
        ("floods with zeroes", Vec::new(), vec![0; 4096]),
        (
            "speaks HTTP/1.1",
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec(),
            Vec::new(),
        ),
        ("speaks TLS", vec![0x15, 3, 3, 0, 2, 2, 50], Vec::new()),
        (
            "speaks SSH",
            b"SSH-2.0-nothing for you\r\n".to_vec(),
            b"and more of it\r\n".repeat(100),
        ),
    ];
    for (what, start, more) in cases {
        let server = Hostile::start(start, more).await;
        let outcome = run(server.grpc(), BRIEF).await;
        assert!(
            matches!(outcome, ProbeOutcome::Failure(_)),
            "a server that {what} gives {outcome:?}"
        );
        server.left.notified().await;
        let written = server.written.load(Ordering::Relaxed);
        // What is thrown away as it comes costs nothing but time.
        let is_thrown_away = what.contains("nobody knows") || what.contains("pings") || what.contains("with messages");
        assert!(
            is_thrown_away || written < ON_ITS_WAY,
            "a server that {what} wrote {written} bytes"
        );
    }
}

#[tokio::test]
async fn floods_and_silence_cost_a_probe_over_tls_no_more_than_its_time() {
    /// A record of a handshake, which promises more of it than any has.
    const HELLO: [u8; 9] = [0x16, 3, 3, 0x40, 0, 2, 0xff, 0xff, 0xff];
    let alerts = [0x15, 3, 3, 0, 2, 1, 0];
    let cases = [
        ("says nothing", Vec::new(), Vec::new()),
        ("stops in its first record", HELLO[..4].to_vec(), Vec::new()),
        (
            "floods with a handshake",
            Vec::new(),
            [&HELLO[..], &[0; 0x4000 - 4]].concat(),
        ),
        ("floods with empty records", Vec::new(), [0x16, 3, 3, 0, 0].repeat(100)),
        ("floods with alerts", Vec::new(), alerts.repeat(100)),
        ("floods with zeroes", Vec::new(), vec![0; 4096]),
        (
            "floods with HTTP",
            b"HTTP/1.1 200 OK\r\n".to_vec(),
            b"X: y\r\n".repeat(100),
        ),
        (
            "speaks HTTP",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
            Vec::new(),
        ),
    ];
    for (what, start, more) in cases {
        let server = Hostile::start(start, more).await;
        let why = why(run(server.https(), BRIEF).await);
        assert_eq!(
            why.ends_with("answered in plain HTTP"),
            what.ends_with("HTTP"),
            "a server that {what}: {why}"
        );
        server.left.notified().await;
        let written = server.written.load(Ordering::Relaxed);
        assert!(written < ON_ITS_WAY, "a server that {what} wrote {written} bytes");
    }
}

#[tokio::test]
async fn a_grpc_probe_that_takes_too_long_says_in_what() {
    let server = Hostile::start(settings(), Vec::new()).await;
    let why = why(run(server.grpc(), BRIEF).await);
    assert_eq!(why, "timeout: health rpc did not complete within 200ms");
}

#[tokio::test]
async fn a_grpc_server_that_goes_away_fails_the_probe_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for reset in [false, true] {
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // It is connected for sure once it has said something.
            stream.read_u8().await.unwrap();
            if reset {
                stream.set_zero_linger().unwrap();
            }
        };
        let probe = run(ProbeAction::Grpc(GrpcProbe::new("127.0.0.1", port, "")), LONG);
        let (outcome, ()) = tokio::join!(probe, serve);
        let why = why(outcome);
        assert!(why.starts_with("error: health rpc probe failed: "), "{why}");
    }
}

#[tokio::test]
async fn a_probe_that_is_dropped_leaves_its_server() {
    let flood = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    for (start, more, is_grpc) in [
        (Vec::new(), Vec::new(), true),
        (Vec::new(), Vec::new(), false),
        (settings(), frame(6, 0, 0, &[0; 8]).repeat(100), true),
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), Vec::new(), false),
        (Vec::new(), flood, false),
    ] {
        let server = Hostile::start(start, more).await;
        let action = if is_grpc { server.grpc() } else { server.http() };
        let (prober, target) = (NetworkProber::new(), ProbeTarget::new(action, LONG));
        let mut probe = Box::pin(prober.probe(&target));
        tokio::select! {
            biased;
            () = server.asked.notified() => {}
            outcome = &mut probe => assert!(matches!(outcome, ProbeOutcome::Failure(_)), "{outcome:?}"),
        }
        drop(probe);
        server.left.notified().await;
    }
}
