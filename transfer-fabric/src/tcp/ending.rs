//! Ends links, and closes sockets.

use super::TcpFabric;
use super::frame::Kind;
use super::link::Stage;
use crate::links;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, FabricEvent, LinkId};
use transfer_core::memory::RemoteKey;

/// How long an ending link tries to send its last frame, and how long a socket waits for the peer to read it.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// The most bytes that still arrive at one socket and are discarded in one round.
const DISCARD_BYTES: usize = 1 << 20;

/// The most sockets without a link that are kept until their peers have read the last frame. If a peer causes more,
/// the oldest are closed, and their last frames may be lost.
pub(super) const MAX_PARTINGS: usize = 64;

/// The number of these sockets that are checked in one round.
const PARTINGS_OF_A_ROUND: usize = 4;

/// A socket without a link. Closing it while bytes are unread would reset the connection, and the peer might not see
/// this side's last frame. So the bytes are read and discarded until the peer closes, for a while.
#[derive(Debug)]
pub(super) struct Parting {
    socket: OwnedFd,
    deadline: Instant,
}

impl TcpFabric {
    /// Reports a grant as revoked. A link whose peer is writing through the grant at this moment dies.
    pub(super) fn revoked(&mut self, id: LinkId, key: RemoteKey, tag: u64) {
        let Some(link) = self.links.get(id) else { return };
        let is_landing = link.inbox.landing_key() == Some(key);
        self.links.report(FabricEvent::Revoked { link: id, key, tag });
        if is_landing {
            let why = format!("a write with key {:#x}, which is revoked", key.0);
            self.end(id, DownReason::Violation(why));
        }
    }

    /// Begins to end a link. Nothing is placed any longer. The end is reported once the last frame has left and none
    /// of this side's memory is read for the link any longer.
    pub(super) fn end(&mut self, id: LinkId, reason: DownReason) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (last, reason) = match (&link.stage, reason) {
            (Stage::Ending { .. }, _) => return,
            (
                Stage::Securing { .. } | Stage::Greeting { .. } | Stage::Proving { .. },
                DownReason::Lost(why) | DownReason::Refused(why),
            ) => (None, DownReason::NotConnected(why)),
            (Stage::Securing { .. } | Stage::Greeting { .. } | Stage::Proving { .. }, reason) => (None, reason),
            (Stage::Up, DownReason::Violation(why)) => (Some((Kind::Refuse, why.clone())), DownReason::Violation(why)),
            (Stage::Up, DownReason::Closed(why)) => (Some((Kind::Bye, why.clone())), DownReason::Closed(why)),
            (Stage::Up, reason) => (None, reason),
        };
        self.regions.revoke_all(id);
        link.outbox.drop_unsent();
        if let Some((kind, text)) = last {
            link.outbox.push_text(kind, &text);
            let deadline = Instant::now() + LINGER_TIME;
            link.stage = Stage::Ending { reason, deadline };
            self.links.deadline_after(LINGER_TIME);
            self.list(id);
        } else if let Some(link) = self.links.remove(id) {
            self.poller.remove(&link.socket);
            self.links.down(id, reason);
            if link.tls.is_some() {
                // An alert may be on its way, and it says more than a reset would.
                self.part(link.socket);
            }
        }
    }

    /// Reports a link that was ending, and releases its socket.
    pub(super) fn ended(&mut self, id: LinkId) {
        let Some(link) = self.links.remove(id) else { return };
        self.poller.remove(&link.socket);
        if let Stage::Ending { reason, .. } = link.stage {
            self.links.down(id, reason);
        }
        self.part(link.socket);
    }

    /// Closes a socket, once the peer has had the time to read the last frame.
    pub(super) fn part(&mut self, socket: OwnedFd) {
        // Fails for a socket that is no longer connected, which does no harm.
        let _ = rustix::net::shutdown(&socket, Shutdown::Write);
        let deadline = self.links.deadline_after(LINGER_TIME);
        self.partings.push_back(Parting { socket, deadline });
        if self.partings.len() > MAX_PARTINGS {
            let oldest = self.partings.iter().enumerate().min_by_key(|(_, parting)| parting.deadline);
            if let Some(i) = oldest.map(|(i, _)| i) {
                self.partings.remove(i);
            }
        }
    }

    /// Discards the bytes that have arrived. Returns `None` if no more will come.
    pub(super) fn discard(socket: impl AsFd) -> Option<()> {
        let mut scrap = [0; 16 << 10];
        for _ in 0..DISCARD_BYTES / scrap.len() {
            match rustix::net::recv(&socket, &mut scrap, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return None,
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Some(()),
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// Handles everything whose deadline has passed.
    pub(super) fn check_deadlines(&mut self) {
        // In turns, because there may be many.
        for _ in 0..self.partings.len().min(PARTINGS_OF_A_ROUND) {
            if let Some(parting) = self.partings.pop_front()
                && Self::discard(&parting.socket).is_some()
            {
                self.partings.push_back(parting);
            }
        }
        let Some(now) = self.links.due() else { return };
        self.pending.check(&self.poller, now);
        self.partings.retain(|parting| now < parting.deadline);
        for id in self.links.late(now) {
            let Some(link) = self.links.get_mut(id) else { continue };
            match link.stage {
                Stage::Ending { .. } => self.ended(id),
                Stage::Up => {
                    let is_owing = link.acks.expire(now);
                    let checked = link.works.check_peer(now, link.signs, self.config.peer_timeout);
                    if is_owing {
                        self.list(id);
                    }
                    if let Err(why) = checked {
                        self.end(id, why);
                    }
                }
                _ => self.end(id, links::no_answer()),
            }
        }
        let partings = self.partings.iter().map(|parting| parting.deadline);
        self.links.set_alarm(partings.chain(self.pending.deadline()).min());
    }
}
