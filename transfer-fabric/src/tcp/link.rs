//! One connected or connecting socket.

use super::frame::{Header, Kind};
use super::inbox::{Arrival, Inbox};
use super::outbox::{Body, Outbox};
use super::tls::{Session, Tokens};
use super::wire::Wire;
use crate::links::{AckState, FabricLink, Sink, Works};
use crate::regions::Regions;
use crate::token::Token;
use rustix::fd::OwnedFd;
use std::time::Instant;
use transfer_core::fabric::{DownReason, FabricEvent, LinkId, WorkId};

/// The stage of a link's life.
#[derive(Debug)]
pub(super) enum Stage {
    /// The TLS handshake is in progress.
    Securing { tokens: Tokens, initiator: bool, deadline: Instant },
    /// This side has shown its token, and the peer has to show `expect`.
    Greeting { expect: Token, deadline: Instant },
    /// The peer has to show the proof `expect` inside TLS. Then this side shows `show`.
    Proving { expect: Token, show: Token, deadline: Instant },
    /// Connected.
    Up,
    /// Ending for `reason`. A last frame is still to be sent, and nothing is placed any longer.
    Ending { reason: DownReason, deadline: Instant },
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) socket: OwnedFd,
    /// The TLS session, if the link is encrypted.
    pub(super) tls: Option<Box<Session>>,
    pub(super) stage: Stage,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    pub(super) works: Works<u64>,
    /// The number of signs that the peer runs: bytes from it, or room for more. That its kernel takes bytes is no
    /// sign.
    pub(super) signs: u64,
    /// The acknowledgements that the peer has not been sent.
    pub(super) acks: AckState,
    /// Whether the socket was read to its end by the last look.
    pub(super) dry: bool,
    /// Whether the socket took no more.
    pub(super) blocked: bool,
    /// Whether the socket is watched for room.
    pub(super) watched: bool,
    /// Whether the link is listed for sending.
    pub(super) listed: bool,
}

impl FabricLink for Link {
    fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// Returns the time by which the link has to be connected, or have ended, or its peer have given a sign of life or
    /// be sent an acknowledgement.
    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Up => self.works.due().into_iter().chain(self.acks.due()).min(),
            Stage::Securing { deadline, .. }
            | Stage::Greeting { deadline, .. }
            | Stage::Proving { deadline, .. }
            | Stage::Ending { deadline, .. } => Some(deadline),
        }
    }
}

impl Link {
    pub(super) fn new(id: LinkId, socket: OwnedFd, tls: Option<Box<Session>>, stage: Stage) -> Link {
        Link {
            id,
            socket,
            tls,
            stage,
            outbox: Outbox::default(),
            inbox: Inbox::new(),
            works: Works::new(),
            signs: 0,
            acks: AckState::default(),
            dry: false,
            blocked: false,
            watched: false,
            listed: false,
        }
    }

    /// Returns whether everything has gone into the socket.
    pub(super) fn is_drained(&self) -> bool {
        self.outbox.is_empty() && !self.tls.as_ref().is_some_and(|tls| tls.is_pending())
    }

