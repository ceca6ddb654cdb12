//! A connection that notes what the other side says first.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// As plain HTTP begins.
const HTTP: &[u8; 5] = b"HTTP/";

/// Keeps the first bytes that were read: one who was asked for TLS and speaks plain HTTP is known by them.
#[derive(Debug)]
pub(super) struct Noting {
    stream: TcpStream,
    first: Vec<u8>,
}

impl Noting {
    pub(super) fn new(stream: TcpStream) -> Self {
        let first = Vec::with_capacity(HTTP.len());
        Self { stream, first }
    }

    /// Whether the other side speaks plain HTTP.
    pub(super) fn heard_http(&self) -> bool {
        self.first == HTTP
    }
}

impl AsyncRead for Noting {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let wanted = HTTP.len() - self.first.len();
        let new = buf.filled().iter().skip(before).take(wanted);
        self.first.extend(new);
        polled
    }
}

impl AsyncWrite for Noting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
