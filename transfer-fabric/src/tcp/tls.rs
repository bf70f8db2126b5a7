//! Links that are encrypted.
//!
//! A socket of an encrypted link begins as any other, with a Hello in the clear: its token was told to nobody but the peer, in a call
//! that was authenticated, so no stranger makes this thread do a handshake. Then comes TLS 1.3, in which both sides show certificates;
//! then, inside of it, another Hello and a Welcome, whose 16 bytes are derived from the secrets of this very TLS session and from both
//! tokens. Of the tokens one has never been on the wire in the clear. So whoever sits between the two nodes, with a good certificate
//! even, can relay nothing: in each of its two sessions other bytes would be right.
//!
//! Nothing here blocks. A handshake is done in the steps in which its bytes arrive; its signatures take this thread some 100 µs for each
//! link that begins.

use super::iovec::{ReceiveList, SendList};
use super::wire::WireError;
use crate::token::{TOKEN_BYTES, Token};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::fmt::{self, Debug};
use std::io::{self, BufRead, Write};
use std::ops::Range;
use std::sync::Arc;

/// Gives each new link what it is encrypted with, so that certificates can be replaced while the fabric runs.
///
/// Both sides have to check that the other one's certificate is of their authority. Which node it is they need not check: the link's
/// tokens, which only the two nodes know, show that.
pub trait TlsSource: Debug + Send + Sync {
    /// For the side that connects. `None` where there is none any more.
    fn client(&self) -> Option<Arc<ClientConfig>>;

    /// For the side that is connected to.
    fn server(&self) -> Option<Arc<ServerConfig>>;
}

/// How often a CPU copies each byte at the sender: out of the segment, into a record, into the socket.
pub(super) const SENDER_COPIES: u32 = 3;

/// And at the receiver: out of the socket, into the library, out of a record, into the segment.
pub(super) const RECEIVER_COPIES: u32 = 4;

/// The longest plaintext of a record.
const RECORD_BYTES: usize = 16 << 10;

/// How much is encrypted before it is sent.
const BATCH_BYTES: usize = 16 * RECORD_BYTES;

/// How much is received in one call.
const INCOMING_BYTES: usize = 256 << 10;

/// What the proofs are derived with, as RFC 8446 section 7.5 and RFC 5705 have it.
const LABEL: &[u8] = b"EXPORTER-transfer-data";

/// The two tokens of a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens {
    pub(super) of_initiator: Token,
    pub(super) of_acceptor: Token,
}

/// What each side shows inside of TLS.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proofs {
    pub(super) of_initiator: Token,
    pub(super) of_acceptor: Token,
}

/// One TLS session on one socket.
pub(super) struct Session {
    connection: Connection,
    /// What is sent before the first record, in the clear.
    clear: Vec<u8>,
    scratch: Box<[u8]>,
    incoming: Box<[u8]>,
    /// What of `incoming` was not looked at yet.
    unseen: Range<usize>,
    /// There may be plaintext that had no room.
    more: bool,
}

impl Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("handshaking", &self.connection.is_handshaking()).finish_non_exhaustive()
    }
}

impl Session {
    /// Of the side that connects; `clear` goes first.
    pub(super) fn client(config: Arc<ClientConfig>, clear: Vec<u8>) -> Result<Session, rustls::Error> {
        // Not sent, and not looked at: see `TlsSource`.
        let name = ServerName::try_from("transferd").map_err(|e| rustls::Error::General(e.to_string()))?;
        Ok(Session::new(ClientConnection::new(config, name)?.into(), clear))
    }

    /// Of the side that was connected to.
    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Session, rustls::Error> {
        Ok(Session::new(ServerConnection::new(config)?.into(), Vec::new()))
    }

    fn new(mut connection: Connection, clear: Vec<u8>) -> Session {
        // What is encrypted at a time is bounded by `send`.
        connection.set_buffer_limit(None);
        let (scratch, incoming) = (vec![0; RECORD_BYTES].into(), vec![0; INCOMING_BYTES].into());
        Session { connection, clear, scratch, incoming, unseen: 0..0, more: false }
    }

    /// What both sides have to show, once the handshake is done.
    pub(super) fn proofs(&self, tokens: &Tokens) -> Option<Result<Proofs, rustls::Error>> {
        if self.connection.is_handshaking() {
            return None;
        }
        let proof = |who: &[u8]| {
            let context = [who, tokens.of_initiator.bytes(), tokens.of_acceptor.bytes()].concat();
            self.connection.export_keying_material([0; TOKEN_BYTES], LABEL, Some(&context)).map(Token)
        };
        let both = || Ok(Proofs { of_initiator: proof(b"initiator")?, of_acceptor: proof(b"acceptor")? });
        Some(both())
    }

