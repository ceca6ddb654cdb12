use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};

use super::Endpoint;
use file::SocketFile;

mod file;

/// How long no connection is taken after taking one failed, mostly because all file descriptors are in use.
const PAUSE: Duration = Duration::from_millis(200);

/// How often, and for how long altogether, a listener in the making waits for another one in the same folder.
const TURN_RETRY: Duration = Duration::from_millis(10);
const TURN_RETRIES: u32 = 100;

/// How a socket is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenSettings {
    /// The permission bits of the socket, whatever the process's umask is. Who may write may connect. Default: 0660.
    pub mode: u32,
}

impl Default for ListenSettings {
    fn default() -> Self {
        Self { mode: 0o660 }
    }
}

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody listens there already, and goes on. Another agent runs, or the last one has not ended yet.
    #[error("{} is in use: somebody listens on it", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// What is there is no socket, and is left alone. Somebody must look at it.
    #[error("{} is there and is no socket", path.display())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// The system refused a step.
    #[error("cannot {op} {}", path.display())]
    Failed {
        /// The step, such as `listen on`.
        op: &'static str,
        /// What it was tried on.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The connections to a socket, as a stream for tonic's `serve_with_incoming`.
///
/// It never ends and yields no error: where a connection cannot be taken, as with too many open files, it logs a warning, pauses and
/// goes on. A handler finds who called in the extensions of its request, as [`UdsConnectInfo`](tonic::transport::server::UdsConnectInfo).
///
/// Dropped, it removes its socket, unless another one has taken the place meanwhile. Connections that were taken go on.
#[derive(Debug)]
#[must_use = "dropped, it removes its socket"]
pub struct Incoming {
    // Goes first: while the listener lives nobody can take the socket for a stale one, so that it is still this one's own.
    _file: SocketFile,
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
            }
            match ready!(this.listener.poll_accept(cx)) {
                Ok((stream, _)) => return Poll::Ready(Some(Ok(stream))),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "connection not taken");
                    this.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

/// Listens on a socket.
///
/// A socket on which nobody listens any more is replaced; one on which somebody does is not. The folder must be there, and be one
/// in which only those may write who are trusted.
///
/// # Errors
/// See [`ListenError`].
///
/// # Cancellation
/// A dropped call leaves nothing behind, though it may have removed a stale socket.
///
/// # Examples
///
/// ```
/// use kubelet_proto::unix::{self, ListenSettings};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("peer.sock");
/// let endpoint = unix::Endpoint::new(path)?;
/// let mut settings = ListenSettings::default();
/// settings.mode = 0o600;
/// let incoming = unix::listen(&endpoint, settings).await?;
/// // tonic::transport::Server::builder().add_service(…).serve_with_incoming(incoming).await?;
/// # drop(incoming);
/// # Ok(())
/// # }
/// ```
pub async fn listen(endpoint: &Endpoint, settings: ListenSettings) -> Result<Incoming, ListenError> {
    let path = endpoint.path();
    let failed = |op| {
        move |source| ListenError::Failed {
            op,
            path: path.to_owned(),
            source,
        }
    };
    // Of two that find the same stale socket, the later one would remove the socket of the earlier one.
    let _turn = turn(path).await;
    let listener = match bind(path, settings.mode) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path).await?;
            bind(path, settings.mode).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => ListenError::Taken { path: path.to_owned() },
                _ => failed("listen on")(source),
            })?
        }
        done => done.map_err(failed("listen on"))?,
    };
    let file = SocketFile::new(path).map_err(failed("look at"))?;
    let permissions = fs::Permissions::from_mode(settings.mode);
    fs::set_permissions(path, permissions).map_err(failed("set the mode of"))?;
    listener.set_nonblocking(true).map_err(failed("listen on"))?;
    let listener = UnixListener::from_std(listener).map_err(failed("listen on"))?;
    Ok(Incoming {
        _file: file,
        listener,
        pause: None,
    })
}

/// Removes a socket on which nobody listens.
async fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |op| {
        move |source| ListenError::Failed {
            op,
            path: path.to_owned(),
            source,
        }
    };
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(ListenError::NotASocket { path: path.to_owned() }),
        Err(error) if gone(&error) => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
    }
    match UnixStream::connect(path).await {
        // A full queue is somebody's.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ListenError::Taken { path: path.to_owned() }),
        Ok(_) => Err(ListenError::Taken { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match fs::remove_file(path) {
            Err(error) if !gone(&error) => Err(failed("remove the stale socket")(error)),
            _ => Ok(()),
        },
        Err(error) if gone(&error) => Ok(()),
        Err(error) => Err(failed("ask who listens on")(error)),
    }
}

/// The right to make sockets in the folder of a path, until it is dropped.
///
/// It helps only among those who ask for it, and holds up nobody for long: none is given where the folder cannot be locked, or where
/// somebody keeps it locked for other reasons.
async fn turn(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    for _ in 0..TURN_RETRIES {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(fs::TryLockError::WouldBlock) => sleep(TURN_RETRY).await,
            Err(fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// A listener on a path at which nothing is.
#[cfg(target_os = "linux")]
fn bind(path: &Path, mode: u32) -> io::Result<std::os::unix::net::UnixListener> {
    use rustix::fs::{Mode, fchmod};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the socket's own mode, less the umask: at no time may it be open to more than are meant.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, QUEUE)?;
    Ok(socket.into())
}

/// A listener on a path at which nothing is.
#[cfg(not(target_os = "linux"))]
fn bind(path: &Path, _mode: u32) -> io::Result<std::os::unix::net::UnixListener> {
    std::os::unix::net::UnixListener::bind(path)
}

/// How many connections may wait to be taken; the kernel has a limit of its own, mostly this one.
#[cfg(target_os = "linux")]
const QUEUE: i32 = 4096;

#[cfg(test)]
mod tests;
