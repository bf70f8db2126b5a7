//! Transfers between nodes that are in flight: the requests of this node to its peers, the requests of peers to this
//! node, and the keys that this node pushes to peers.
//!
//! # Layout
//! - `pull`: a request of this node. `serve`: a request of a peer. `push`: a key that is pushed to a peer.
//! - `packs`: the requests of a peer whose parts are packed before they are sent.
//! - `calls`: calls for landing slots of many flows at once: the requests collected for the next call, and the open
//!   calls of peers.

mod calls;
mod orphans;
mod packs;
mod pull;
mod push;
mod serve;
#[cfg(test)]
mod tests;

pub(super) use calls::{CallStep, MAX_CALLS_PER_LINK};
pub(super) use packs::Packs;
pub(super) use pull::{ChunkPull, Held, Pull, PullState, Readers, Wanted};
pub(super) use push::{FlowState, OutFlow};
pub(super) use serve::{AskedChunk, Serve};

use super::control::BufferAsk;
use super::ids::{BlobId, OperationId, OutFlowId, PullId, SessionId, of};
use super::relays::Spreading;
use super::search::Search;
use super::slab::Slab;
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::tensor::{Key, Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::message::MAX_SOURCES;
use calls::Call;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

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
    /// The requests whose versions are searched for at other nodes, by publication.
    searches: HashMap<(Spreading, NonZeroU64), PullId>,
    /// The requests without a link whose fetches wait for one to a node of their search.
    awaiting_links: Vec<Pull>,
    /// The requests with searches whose owner's link has ended.
    orphans: BTreeSet<(LinkId, PullId)>,
    /// When the node that such a request has got to is given up.
    stalling: BTreeSet<(Time, LinkId, PullId)>,
    /// The requests of this node to owners for which requests of peers wait, by key. Some of them may have ended.
    awaited: HashMap<Spreading, BTreeSet<PullId>>,
    /// Keys for which requests of peers wait, and for which a request of this node has ended.
    awaited_ended: Vec<Spreading>,
    /// The requests that have a search, by the blob where its chunks land.
    homes: HashMap<BlobId, (LinkId, PullId)>,
}

/// The transfers of one link.
#[derive(Default)]
pub(super) struct OfLink {
    pulls: Slab<Pull, of::Pull>,
    /// The latest request for the same, which other fetches may join.
    shared: HashMap<Wanted, PullId>,
    serves: HashMap<u32, Serve>,
    /// The versions of which the peer asks for chunks, each with how many of its requests hold it.
    held_for: HashMap<BlobId, u32>,
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
    pub(super) fn take_pull(&mut self, from: &mut usize) -> Option<(PullId, Pull)> {
        self.pulls.take_first(from)
    }

