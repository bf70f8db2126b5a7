//! Links that are not connected yet, and sockets that have not shown their token yet.

use super::link::{Link, Stage};
use super::note::{Nonce, Note};
use super::shared::LinkMemory;
use super::{ShmFabric, offer};
use crate::links::{Accepted, WaitingLink};
use crate::poller::Source;
use crate::random;
use crate::token::Token;
use std::time::Instant;
use transfer_core::fabric::{DownReason, FabricError, FabricEvent, LinkId, Offer};
use transfer_memory::socket::{Message, Socket, SocketError};

const MEETING: &str = "meeting the peer in a shared directory";

/// A link that this side has initiated and that is not connected.
#[derive(Debug)]
pub(super) enum Waiting {
    /// The link is offered. It waits for the acceptor's answer, and for its Hello with this token.
    ForAnswer { expect: Token, arrived: Option<Box<Arrived>> },
    /// The acceptor has answered. The link waits for its Hello.
    ForHello { expect: Token, show: Token, deadline: Instant },
}

impl WaitingLink for Waiting {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Waiting::ForAnswer { .. } => None,
            Waiting::ForHello { deadline, .. } => Some(*deadline),
        }
    }
}

/// The content of a Hello, and its socket.
#[derive(Debug)]
pub(super) struct Arrived {
    socket: Socket,
    shared: LinkMemory,
    nonce: Nonce,
    incarnation: u64,
    namespace: u64,
}

/// Checks that both sides run as the same user, by what the kernel says: a process that is passed a segment can read
/// all of it.
fn check_user(socket: &Socket) -> Result<(), String> {
    let (peer, own) = (socket.peer().map_err(|e| e.to_string())?.uid, rustix::process::geteuid().as_raw());
    match peer == own {
        true => Ok(()),
        false => Err(format!("the peer runs as user id {peer}, this sidecar as {own}: shared memory needs one user")),
    }
}

impl ShmFabric {
    pub(super) fn begin_offer(&mut self, link: LinkId) -> Result<Offer, FabricError> {
        self.links.expect_new(link, "offer")?;
        let expect = Token::random()?;
        self.links.wait(link, Waiting::ForAnswer { expect, arrived: None });
        Ok(offer::encode_initiator(&expect, &self.config.name))
    }

