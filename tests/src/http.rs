//! A plain HTTP client, for the pages and metrics of a sidecar.

use crate::WAIT_LIMIT;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code, for instance 200.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Requests a path, and reads the whole response.
///
/// # Panics
/// If there is no response.
#[must_use]
pub fn get(address: &str, path: &str) -> Answer {
    say(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

/// Sends these bytes, and reads the whole response.
///
/// # Panics
/// If there is no response.
#[must_use]
pub fn say(address: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket has a timeout");
    // The server may refuse the request before all of it is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request:?}: {read:?}, {text:?}"));
    let status = head.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{head:?}"));
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}