    /// Returns the requests of this node whose versions are searched for at other nodes.
    pub(super) fn searching(&mut self) -> impl Iterator<Item = &mut Pull> {
        self.pulls.iter_mut().filter(|pull| pull.search.is_some())
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
        self.orphans.retain(|(of, _)| *of != link);
        self.searches.retain(|((owner, ..), _), _| *owner != link);
        let lost = self.links.remove(&link).unwrap_or_default();
        let awaited = lost.pulls.iter().filter(|(_, pull)| pull.is_awaited);
        self.awaited_ended.extend(awaited.filter_map(|(_, pull)| pull.spreading(link)));
        lost
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

    /// Returns the request of this node for a chunk that the peer calls by this index.
    pub(super) fn chunk_named(&self, link: LinkId, index: u32) -> Option<PullId> {
        let id = self.pull_named(link, index)?;
        self.pull(link, id).filter(|pull| pull.chunk().is_some()).map(|_| id)
    }

    /// Begins a request of this node.
    pub(super) fn begin_pull(&mut self, link: LinkId, pull: Pull) -> Option<PullId> {
        let l = self.links.get_mut(&link)?;
        let (shared, holds) = (pull.shared(), pull.holds());
        let id = l.pulls.insert(pull);
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

    /// Lets no other fetch join a request. The requests of peers that wait for it are looked at.
    pub(super) fn close_pull(&mut self, link: LinkId, id: PullId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let awaited = l.pulls.get(id).filter(|pull| pull.is_awaited);
        self.awaited_ended.extend(awaited.and_then(|pull| pull.spreading(link)));
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

    /// Takes a base that is lent no longer from the requests that hold it, but for those whose delta has a slot. Returns how many they were: the caller
    /// releases it for each.
    pub(super) fn take_lent(&mut self, blob: BlobId) -> usize {
        let may_lose = |p: &Pull| p.holds_this(blob) && !p.has_room_for_delta();
        let these: Vec<_> = self.holding.iter().copied().collect();
        let these = these.into_iter().filter(|(link, id)| self.pull(*link, *id).is_some_and(may_lose));
        let these: Vec<_> = these.collect();
        these.into_iter().filter(|(link, id)| self.take_held(*link, *id).is_some()).count()
    }

    /// Returns the first request of a tenant that holds a version which it may lose. One whose delta has a slot needs its base:
    /// it waits for no room.
    pub(super) fn holding_of(&self, domain: Tenant) -> Option<(LinkId, PullId)> {
        // A base that is lent has no room of a pool.
        let may_lose = |p: &Pull| p.domain == domain && !p.has_room_for_delta() && !p.holds_lent();
        let found = self.holding.iter().find(|(link, id)| self.pull(*link, *id).is_some_and(may_lose));
        found.copied()
    }

    /// Ends a request of this node.
    pub(super) fn end_pull(&mut self, link: LinkId, id: PullId) -> Option<Pull> {
        self.close_pull(link, id);
        self.holding.remove(&(link, id));
        self.end_search(link, id);
        self.links.get_mut(&link)?.pulls.remove(id)
    }

    /// Whether a request of this node to an owner may bring this publication. If so, its end shows the key among those that
    /// [`take_awaited_ended`](Transfers::take_awaited_ended) returns.
    pub(super) fn await_version(&mut self, of: &Spreading, version: Version, identity: NonZeroU64) -> bool {
        let Some(l) = self.links.get_mut(&of.0) else { return false };
        let found = l.pulls.ids(|pull| pull.may_bring(of, version, identity));
        for id in &found {
            if let Some(pull) = l.pulls.get_mut(*id) {
                pull.is_awaited = true;
            }
        }
        let is_awaited = !found.is_empty();
        if is_awaited {
            self.awaited.entry(of.clone()).or_default().extend(found);
        }
        is_awaited
    }

    /// Takes a key for which requests of peers wait, and for which a request of this node has ended.
    pub(super) fn take_awaited_ended(&mut self) -> Option<Spreading> {
        let of = self.awaited_ended.pop()?;
        // Those that are still awaited are found again.
        self.awaited.remove(&of);
        Some(of)
    }

    /// Begins to search for a version at the nodes that its owner has named in its answer to a request, for so many fetches. Returns
    /// those that came later than that.
    pub(super) fn begin_search(
        &mut self,
        link: LinkId,
        id: PullId,
        described: (u32, TensorMeta),
        (waiting, search): (usize, Search),
    ) -> Option<Readers> {
        self.close_pull(link, id);
        let pull = self.links.get_mut(&link)?.pulls.get_mut(id)?;
        self.searches.insert((pull.spreading(link)?, search.redirect.identity), id);
        Some(pull.begin_search(described, waiting, search))
    }

    /// Returns the request to this owner whose version, with this identity, is searched for at other nodes.
    pub(super) fn search_for(&self, of: &Spreading, identity: NonZeroU64) -> Option<PullId> {
        self.searches.get(&(of.clone(), identity)).copied()
    }

    /// Returns the search of a request, mutably.
    pub(super) fn search_mut(&mut self, link: LinkId, id: PullId) -> Option<&mut Search> {
        self.pull_mut(link, id)?.search.as_deref_mut()
    }

    /// Returns the requests whose searches this is true of.
    pub(super) fn searches_where(&self, is_one: impl Fn(&Search) -> bool) -> Vec<(LinkId, PullId)> {
        let all = self.searches.iter().map(|(((link, ..), _), id)| (*link, *id));
        let is_one = |(link, id): &(LinkId, PullId)| {
            self.pull(*link, *id).and_then(|pull| pull.search.as_deref()).is_some_and(&is_one)
        };
        let mut found: Vec<_> = all.filter(is_one).collect();
        found.sort_unstable();
        found
    }

    /// Changes a search, and with it perhaps when the node that it has got to is given up or looked at.
    pub(super) fn change_search<T>(
        &mut self,
        link: LinkId,
        id: PullId,
        change: impl FnOnce(&mut Search) -> T,
    ) -> Option<T> {
        let search = self.search_mut(link, id)?;
        let before = search.wakes_at();
        let changed = change(search);
        let after = search.wakes_at();
        if let Some(at) = before {
            self.stalling.remove(&(at, link, id));
        }
        if let Some(at) = after {
            self.stalling.insert((at, link, id));
        }
        Some(changed)
    }

    /// Gives a search to a request, because the link of the one that had it has ended.
    pub(super) fn move_search(&mut self, to: LinkId, id: PullId, search: Box<Search>) {
        let wakes_at = search.wakes_at();
        if let Some(chunks) = &search.chunks {
            self.homes.insert(chunks.blob, (to, id));
        }
        let Some(pull) = self.pull_mut(to, id) else { return };
        pull.search = Some(search);
        self.orphans.insert((to, id));
        if let Some(at) = wakes_at {
            self.stalling.insert((at, to, id));
        }
    }

    /// Notes that the chunks of a search land in this blob.
    pub(super) fn lands_in(&mut self, blob: BlobId, home: (LinkId, PullId)) {
        self.homes.insert(blob, home);
    }

    /// Notes that no chunks land in a blob any more.
    pub(super) fn lands_elsewhere(&mut self, blob: BlobId) {
        self.homes.remove(&blob);
    }

    /// Returns the request with the search whose chunks land in this blob.
    pub(super) fn home_of(&self, blob: BlobId) -> Option<(LinkId, PullId)> {
        self.homes.get(&blob).copied()
    }

    /// Returns the search whose chunks land in this blob, and which waits for a link.
    pub(super) fn unlinked_search(&mut self, blob: BlobId) -> Option<&mut Search> {
        let searches = self.awaiting_links.iter_mut().filter_map(|pull| pull.search.as_deref_mut());
        searches.into_iter().find(|search| search.chunks.as_ref().is_some_and(|chunks| chunks.blob == blob))
    }

    /// Takes the request that waits for a link and whose chunks land in this blob.
    pub(super) fn take_unlinked(&mut self, blob: BlobId) -> Option<Pull> {
        let is_it = |pull: &Pull| {
            let chunks = pull.search.as_ref().and_then(|search| search.chunks.as_ref());
            chunks.is_some_and(|chunks| chunks.blob == blob)
        };
        let at = self.awaiting_links.iter().position(is_it)?;
        Some(self.awaiting_links.remove(at))
    }

    /// Takes the requests that wait for a link, and whose fetches have ended. `is_waiting` tells which have not.
    pub(super) fn take_unlinked_ended(&mut self, is_waiting: impl Fn(OperationId) -> bool) -> Vec<Pull> {
        let has_ended = |pull: &mut Pull| !pull.readers().iter().any(|op| is_waiting(*op));
        self.awaiting_links.extract_if(.., has_ended).collect()
    }

    /// Returns how many bytes of chunks the peer of a link may be writing here.
    pub(super) fn chunk_bytes_asked(&self, link: LinkId) -> u64 {
        let pulls = self.links.get(&link).into_iter().flat_map(|l| l.pulls.iter());
        let may_write = |pull: &&Pull| matches!(pull.state, PullState::Asked | PullState::Cancelling);
        let open = pulls.map(|(_, pull)| pull).filter(may_write);
        open.filter_map(Pull::chunk).map(|chunk| chunk.range.len).sum()
    }

    /// Lets a request of a peer hold its version until it is there. Chunks of it are asked for at these nodes, or here.
    pub(super) fn redirect(&mut self, link: LinkId, index: u32, nodes: Option<[Name; MAX_SOURCES]>) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = l.serves.get_mut(&index) else { return };
        serve.redirect(nodes);
        if let Some(blob) = serve.fetching() {
            *l.held_for.entry(blob).or_default() += 1;
        }
    }

    /// Whether a request of the peer of a link holds a version until it is there, of which it asks for chunks.
    pub(super) fn is_held_for(&self, link: LinkId, blob: BlobId) -> bool {
        self.links.get(&link).is_some_and(|l| l.held_for.contains_key(&blob))
    }

    /// Lets the fetches of a request wait that has no link any more and none yet, until there is one to a node of its search.
    pub(super) fn await_link(&mut self, pull: Pull) {
        self.awaiting_links.push(pull);
    }

    /// Whether fetches of a key wait for a link to this node, or others of their search.
    pub(super) fn is_searched_at(&self, key: &Key, node: &Name) -> bool {
        let is_one = |pull: &Pull| pull.search.as_ref().is_some_and(|search| search.others().contains(node));
        self.awaiting_links.iter().any(|pull| pull.key == *key && is_one(pull))
    }

    /// Takes the requests that wait for a link to this node.
    pub(super) fn take_awaiting(&mut self, node: &Name) -> Vec<Pull> {
        let waits = |pull: &mut Pull| pull.search.as_ref().is_some_and(|search| search.others().contains(node));
        self.awaiting_links.extract_if(.., waits).collect()
    }

    /// Ends the search of a request.
    pub(super) fn end_search(&mut self, link: LinkId, id: PullId) -> Option<Box<Search>> {
        let search = self.pull_mut(link, id)?.search.take()?;
        self.orphans.remove(&(link, id));
        if let Some(at) = search.wakes_at() {
            self.stalling.remove(&(at, link, id));
        }
        if let Some(chunks) = &search.chunks {
            self.homes.remove(&chunks.blob);
        }
        let pull = self.pull(link, id)?;
        if let Some(of) = pull.spreading(link) {
            self.searches.remove(&(of, search.redirect.identity));
        }
        Some(search)
    }

    /// Returns when a node is given up or looked at next that a search has got to.
    pub(super) fn stalls_at(&self) -> Option<Time> {
        self.stalling.first().map(|(at, ..)| *at)
    }

    /// Returns a request whose search gives up or looks at the node that it has got to. The caller changes that search.
    pub(super) fn stalled(&self, now: Time) -> Option<(LinkId, PullId)> {
        self.stalling.first().filter(|(at, ..)| *at <= now).map(|(_, link, id)| (*link, *id))
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
        let l = self.links.get_mut(&link)?;
        let serve = l.serves.remove(&index)?;
        if let Some(blob) = serve.fetching().filter(|_| serve.is_redirected())
            && let Some(count) = l.held_for.get_mut(&blob)
        {
            *count -= 1;
            if *count == 0 {
                l.held_for.remove(&blob);
            }
        }
        Some(serve)
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

    /// Whether a request may wait for a place, a request for which others wait has ended, or requests for slots were collected.
    pub(super) fn has_put_off(&self) -> bool {
        !self.packing.is_empty() || !self.awaited_ended.is_empty() || !self.asking.is_empty()
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
