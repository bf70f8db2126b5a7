//! Fetches whose version comes from other nodes than its owner. The owner has said which publication it is, what its digest is, and
//! which nodes have it or are receiving it. They are asked one after the other, and last the owner itself.
//!
//! The request to the owner waits meanwhile, and the owner holds the version for it. The requests to the other nodes have no fetches of
//! their own.

use super::orphans::Orphans;
use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::{BlobId, PullId};
use crate::protocol::keys::Blob;
use crate::protocol::node::flows::Fetching;
use crate::protocol::node::replies::Carried;
use crate::protocol::relays::{Proof, Redirect, Search, SearchStage, relay_limit};
use crate::protocol::rules::Broken;
use crate::protocol::sessions::FetchStage;
use crate::protocol::transfers::{Held, Pull, PullState, Readers};
use crate::tensor::{Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::Header;
use crate::wire::message::{Body, MAX_SOURCES, NameRef, Role};
use smallvec::smallvec;
use std::num::NonZeroU64;
use std::sync::Arc;

impl Fetching<'_> {
    /// Handles the message REDIRECT: other nodes have the version.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn pull_redirected(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        (version, identity, metadata_id): (Version, NonZeroU64, u32),
        digest: [u8; 16],
        sources: [NameRef; MAX_SOURCES],
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let named: Result<Vec<Name>, _> = sources.iter().map(|name| self.links.look_up(link, *name).cloned()).collect();
        let sources = match named {
            Ok(sources) => sources,
            Err(what) => return sending!(self).violation(link, &what),
        };
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
        let redirect =
            Redirect { owner: link, request: id, owner_name, incarnation, identity, version, digest, meta, sources };
        let before = self.transfers.search_for(&of, identity);
        let wanted = self.transfers.pull(link, id).map(Pull::wanted);
        let next = match (before, deadline) {
            // Nobody is left for whom it would be searched for, or it is already.
            (_, None) => self.join_search(link, id, None),
            (Some(first), Some(deadline)) => {
                match self.transfers.search_mut(link, first).map(|search| search.admits(now, deadline)) {
                    Some(false) => return self.take_by_itself(now, link, (id, first), (version, described)),
                    _ => self.join_search(link, id, before),
                }
            }
            (None, Some(deadline)) => {
                let search = (waiting.len(), Search::new(now, redirect, deadline));
                let next = self.transfers.begin_search(link, id, described, search).unwrap_or_default();
                match self.bases.find(&of).filter(|(held, _)| held.identity == identity) {
                    Some((held, _)) if self.keys.hold(held.blob).is_some() => {
                        self.came_elsewhere(now, (link, id), held, None);
                        memory!(self).release(held.blob);
                    }
                    _ => self.ask_next(now, link, id),
                }
                next
            }
        };
        if let Some(wanted) = wanted.filter(|_| !next.is_empty()) {
            self.begin_pull(now, link, next, wanted, None, None);
        }
    }

    /// Takes a version from its owner that is searched for at other nodes, for fetches that have less time than the search.
    fn take_by_itself(
        &mut self,
        now: Time,
        link: LinkId,
        (id, first): (PullId, PullId),
        (version, described): (Version, (u32, TensorMeta)),
    ) {
        if let Some(search) = self.transfers.search_mut(link, first) {
            search.aside.push(id);
        }
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        (p.described, p.coming, p.is_conditional) = (Some(described), Some(version), false);
        self.seek_room(now, link, id);
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

    /// Tells the owner that the node that is asked does not send the version, and asks the next one.
    fn source_failed(&mut self, now: Time, link: LinkId, id: PullId) {
        if let Some(source) = self.transfers.search_mut(link, id).and_then(|search| search.place()) {
            sending!(self).send(link, Role::Pull, id.short(), Body::SourceFailed { source });
        }
        self.ask_next(now, link, id);
    }

    /// Asks the next of the nodes that the owner has named, and last the owner.
    fn ask_next(&mut self, now: Time, link: LinkId, id: PullId) {
        loop {
            self.transfers.set_search_limit(link, id, None);
            let Some(search) = self.transfers.search_mut(link, id) else { return };
            let Some(node) = search.next_source(now, &self.config.name) else { return self.ask_owner(now, link, id) };
            if self.relays.is_unreachable(now, &node) {
                continue;
            }
            let Some(to) = self.links.reach(&node, self.actions) else {
                return self.set_stage(now, (link, id), SearchStage::Connecting(node));
            };
            if self.ask_node(now, (link, id), to) {
                return;
            }
        }
    }

    /// Asks a node that the owner has named. Returns `false` if that is not possible.
    fn ask_node(&mut self, now: Time, (link, id): (LinkId, PullId), to: LinkId) -> bool {
        let Some(p) = self.transfers.pull(link, id) else { return false };
        let Some(search) = p.search.as_ref() else { return false };
        let (redirect, of) = (search.redirect.clone(), (p.key.clone(), p.domain));
        let Some(named) = self.begin_named(now, to, of, redirect) else { return false };
        self.set_stage(now, (link, id), SearchStage::Asked(to, named));
        pull_slots!(self).ask(now, to, named, None);
        true
    }

    /// Takes the version from its owner, because no other node has sent it.
    fn ask_owner(&mut self, now: Time, link: LinkId, id: PullId) {
        if self.transfers.end_search(link, id).is_none() {
            return;
        }
        self.meters.asked_again();
        self.seek_room(now, link, id);
    }

    /// Handles a link that came up: it may be to a node that is to be asked.
    pub(in crate::protocol::node) fn named_node_up(&mut self, now: Time, node: &Name, to: LinkId) {
        self.relays.reached(node);
        for (link, id) in self.connecting_to(node) {
            if !self.ask_node(now, (link, id), to) {
                self.ask_next(now, link, id);
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
        for (link, id) in searches {
            self.ask_next(now, link, id);
        }
        self.go_on_with_orphans(now, node, false);
    }

    fn connecting_to(&self, node: &Name) -> Vec<(LinkId, PullId)> {
        self.transfers.searches_where(|search| matches!(&search.stage, SearchStage::Connecting(to) if to == node))
    }

    /// Gives up the nodes that have taken too long, or show no sign of life, and asks others.
    pub(in crate::protocol::node) fn end_stalled(&mut self, now: Time) {
        while let Some((link, id)) = self.transfers.stalled(now) {
            let Some(search) = self.transfers.search_mut(link, id) else { return };
            let (stage, is_over) = (search.stage.clone(), search.limit.is_none_or(|limit| limit <= now));
            let is_at_fault = search.is_at_fault(now, self.config.fan_out);
            if let SearchStage::Asked(to, pull) = stage
                && !is_over
                && self.is_alive(now, (link, id), (to, pull))
            {
                continue;
            }
            self.transfers.set_search_limit(link, id, None);
            match stage {
                SearchStage::Asked(to, pull) if (to, pull) == (link, id) => {
                    let orphans = self.take_orphans(to, pull);
                    pull_slots!(self).cancel_named(to, pull);
                    self.ask_without_owner(now, orphans, "it did not send the version in time");
                    continue;
                }
                SearchStage::Connecting(node) if is_at_fault => self.relays.not_reached(now, &node),
                SearchStage::Asked(to, pull) => pull_slots!(self).cancel_named(to, pull),
                SearchStage::Connecting(_) | SearchStage::Idle => {}
            }
            match is_at_fault {
                true => self.source_failed(now, link, id),
                false => self.ask_next(now, link, id),
            }
        }
    }

    /// Whether a node that is asked has shown a sign of life since the last look. It is asked for the next one.
    fn is_alive(&mut self, now: Time, (link, id): (LinkId, PullId), (to, pull): (LinkId, PullId)) -> bool {
        let Some(l) = self.links.get(to) else { return false };
        let signs = l.heard();
        // A message may be behind what is being written, and the question for it behind what is being written there.
        let len = |blob| self.keys.blob(blob).map_or(0, |b| b.meta.len_bytes());
        let there = l.written().map(len).reduce(u64::saturating_add);
        let here = self.landing.written_bytes(to);
        let fan_out = self.config.fan_out;
        let is_written = there.into_iter().chain(here).reduce(u64::saturating_add).map(|len| relay_limit(len, fan_out));
        let look = |search: &mut Search| search.look(now, signs, is_written);
        let is_alive = self.transfers.change_search(link, id, look).unwrap_or(false);
        if is_alive {
            sending!(self).send(to, Role::Counter, pull.short(), Body::Ping);
        }
        is_alive
    }

    /// Handles the end of a request to a node that the owner has named: the version does not come from there.
    pub(super) fn named_node_failed(
        &mut self,
        now: Time,
        (to, pull): (LinkId, PullId),
        orphans: Orphans,
        failure: &Failure,
    ) {
        let (link, id) = (orphans.redirect.owner, orphans.redirect.request);
        if self.transfers.search_mut(link, id).is_none_or(|search| search.asked() != Some((to, pull))) {
            return self.ask_without_owner(now, Some(orphans), &failure.text);
        }
        match failure.code {
            // It has no room for its own copy, which is no fault.
            FailureCode::PoolFull => self.ask_next(now, link, id),
            _ => self.source_failed(now, link, id),
        }
    }

    /// Handles the end of a request to a node that the owner has named: this node cannot take the version, from the owner neither.
    pub(super) fn named_node_in_vain(&mut self, now: Time, orphans: &Orphans, failure: &Failure) {
        self.fail_readers(&orphans.readers, failure);
        self.ask_owner(now, orphans.redirect.owner, orphans.redirect.request);
    }

    /// Lets a node that is asked take as long as it takes until there is room here.
    pub(super) fn named_node_waits(&mut self, link: LinkId, id: PullId) {
        if self.transfers.pull(link, id).is_some_and(Pull::wants_room)
            && let Some((link, id)) = self.transfers.search_for_named(link, id)
        {
            self.transfers.set_search_limit(link, id, None);
        }
    }

    /// Answers the fetches of a request whose version was searched for at other nodes, and is here, and of those that take it from the owner by
    /// themselves. The caller has a reference to it.
    pub(super) fn came_elsewhere(
        &mut self,
        now: Time,
        (link, id): (LinkId, PullId),
        held: Held,
        mut carried: Option<Carried>,
    ) {
        let aside = self.transfers.search_mut(link, id).map(|search| std::mem::take(&mut search.aside));
        for id in std::iter::once(id).chain(aside.unwrap_or_default()) {
            let Some(p) = self.transfers.pull_mut(link, id) else { continue };
            if p.state == PullState::Cancelling {
                continue;
            }
            let (readers, next) = p.take_readers();
            let wanted = p.wanted();
            // What the answer says of the request.
            let asked = Pull::new(p.asked, smallvec![], (p.key.clone(), p.select, None), p.domain, None, 0);
            pull_slots!(self).taken(link, id);
            self.hand_out(now, link, &asked, readers, held.blob, carried.take());
            if !next.is_empty() && self.keys.hold(held.blob).is_some() {
                self.begin_pull(now, link, next, wanted, None, Some(held));
            }
        }
    }

    /// Compares a version that has landed, and did not come from its owner, with the owner's digest. Its slot is closed.
    pub(super) fn prove_relayed(&mut self, link: LinkId, id: PullId, blob: Blob, header: Header, copied: u64) {
        let of = self.transfers.search_for_named(link, id);
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        (p.slot, p.state) = (None, PullState::Proving);
        let (slice, origin) = (blob.slice(), p.origin_of(header.version));
        let blob = self.keys.insert(blob.at(header.version, origin));
        let came = Proof::Came(link, id, blob, Box::new((header, copied)));
        let tag = self.proofs.insert(came).to_u64();
        let body = std::iter::once(slice).filter(|slice: &LocalSlice| slice.len > 0).collect();
        self.actions.push(HostAction::Digest { of: body, tag });
        // All of it is here, so the node is not slow.
        if let Some((link, id)) = of {
            self.transfers.set_search_limit(link, id, None);
        }
    }

    /// Handles the digest of a version that did not come from its owner.
    pub(in crate::protocol::node) fn relayed_proved(
        &mut self,
        now: Time,
        (link, id): (LinkId, PullId),
        blob: BlobId,
        (header, copied): (Header, u64),
        digest: [u8; 16],
    ) {
        let proving = self.transfers.pull(link, id).filter(|p| p.state == PullState::Proving);
        let redirect: Option<Arc<Redirect>> = proving.and_then(Pull::redirect).cloned();
        let (Some(redirect), Some(l)) = (redirect, self.links.get(link)) else {
            // Nobody waits for it any more.
            return memory!(self).release(blob);
        };
        let (kind, path, peer) = (l.kind(), l.path(), l.peer().name.clone());
        let orphans = self.take_orphans(link, id);
        let (Some(pull), Some(orphans)) = (self.transfers.end_pull(link, id), orphans) else {
            return memory!(self).release(blob);
        };
        if redirect.digest != digest && !self.config.rules.breaks(Broken::BelievesRelays) {
            if let Some(untold) = self.failure_rate.next(now) {
                self.actions.report(NodeEvent::RelayRefused { key: pull.key, peer, untold });
            }
            self.meters.relay_refused();
            memory!(self).release(blob);
            let text = format!("node {:?} has sent other bytes", self.links.peer_name(link));
            return self.named_node_failed(now, (link, id), orphans, &Failure::new(FailureCode::VersionGone, text));
        }
        let held = Held { blob, identity: redirect.identity };
        self.keep_base(link, &pull, Some(held), &header);
        if let Some(of) = pull.spreading(link).filter(|of| self.relays.is_awaited(of)) {
            answering!(self).relay_come(now, &of, (held, header.deltas_follow));
        }
        let carried = Carried {
            kind,
            path,
            copied,
            waited_us: header.waited_us,
            delta: 0,
            identity: header.identity,
            is_relayed: true,
        };
        let search = self.transfers.search_mut(redirect.owner, redirect.request);
        if search.is_some_and(|search| search.asked() == Some((link, id))) {
            self.came_elsewhere(now, (redirect.owner, redirect.request), held, Some(carried));
        } else {
            self.hand_out(now, link, &pull, orphans.readers, held.blob, Some(carried));
        }
        memory!(self).release(blob);
    }
}
