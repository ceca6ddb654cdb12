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
pub(crate) struct Answer {
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
    pub(crate) fn whole(status: u16, body: &str) -> Self {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} Status\r\nX-Answer: Yes\r\nContent-Length: {length}\r\n\r\n");
        Self::hang(head + body)
    }

    /// A redirect.
    pub(crate) fn redirect(to: &str) -> Self {
        Self::hang(format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
        ))
    }

    /// Nothing more comes, and the connection stays open.
    pub(crate) fn hang(start: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Hang)
    }

    pub(crate) fn close(start: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Close)
    }

    pub(crate) fn reset(start: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Reset)
    }

    pub(crate) fn flood(start: impl Into<Vec<u8>>, more: impl Into<Vec<u8>>) -> Self {
        Self::new(start, Then::Flood(more.into()))
    }

    pub(crate) fn drip(start: impl Into<Vec<u8>>, more: impl Into<Vec<u8>>) -> Self {
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
pub(crate) struct Server {
    port: u16,
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Converses with each client in this way; that the client goes away, an error, is what many tests wait for.
    pub(crate) async fn talk<C, F>(converse: C) -> Self
    where
        C: Fn(TcpStream, Arc<Open>) -> F + Send + Sync + 'static,
        F: Future<Output = std::io::Result<()>> + Send + 'static,
    {
        let (listener, port) = listen().await;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let mut tasks = JoinSet::new();
        let noted = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let talk = converse(stream, Arc::new(Open::note(noted.clone())));
                connections.spawn(async move {
                    let _ = talk.await;
                });
            }
        });
        Self {
            port,
            seen,
            _tasks: tasks,
        }
    }

    /// Answers each request by its head.
    pub(crate) async fn start(answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static) -> Self {
        Self::talk(move |stream, open| {
            let answer = answer.clone();
            async move { open.converse(stream, answer).await }
        })
        .await
    }

    /// Gives each request the same answer.
    pub(crate) async fn always(answer: Answer) -> Self {
        Self::start(move |_| answer.clone()).await
    }

    /// Says this to whoever connects, and does not listen to them.
    pub(crate) async fn blurts(start: &'static str) -> Self {
        Self::talk(move |mut stream, open| async move {
            open.write(&mut stream, start.as_bytes()).await?;
            // What came is read to its end: unread, it would take back what was said.
            until_left(&mut stream).await
        })
        .await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn get(&self, path: &str, timeout: Duration) -> BoundedRequest {
        let mut request = BoundedRequest::get(self.url(path));
        request.timeout = timeout;
        request
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        lock(&self.seen).heads.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        lock(&self.seen).connections
    }

    /// How many bytes clients have taken, with what is on its way to them.
    pub(crate) fn written(&self) -> u64 {
        lock(&self.seen).written
    }

    /// Waits until a request has arrived.
    pub(crate) async fn is_asked(&self, patience: Duration) {
        eventually("a request arrives", patience, async || {
            (!lock(&self.seen).heads.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until so many connections have been made.
    pub(crate) async fn is_connected(&self, number: usize, patience: Duration) {
        eventually("a connection is made", patience, async || {
            (lock(&self.seen).connections >= number).then_some(())
        })
        .await;
    }

    /// Waits until every connection was closed by its client.
    pub(crate) async fn is_left(&self, patience: Duration) {
        eventually("the client closes its connection", patience, async || {
            (lock(&self.seen).open == 0).then_some(())
        })
        .await;
    }
}

pub(crate) async fn listen() -> (TcpListener, u16) {
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

/// Waits until the client goes away: an error always.
pub(crate) async fn until_left(stream: &mut TcpStream) -> std::io::Result<()> {
    loop {
        stream.read_u8().await?;
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that is open for as long as this lives.
#[derive(Debug)]
pub(crate) struct Open(Arc<Mutex<Seen>>);

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

    async fn converse(&self, mut stream: TcpStream, answer: impl Fn(&str) -> Answer) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let Answer { start, then } = answer(&head);
        self.asked(head);
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
        until_left(&mut stream).await
    }

    /// Notes what was asked.
    pub(crate) fn asked(&self, head: String) {
        lock(&self.0).heads.push(head);
    }

    /// Writes, and counts.
    pub(crate) async fn write(&self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        stream.write_all(bytes).await?;
        lock(&self.0).written += bytes.len() as u64;
        Ok(())
    }
}
