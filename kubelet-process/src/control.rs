//! How an agent talks to a supervisor: one request per connection to the socket in the container's folder, as one line of
//! JSON, answered by one line. The output pipes of an exec travel with the request. Closing the connection early ends
//! an exec.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::state::ContainerDir;

/// Arguments of a program are limited to about this by the kernel.
const REQUEST_LIMIT_BYTES: usize = 4 << 20;
/// How long either side waits for bytes that are already under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// What an agent asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Send the main process its stop signal, once.
    Stop,
    /// Kill everything.
    Kill,
    /// Open the log's path anew.
    ReopenLog,
    /// Run a command, with the two pipes that came along as its output.
    Exec { argv: Vec<String> },
}

/// What a supervisor answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    Done,
    /// It cannot; the text says why.
    Failed {
        message: String,
    },
    /// The command ended.
    Exited {
        exit_code: i32,
    },
}

/// Listens in a container's folder.
pub(crate) fn listen(dir: &ContainerDir) -> io::Result<UnixListener> {
    let (folder, path) = socket_path(dir)?;
    match std::fs::remove_file(&path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    drop(folder);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Sends a request; the answer is read from what this returns. Blocks, but only as long as the supervisor takes to notice.
pub(crate) fn send(dir: &ContainerDir, request: &Request, pipes: &[BorrowedFd<'_>]) -> io::Result<UnixStream> {
    let (folder, path) = socket_path(dir)?;
    let mut stream = UnixStream::connect(path)?;
    drop(folder);
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !pipes.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(pipes));
    }
    // The pipes travel with the first byte; the rest may need further writes.
    let sent = sendmsg(&stream, &[IoSlice::new(&line)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(line.get(sent..).unwrap_or_default())?;
    Ok(stream)
}

/// Reads a request and what came along.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<(Request, Vec<OwnedFd>)> {
    stream.set_nonblocking(false)?;
    // The sender writes at once; one that was stopped half-way must not hold up a container's output.
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut pipes = Vec::new();
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                pipes.extend(fds);
            }
        }
        line.extend_from_slice(chunk.get(..got.bytes).unwrap_or_default());
        if line.ends_with(b"\n") {
            return Ok((serde_json::from_slice(&line)?, pipes));
        }
        if got.bytes == 0 || line.len() > REQUEST_LIMIT_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Answers a request. One who no longer listens is no error.
pub(crate) fn answer(mut stream: UnixStream, response: &Response) {
    if let Ok(mut line) = serde_json::to_vec(response) {
        line.push(b'\n');
        // A line fits the socket's buffer, so that this cannot block.
        let _ = stream.write_all(&line);
    }
}

/// Waits for the answer to a request that is answered at once.
pub(crate) fn ask(dir: &ContainerDir, request: &Request) -> io::Result<Response> {
    let mut stream = send(dir, request, &[])?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// The socket's path by way of an open folder, since a socket's path is limited to 107 bytes and a folder's is not.
fn socket_path(dir: &ContainerDir) -> io::Result<(File, PathBuf)> {
    let folder = File::open(dir.path())?;
    let path = format!("/proc/self/fd/{}/{}", folder.as_fd().as_raw_fd(), dir.control_name());
    Ok((folder, path.into()))
}
