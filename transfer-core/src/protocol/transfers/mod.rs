//! Transfers between nodes that are in flight: the requests of this node to its peers, the requests of peers to this
//! node, and the keys that this node pushes to peers.
//!
//! # Layout
//! - `pull`: a request of this node. `serve`: a request of a peer. `push`: a key that is pushed to a peer.
//! - `packs`: the requests of a peer whose parts are packed before they are sent.
//! - `calls`: calls for landing slots of many flows at once: the requests collected for the next call, and the open
//!   calls of peers.

mod calls;
mod packs;
mod pull;
mod push;
mod serve;
#[cfg(test)]
mod tests;

pub(super) use calls::{CallStep, MAX_CALLS_PER_LINK};
pub(super) use packs::Packs;
pub(super) use pull::{Held, Pull, PullState, Readers, Wanted};
pub(super) use push::{FlowState, OutFlow};
pub(super) use serve::Serve;

use super::control::BufferAsk;
use super::ids::{BlobId, OutFlowId, PullId, SessionId, of};
use super::relays::Spreading;
use super::slab::Slab;
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::tensor::Key;
use crate::time::Time;
use calls::Call;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The transfers between a node and its peers, as tables by link.
///
/// It knows links, operations, versions and slots only by their ids. The node that holds it
/// - hands it **events**: a link comes up or goes down ([`link_up`](Transfers::link_up),
///   [`link_down`](Transfers::link_down)), a transfer begins ([`begin_pull`](Transfers::begin_pull),
///   [`begin_serve`](Transfers::begin_serve), [`begin_flow`](Transfers::begin_flow)) or ends
///   ([`end_pull`](Transfers::end_pull), [`end_serve`](Transfers::end_serve), [`end_flow`](Transfers::end_flow)), a
///   peer calls for slots ([`begin_call`](Transfers::begin_call)), a flow of its call is answered
///   ([`answer_call`](Transfers::answer_call));
/// - collects the **requests for calls**: [`ask_by_call`](Transfers::ask_by_call) adds one,
///   [`take_asks`](Transfers::take_asks) takes them all.
///
/// **Getters** return [`Pull`]s, [`Serve`]s and [`OutFlow`]s. Each of these decides which step may follow in its state.
#[derive(Default)]
pub(super) struct Transfers {
    links: BTreeMap<LinkId, OfLink>,
    /// Links with flows that ask for slots with the next call.
    asking: Vec<LinkId>,
    /// Open calls of peers for slots, by token.
    calls: BTreeMap<u64, Call>,
    /// Links on which a request may begin to be packed.
    packing: Vec<LinkId>,
    /// Requests of this node that hold a version which has landed before.
    holding: BTreeSet<(LinkId, PullId)>,
    /// Requests to nodes that do not own the key, and when each is given up.
    stalling: BTreeSet<(Time, LinkId, PullId)>,
}

/// The transfers of one link.
#[derive(Default)]
pub(super) struct OfLink {
    pulls: Slab<Pull, of::Pull>,
    /// The latest request for the same, which other fetches may join.
    shared: HashMap<Wanted, PullId>,
    serves: HashMap<u32, Serve>,
    packs: Packs,
    flows: Slab<OutFlow, of::OutFlow>,
    flow_of: HashMap<(SessionId, Key), OutFlowId>,
    /// Requests of flows that ask for slots with the next call.
    asks: Vec<BufferAsk>,
    /// Flows whose slots the peer asked for by a call, and the call's token.
    called: HashMap<u32, u64>,
}

impl OfLink {
    /// Returns the requests of this node.
    pub(super) fn pulls(&self) -> &Slab<Pull, of::Pull> {
        &self.pulls
    }

    /// Returns the requests of the peer, by index.
    pub(super) fn serves(&self) -> &HashMap<u32, Serve> {
        &self.serves
    }

    /// Returns the keys that are pushed to the peer.
    pub(super) fn flows(&self) -> &Slab<OutFlow, of::OutFlow> {
        &self.flows
    }

    /// Returns the indices of the requests of the peer, in order.
    pub(super) fn serve_indices(&self) -> Vec<u32> {
        let mut indices: Vec<_> = self.serves.keys().copied().collect();
        indices.sort_unstable();
        indices
    }

    /// Takes a request of the peer.
    pub(super) fn take_serve(&mut self, index: u32) -> Option<Serve> {
        self.serves.remove(&index)
    }

    /// Takes the next request of this node, from this place on.
    pub(super) fn take_pull(&mut self, from: &mut usize) -> Option<Pull> {
        self.pulls.take_first(from).map(|(_, pull)| pull)
    }

    /// Takes the next flow, from this place on.
    pub(super) fn take_flow(&mut self, from: &mut usize) -> Option<OutFlow> {
        self.flows.take_first(from).map(|(_, flow)| flow)
    }

