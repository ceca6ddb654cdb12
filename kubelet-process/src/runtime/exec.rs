//! Runs a command in a container, by way of its supervisor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use kubelet_core::{ExecOutput, ExecRequest, RuntimeError};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::control::{self, Request, Response};
use crate::runtime::blocking;
use crate::runtime::container::{Container, Phase};

const OP: &str = "exec";
/// More than a pipe can hold without privileges: what is read beyond was written after the command had ended.
const REST_LIMIT_BYTES: usize = 1 << 20;
const CHUNK_BYTES: usize = 16 << 10;

/// Runs a command. Dropping the future ends it: its supervisor sees the connection close, and kills what it started.
pub(crate) async fn exec(container: &Container, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
    if !matches!(*container.phase.borrow(), Phase::Running(_)) {
        return Err(RuntimeError::refused(format!(
            "container {} does not run",
            container.id
        )));
    }
    let Some(timeout) = req.timeout else {
        return run(container, req).await;
    };
    match tokio::time::timeout(timeout, run(container, req)).await {
        Ok(ended) => ended,
        Err(_) => Ok(ExecOutput::timed_out()),
    }
}

async fn run(container: &Container, req: ExecRequest) -> Result<ExecOutput, RuntimeError> {
    let unavailable = |err: io::Error| RuntimeError::unavailable(OP, err);
    let dir = container.dir.clone();
    let argv = req.command;
    let (stream, stdout, stderr) = blocking(OP, move || {
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        // Our writing ends are closed on return: the command's are the only ones then.
        let stream = control::send(&dir, &Request::Exec { argv }, &[to_stdout.as_fd(), to_stderr.as_fd()])?;
        stream.set_nonblocking(true)?;
        Ok((stream, stdout, stderr))
    })
    .await?;
    let mut stream = UnixStream::from_std(stream).map_err(unavailable)?;
    let mut stdout = Captured::new(stdout.into(), req.output_limit_bytes).map_err(unavailable)?;
    let mut stderr = Captured::new(stderr.into(), req.output_limit_bytes).map_err(unavailable)?;
    let mut answer = Vec::new();
    let response = {
        let mut reading = std::pin::pin!(stream.read_to_end(&mut answer));
        loop {
            tokio::select! {
                biased; // the answer first, as output may come for ever
                read = &mut reading => break read,
                () = stdout.more(), if !stdout.done => {}
                () = stderr.more(), if !stderr.done => {}
            }
        }
    };
    response.map_err(unavailable)?;
    match serde_json::from_slice(&answer) {
        Ok(Response::Exited { exit_code }) => Ok(ExecOutput::new(exit_code, stdout.finish(), stderr.finish())),
        Ok(Response::Failed { message }) => Err(RuntimeError::refused(message)),
        Ok(Response::Done) => Err(unavailable(io::ErrorKind::InvalidData.into())),
        // The supervisor ended, and the command with it.
        Err(err) => Err(RuntimeError::unavailable(OP, err)),
    }
}

/// One output stream, kept up to a limit.
struct Captured {
    pipe: pipe::Receiver,
    kept: Vec<u8>,
    limit: usize,
    chunk: Box<[u8; CHUNK_BYTES]>,
    done: bool,
}

impl Captured {
    fn new(pipe: OwnedFd, limit: usize) -> io::Result<Self> {
        Ok(Self {
            pipe: pipe::Receiver::from_owned_fd(pipe)?,
            kept: Vec::new(),
            limit,
            chunk: Box::new([0; CHUNK_BYTES]),
            done: false,
        })
    }

    /// Waits for output and takes it. Loses nothing when dropped.
    async fn more(&mut self) {
        if self.pipe.readable().await.is_err() {
            self.done = true;
            return;
        }
        self.take();
    }

    /// Takes what is there; returns how much.
    fn take(&mut self) -> usize {
        match self.pipe.try_read(&mut *self.chunk) {
            Ok(0) => {
                self.done = true;
                0
            }
            Ok(got) => {
                let room = self.limit.saturating_sub(self.kept.len()).min(got);
                self.kept.extend_from_slice(self.chunk.get(..room).unwrap_or_default());
                got
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.done = true;
                0
            }
        }
    }

    /// Takes what the command left in the pipe. What it started may hold that open for ever.
    fn finish(mut self) -> Bytes {
        let mut taken = 0;
        while !self.done && taken < REST_LIMIT_BYTES {
            match self.take() {
                0 => break,
                got => taken += got,
            }
        }
        self.kept.into()
    }
}