    pub(super) fn begin_accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        self.links.expect_new(link, "accept")?;
        let bad = |why: &str| FabricError::BadOffer { link, why: why.into() };
        let (show, name) = offer::decode_initiator(peer).map_err(bad)?;
        let path = self.config.directory.join(name);
        let failed = |why: String| FabricError::Device { what: MEETING, why };
        if name == self.config.name {
            return Err(failed(format!(
                "{path:?} is this sidecar's own socket: the peer has another directory, or the same name"
            )));
        }
        let socket = Socket::connect(&path, Instant::now()).map_err(|error| {
            failed(format!(
                "{error}; sidecars of one host have to be given one --shm-dir, here it is {:?}",
                self.config.directory
            ))
        })?;
        check_user(&socket).map_err(failed)?;
        let nonce: Nonce = random::bytes()?;
        let (shared, fd) = LinkMemory::make(&self.links_budget, &nonce)?;
        let hello = Note::Hello { token: show, incarnation: self.config.incarnation, namespace: self.namespace };
        let hello = hello.encode();
        let sent = socket.send(&hello, &super::lent(&fd), Instant::now());
        sent.map_err(|error| failed(error.to_string()))?;
        self.poller.add(&socket, Source::Link(link))?;
        let expect = Token::random()?;
        let deadline = self.links.deadline_after(self.config.handshake_timeout);
        self.links
            .insert(link, Link::new(link, socket, shared, Stage::Greeting { expect, nonce, deadline }, self.namespace));
        Ok(offer::encode_acceptor(&expect))
    }

    pub(super) fn begin_connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError> {
        let Some(Waiting::ForAnswer { expect, arrived }) = self.links.waiting(link) else {
            return Err(FabricError::WrongState { link, what: "connect" });
        };
        let bad = |why: &str| FabricError::BadOffer { link, why: why.into() };
        let show = offer::decode_acceptor(peer).map_err(bad)?;
        let (expect, arrived) = (*expect, arrived.take());
        match arrived {
            Some(arrived) => {
                self.links.stop_waiting(link);
                self.seat(link, *arrived, show);
            }
            None => {
                let deadline = self.links.deadline_after(self.config.handshake_timeout);
                self.links.wait(link, Waiting::ForHello { expect, show, deadline });
            }
        }
        Ok(())
    }

    /// Accepts the sockets that wait.
    pub(super) fn accept_pending(&mut self) {
        let timeout = self.config.handshake_timeout;
        self.pending.accept(&self.poller, &mut self.links, timeout, |listener| match listener.accept(Instant::now()) {
            // A connection that is closed already has no user.
            Ok(socket) => socket.peer().map_or(Accepted::Gone, |from| Accepted::New(from.uid, socket)),
            Err(SocketError::TimedOut { .. }) => Accepted::Nothing,
            Err(error) => Accepted::Failed(error.to_string()),
        });
    }

    /// Reads the Hello of a pending connection, and makes it the socket of the link that waits for it.
    pub(super) fn hear_pending(&mut self, number: u32) {
        let Some(socket) = self.pending.get_mut(number) else { return };
        let message = match socket.try_receive(1) {
            Ok(None) => return,
            other => other,
        };
        let Some(socket) = self.pending.remove(number) else { return };
        self.poller.remove(&socket);
        // A peer that has gone needs no answer.
        let Ok(Some(message)) = message else { return };
        let seated = self.check_hello(socket, message);
        if let Err((socket, why)) = seated {
            tracing::warn!(why, "a connection of this host was refused");
            // A peer that does not read the answer does not need it.
            let _ = socket.send(&Note::Refuse(why).encode(), &[], Instant::now());
        }
    }

    fn check_hello(&mut self, socket: Socket, message: Message) -> Result<(), (Socket, String)> {
        let Message::Bytes { bytes, mut descriptors } = message else {
            return Err((socket, "the first note is no greeting".into()));
        };
        let (token, incarnation, namespace) = match Note::decode(&bytes) {
            Ok(Note::Hello { token, incarnation, namespace }) => (token, incarnation, namespace),
            Ok(_) => return Err((socket, "the first note is no greeting".into())),
            Err(why) => return Err((socket, why.into())),
        };
        let expects = |waiting: &Waiting| match waiting {
            Waiting::ForAnswer { expect, arrived } => arrived.is_none() && expect.is(&token),
            Waiting::ForHello { expect, .. } => expect.is(&token),
        };
        let Some(link) = self.links.find_waiting(|link, waiting| expects(waiting).then_some(link)) else {
            return Err((socket, "the token is unknown, used or too late".into()));
        };
        if let Err(why) = check_user(&socket) {
            return Err((socket, why));
        }
        let Some(fd) = descriptors.pop() else { return Err((socket, "a greeting without its memory".into())) };
        let (shared, nonce) = match LinkMemory::adopt(fd) {
            Ok(adopted) => adopted,
            Err(error) => return Err((socket, error.to_string())),
        };
        if let Err(error) = self.poller.add(&socket, Source::Link(link)) {
            return Err((socket, error.to_string()));
        }
        let arrived = Arrived { socket, shared, nonce, incarnation, namespace };
        match self.links.waiting(link) {
            Some(Waiting::ForAnswer { arrived: place, .. }) => *place = Some(Box::new(arrived)),
            Some(Waiting::ForHello { show, .. }) => {
                let show = *show;
                self.links.stop_waiting(link);
                self.seat(link, arrived, show);
            }
            None => {}
        }
        Ok(())
    }

    /// Handles input on the socket of a link that waits for the control plane. An acceptor sends nothing before the
    /// Welcome, so it has given up.
    pub(super) fn gave_up(&mut self, link: LinkId) {
        if let Some(Waiting::ForAnswer { arrived, .. }) = self.links.waiting(link)
            && let Some(arrived) = arrived.take()
        {
            self.poller.remove(&arrived.socket);
        }
    }

    /// Completes the link, as its initiator.
    fn seat(&mut self, id: LinkId, arrived: Arrived, show: Token) {
        let Arrived { socket, shared, nonce, incarnation, namespace } = arrived;
        let welcome =
            Note::Welcome { token: show, nonce, incarnation: self.config.incarnation, namespace: self.namespace };
        if let Err(error) = socket.send(&welcome.encode(), &[], Instant::now()) {
            self.poller.remove(&socket);
            let reason = DownReason::NotConnected(error.to_string());
            return self.links.down(id, reason);
        }
        let mut link = Link::new(id, socket, shared, Stage::Up, self.namespace);
        link.meet(incarnation, namespace, &nonce);
        self.links.report(FabricEvent::Connected { link: id });
        if let Some(mark) = link.mark {
            self.links.report(FabricEvent::References { link: id, mark });
        }
        self.links.insert(id, link);
    }
}