    /// Returns the flow of a worker's key.
    pub(super) fn flow_of(&self, of: &(SessionId, Key)) -> Option<&OutFlow> {
        self.flows.get(*self.flow_of.get(of)?)
    }
}

impl Transfers {
    /// Handles a new link.
    pub(super) fn link_up(&mut self, link: LinkId) {
        self.links.insert(link, OfLink::default());
    }

    /// Handles the loss of a link. Returns the transfers that were in flight on it.
    pub(super) fn link_down(&mut self, link: LinkId) -> OfLink {
        self.holding.retain(|(of, _)| *of != link);
        self.stalling.retain(|(_, of, _)| *of != link);
        self.links.remove(&link).unwrap_or_default()
    }

    /// Returns the transfers that are in flight on a link.
    pub(super) fn of(&self, link: LinkId) -> Option<&OfLink> {
        self.links.get(&link)
    }

    /// Returns a request of this node.
    pub(super) fn pull(&self, link: LinkId, id: PullId) -> Option<&Pull> {
        self.links.get(&link)?.pulls.get(id)
    }

    /// Returns a request of this node, mutably.
    pub(super) fn pull_mut(&mut self, link: LinkId, id: PullId) -> Option<&mut Pull> {
        self.links.get_mut(&link)?.pulls.get_mut(id)
    }

    /// Returns the request of this node that the peer calls by this index.
    pub(super) fn pull_named(&self, link: LinkId, index: u32) -> Option<PullId> {
        self.links.get(&link)?.pulls.lengthen(index)
    }

    /// Begins a request of this node.
    pub(super) fn begin_pull(&mut self, link: LinkId, pull: Pull) -> Option<PullId> {
        let l = self.links.get_mut(&link)?;
        let (shared, holds, stalls_at) = (pull.shared(), pull.holds(), pull.stalls_at);
        let id = l.pulls.insert(pull);
        if let Some(at) = stalls_at {
            self.stalling.insert((at, link, id));
        }
        if let Some(wanted) = shared {
            l.shared.insert(wanted, id);
        }
        if holds {
            self.holding.insert((link, id));
        }
        Some(id)
    }

    /// Returns the request for the same that another fetch may join.
    pub(super) fn shared_pull(&self, link: LinkId, wanted: &Wanted) -> Option<PullId> {
        self.links.get(&link)?.shared.get(wanted).copied()
    }

    /// Lets no other fetch join a request.
    pub(super) fn close_pull(&mut self, link: LinkId, id: PullId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let wanted = l.pulls.get(id).and_then(Pull::shared);
        if let Some(wanted) = wanted.filter(|wanted| l.shared.get(wanted) == Some(&id)) {
            l.shared.remove(&wanted);
        }
    }

    /// Takes the version that a request holds. The caller releases it.
    pub(super) fn take_held(&mut self, link: LinkId, id: PullId) -> Option<BlobId> {
        self.holding.remove(&(link, id));
        Some(self.pull_mut(link, id)?.take_held()?.blob)
    }

    /// Returns the first request of a tenant that holds a version which it may lose. One whose delta has a slot needs its base:
    /// it waits for no room.
    pub(super) fn holding_of(&self, domain: Tenant) -> Option<(LinkId, PullId)> {
        let may_lose = |p: &Pull| p.domain == domain && !p.has_room_for_delta();
        let found = self.holding.iter().find(|(link, id)| self.pull(*link, *id).is_some_and(may_lose));
        found.copied()
    }

    /// Ends a request of this node.
    pub(super) fn end_pull(&mut self, link: LinkId, id: PullId) -> Option<Pull> {
        self.close_pull(link, id);
        self.holding.remove(&(link, id));
        let pull = self.links.get_mut(&link)?.pulls.remove(id)?;
        if let Some(at) = pull.stalls_at {
            self.stalling.remove(&(at, link, id));
        }
        Some(pull)
    }

    /// Whether a version of a key is on its way here.
    pub(super) fn is_coming(&self, of: &Spreading) -> bool {
        self.links.iter().any(|(link, l)| l.pulls.iter().any(|(_, pull)| pull.brings(*link, of)))
    }

    /// Returns when a request to a node that does not own the key is given up next.
    pub(super) fn stalls_at(&self) -> Option<Time> {
        self.stalling.first().map(|(at, ..)| *at)
    }

    /// Takes a request that is given up for one to another node.
    pub(super) fn take_stalled(&mut self, now: Time) -> Option<(LinkId, PullId)> {
        let (at, link, id) = self.stalling.first().copied().filter(|(at, ..)| *at <= now)?;
        self.stalling.remove(&(at, link, id));
        Some((link, id))
    }

    /// Returns a request of a peer.
    pub(super) fn serve(&self, link: LinkId, index: u32) -> Option<&Serve> {
        self.links.get(&link)?.serves.get(&index)
    }

