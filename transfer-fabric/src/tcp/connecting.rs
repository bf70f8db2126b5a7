//! Links that are not connected yet, and sockets that have not shown their token yet.

use super::frame::{HEADER_BYTES, Header, Kind};
use super::link::{Link, Stage};
use super::offer::{self, Encryption};
use super::outbox::Outbox;
use super::tls::{Session, Tokens};
use super::wire::Wire;
use super::{TcpFabric, device, socket};
use crate::links::{Accepted, WaitingLink};
use crate::poller::Source;
use crate::token::{TOKEN_BYTES, Token};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::time::Instant;
use transfer_core::fabric::{DownReason, FabricError, FabricEvent, LinkId, Offer};

/// A link without a socket.
#[derive(Debug)]
pub(super) enum Waiting {
    /// The link is offered, and waits for the acceptor's answer. The acceptor has to show this token.
    ForAnswer(Token),
    /// The link is accepted, and waits for a socket that shows `expect`. That socket will be shown `show`.
    ForSocket { expect: Token, show: Token, deadline: Instant },
}

impl WaitingLink for Waiting {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Waiting::ForAnswer(_) => None,
            Waiting::ForSocket { deadline, .. } => Some(*deadline),
        }
    }
}

/// A socket that has not shown its token.
#[derive(Debug)]
pub(super) struct PendingConnection {
    socket: OwnedFd,
    hello: [u8; HELLO_BYTES],
    filled: usize,
}

impl AsFd for PendingConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const HELLO_BYTES: usize = HEADER_BYTES + TOKEN_BYTES;

impl TcpFabric {
    pub(super) fn begin_offer(&mut self, link: LinkId) -> Result<Offer, FabricError> {
        self.links.expect_new(link, "offer")?;
        let token = Token::random()?;
        self.links.wait(link, Waiting::ForAnswer(token));
        Ok(offer::encode_initiator(&token, self.encryption()))
    }

