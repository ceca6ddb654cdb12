//! One gRPC call on a unix socket, by hand: enough to ask whether a runtime answers, without a gRPC stack.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Frames of HTTP/2, by their number.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The one stream of a connection that makes one call.
const STREAM: u32 = 1;

/// More than any answer has.
const WINDOW: u32 = 1 << 30;

/// Calls `/runtime.v1.RuntimeService/Status` and the like with an encoded message, and answers the encoded answer.
///
/// What the server says instead of an answer is in headers whose compression is not understood here, so that an error
/// says only that there was none.
pub(crate) fn call(socket: &Path, method: &str, message: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(&request(method, message))?;
    let mut answer = Vec::new();
    loop {
        let frame = Frame::read(&mut stream)?;
        match frame.kind {
            DATA if frame.stream == STREAM => answer.extend_from_slice(&frame.content),
            SETTINGS if frame.flags & ACK == 0 => stream.write_all(&encode(SETTINGS, ACK, 0, &[]))?,
            PING if frame.flags & ACK == 0 => stream.write_all(&encode(PING, ACK, 0, &frame.content))?,
            RST_STREAM | GOAWAY => return Err(refused(method)),
            _ => {}
        }
        if frame.stream == STREAM && matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
            break;
        }
    }
    // A byte that says whether it is compressed, and the length.
    let Some((head, message)) = answer.split_first_chunk::<5>() else {
        return Err(refused(method));
    };
    if head[0] != 0 || u32_of(&head[1..]) as usize != message.len() {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{method}: an answer that is not whole"),
        ));
    }
    Ok(message.to_vec())
}

fn refused(method: &str) -> io::Error {
    io::Error::other(format!("{method}: the server gave no answer"))
}

fn request(method: &str, message: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal without compression. All are shorter than what would need a longer length.
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap_or_default());
            headers.extend_from_slice(text.as_bytes());
        }
    }
    let mut data = vec![0];
    data.extend_from_slice(&(message.len() as u32).to_be_bytes());
    data.extend_from_slice(message);
    // Setting 4 is the window of new streams.
    let mut settings = vec![0, 4];
    settings.extend_from_slice(&WINDOW.to_be_bytes());
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        encode(SETTINGS, 0, 0, &settings),
        encode(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes()),
        encode(HEADERS, END_HEADERS, STREAM, &headers),
        encode(DATA, END_STREAM, STREAM, &data),
    ]
    .concat()
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    content: Vec<u8>,
}

impl Frame {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let mut content = vec![0; (u32_of(&head[..4]) >> 8) as usize];
        from.read_exact(&mut content)?;
        Ok(Self {
            kind: head[3],
            flags: head[4],
            stream: u32_of(&head[5..]) & (u32::MAX >> 1),
            content,
        })
    }
}

fn encode(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let mut frame = (content.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(content);
    frame
}

/// The first four bytes as a number; zero if there are fewer.
fn u32_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let bytes = encode(DATA, END_STREAM, STREAM, b"hello");
        let frame = Frame::read(&mut &bytes[..]).unwrap();
        assert_eq!((frame.kind, frame.flags, frame.stream), (DATA, END_STREAM, STREAM));
        assert_eq!(frame.content, b"hello");
    }
}
