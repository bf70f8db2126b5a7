//! Pulling, the receiver's side: send a request, grant a slot, wait for the write. Fetches of the same share a request.

use crate::fabric::{Isolation, LinkId};
use crate::memory::LocalSlice;
use crate::op::{Destination, Failure, FailureCode, Otherwise};
use crate::protocol::ids::{OperationId, PullId};
use crate::protocol::landing::Want;
use crate::protocol::node::flows::Fetching;
use crate::protocol::rules::Broken;
use crate::protocol::sessions::{FetchOp, FetchStage, OpKind};
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{Held, OfLink, Pull, PullState, Readers, Wanted};
use crate::tensor::{Gathered, Key, TensorMeta, Version};
use crate::time::Time;
use smallvec::smallvec;
use std::sync::Arc;

impl Fetching<'_> {
    /// Asks a peer for a version, unless a request for the same is under way: then the fetch waits for that one.
    pub(in crate::protocol::node) fn start_pull(&mut self, now: Time, op_id: OperationId, link: LinkId) {
        let Some(op) = self.sessions.op(op_id) else { return };
        let OpKind::Fetch(FetchOp { select, ref excerpt, ref gathered, .. }) = op.kind else { return };
        let (excerpt, gathered) = (excerpt.clone(), gathered.clone());
        let (key, require) = (op.key.clone(), op.require);
        let Some(domain) = self.sessions.tenant_of(op.session) else { return };
        let Some(l) = self.links.get(link) else { return };
        let unmet = l.unmet(require.or(self.config.require));
        if let Some(failure) = unmet.or_else(|| access!(self).vouched(link, domain).err()) {
            return answering!(self).fail_op(op_id, failure);
        }
        // A fabric that is required is that of the owner's link, and memory of a worker is no source for others.
        let is_direct = require.is_some() || op.destination().is_some();
        let wanted = Wanted { domain, key, select, excerpt, is_direct };
        // A fabric that is required has to carry it for this worker, and memory of a worker is for that one.
        let may_join = gathered.is_none() && !is_direct;
        if may_join && self.join_pull(link, op_id, &wanted) {
            return;
        }
        let kept = if may_join { self.kept_base(link, &wanted) } else { None };
        let held = kept.or_else(|| if may_join { self.lent_base(op_id) } else { None });
        self.begin_pull(now, link, smallvec![op_id], wanted, gathered, held);
    }

    /// Lets a fetch wait for a request for the same. Returns `false` if there is none.
    fn join_pull(&mut self, link: LinkId, op: OperationId, wanted: &Wanted) -> bool {
        let Some(id) = self.transfers.shared_pull(link, wanted) else { return false };
        let Some(p) = self.transfers.pull_mut(link, id) else { return false };
        let asks_late = !self.config.rules.breaks(Broken::SharesEarlierAnswers);
        p.join(op, asks_late, |op| self.sessions.op(op).is_some());
        self.sessions.set_fetch_stage(op, FetchStage::Pulling(link, id));
        true
    }

    /// Begins a request for fetches of the same. It offers a slot if the tensor's description is known, the pool's
    /// speculative share has room, and the version is not `held` here already.
    pub(in crate::protocol::node) fn begin_pull(
        &mut self,
        now: Time,
        link: LinkId,
        mut readers: Readers,
        wanted: Wanted,
        gathered: Option<Arc<Gathered>>,
        held: Option<Held>,
    ) {
        readers.retain(|op| self.sessions.op(*op).is_some());
        let under_way = self.transfers.of(link).map(OfLink::pulls).map(|pulls| (pulls.len(), pulls.has_short_room()));
        let limit = self.config.max_requests_per_link;
        let is_full = under_way.is_none_or(|(count, has_room)| count >= limit || !has_room);
        if readers.is_empty() || is_full {
            if let Some(held) = held {
                memory!(self).release(held.blob);
            }
            let (peer, under_way) = (self.links.peer_name(link), under_way.map_or(0, |(count, _)| count));
            let text = format!(
                "{under_way} requests to node {peer:?} are under way or being called off, the limit is {limit}"
            );
            return self.fail_readers(&readers, &Failure::new(FailureCode::Busy, text));
        }
        let Wanted { domain, key, select, excerpt, is_direct } = wanted;
        // The length of a part is known only to the owner.
        let is_whole = excerpt.is_none() && gathered.is_none();
        let described = self.links.heard(link, &key).filter(|_| is_whole).cloned();
        let to = readers.first().and_then(|op| self.destination_of(*op));
        // Memory of a worker is opened when the version is there, and then for as short as possible.
        let known = described.as_ref().filter(|_| held.is_none() && to.is_none()).map(|(_, meta)| meta.len_bytes());
        let early = known.and_then(|len| self.speculate(domain, len).map(|(range, bytes)| (range, len, bytes)));
        let speculative = early.as_ref().map_or(0, |(_, _, bytes)| *bytes);
        let pull = Pull::new(now, readers.clone(), (key, select, excerpt), domain, described, speculative);
        let pull = pull.for_gathered(gathered).holding(held).landing_in(to).directly(is_direct);
        let Some(pull) = self.transfers.begin_pull(link, pull) else { return };
        for op in readers {
            self.sessions.set_fetch_stage(op, FetchStage::Pulling(link, pull));
        }
        match early {
            Some((range, capacity, _)) => {
                let slot = pull_slots!(self).open_pull_slot(link, pull, (domain, capacity, range));
                if let Some(p) = self.transfers.pull_mut(link, pull) {
                    p.slot = slot;
                }
            }
            None => pull_slots!(self).ask(now, link, pull, None),
        }
    }

    /// Returns the memory in which a fetch is to land.
    fn destination_of(&self, op: OperationId) -> Option<(Destination, Vec<LocalSlice>)> {
        let op = self.sessions.op(op)?;
        let (s, destination) = (self.sessions.get(op.session)?, op.destination()?);
        let slices = destination.ranges.iter().map(|range| s.locate(range.offset, range.len)).collect::<Option<_>>()?;
        Some((destination.clone(), slices))
    }

    /// Fails fetches whose request has ended.
    pub(super) fn fail_readers(&mut self, readers: &[OperationId], failure: &Failure) {
        for op in readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Waiting);
            answering!(self).fail_op(*op, failure.clone());
        }
    }

    /// Handles the message META_DATA_UPDATE: the version is published, has this description, and needs a slot.
    pub(in crate::protocol::node) fn pull_described(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        version: Version,
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if !p.is_for_parts() {
            self.links.hear(link, &p.key, metadata_id, meta.clone());
        }
        if p.state == PullState::Cancelling {
            return;
        }
        let is_late = self.landing.has_landed(link, p.slot) || p.opened_memory().is_some();
        if is_late || !p.takes(version) || !p.may_be(metadata_id, &meta) {
            return sending!(self)
                .violation(link, &format!("META_DATA_UPDATE for request {index:#x}, which did not ask for it"));
        }
        let destination = p.destination().map(|to| (to.check(&p.key, version, &meta), to.otherwise));
        (p.described, p.coming) = (Some((metadata_id, meta)), Some(version));
        p.is_conditional = false;
        self.without_slot(link, id);
        match destination {
            Some((Err(failure), Otherwise::Fail)) => return self.cannot_land(now, link, id, &failure),
            Some((Ok(()), _)) => self.land_in_place(link, id),
            Some((Err(_), Otherwise::LandBeside)) | None => {}
        }
        self.seek_room(now, link, id);
    }

    /// Closes the slot that went along with a request, because the peer did not use it, and gives up the version that the request has
    /// named: it is another one, which may need that room.
    pub(super) fn without_slot(&mut self, link: LinkId, id: PullId) {
        if let Some(old) = self.transfers.pull_mut(link, id).and_then(|p| p.slot.take()) {
            pull_slots!(self).settle_speculation(link, id);
            room!(self).drop_slot(link, old);
        }
        if let Some(held) = self.transfers.take_held(link, id) {
            memory!(self).release(held);
        }
    }

    /// Opens a slot for a version that is described, or lets its request wait for room.
    pub(super) fn seek_room(&mut self, now: Time, link: LinkId, id: PullId) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let Some(len) = p.version_bytes() else { return };
        p.state = PullState::WaitingForRoom;
        let (domain, in_place) = (p.domain, p.lands_in_place());
        if !in_place && !self.landing.could_hold(domain, len, 1) {
            let failure = self.too_large(domain, link, id, len);
            return self.cannot_land(now, link, id, &failure);
        }
        if self.landing.is_contended(domain) || !pull_slots!(self).try_pull_slot(domain, link, id) {
            room!(self).want(domain, Want::Pull(link, id));
        }
    }

    /// Says that a version of this length can never land in the pool.
    pub(super) fn too_large(&self, domain: Tenant, link: LinkId, id: PullId, len: u64) -> Failure {
        let room = self.landing.pool_bytes(domain);
        let whose = self.config.tenants.in_words(domain);
        let key = self.transfers.pull(link, id).map(|p| &p.key);
        let text = format!(
            "key {:?} has {len} bytes, the landing pool of {whose} only {room}",
            key.map(Key::as_str).unwrap_or_default()
        );
        Failure::new(FailureCode::TooLarge, text)
    }

    /// Lets a version land in the memory of its worker, where the peer can be kept out of it again: the arena is writable, and a
    /// grant opens nothing else.
    fn land_in_place(&mut self, link: LinkId, id: PullId) {
        let is_apart = self.links.get(link).is_some_and(|l| l.limits().isolation == Isolation::Grant);
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let arena = p.readers().first().and_then(|op| self.sessions.op(*op));
        let arena = arena.and_then(|op| self.sessions.get(op.session)).map(|s| s.arena().0);
        if is_apart && p.len_bytes() > Some(0) && arena.is_some_and(|arena| self.sessions.lands_in(arena)) {
            p.land_in_place();
        }
    }

    /// Gives up a request for a version that cannot land here. Those that have come since may get another one.
    pub(super) fn cannot_land(&mut self, now: Time, link: LinkId, id: PullId, failure: &Failure) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let (readers, next) = p.take_readers();
        let (wanted, gathered) = (p.wanted(), p.gathered.clone());
        if let Some(held) = pull_slots!(self).cancel_pull(link, id) {
            memory!(self).release(held);
        }
        self.fail_readers(&readers, failure);
        if !next.is_empty() {
            self.begin_pull(now, link, next, wanted, gathered, None);
        }
    }

    /// Handles the message ERROR_STATUS: the version will not come.
    pub(in crate::protocol::node) fn pull_failed(&mut self, now: Time, link: LinkId, index: u32, failure: Failure) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if p.state == PullState::Cancelling {
            // CANCELLED is still due, and ends the request.
            return;
        }
        let domain = p.domain;
        let is_unknown = matches!(p.state, PullState::Preparing | PullState::Applying | PullState::Closing);
        if is_unknown || self.landing.has_landed(link, p.slot) {
            return sending!(self).violation(
                link,
                &format!("ERROR_STATUS for request {index:#x}, which it does not know or has answered"),
            );
        }
        pull_slots!(self).settle_speculation(link, id);
        if answering!(self).close_destination(link, id, &failure) {
            return self.landing.serve_later(domain);
        }
        let Some(mut p) = self.end_without_bytes(link, id) else { return };
        let (readers, next) = p.take_readers();
        // Where the other keys are, the directory's answer about one of them does not tell.
        if failure.code == FailureCode::NotOwner && p.gathered.is_none() {
            for op in readers {
                self.wrong_owner(now, op, failure.clone());
            }
            for op in next {
                self.start_fetch(now, op);
            }
            return;
        }
        self.fail_readers(&readers, &failure);
        if !next.is_empty() {
            self.begin_pull(now, link, next, p.wanted(), None, None);
        }
    }

    /// Ends a request whose slot the peer has not used and will not use, and returns what it has.
    pub(super) fn end_without_bytes(&mut self, link: LinkId, id: PullId) -> Option<Pull> {
        pull_slots!(self).stop_search(link, id);
        let mut p = self.transfers.end_pull(link, id)?;
        // The request may have been the first in the queue for room.
        self.landing.serve_later(p.domain);
        if let Some(slot) = p.slot {
            room!(self).drop_slot(link, slot);
        }
        if let Some(held) = p.take_held() {
            memory!(self).release(held.blob);
        }
        Some(p)
    }

    pub(in crate::protocol::node) fn pull_lost(&mut self, mut pull: Pull, failure: &Failure) {
        self.landing.settle_speculation(pull.domain, pull.speculative);
        if let Some(held) = pull.take_held() {
            memory!(self).release(held.blob);
        }
        let (readers, next) = pull.take_readers();
        if !readers.is_empty() {
            // When the peer comes back, the key may have another owner.
            self.keys.forget_location(&pull.key);
        }
        let text = format!("while key {:?} was being fetched, {}", pull.key, failure.text);
        let failure = Failure::new(failure.code, text);
        if let Some(memory) = pull.opened_memory() {
            // The link is drained, so the memory is closed.
            return answering!(self).lost_with_memory(memory, &readers, pull.may_be_torn(), &failure);
        }
        self.fail_readers(&readers, &failure);
        self.fail_readers(&next, &failure);
    }
}
