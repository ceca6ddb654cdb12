//! A server that does what a test says, well or badly.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubelet_core::BoundedRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::contract::check::eventually;

/// What is written once the head of a request was read, and what happens then.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    start: Vec<u8>,
    then: Then,
}

#[derive(Clone, Debug)]
enum Then {
    Close,
    Reset,
    Hang,
    /// Again and again, as fast as the client takes it.
    Flood(Vec<u8>),
    /// The same, byte by byte and slowly.
    Drip(Vec<u8>),
}

impl Answer {
    fn new(start: impl Into<Vec<u8>>, then: Then) -> Self {
        let start = start.into();
        Self { start, then }
    }

    /// A whole answer. The connection stays open until the client goes away.
    pub(super) fn whole(status: u16, body: &str) -> Self {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} Status\r\nX-Answer: Yes\r\nContent-Length: {length}\r\n\r\n");
        Self::hang(head + body)
    }

    /// A redirect.
    pub(super) fn redirect(to: &str) -> Self {
        Self::hang(format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
        ))
    }

    /// Nothing more comes, and the connection stays open.
    pub(super) fn hang(start: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Hang)
    }

    pub(super) fn close(start: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Close)
    }

    pub(super) fn reset(start: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Reset)
    }

    pub(super) fn flood(start: impl Into<Vec<u8>>, more: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Flood(more.into()))
    }

    pub(super) fn drip(start: impl Into<Vec<u8>>, more: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Drip(more.into()))
    }
}

/// What a server has seen.
#[derive(Debug, Default)]
struct Seen {
    connections: usize,
    open: usize,
    heads: Vec<String>,
    written: u64,
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    port: u16,
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Answers each request by its head.
    pub(super) async fn start(answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static) -> Self {
        let (listener, port) = listen().await;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let mut tasks = JoinSet::new();
        let noted = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let open = Open::note(noted.clone());
                let answer = answer.clone();
                connections.spawn(async move {
                    // That the client goes away is what many tests wait for.
                    let _ = open.converse(stream, answer).await;
                });
            }
        });
        Self {
            port,
            seen,
            _tasks: tasks,
        }
    }

    /// Gives each request the same answer.
    pub(super) async fn always(answer: Answer) -> Self {
        Self::start(move |_| answer.clone()).await
    }

    /// Says this to whoever connects, and does not listen to them.
    pub(super) async fn blurts(start: &'static str) -> Self {
        let (listener, port) = listen().await;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let mut tasks = JoinSet::new();
        let noted = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let open = Open::note(noted.clone());
                connections.spawn(async move {
                    let _ = open.write(&mut stream, start.as_bytes()).await;
                    // What came is read to its end: unread, it would take back what was said.
                    while stream.read_u8().await.is_ok() {}
                });
            }
        });
        Self {
            port,
            seen,
            _tasks: tasks,
        }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn get(&self, path: &str, timeout: Duration) -> BoundedRequest {
        let mut request = BoundedRequest::get(self.url(path));
        request.timeout = timeout;
        request
    }

    /// The heads of all requests so far.
    pub(super) fn heads(&self) -> Vec<String> {
        lock(&self.seen).heads.clone()
    }

    pub(super) fn connections(&self) -> usize {
        lock(&self.seen).connections
    }

    /// How many bytes clients have taken, with what is on its way to them.
    pub(super) fn written(&self) -> u64 {
        lock(&self.seen).written
    }

    /// Waits until a request has arrived.
    pub(super) async fn is_asked(&self, patience: Duration) {
        eventually("a request arrives", patience, async || {
            (!lock(&self.seen).heads.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until every connection was closed by its client.
    pub(super) async fn is_left(&self, patience: Duration) {
        eventually("the client closes its connection", patience, async || {
            (lock(&self.seen).open == 0).then_some(())
        })
        .await;
    }
}

pub(super) async fn listen() -> (TcpListener, u16) {
    let bound = async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        Ok::<_, std::io::Error>((listener, port))
    };
    match bound.await {
        Ok(bound) => bound,
        Err(error) => panic!("listen on a port of this machine: {error}"),
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that is open for as long as this lives.
struct Open(Arc<Mutex<Seen>>);

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.0).open -= 1;
    }
}

impl Open {
    fn note(seen: Arc<Mutex<Seen>>) -> Self {
        {
            let mut seen = lock(&seen);
            seen.connections += 1;
            seen.open += 1;
        }
        Self(seen)
    }

    async fn converse(self, mut stream: TcpStream, answer: impl Fn(&str) -> Answer) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let Answer { start, then } = answer(&head);
        lock(&self.0).heads.push(head);
        self.write(&mut stream, &start).await?;
        match then {
            Then::Close => stream.shutdown().await?,
            Then::Reset => return stream.set_zero_linger(),
            Then::Hang => {}
            Then::Flood(more) => loop {
                self.write(&mut stream, &more).await?;
            },
            Then::Drip(more) => {
                for byte in more.iter().cycle() {
                    self.write(&mut stream, &[*byte]).await?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        // Until the client goes away.
        loop {
            stream.read_u8().await?;
        }
    }

    async fn write(&self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        stream.write_all(bytes).await?;
        lock(&self.0).written += bytes.len() as u64;
        Ok(())
    }
}
