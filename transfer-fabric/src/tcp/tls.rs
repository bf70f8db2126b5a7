//! Encrypted links.
//!
//! A socket of an encrypted link begins like any other, with a Hello in the clear. Only the peer was told the token,
//! in an authenticated call, so no stranger can make this thread do a handshake. Then comes TLS 1.3, in which both
//! sides show certificates. Inside TLS follow another Hello and a Welcome, whose 16 bytes are derived from the secrets
//! of this TLS session and from both tokens. One of the tokens has never been on the wire in the clear. So a process
//! between the two nodes can relay nothing, even with a valid certificate: each of its two sessions needs other bytes.
//!
//! Nothing here blocks. A handshake is done in steps, as its bytes arrive. Its signatures take this thread about 100
//! µs for each new link.

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

/// The source of the TLS configurations for new links, so that certificates can be replaced while the fabric runs.
///
/// Both sides have to check that the other side's certificate is of their authority. They need not check which node it
/// is of: the link's tokens, which only the two nodes know, prove that.
pub trait TlsSource: Debug + Send + Sync {
    /// Returns the configuration of the connecting side, or `None` if there is none any longer.
    fn client(&self) -> Option<Arc<ClientConfig>>;

    /// Returns the configuration of the accepting side, or `None` if there is none any longer.
    fn server(&self) -> Option<Arc<ServerConfig>>;
}

/// The number of copies that a CPU makes of each byte at the sender: out of the segment, into a record, into the
/// socket.
pub(super) const SENDER_COPIES: u32 = 3;

/// The number of copies that a CPU makes of each byte at the receiver: out of the socket, into the library, out of a
/// record, into the segment.
pub(super) const RECEIVER_COPIES: u32 = 4;

/// The longest plaintext of a record.
const RECORD_BYTES: usize = 16 << 10;

/// The bytes that are encrypted before they are sent.
const BATCH_BYTES: usize = 16 * RECORD_BYTES;

/// The most bytes that are received in one call.
const INCOMING_BYTES: usize = 256 << 10;

/// The label that the proofs are derived with, as in RFC 8446 section 7.5 and RFC 5705.
const LABEL: &[u8] = b"EXPORTER-transfer-data";

/// The two tokens of a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens {
    pub(super) of_initiator: Token,
    pub(super) of_acceptor: Token,
}

/// The values that each side shows inside TLS.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proofs {
    pub(super) of_initiator: Token,
    pub(super) of_acceptor: Token,
}

/// One TLS session on one socket.
pub(super) struct Session {
    connection: Connection,
    /// The bytes that are sent in the clear, before the first record.
    clear: Vec<u8>,
    scratch: Box<[u8]>,
    incoming: Box<[u8]>,
    /// The part of `incoming` that was not decrypted yet.
    unseen: Range<usize>,
    /// Whether there may be more to take, although the socket does not report it.
    more: bool,
}

impl Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("handshaking", &self.connection.is_handshaking()).finish_non_exhaustive()
    }
}

impl Session {
    /// Makes the session of the connecting side, which sends `clear` first.
    pub(super) fn client(config: Arc<ClientConfig>, clear: Vec<u8>) -> Result<Session, rustls::Error> {
        // The name is neither sent nor checked: see `TlsSource`.
        let name = ServerName::try_from("transferd").map_err(|e| rustls::Error::General(e.to_string()))?;
        Ok(Session::new(ClientConnection::new(config, name)?.into(), clear))
    }

    /// Makes the session of the accepting side.
    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Session, rustls::Error> {
        Ok(Session::new(ServerConnection::new(config)?.into(), Vec::new()))
    }

    fn new(mut connection: Connection, clear: Vec<u8>) -> Session {
        // `send` bounds the bytes that are encrypted at a time.
        connection.set_buffer_limit(None);
        let (scratch, incoming) = (vec![0; RECORD_BYTES].into(), vec![0; INCOMING_BYTES].into());
        Session { connection, clear, scratch, incoming, unseen: 0..0, more: false }
    }

    /// Returns the values that both sides have to show, once the handshake is done.
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

    /// Returns whether bytes are ready for the socket.
    pub(super) fn is_pending(&self) -> bool {
        !self.clear.is_empty() || self.connection.wants_write()
    }

    /// Returns whether there may be more to take, although the socket does not report it.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Sends the bytes that are ready, as far as the socket takes them.
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

    /// Takes from the list the bytes that can be encrypted and sent now. Returns their number. Bytes that the socket
    /// does not take are pending.
    pub(super) fn send(&mut self, socket: &OwnedFd, list: &SendList<'_>) -> Result<usize, WireError> {
        self.flush(socket)?;
        let mut taken = 0;
        while taken < list.len() && !self.is_pending() && !self.connection.is_handshaking() {
            let batch = (taken + BATCH_BYTES).min(list.len());
            while taken < batch {
                let len = (batch - taken).min(RECORD_BYTES);
                let plain = &mut self.scratch[..len];
                list.copy_out(taken, plain);
                // The writer has no bound, so it takes everything.
                self.connection.writer().write_all(plain).map_err(|_| Errno::NOMEM)?;
                taken += len;
            }
            self.flush(socket)?;
        }
        if taken == 0 && list.len() > 0 { Err(Errno::AGAIN.into()) } else { Ok(taken) }
    }

    /// Receives the available bytes into the list. Returns their number, which is 0 at the end of the stream. If they
    /// are fewer than there is room for, there are no more now, or [`Self::has_more`] says that there may be: one call
    /// decrypts no more than a buffer of the socket's bytes, because a peer may send empty records without end.
    pub(super) fn receive(&mut self, socket: &OwnedFd, list: &mut ReceiveList<'_>) -> Result<usize, WireError> {
        let (mut placed, mut fed) = (0, 0);
        loop {
            let ended = self.take(list, &mut placed);
            // If the list is full, there may be more.
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
                    // Tells the peer its mistake, if it still listens.
                    let _ = self.flush(socket);
                    return Err(error);
                }
            }
        }
    }

    /// Copies plaintext into the list. Returns whether no more will come.
    fn take(&mut self, list: &mut ReceiveList<'_>, placed: &mut usize) -> bool {
        while *placed < list.len() {
            let mut reader = self.connection.reader();
            let taken = match reader.fill_buf() {
                Ok([]) => return true,
                Ok(chunk) => list.copy_in(*placed, chunk),
                // There is no plaintext now.
                Err(_) => return false,
            };
            reader.consume(taken);
            *placed += taken;
        }
        false
    }

    /// Decrypts more. Returns the number of bytes of the socket that it took, which is 0 at the end of the stream.
    fn fill(&mut self, socket: &OwnedFd) -> Result<usize, WireError> {
        if self.unseen.is_empty() {
            let (received, _) = rustix::net::recv(socket, &mut self.incoming[..], RecvFlags::DONTWAIT)?;
            if received == 0 {
                return Ok(0);
            }
            self.unseen = 0..received;
        }
        let mut unseen = &self.incoming[self.unseen.clone()];
        // All plaintext was taken, so this call takes some bytes.
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

/// A socket that the TLS library writes to.
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