    /// Returns whether bytes have arrived that the TLS session holds, and that the socket no longer reports.
    pub(super) fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_more())
    }

    pub(super) fn post(&mut self, work: WorkId, header: Header, body: Body) {
        self.works.post(work, header.kind == Kind::Write);
        self.outbox.push(header, body);
    }

    /// Receives up to about `limit` bytes and reports their events. Returns whether there were any.
    pub(super) fn receive(&mut self, regions: &Regions, limit: usize, sink: &mut Sink<'_>) -> Result<bool, DownReason> {
        let mut left = limit;
        loop {
            let filled = self.inbox.fill(&mut Wire::new(&self.socket, self.tls.as_deref_mut()), left);
            let filled = filled.map_err(|error| DownReason::Lost(error.to_string()))?;
            let Some((bytes, more)) = filled else {
                return Err(DownReason::Lost("the peer closed its socket".into()));
            };
            if let Stage::Securing { .. } = self.stage {
                self.secured()?;
            }
            self.take(regions, sink)?;
            self.signs += u64::from(bytes > 0);
            left = left.saturating_sub(bytes);
            if !more || left == 0 {
                self.dry = !more;
                return Ok(left < limit);
            }
        }
    }

    /// Continues once the TLS handshake is done. The next frames prove that the peer of the TLS session is the link's
    /// peer.
    fn secured(&mut self) -> Result<(), DownReason> {
        let (Stage::Securing { tokens, initiator, deadline }, Some(tls)) = (&self.stage, &self.tls) else {
            return Ok(());
        };
        let Some(proofs) = tls.proofs(tokens) else { return Ok(()) };
        let proofs = proofs.map_err(|error| DownReason::NotConnected(format!("TLS: {error}")))?;
        let deadline = *deadline;
        if *initiator {
            self.outbox.push_bytes(Kind::Hello, proofs.of_initiator.bytes());
            self.stage = Stage::Greeting { expect: proofs.of_acceptor, deadline };
        } else {
            self.stage = Stage::Proving { expect: proofs.of_initiator, show: proofs.of_acceptor, deadline };
        }
        Ok(())
    }

    fn take(&mut self, regions: &Regions, sink: &mut Sink<'_>) -> Result<(), DownReason> {
        let link = self.id;
        loop {
            let arrival = self.inbox.next(link, regions);
            let arrival = arrival.map_err(|fault| DownReason::Violation(fault.to_string()));
            // Works that the peer acknowledged before its mistake are completed all the same.
            self.complete(sink)?;
            match arrival? {
                None => return Ok(()),
                Some(Arrival::Placed { immediate, len }) => {
                    self.expect_up("a write")?;
                    self.acks.write_placed();
                    if let Some(value) = immediate {
                        sink(FabricEvent::Immediate { link, value, len_bytes: len, copied: self.inbox.take_copied() });
                    }
                }
                Some(Arrival::Short { kind, body }) => {
                    let bytes = self.inbox.staged(body);
                    let text = || String::from_utf8_lossy(bytes).into_owned();
                    match kind {
                        Kind::Welcome => match self.stage {
                            Stage::Greeting { expect, .. } => {
                                if !Token::from_bytes(bytes).is_some_and(|token| token.is(&expect)) {
                                    return Err(DownReason::Violation("a welcome with the wrong token".into()));
                                }
                                self.stage = Stage::Up;
                                sink(FabricEvent::Connected { link });
                            }
                            _ => return Err(DownReason::Violation("a second welcome".into())),
                        },
                        Kind::Refuse => return Err(DownReason::Refused(text())),
                        Kind::Bye => return Err(DownReason::PeerClosed(text())),
                        Kind::Send => {
                            self.expect_up("a message")?;
                            self.acks.message_placed();
                            sink(FabricEvent::Message { link, bytes });
                        }
                        Kind::Ack => {}
                        Kind::Hello if let Stage::Proving { expect, show, .. } = self.stage => {
                            if !Token::from_bytes(bytes).is_some_and(|proof| proof.is(&expect)) {
                                return Err(DownReason::Violation("a greeting with the wrong proof".into()));
                            }
                            self.outbox.push_bytes(Kind::Welcome, show.bytes());
                            self.stage = Stage::Up;
                            sink(FabricEvent::Connected { link });
                        }
                        Kind::Hello | Kind::Write => {
                            return Err(DownReason::Violation("a greeting on a connected link".into()));
                        }
                    }
                }
            }
        }
    }

    fn expect_up(&self, what: &str) -> Result<(), DownReason> {
        match self.stage {
            Stage::Up => Ok(()),
            _ => Err(DownReason::Violation(format!("{what} before the welcome"))),
        }
    }

    /// Reports the works that the peer has placed.
    fn complete(&mut self, sink: &mut Sink<'_>) -> Result<(), DownReason> {
        let placed = self.inbox.peer_placed();
        if placed > self.outbox.works_sent() {
            let sent = self.outbox.works_sent();
            return Err(DownReason::Violation(format!("{placed} works acknowledged of {sent} sent")));
        }
        self.works.complete(self.id, placed, sink);
        Ok(())
    }

    /// Returns whether the peer waits for an acknowledgement that no frame carries so far.
    pub(super) fn must_acknowledge(&self) -> bool {
        self.outbox.is_empty() && self.acks.is_urgent()
    }

    /// Sends up to about `limit` bytes of the queue, or an acknowledgement if the queue is empty and the peer waits for
    /// one. Returns whether anything was sent.
    pub(super) fn send(&mut self, limit: usize) -> Result<bool, DownReason> {
        let placed = self.acks.placed();
        if self.must_acknowledge() {
            self.outbox.push_bytes(Kind::Ack, &[]);
        }
        let mut wire = Wire::new(&self.socket, self.tls.as_deref_mut());
        if wire.is_pending() && !self.blocked {
            wire.flush().map_err(|error| DownReason::Lost(error.to_string()))?;
            self.blocked = wire.is_pending();
        }
        let mut left = limit;
        while !self.blocked && left > 0 && !self.outbox.is_empty() {
            let sent = self.outbox.send(&mut wire, left, placed);
            let sent = sent.map_err(|error| DownReason::Lost(error.to_string()))?;
            self.blocked = sent.blocked;
            left = left.saturating_sub(sent.bytes);
        }
        self.acks.tell(self.outbox.placed_told());
        Ok(left < limit)
    }
}
