//! A plain HTTP client, for what a sidecar serves to those who watch it.

use crate::PATIENCE;
use std::io::{Read, Write};
use std::net::TcpStream;

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// For instance 200.
    pub status: u16,
    /// The lines of its head, in lower case.
    pub head: String,
    /// What comes behind.
    pub body: String,
}

/// Asks for a path, and reads all of the answer.
///
/// # Panics
/// Where there is none.
#[must_use]
pub fn get(address: &str, path: &str) -> Answer {
    say(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

/// Says these bytes, and reads all of the answer.
///
/// # Panics
/// Where there is none.
#[must_use]
pub fn say(address: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
    // It may be refused before all of it is said.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request:?}: {read:?}, {text:?}"));
    let status = head.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{head:?}"));
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}