    pub(super) fn begin_accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        self.links.expect_new(link, "accept")?;
        let bad = |why: &str| FabricError::BadOffer { link, why: why.into() };
        let show = offer::decode_initiator(peer, self.encryption()).map_err(bad)?;
        let expect = Token::random()?;
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        self.links.wait(link, Waiting::ForSocket { expect, show, deadline });
        Ok(offer::encode_acceptor(&expect, self.address, self.encryption()))
    }

    pub(super) fn begin_connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError> {
        let Some(Waiting::ForAnswer(expect)) = self.links.waiting(link) else {
            return Err(FabricError::WrongState { link, what: "connect" });
        };
        let expect = *expect;
        let bad = |why: &str| FabricError::BadOffer { link, why: why.into() };
        let (show, address) = offer::decode_acceptor(peer, self.encryption()).map_err(bad)?;
        self.links.stop_waiting(link);
        let hello = Header::new(Kind::Hello, TOKEN_BYTES as u64);
        let config = self.config.tls.as_ref().map(|tls| tls.client().ok_or_else(no_certificates)).transpose()?;
        let tls = config.map(|config| Session::client(config, [&hello.encode()[..], show.bytes()].concat()));
        let tls = tls.transpose().map_err(device("TLS"))?.map(Box::new);
        let socket = socket::connect(&address, &self.config)?;
        self.poller.add(&socket, Source::Link(link))?;
        // Watches for room, which a socket has once it is connected.
        self.poller.change(&socket, Source::Link(link), true)?;
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        let stage = match tls {
            Some(_) => {
                let tokens = Tokens { of_initiator: expect, of_acceptor: show };
                Stage::Securing { tokens, initiator: true, deadline }
            }
            None => Stage::Greeting { expect, deadline },
        };
        let mut new = Link::new(link, socket, tls, stage);
        (new.blocked, new.watched) = (true, true);
        if new.tls.is_none() {
            new.outbox.push_bytes(Kind::Hello, show.bytes());
        }
        self.links.insert(link, new);
        Ok(())
    }

    /// Accepts the sockets that wait.
    pub(super) fn accept_pending(&mut self) {
        let TcpFabric { config, poller, links, .. } = self;
        self.pending.accept(poller, links, config.handshake_timeout, |listener| {
            match socket::accept(listener, config) {
                // A connection that is closed already has no address.
                Ok(socket) => socket::peer_ip(&socket).map_or(Accepted::Gone, |from| {
                    Accepted::New(from, PendingConnection { socket, hello: [0; HELLO_BYTES], filled: 0 })
                }),
                Err(Errno::AGAIN) => Accepted::Nothing,
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => Accepted::Gone,
                Err(error) => Accepted::Failed(error.to_string()),
            }
        });
    }

    /// Reads the Hello of a pending connection, and makes it the socket of the link that waits for it.
    pub(super) fn hear_pending(&mut self, number: u32) {
        let Some(connection) = self.pending.get_mut(number) else { return };
        let rest = connection.hello.get_mut(connection.filled..).unwrap_or(&mut []);
        match rustix::net::recv(&connection.socket, rest, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok((0, _)) | Err(_) => {
                self.pending.remove(number);
                return;
            }
            Ok((received, _)) => connection.filled += received,
        }
        if connection.filled < HELLO_BYTES {
            return;
        }
        let Some(connection) = self.pending.remove(number) else { return };
        match self.admit(&connection.hello) {
            Ok((link, tokens)) => self.seat(link, connection.socket, tokens),
            Err(why) => {
                tracing::warn!(why, "a data connection was refused");
                let mut outbox = Outbox::default();
                outbox.push_text(Kind::Refuse, why);
                // One attempt is enough: a new socket has room for it.
                let _ = outbox.send(&mut Wire::new(&connection.socket, None), HEADER_BYTES + why.len(), 0);
                self.poller.remove(&connection.socket);
                self.part(connection.socket);
            }
        }
    }

    /// Returns the link that waits for this Hello, and its tokens. The link no longer waits.
    fn admit(&mut self, hello: &[u8; HELLO_BYTES]) -> Result<(LinkId, Tokens), &'static str> {
        let (head, token) = hello.split_first_chunk::<HEADER_BYTES>().ok_or("a short greeting")?;
        let header = Header::decode(head).map_err(|_| "a malformed greeting")?;
        if header.kind != Kind::Hello || header.remote.len != TOKEN_BYTES as u64 {
            return Err("the first frame is no greeting");
        }
        let token = Token::from_bytes(token).ok_or("a short greeting")?;
        let found = self.links.find_waiting(|link, waiting| match waiting {
            Waiting::ForSocket { expect, show, .. } if expect.is(&token) => Some((link, *show)),
            _ => None,
        });
        let (link, show) = found.ok_or("the token is unknown, used or too late")?;
        self.links.stop_waiting(link);
        Ok((link, Tokens { of_initiator: show, of_acceptor: token }))
    }

    fn seat(&mut self, id: LinkId, socket: OwnedFd, tokens: Tokens) {
        if let Err(error) = self.poller.change(&socket, Source::Link(id), false) {
            let reason = DownReason::NotConnected(error.to_string());
            self.links.down(id, reason);
            return;
        }
        let session = self.config.tls.as_ref().map(|tls| {
            let config = tls.server().ok_or_else(no_certificates)?;
            Session::server(config).map_err(device("TLS"))
        });
        match session.transpose() {
            Ok(Some(session)) => {
                let deadline = self.links.deadline_after(self.config.handshake_timeout);
                let stage = Stage::Securing { tokens, initiator: false, deadline };
                self.links.insert(id, Link::new(id, socket, Some(Box::new(session)), stage));
            }
            Ok(None) => {
                let mut link = Link::new(id, socket, None, Stage::Up);
                link.outbox.push_bytes(Kind::Welcome, tokens.of_initiator.bytes());
                self.links.insert(id, link);
                self.list(id);
                self.links.report(FabricEvent::Connected { link: id });
            }
            Err(error) => {
                let reason = DownReason::NotConnected(error.to_string());
                self.links.down(id, reason);
            }
        }
    }

    /// Returns how this side's data links are protected.
    fn encryption(&self) -> Encryption {
        if self.config.tls.is_some() { Encryption::Tls } else { Encryption::None }
    }
}

fn no_certificates() -> FabricError {
    device("TLS")("there are no certificates any more")
}
