//! Fetches whose version comes in chunks: from the owner, or from other nodes. The owner has said which publication it is, how long its
//! chunks are, and which nodes have it or are receiving it. They are asked one after the other, and last the owner, each for what is
//! missing.
//!
//! The request to the owner waits meanwhile, and the owner holds the version for it. The requests for chunks have no fetches of their
//! own.

use super::chunks::Home;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::chunks::Chunks;
use crate::protocol::ids::PullId;
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::Want;
use crate::protocol::node::flows::Fetching;
use crate::protocol::relays::Redirect;
use crate::protocol::search::{Overdue, Search, SearchStage, silent_for};
use crate::protocol::sessions::FetchStage;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{Pull, PullState, Readers};
use crate::tensor::{Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::message::{Body, MAX_CHUNKS, MAX_SOURCES, NameRef, Role};
use smallvec::smallvec;
use std::num::NonZeroU64;

impl Fetching<'_> {
    /// Handles the message REDIRECT: the version comes in chunks, and other nodes may have it.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn pull_redirected(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        (version, identity, metadata_id): (Version, NonZeroU64, u32),
        chunk_bytes: u64,
        sources: [NameRef; MAX_SOURCES],
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let named: Result<Vec<Name>, _> = sources.iter().map(|name| self.links.look_up(link, *name).cloned()).collect();
        let sources = match named {
            Ok(sources) => sources,
            Err(what) => return sending!(self).violation(link, &what),
        };
        let len = meta.len_bytes();
        if len == 0 || chunk_bytes == 0 || !chunk_bytes.is_multiple_of(64) || len.div_ceil(chunk_bytes) > MAX_CHUNKS {
            let what = format!(
                "REDIRECT has chunks of {chunk_bytes} bytes for a version of {len}, expected a multiple of 64, and at most {MAX_CHUNKS}"
            );
            return sending!(self).violation(link, &what);
        }
        let Some(p) = self.transfers.pull(link, id) else { return };
        self.links.hear(link, &p.key, metadata_id, meta.clone());
        if p.state == PullState::Cancelling {
            return;
        }
        let is_late = self.landing.has_landed(link, p.slot) || p.opened_memory().is_some();
        let of = p.spreading(link).filter(|_| !is_late && p.may_be_redirected() && p.takes(version));
        let Some(of) = of else {
            return sending!(self).violation(link, &format!("REDIRECT for request {index:#x}, which did not allow it"));
        };
        let Some((owner_name, incarnation)) =
            self.links.peer_of(link).map(|peer| (peer.name.clone(), peer.incarnation))
        else {
            return;
        };
        let waiting: Vec<_> = p.readers().iter().filter_map(|op| self.sessions.op(*op)).map(|op| op.deadline).collect();
        // A fetch has its own time, whatever others it shares the request with.
        let deadline = waiting.iter().copied().min();
        self.without_slot(link, id);
        let described = (metadata_id, meta.clone());
        let redirect = Redirect {
            owner: link,
            request: id,
            owner_name,
            incarnation,
            identity,
            version,
            chunk_bytes,
            meta,
            sources,
            key: of.2.clone(),
            reader: of.1,
        };
        let before = self.transfers.search_for(&of, identity);
        let wanted = self.transfers.pull(link, id).map(Pull::wanted);
        let next = match (before, deadline) {
            // Nobody is left for whom it would be searched for, or it is already.
            (_, None) => self.join_search(link, id, None),
            (Some(first), Some(deadline)) => {
                self.transfers.change_search(link, first, |search| search.join(now, deadline));
                self.join_search(link, id, before)
            }
            (None, Some(deadline)) => {
                let search = (waiting.len(), Search::new(now, redirect, deadline));
                let next = self.transfers.begin_search(link, id, described, search).unwrap_or_default();
                match self.bases.find(&of).filter(|(held, _)| held.identity == identity) {
                    Some((held, _)) if self.keys.hold(held.blob).is_some() => {
                        self.came_elsewhere(now, (link, id), held, None);
                        memory!(self).release(held.blob);
                    }
                    _ => self.seek_chunk_room(now, (link, id)),
                }
                next
            }
        };
        if let Some(wanted) = wanted.filter(|_| !next.is_empty()) {
            self.begin_pull(now, link, next, wanted, None, None);
        }
    }

    /// Lets the fetches of a request wait for another one to the same owner, whose version is searched for. Returns those that came
    /// later than the request.
    fn join_search(&mut self, link: LinkId, id: PullId, first: Option<PullId>) -> Readers {
        let Some(p) = self.transfers.pull_mut(link, id) else { return smallvec![] };
        let (mut readers, next) = p.take_readers();
        if let Some(held) = pull_slots!(self).cancel_pull(link, id) {
            memory!(self).release(held);
        }
        readers.retain(|op| self.sessions.op(*op).is_some());
        let Some(first) = first.filter(|_| !readers.is_empty()) else { return next };
        for op in &readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Pulling(link, first));
        }
        if let Some(p) = self.transfers.pull_mut(link, first) {
            p.add_readers(readers);
        }
        next
    }

    /// Begins a search as soon as there is room for the version, or lets it wait for that.
    pub(super) fn seek_chunk_room(&mut self, now: Time, (link, id): Home) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let Some(len) = p.version_bytes() else { return };
        p.state = PullState::WaitingForRoom;
        let domain = p.domain;
        if !self.landing.could_hold(domain, len, 1) {
            let failure = self.too_large(domain, link, id, len);
            return self.cannot_land(now, link, id, &failure);
        }
        if self.landing.is_contended(domain) || !self.try_room(now, domain, (link, id)) {
            let number = self.landing.number_in_queue(domain);
            if let Some(search) = self.transfers.search_mut(link, id) {
                search.number_in_queue = search.number_in_queue.or(number);
            }
            room!(self).want(domain, Want::Pull(link, id));
        }
    }

    /// Allocates room for a request whose version is described. Returns `true` if it has room or no longer needs any.
    pub(super) fn try_room(&mut self, now: Time, domain: Tenant, (link, id): Home) -> bool {
        let Some(p) = self.transfers.pull(link, id).filter(|p| p.wants_room()) else { return true };
        let Some(search) = &p.search else { return pull_slots!(self).try_pull_slot(domain, link, id) };
        let redirect = search.redirect.clone();
        let Some((range, slice, cell)) = self.landing.room_for_chunks(domain, redirect.meta.len_bytes()) else {
            return false;
        };
        let blob = Blob::new(slice, redirect.meta.clone(), domain, Source::Pool(Box::new(range)));
        let blob = self.keys.insert(blob.at(redirect.version, None));
        self.transfers.lands_in(blob, (link, id));
        if let Some(p) = self.transfers.pull_mut(link, id) {
            p.state = PullState::Redirected;
            if let Some(search) = &mut p.search {
                let digests = std::mem::take(&mut search.digests);
                search.chunks = Some(Box::new(Chunks::new((blob, slice), redirect.chunk_bytes, cell, digests)));
            }
        }
        self.ask_next(now, (link, id));
        true
    }

    /// Asks the next of the nodes that the owner has named, and last the owner.
    pub(super) fn ask_next(&mut self, now: Time, home: Home) {
        let (link, id) = home;
        loop {
            let next = |search: &mut Search| (search.next_source(now, &self.config.name), search.has_owner);
            let Some((node, has_owner)) = self.transfers.change_search(link, id, next) else { return };
            if !has_owner {
                let orphans = self.take_orphans(home);
                return self.ask_without_owner(now, orphans, node, "it did not send the version");
            }
            let owner = self.transfers.search_mut(link, id).map(|search| search.redirect.owner_name.clone());
            let Some(node) = node.filter(|node| Some(node) != owner.as_ref()) else { return self.ask_owner(now, home) };
            if self.relays.is_unreachable(now, &node) {
                continue;
            }
            let Some(to) = self.links.reach(&node, self.actions) else {
                self.transfers.change_search(link, id, |search| search.connect(now, node));
                return;
            };
            if self.ask_node(now, home, to) {
                return;
            }
        }
    }

    /// Asks a node that the owner has named. Returns `false` if that is not possible.
    pub(super) fn ask_node(&mut self, now: Time, (link, id): Home, to: LinkId) -> bool {
        let may = self.transfers.pull(link, id).is_some_and(|p| self.may_ask(to, p.domain));
        if may {
            self.transfers.change_search(link, id, |search| search.ask(now, to));
            self.ask_for_chunks(now, (link, id));
        }
        may
    }

    /// Asks the owner of a version for what is missing: no other node sends it, or it was the first to be asked.
    fn ask_owner(&mut self, now: Time, (link, id): Home) {
        let Some(redirect) = self.transfers.search_mut(link, id).map(|search| search.redirect.clone()) else { return };
        if redirect.sources.iter().any(|source| *source != redirect.owner_name) {
            self.meters.asked_again();
        }
        self.transfers.change_search(link, id, |search| search.ask_owner(now, redirect.owner));
        self.ask_for_chunks(now, (link, id));
    }

    /// Gives up the node that is asked, with the requests for chunks that it has, and asks the next one. The owner is told if the node
    /// `is_blamed`.
    pub(super) fn give_up_source(&mut self, now: Time, (link, id): Home, is_blamed: bool) {
        let Some(search) = self.transfers.search_mut(link, id) else { return };
        let (redirect, place) = (search.redirect.clone(), search.place());
        let asked = search.chunks.as_mut().map(|chunks| chunks.give_up()).unwrap_or_default();
        for (to, pull) in asked {
            pull_slots!(self).cancel_chunk(to, pull);
        }
        if let Some(source) = place.filter(|_| is_blamed) {
            sending!(self).send(redirect.owner, Role::Pull, redirect.request.short(), Body::SourceFailed { source });
        }
        self.ask_next(now, (link, id));
    }

    /// Handles a link that came up: it may be to a node that is to be asked.
    pub(in crate::protocol::node) fn named_node_up(&mut self, now: Time, node: &Name, to: LinkId) {
        self.relays.reached(node);
        for home in self.connecting_to(node) {
            if !self.ask_node(now, home, to) {
                self.ask_next(now, home);
            }
        }
        self.go_on_with_orphans(now, node, true);
    }

    /// Handles a link that cannot be made: others are asked.
    pub(in crate::protocol::node) fn named_node_not_reached(&mut self, now: Time, node: &Name) {
        let searches = self.connecting_to(node);
        if !searches.is_empty() {
            self.relays.not_reached(now, node);
        }
        for home in searches {
            self.ask_next(now, home);
        }
        self.go_on_with_orphans(now, node, false);
    }

    fn connecting_to(&self, node: &Name) -> Vec<Home> {
        self.transfers.searches_where(|search| matches!(&search.stage, SearchStage::Connecting(to) if to == node))
    }

    /// Gives up the nodes that have taken too long, or show no sign of life, and asks others.
    pub(in crate::protocol::node) fn end_stalled(&mut self, now: Time) {
        while let Some((link, id)) = self.transfers.stalled(now) {
            let Some(search) = self.transfers.search_mut(link, id) else { return };
            if search.stuck_until.is_some_and(|until| until <= now) {
                self.move_chunks(now, (link, id));
                continue;
            }
            let (stage, is_over) = (search.stage.clone(), search.is_over(now));
            let deadline = self.first_deadline((link, id)).unwrap_or(now);
            match stage {
                SearchStage::Asked(to) if !is_over => {
                    if !self.is_alive(now, (link, id), to) {
                        self.give_up_source(now, (link, id), true);
                    }
                }
                SearchStage::Asked(_) => {
                    let over = |search: &mut Search| search.overdue(now, deadline);
                    if let Some(why) = self.transfers.change_search(link, id, over).flatten() {
                        self.give_up_source(now, (link, id), why == Overdue::Blamed);
                    }
                }
                SearchStage::Connecting(node) => {
                    self.relays.not_reached(now, &node);
                    self.ask_next(now, (link, id));
                }
                SearchStage::Idle => {
                    self.transfers.change_search(link, id, Search::idle);
                }
            }
        }
        for ended in self.transfers.take_unlinked_ended(|op| self.sessions.op(op).is_some()) {
            if let Some(search) = ended.search {
                pull_slots!(self).drop_search(*search);
            }
        }
    }

    /// Whether a node that is asked has shown a sign of life since the last look. It is asked for the next one.
    fn is_alive(&mut self, now: Time, (link, id): Home, to: LinkId) -> bool {
        let Some(l) = self.links.get(to) else { return false };
        let signs = l.heard();
        // A message may be behind what is being written, and the question for it behind what is being written there.
        let len = |blob| self.keys.blob(blob).map_or(0, |b| b.meta.len_bytes());
        let there = l.written().map(len).reduce(u64::saturating_add);
        let here = self.landing.written_bytes(to).unwrap_or(0).saturating_sub(self.transfers.chunk_bytes_asked(to));
        let here = Some(here).filter(|here| *here > 0);
        let is_written = there.into_iter().chain(here).reduce(u64::saturating_add).map(silent_for);
        let look = |search: &mut Search| search.look(now, signs, is_written);
        let is_alive = self.transfers.change_search(link, id, look).unwrap_or(false);
        if is_alive {
            sending!(self).send(to, Role::Counter, 0, Body::Ping);
        }
        is_alive
    }

    /// Returns when the first of the fetches ends that wait for a request.
    fn first_deadline(&self, (link, id): Home) -> Option<Time> {
        let readers = self.transfers.pull(link, id)?.readers();
        readers.iter().filter_map(|op| self.sessions.op(*op)).map(|op| op.deadline).min()
    }

    /// Fails the fetches of a search, and ends it.
    pub(super) fn fail_search(&mut self, (link, id): Home, failure: &Failure) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let (readers, _) = p.take_readers();
        if let Some(held) = pull_slots!(self).cancel_pull(link, id) {
            memory!(self).release(held);
        }
        self.fail_readers(&readers, failure);
    }

    pub(super) fn cannot_be_asked(&mut self, home: Home, to: LinkId) {
        let text = format!(
            "no more requests to node {:?} may be under way, the limit is {}",
            self.links.peer_name(to),
            self.config.max_requests_per_link
        );
        self.fail_search(home, &Failure::new(FailureCode::Busy, text));
    }
}