    /// Whether something is ready for the socket.
    pub(super) fn is_pending(&self) -> bool {
        !self.clear.is_empty() || self.connection.wants_write()
    }

    /// Whether something has arrived that the socket does not tell of any more.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Sends what is ready, as far as the socket takes it.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        while !self.clear.is_empty() {
            match send(socket, &self.clear) {
                Ok(sent) => drop(self.clear.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(socket)) {
                Ok(_) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(()),
                    Some(Errno::INTR) => {}
                    error => return Err(error.unwrap_or(Errno::IO)),
                },
            }
        }
        Ok(())
    }

    /// Takes of the list what can be encrypted and sent now. How many bytes that were; what the socket does not take is pending.
    pub(super) fn send(&mut self, socket: &OwnedFd, list: &SendList<'_>) -> Result<usize, WireError> {
        self.flush(socket)?;
        let mut taken = 0;
        while taken < list.len() && !self.is_pending() && !self.connection.is_handshaking() {
            let batch = (taken + BATCH_BYTES).min(list.len());
            while taken < batch {
                let len = (batch - taken).min(RECORD_BYTES);
                let plain = &mut self.scratch[..len];
                list.copy_out(taken, plain);
                // Into memory without a bound: it takes all.
                self.connection.writer().write_all(plain).map_err(|_| Errno::NOMEM)?;
                taken += len;
            }
            self.flush(socket)?;
        }
        if taken == 0 && list.len() > 0 { Err(Errno::AGAIN.into()) } else { Ok(taken) }
    }

    /// Receives into the list what there is. How many bytes that were; 0 at the end of the stream. Less than there is room: there is no
    /// more now, or [`Self::has_more`] says that there may be: one call decrypts no more than a buffer of the socket's bytes, since a peer
    /// may send records for ever that bring none.
    pub(super) fn receive(&mut self, socket: &OwnedFd, list: &mut ReceiveList<'_>) -> Result<usize, WireError> {
        let (mut placed, mut fed) = (0, 0);
        loop {
            let ended = self.take(list, &mut placed);
            // Where the list is full there may be more.
            self.more = placed == list.len() && !ended;
            if self.more || (ended && placed == 0) {
                return Ok(placed);
            }
            if fed >= self.incoming.len() {
                self.more = true;
                return if placed > 0 { Ok(placed) } else { Err(Errno::AGAIN.into()) };
            }
            match self.fill(socket) {
                Ok(0) => return Ok(placed),
                Ok(bytes) => fed += bytes,
                Err(WireError::System(Errno::AGAIN | Errno::INTR)) if placed > 0 => return Ok(placed),
                Err(error) => {
                    // The peer hears what it did wrong, if it still listens.
                    let _ = self.flush(socket);
                    return Err(error);
                }
            }
        }
    }

    /// Copies plaintext into the list. Answers whether no more will come.
    fn take(&mut self, list: &mut ReceiveList<'_>, placed: &mut usize) -> bool {
        while *placed < list.len() {
            let mut reader = self.connection.reader();
            let taken = match reader.fill_buf() {
                Ok([]) => return true,
                Ok(chunk) => list.copy_in(*placed, chunk),
                // There is none now.
                Err(_) => return false,
            };
            reader.consume(taken);
            *placed += taken;
        }
        false
    }

    /// Decrypts more. Answers of how many bytes; 0 at the end of the stream.
    fn fill(&mut self, socket: &OwnedFd) -> Result<usize, WireError> {
        if self.unseen.is_empty() {
            let (received, _) = rustix::net::recv(socket, &mut self.incoming[..], RecvFlags::DONTWAIT)?;
            if received == 0 {
                return Ok(0);
            }
            self.unseen = 0..received;
        }
        let mut unseen = &self.incoming[self.unseen.clone()];
        // All plaintext was taken, so it takes some.
        let fed = self.connection.read_tls(&mut unseen).map_err(|_| Errno::IO)?;
        if fed == 0 {
            return Ok(0);
        }
        self.unseen.start += fed;
        let handshaking = self.connection.is_handshaking();
        self.connection.process_new_packets()?;
        if handshaking {
            self.flush(socket)?;
        }
        Ok(fed)
    }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// A socket for the library.
struct Socket<'a>(&'a OwnedFd);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes)?)
    }

    fn write_vectored(&mut self, records: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut list = SendList::with_capacity(records.len());
        records.iter().for_each(|record| list.push_bytes(record));
        Ok(list.send(self.0)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
