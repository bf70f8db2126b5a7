//! One round of the fabric's work.

use super::ShmFabric;
use super::link::{Link, ReceiveContext, Stage};
use crate::links::{self, FabricLink, Sink};
use crate::poller::Source;
use transfer_core::fabric::{DownReason, LinkId};

/// The sockets are checked once in this many rounds, even if the rings keep this side busy. A check costs a system
/// call.
const LOOK_EVERY: u8 = 16;

impl ShmFabric {
    /// Sends, then receives. What a round receives is acknowledged in the next one or later ([`links::AckState`]), so that
    /// the engine acts on it first, and so that an answer can carry the acknowledgement.
    pub(super) fn progress(&mut self, sink: &mut Sink<'_>) -> bool {
        // The engine acts on these events before anything is sent: a version that has landed reaches its reader before
        // it is acknowledged.
        if self.links.drain_events(sink) {
            return true;
        }
        let mut moved = self.send();
        if self.looks_at_sockets() {
            moved |= self.sockets(sink);
        }
        // A node often has this fabric and no peer on its host.
        if self.links.is_empty() {
            self.check_deadlines();
            return moved | self.links.drain_events(sink);
        }
        // Events about a link come before the data that it brings.
        moved |= self.links.drain_events(sink);
        moved |= self.receive(sink);
        moved |= self.check_ends();
        self.check_deadlines();
        // If an acknowledgement is owed, another round follows.
        moved | self.links.drain_events(sink) | self.links.all_up().any(|link| link.must_acknowledge())
    }

    fn looks_at_sockets(&mut self) -> bool {
        self.rounds = (self.rounds + 1) % LOOK_EVERY;
        let was_watchful = std::mem::take(&mut self.watchful);
        let connecting = || {
            let greeting = |stage: &Stage| matches!(stage, Stage::Greeting { .. });
            self.links.is_any_waiting()
                || !self.pending.is_empty()
                || self.links.values().any(|link| greeting(&link.stage))
        };
        was_watchful || self.rounds == 0 || connecting()
    }

    fn sockets(&mut self, sink: &mut Sink<'_>) -> bool {
        let mut moved = false;
        for ready in self.poller.ready() {
            match ready.token {
                Source::Listener => self.accept_pending(),
                Source::Timer => {
                    self.poller.rung();
                    moved = true;
                }
                Source::Pending(number) => self.hear_pending(number),
                Source::Bell => self.copy_pool.hush(),
                Source::Link(link) => {
                    moved |= self.links.drain_events(sink);
                    moved |= self.hear(link, sink);
                }
            }
        }
        moved
    }

    /// Reads the socket of a link.
    fn hear(&mut self, id: LinkId, sink: &mut Sink<'_>) -> bool {
        let ShmFabric { links, regions, copy_pool, config, .. } = self;
        let context = ReceiveContext { regions, copy_pool, max_mapped_bytes: config.max_mapped_bytes };
        let Some(link) = links.get_mut(id) else {
            self.gave_up(id);
            return false;
        };
        if let Stage::Ending { .. } = link.stage {
            return false;
        }
        let (mut heard, was_up) = (link.hear(context, sink), link.is_up());
        if heard.is_ok() && was_up && link.farewell.is_some() {
            // Records that the peer showed before its farewell are still received.
            heard = link.receive(context, config.round_bytes, sink);
        }
        let farewell = link.farewell.take();
        match heard.err().or(farewell) {
            Some(reason) => {
                self.end(id, reason);
                true
            }
            // A doorbell itself moves nothing; the records that it announces do.
            None => !was_up && self.links.get(id).is_some_and(Link::is_up),
        }
    }

    fn receive(&mut self, sink: &mut Sink<'_>) -> bool {
        let ShmFabric { links, regions, copy_pool, config, .. } = self;
        let context = ReceiveContext { regions, copy_pool, max_mapped_bytes: config.max_mapped_bytes };
        let mut moved = false;
        let mut ended: Vec<(LinkId, DownReason)> = Vec::new();
        let mut owing = Vec::new();
        for link in links.all_up() {
            match link.receive(context, config.round_bytes, sink) {
                Ok(any) => moved |= any,
                Err(reason) => ended.push((link.id, link.farewell.take().unwrap_or(reason))),
            }
            if link.acks.needs_limit() {
                owing.push(link.id);
            }
        }
        for id in owing {
            self.links.set_deadline(id, links::ACKNOWLEDGE_WITHIN, |link, due| link.acks.limit(due));
        }
        for (id, reason) in ended {
            moved = true;
            self.end(id, reason);
        }
        moved
    }

    fn send(&mut self) -> bool {
        let mut moved = false;
        let mut ended: Vec<(LinkId, DownReason)> = Vec::new();
        for link in self.links.all_up() {
            let result = link.send();
            self.counts.take_from(&mut link.counts);
            match result {
                Ok(sent) => moved |= sent,
                // The socket may hold the peer's farewell, which says more.
                Err(DownReason::Lost(_)) => self.watchful = true,
                Err(reason) => ended.push((link.id, reason)),
            }
        }
        for (id, reason) in ended {
            self.end(id, reason);
        }
        moved
    }
}
