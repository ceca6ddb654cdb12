//! A server of gRPC's health protocol, as much of HTTP/2 as that takes.

use std::io::{Error, Result};
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::contract::server::{Open, Server, until_left};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What a server answers to a check.
#[derive(Clone, Debug)]
pub(super) enum Health {
    /// A status by its number, and how the call itself ended.
    Status(u8, Option<u8>),
    /// The call ended in this way, without a status.
    Error(u8),
    /// A message of so many bytes is claimed; these come again and again.
    Flood(u32, Vec<u8>),
}

/// A server that answers by the name of the service, which it notes.
pub(super) async fn serve(answer: impl Fn(&str) -> Health + Send + Sync + 'static) -> Server {
    let answer = Arc::new(answer);
    Server::talk(move |stream, open| {
        let answer = answer.clone();
        async move { converse(stream, &open, &*answer).await }
    })
    .await
}

async fn converse(mut stream: TcpStream, open: &Open, answer: &(dyn Fn(&str) -> Health + Send + Sync)) -> Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    if &preface != b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
        return Err(Error::other("no HTTP/2"));
    }
    open.write(&mut stream, &frame(SETTINGS, 0, 0, &[])).await?;
    let mut message = Vec::new();
    let id = loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [l0, l1, l2, kind, flags, ..] = head;
        let id = head[8];
        let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
        stream.read_exact(&mut payload).await?;
        match kind {
            SETTINGS if flags & ACK == 0 => open.write(&mut stream, &frame(SETTINGS, ACK, 0, &[])).await?,
            DATA => message.extend(payload),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            break id;
        }
    };
    let service = service_of(&message).ok_or_else(|| Error::other("no message"))?;
    let health = answer(&service);
    open.asked(service);
    let start = headers(&[("content-type", "application/grpc")], true);
    let mut frames = Vec::new();
    match health {
        Health::Status(status, end) => {
            frames.extend(frame(HEADERS, END_HEADERS, id, &start));
            let last = if end.is_none() { END_STREAM } else { 0 };
            frames.extend(frame(DATA, last, id, &[0, 0, 0, 0, 2, 8, status]));
            if let Some(code) = end {
                let trailers = headers(&[("grpc-status", &code.to_string())], false);
                frames.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &trailers));
            }
        }
        Health::Error(code) => {
            let code = code.to_string();
            let all = [
                ("content-type", "application/grpc"),
                ("grpc-status", &code),
                ("grpc-message", "told"),
            ];
            frames.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &headers(&all, true)));
        }
        Health::Flood(length, more) => {
            frames.extend(frame(HEADERS, END_HEADERS, id, &start));
            let mut claim = vec![0];
            claim.extend(length.to_be_bytes());
            frames.extend(frame(DATA, 0, id, &claim));
            open.write(&mut stream, &frames).await?;
            loop {
                open.write(&mut stream, &frame(DATA, 0, id, &more)).await?;
            }
        }
    }
    open.write(&mut stream, &frames).await?;
    until_left(&mut stream).await
}

/// A frame of the connection or of one of the first streams.
pub(super) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    // None has anywhere near as much.
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

/// Headers as literals that nobody has to remember, after a status of 200 where they begin an answer.
fn headers(all: &[(&str, &str)], begin: bool) -> Vec<u8> {
    let mut block = if begin { vec![0x88] } else { Vec::new() };
    for (name, value) in all {
        block.push(0);
        for text in [name, value] {
            // Up to 126 bytes the length is one byte.
            block.push(u8::try_from(text.len()).unwrap_or(126));
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The service that is asked after; nothing if this is no `HealthCheckRequest`.
fn service_of(message: &[u8]) -> Option<String> {
    let (head, body) = message.split_at_checked(5)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if head[0] != 0 || usize::try_from(length) != Ok(body.len()) {
        return None;
    }
    match body {
        [] => Some(String::new()),
        [0x0a, length, name @ ..] if usize::from(*length) == name.len() => String::from_utf8(name.to_vec()).ok(),
        _ => None,
    }
}
