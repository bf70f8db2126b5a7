//! The end of a link: nothing is in flight on it any more, and what was ends in as many rounds as that takes. The peer may have
//! tens of thousands of requests, leases and slots.

use super::endings::{Ending, Endings};
use crate::fabric::{DownReason, LinkId};
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, of};
use crate::protocol::keys::Source;
use crate::protocol::landing::{InFlow, Slot, SlotState};
use crate::protocol::links::{Lost, Out, Purpose};
use crate::protocol::node::counters::unsent;
use crate::protocol::node::flows::Ownership;
use crate::protocol::passing::comes_back_until;
use crate::protocol::references::Lent;
use crate::protocol::rules::Broken;
use crate::protocol::slab::Slab;
use crate::protocol::transfers::OfLink;
use crate::tensor::Key;
use crate::tensor::Name;
use crate::time::Time;
use hashbrown::HashSet;
use std::collections::VecDeque;

/// What was in flight on a link that is down, and has not ended yet. No table of the links holds it.
pub(in crate::protocol::node) struct LostLink {
    link: LinkId,
    peer: Name,
    why: String,
    slots: (Slab<Slot, of::Slot>, usize),
    in_flight: VecDeque<(BlobId, Purpose)>,
    unsent: VecDeque<Out>,
    /// The requests of counters among them. `None` once the counters know of the end.
    counted: Option<HashSet<u32>>,
    lent: Option<Lent>,
    /// The peer's requests that have not ended, in the order in which they end.
    serves: VecDeque<u32>,
    flows_in: (Slab<InFlow, of::InFlow>, usize),
    transfers: OfLink,
    /// The place of the next flow of this node, and of its next request.
    next: (usize, usize),
}

impl LostLink {
    fn failure(&self, what: &str) -> Failure {
        let LostLink { peer, why, .. } = self;
        Failure::new(FailureCode::PeerLost, format!("{what} node {peer:?} was lost: {why}"))
    }
}

impl Endings {
    /// Returns the lowest version that a worker may push next for a key and target, according to the flows of lost links that
    /// have not ended yet.
    pub(in crate::protocol::node) fn next_version(&self, session: SessionId, (key, target): &(Key, Name)) -> u64 {
        let of_link = |ending: &Ending| {
            let Ending::Link(lost) = ending else { return None };
            let flow = lost.transfers.flow_of(&(session, key.clone()))?;
            (flow.target == *target).then(|| flow.next_number())
        };
        self.iter().filter_map(of_link).max().unwrap_or(0)
    }
}

impl Ownership<'_> {
    pub(in crate::protocol::node) fn link_down(&mut self, now: Time, link: LinkId, reason: &DownReason) {
        let incarnation = self.links.peer_of(link).map(|peer| peer.incarnation);
        let Some(Lost { peer, in_flight, unsent: waiting }) = self.links.down(link) else { return };
        // The link is drained: no write of the peer can still arrive, and no write of this side still reads its memory.
        let (slots, flows_in) = self.landing.link_down(link);
        let mut transfers = self.transfers.link_down(link);
        fetching!(self).searches_lost(now, link, &mut transfers, &reason.to_string());
        let unsent = unsent(&waiting);
        calls!(self).calls_lost(link);
        self.pings_lost(link, &reason.to_string());
        let mut references = self.references.link_down(link);
        if let Some(lost) = references.as_mut().filter(|_| self.config.rules.breaks(Broken::ForgetsReaders)) {
            for blob in self.references.forget_lent(lost) {
                memory!(self).release(blob);
            }
        }
        let lent = references.map(|references| self.references.lost(references, self.actions));
        let lost = LostLink {
            link,
            peer: peer.clone(),
            why: reason.to_string(),
            slots: (slots, 0),
            in_flight: in_flight.into(),
            unsent: waiting,
            counted: Some(unsent),
            lent,
            serves: transfers.serve_indices().into(),
            flows_in: (flows_in, 0),
            transfers,
            next: (0, 0),
        };
        self.end(now, Ending::Link(Box::new(lost)));
        // Nodes that the owner has sent here go on without it.
        for (tenant, held, follow) in self.bases.spreading_of(link) {
            let publication = (peer.clone(), incarnation.unwrap_or_default(), tenant, held.identity);
            fetching!(self).pass_on(publication, (held, follow), comes_back_until(now, 0));
        }
        let bases = self.bases.give_up_all(|of, _| of == link);
        self.end(now, Ending::Read(bases.into_iter()));
        self.landing.serve_all_later();
        self.actions.push(HostAction::Control(Control::LinkDown { link, peer, why: reason.to_string() }));
    }

    /// Ends the next thing that was in flight on a lost link. Returns 1. `None`: that was all.
    pub(in crate::protocol::node) fn end_next_of_link(&mut self, now: Time, lost: &mut LostLink) -> Option<u32> {
        let link = lost.link;
        if let Some((_, slot)) = lost.slots.0.take_first(&mut lost.slots.1) {
            match slot.state {
                SlotState::Held(blob) if self.keys.blob(blob).is_some() => {
                    self.keys.set_source(blob, Source::Pool(Box::new(slot.range)));
                }
                _ => self.landing.free(slot.domain, slot.range),
            }
        } else if let Some((blob, purpose)) = lost.in_flight.pop_front() {
            if let Purpose::Push(op) = purpose {
                answering!(self).fail_op(op, lost.failure("while the tensor was being written, the link to"));
            }
            memory!(self).release(blob);
        } else if let Some(out) = lost.unsent.pop_front() {
            if let Out::Write(write) = out {
                if let Purpose::Push(op) = write.purpose {
                    answering!(self).fail_op(op, lost.failure("before the tensor could be written, the link to"));
                }
                memory!(self).release(write.blob);
            }
        } else if let Some(unsent) = lost.counted.take() {
            counting!(self).count(now, |counters| counters.link_down(now, link, &unsent, &lost.why));
        } else if let Some(lent) = &mut lost.lent {
            let segment_of = |blob| self.keys.blob(blob).map(|b| b.slice().segment);
            if !self.references.keep_unreturned(now, lent, segment_of) {
                lost.lent = None;
            }
        } else if let Some(index) = lost.serves.pop_front() {
            if let Some(serve) = lost.transfers.take_serve(index) {
                answering!(self).serve_lost(now, link, index, &serve);
            }
        } else if let Some((id, flow)) = lost.flows_in.0.take_first(&mut lost.flows_in.1) {
            receiving!(self).flow_in_lost(now, (link, id), &flow.key);
        } else if let Some(flow) = lost.transfers.take_flow(&mut lost.next.0) {
            pushing!(self).flow_out_lost(&flow, &lost.failure("the link to"));
        } else if let Some((_, mut pull)) = lost.transfers.take_pull(&mut lost.next.1) {
            let failure = lost.failure("the link to");
            match pull.take_chunk() {
                Some(chunk) => fetching!(self).chunk_lost(now, link, &pull, chunk, &failure),
                None => fetching!(self).pull_lost(pull, &failure),
            }
        } else {
            return None;
        }
        Some(1)
    }

    /// Ends the PINGs of a link that is gone.
    fn pings_lost(&mut self, link: LinkId, why: &str) {
        for token in self.pings.link_down(link) {
            self.actions.push(HostAction::Ponged { token, lost: Some(why.to_owned()) });
        }
    }
}
