//! What a link's frames go through: the socket as it is, or TLS on it.

use super::iovec::{ReceiveList, SendList};
use super::tls::Session;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// Why nothing goes through any more, or not now.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    System(#[from] Errno),
    #[error("TLS: {}", in_words(.0))]
    Tls(#[from] rustls::Error),
}

/// The library's words, and what they mean here where that is not plain.
fn in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(alert) => format!("the peer refused it with the alert {alert:?}"),
        rustls::Error::InvalidMessage(_) => "what the peer sends is none; does it encrypt its data links?".to_owned(),
        other => other.to_string(),
    }
}

/// A link's way out and in.
#[derive(Debug)]
pub(super) struct Wire<'a> {
    socket: &'a OwnedFd,
    tls: Option<&'a mut Session>,
}

impl<'a> Wire<'a> {
    pub(super) fn new(socket: &'a OwnedFd, tls: Option<&'a mut Session>) -> Wire<'a> {
        Wire { socket, tls }
    }

    /// Sends what can be sent now. How many bytes that were.
    pub(super) fn send(&mut self, list: &SendList<'_>) -> Result<usize, WireError> {
        match &mut self.tls {
            None => Ok(list.send(self.socket)?),
            Some(tls) => tls.send(self.socket, list),
        }
    }

    /// Receives what is there now. How many bytes that were; 0 at the end of the stream.
    pub(super) fn receive(&mut self, list: &mut ReceiveList<'_>) -> Result<usize, WireError> {
        match &mut self.tls {
            None => Ok(list.receive(self.socket)?),
            Some(tls) => tls.receive(self.socket, list),
        }
    }

    /// Sends what was taken before.
    pub(super) fn flush(&mut self) -> Result<(), WireError> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => Ok(tls.flush(self.socket)?),
        }
    }

    /// Whether what was taken is still on its way into the socket.
    pub(super) fn is_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_pending())
    }

    /// How often a CPU copies each byte that is received.
    pub(super) fn copies(&self) -> u64 {
        if self.tls.is_some() { super::tls::RECEIVER_COPIES.into() } else { 1 }
    }
}
