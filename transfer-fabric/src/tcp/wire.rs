//! The path of a link's frames: the plain socket, or TLS on it.

use super::iovec::{ReceiveList, SendList};
use super::tls::Session;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// The reason why nothing can be sent or received, for now or at all.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    System(#[from] Errno),
    #[error("TLS: {}", in_words(.0))]
    Tls(#[from] rustls::Error),
}

/// Returns the library's text, or a clearer one where that is not plain.
fn in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(alert) => format!("the peer refused it with the alert {alert:?}"),
        rustls::Error::InvalidMessage(_) => "what the peer sends is none; does it encrypt its data links?".to_owned(),
        other => other.to_string(),
    }
}

/// Sends and receives the bytes of a link.
#[derive(Debug)]
pub(super) struct Wire<'a> {
    socket: &'a OwnedFd,
    tls: Option<&'a mut Session>,
}

impl<'a> Wire<'a> {
    pub(super) fn new(socket: &'a OwnedFd, tls: Option<&'a mut Session>) -> Wire<'a> {
        Wire { socket, tls }
    }

    /// Sends as much as can be sent now. Returns the number of bytes.
    pub(super) fn send(&mut self, list: &SendList<'_>) -> Result<usize, WireError> {
        match &mut self.tls {
            None => Ok(list.send(self.socket)?),
            Some(tls) => tls.send(self.socket, list),
        }
    }

    /// Receives the bytes that are there now. Returns their number, which is 0 at the end of the stream.
    pub(super) fn receive(&mut self, list: &mut ReceiveList<'_>) -> Result<usize, WireError> {
        match &mut self.tls {
            None => Ok(list.receive(self.socket)?),
            Some(tls) => tls.receive(self.socket, list),
        }
    }

    /// Sends the bytes that were taken before.
    pub(super) fn flush(&mut self) -> Result<(), WireError> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => Ok(tls.flush(self.socket)?),
        }
    }

    /// Returns whether bytes that were taken still have to go into the socket.
    pub(super) fn is_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_pending())
    }

    /// Returns the number of copies that a CPU makes of each received byte.
    pub(super) fn copies(&self) -> u64 {
        if self.tls.is_some() { super::tls::RECEIVER_COPIES.into() } else { 1 }
    }
}
