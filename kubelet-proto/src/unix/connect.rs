use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Uri};
use tower::service_fn;

use super::Endpoint;

/// How often a socket with a full queue is tried again.
const QUEUE_RETRY: Duration = Duration::from_millis(10);

/// How a connection is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectSettings {
    /// How long one attempt may take. A socket that is absent, or on which nobody listens, fails at once: this bounds the wait for room in
    /// the listener's queue. Default: 5 s, the least that upstream's clients wait.
    pub connect_timeout: Duration,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// Why no connection was made. Trying again later is right for each kind but `PermissionDenied`.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {endpoint}")]
pub struct ConnectError {
    endpoint: Endpoint,
    source: io::Error,
}

impl ConnectError {
    /// Where the connection was to lead.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What went wrong: `NotFound` if there is no socket, `ConnectionRefused` if nobody listens on it, `TimedOut` if the listener's
    /// queue stayed full.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// Connects to a service.
///
/// That somebody listens does not say that they answer: give calls deadlines of their own. If the connection ends, the next call
/// makes a new one, as with [`connect_lazy`].
///
/// # Errors
/// If nobody listens there within the time that the settings give.
///
/// # Cancellation
/// A dropped call leaves nothing behind.
pub async fn connect(endpoint: &Endpoint, settings: ConnectSettings) -> Result<Channel, ConnectError> {
    let stream = dial(endpoint.clone(), settings.connect_timeout).await?;
    let mut made = Some(stream);
    let (target, limit) = (endpoint.clone(), settings.connect_timeout);
    let connector = service_fn(move |_: Uri| {
        let (made, target) = (made.take(), target.clone());
        async move {
            match made {
                Some(stream) => Ok(TokioIo::new(stream)),
                None => dial(target, limit).await.map(TokioIo::new),
            }
        }
    });
    let channel = transport().connect_with_connector(connector).await;
    channel.map_err(|error| ConnectError {
        endpoint: endpoint.clone(),
        source: io::Error::other(error),
    })
}

/// A channel to a service that connects at the first call, and anew whenever its connection has ended.
///
/// A call that finds nobody listening fails at once with the code `Unavailable`, and a [`ConnectError`] is among its sources; the next
/// call tries again. There is no pause in between: whoever repeats calls chooses one.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn connect_lazy(endpoint: &Endpoint, settings: ConnectSettings) -> Channel {
    let (target, limit) = (endpoint.clone(), settings.connect_timeout);
    let connector = service_fn(move |_: Uri| {
        let target = target.clone();
        async move { dial(target, limit).await.map(TokioIo::new) }
    });
    transport().connect_with_connector_lazy(connector)
}

/// What all channels share.
fn transport() -> tonic::transport::Endpoint {
    // Names no machine: it is what requests carry as their `:authority`, the same as upstream's.
    tonic::transport::Endpoint::from_static("http://localhost")
}

/// One connection.
async fn dial(endpoint: Endpoint, limit: Duration) -> Result<UnixStream, ConnectError> {
    let attempt = async {
        loop {
            match UnixStream::connect(endpoint.path()).await {
                // A full queue is told at once, and cannot be waited for.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_RETRY).await,
                done => break done,
            }
        }
    };
    let full = |_| io::Error::new(io::ErrorKind::TimedOut, "the listener's queue stayed full");
    let outcome = timeout(limit, attempt).await.map_err(full).flatten();
    outcome.map_err(|source| ConnectError { endpoint, source })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    use tempfile::TempDir;
    use tokio::net::UnixListener;

    use super::*;

    fn endpoint(folder: &TempDir) -> Endpoint {
        Endpoint::new(folder.path().join("a.sock")).unwrap()
    }

    /// A listener whose queue is full, and what fills it.
    fn full(endpoint: &Endpoint) -> (UnixListener, Vec<std::os::unix::net::UnixStream>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (address, listener) = (SocketAddrUnix::new(endpoint.path()).unwrap(), new());
        bind(&listener, &address).unwrap();
        listen(&listener, 1).unwrap();
        let mut waiting: Vec<OwnedFd> = Vec::new();
        loop {
            let client = new();
            match rustix::net::connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
            }
        }
        let listener = UnixListener::from_std(listener.into()).unwrap();
        (listener, waiting.into_iter().map(Into::into).collect())
    }

    #[tokio::test]
    async fn nobody_there_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&folder);
        let error = connect(&endpoint, ConnectSettings::default()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), format!("cannot connect to {endpoint}"));

        drop(std::os::unix::net::UnixListener::bind(endpoint.path()).unwrap());
        let error = connect(&endpoint, ConnectSettings::default()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_is_waited_for_within_the_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&folder);
        let (listener, waiting) = full(&endpoint);
        let error = connect(&endpoint, ConnectSettings::default()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let drained = async {
            for _ in &waiting {
                listener.accept().await.unwrap();
            }
        };
        let (connected, ()) = tokio::join!(connect(&endpoint, ConnectSettings::default()), drained);
        connected.unwrap();
    }
}