    /// Returns a request of a peer, mutably.
    pub(super) fn serve_mut(&mut self, link: LinkId, index: u32) -> Option<&mut Serve> {
        self.links.get_mut(&link)?.serves.get_mut(&index)
    }

    /// Begins a request of a peer.
    pub(super) fn begin_serve(&mut self, link: LinkId, index: u32, serve: Serve) {
        if let Some(l) = self.links.get_mut(&link) {
            l.serves.insert(index, serve);
        }
    }

    /// Ends a request of a peer.
    pub(super) fn end_serve(&mut self, link: LinkId, index: u32) -> Option<Serve> {
        self.links.get_mut(&link)?.serves.remove(&index)
    }

    /// Lets a request of a peer wait for a place among those that are packed.
    pub(super) fn line_up(&mut self, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = l.serves.get_mut(&index) else { return };
        serve.line_up(l.packs.line_up(index));
        self.packing.push(link);
    }

    /// Takes a request that has ended out of that line.
    pub(super) fn leave_line(&mut self, link: LinkId, number: u64) {
        if let Some(l) = self.links.get_mut(&link) {
            l.packs.leave(number);
        }
    }

    /// Frees a place among those that are packed.
    pub(super) fn free_place(&mut self, link: LinkId) {
        if let Some(l) = self.links.get_mut(&link) {
            l.packs.free();
            self.packing.push(link);
        }
    }

    /// Whether a request may wait for a place.
    pub(super) fn is_packing(&self) -> bool {
        !self.packing.is_empty()
    }

    /// Takes a place for a request that waits for one. `None` if none waits where there is one.
    pub(super) fn next_to_pack(&mut self) -> Option<(LinkId, u32)> {
        while let Some(link) = self.packing.last().copied() {
            if let Some(index) = self.links.get_mut(&link).and_then(|l| l.packs.take()) {
                return Some((link, index));
            }
            self.packing.pop();
        }
        None
    }

    /// Returns the number of places that are taken on a link.
    #[cfg(test)]
    pub(super) fn places_taken(&self, link: LinkId) -> usize {
        self.links.get(&link).map_or(0, |l| l.packs.taken())
    }

    /// Returns the requests of a peer whose version is not published yet, and their keys, in the order of their
    /// indices.
    pub(super) fn waiting_serves(&self, link: LinkId) -> Vec<(u32, Key)> {
        let serves = self.links.get(&link).into_iter().flat_map(|l| &l.serves);
        let waiting =
            serves.filter(|(_, serve)| !serve.is_published()).map(|(index, serve)| (*index, serve.key().clone()));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable_by_key(|(index, _)| *index);
        waiting
    }

    /// Returns the flow of a key that is pushed to a peer.
    pub(super) fn flow(&self, link: LinkId, id: OutFlowId) -> Option<&OutFlow> {
        self.links.get(&link)?.flows.get(id)
    }

    /// Returns the flow of a key that is pushed to a peer, mutably.
    pub(super) fn flow_mut(&mut self, link: LinkId, id: OutFlowId) -> Option<&mut OutFlow> {
        self.links.get_mut(&link)?.flows.get_mut(id)
    }

    /// Returns the flow that a peer calls by this index.
    pub(super) fn flow_named(&self, link: LinkId, index: u32) -> Option<OutFlowId> {
        self.links.get(&link)?.flows.lengthen(index)
    }

    /// Returns the flow of a worker's key over this link.
    pub(super) fn flow_of(&self, link: LinkId, of: &(SessionId, Key)) -> Option<OutFlowId> {
        self.links.get(&link)?.flow_of.get(of).copied()
    }

    /// Begins a flow. Returns `None` if the link is gone or no index is free; the number of flows is at its limit then.
    pub(super) fn begin_flow(&mut self, link: LinkId, flow: OutFlow) -> Option<OutFlowId> {
        let l = self.links.get_mut(&link).filter(|l| l.flows.has_short_room())?;
        let of = flow.of();
        let id = l.flows.insert(flow);
        l.flow_of.insert(of, id);
        Some(id)
    }

    /// Ends a flow. Returns whether it existed.
    pub(super) fn end_flow(&mut self, link: LinkId, id: OutFlowId) -> bool {
        let Some(l) = self.links.get_mut(&link) else { return false };
        let ended = l.flows.remove(id);
        ended.is_some_and(|flow| l.flow_of.remove(&flow.of()).is_some())
    }

    /// Returns the flows of a worker.
    pub(super) fn flows_of(&self, session: SessionId) -> Vec<(LinkId, OutFlowId)> {
        let of_link = |(link, l): (&LinkId, &OfLink)| {
            l.flows.ids(|flow| flow.session == session).into_iter().map(|id| (*link, id)).collect::<Vec<_>>()
        };
        self.links.iter().flat_map(of_link).collect()
    }
}
