//! One round of the fabric's work.

use super::TcpFabric;
use super::attention::Look;
use super::link::Stage;
use crate::links::{self, FabricLink, Sink};
use crate::poller::Source;
use smallvec::SmallVec;
use transfer_core::fabric::LinkId;

impl TcpFabric {
    /// Sends, then receives. What a round receives is acknowledged in the next one or later ([`links::AckState`]), so that
    /// the engine acts on it first, and so that an answer can carry the acknowledgement.
    pub(super) fn progress(&mut self, sink: &mut Sink<'_>) -> bool {
        // The engine acts on these events before anything is sent: a version that has landed reaches its reader before
        // it is acknowledged.
        if self.links.drain_events(sink) {
            return true;
        }
        let mut moved = self.send();
        for link in std::mem::take(&mut self.to_receive) {
            moved |= self.receive(link, sink);
        }
        moved |= self.look(sink);
        self.check_deadlines();
        // If the peer waits for an acknowledgement, another round follows.
        moved | self.links.drain_events(sink) | !self.to_send.is_empty() | !self.to_receive.is_empty()
    }

    /// Receives what has come. Returns whether there was anything.
    fn look(&mut self, sink: &mut Sink<'_>) -> bool {
        let links = &self.links;
        let can_read = |id| links.get(id).is_some_and(|link| link.is_up() && !link.watched);
        match self.attention.next(can_read) {
            Look::Nowhere => false,
            Look::At { link, query } => {
                // Events about a link come before the data that it brings.
                let told = self.links.drain_events(sink);
                if self.receive(link, sink) {
                    self.attention.read(self.links.get(link).is_some_and(|link| link.dry));
                    true
                } else {
                    told | (query && self.query(sink))
                }
            }
            Look::Everywhere => self.query(sink),
        }
    }

    /// Asks the kernel which sockets have something, and handles it.
    fn query(&mut self, sink: &mut Sink<'_>) -> bool {
        let mut moved = false;
        let mut readable = SmallVec::<[LinkId; 2]>::new();
        self.attention.query();
        for ready in self.poller.ready() {
            self.attention.found_some();
            match ready.token {
                Source::Listener => self.accept_pending(),
                Source::Timer => {
                    self.poller.rung();
                    moved = true;
                }
                Source::Pending(number) => self.hear_pending(number),
                // This fabric has no bell.
                Source::Bell => {}
                Source::Link(link) => {
                    if ready.writable {
                        self.unblock(link);
                    }
                    if ready.readable {
                        readable.push(link);
                        // Events about the link come before the data that it brings.
                        moved |= self.links.drain_events(sink);
                        moved |= self.receive(link, sink);
                    }
                }
            }
        }
        self.attention.found(&readable);
        moved
    }

    fn unblock(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(id) {
            link.blocked = false;
            link.signs += 1;
            self.list(id);
        }
    }

    fn receive(&mut self, id: LinkId, sink: &mut Sink<'_>) -> bool {
        let Some(link) = self.links.get_mut(id) else { return false };
        if let Stage::Ending { .. } = link.stage {
            if Self::discard(&link.socket).is_none() {
                self.ended(id);
            }
            return true;
        }
        let result = link.receive(&self.regions, self.config.round_bytes, sink);
        let (has_more, to_send) = (link.has_more(), link.must_acknowledge() || !link.is_drained());
        let owes = link.acks.needs_limit();
        if has_more && !self.to_receive.contains(&id) {
            self.to_receive.push(id);
        }
        if to_send {
            self.list(id);
        }
        if owes {
            self.links.set_deadline(id, links::ACKNOWLEDGE_WITHIN, |link, due| link.acks.limit(due));
        }
        match result {
            Ok(moved) => moved,
            Err(reason) => {
                self.end(id, reason);
                true
            }
        }
    }

    /// Sends the queued frames. Has each blocked socket watched for room, and no other.
    fn send(&mut self) -> bool {
        let mut moved = false;
        for id in std::mem::take(&mut self.to_send) {
            let Some(link) = self.links.get_mut(id) else { continue };
            link.listed = false;
            let was_watched = link.watched;
            let result = link.send(self.config.round_bytes);
            self.counts.take_from(&mut link.outbox.counts);
            let (blocked, empty) = (link.blocked, link.is_drained());
            if blocked != was_watched {
                link.watched = blocked;
                if let Err(error) = self.poller.change(&link.socket, Source::Link(id), blocked) {
                    tracing::error!(%error, %id, "a socket cannot be watched");
                }
            }
            let ending = matches!(link.stage, Stage::Ending { .. });
            match result {
                Err(_) if ending => self.ended(id),
                Err(reason) => self.end(id, reason),
                Ok(_) if ending && empty => self.ended(id),
                Ok(sent) => {
                    moved |= sent;
                    if !blocked && !empty {
                        self.list(id);
                    }
                }
            }
        }
        moved
    }
}
