//! The answers to requests: a version has landed, lies in the peer's memory, or is the one that is here already. They go to
//! all fetches that wait for the request; those that came after the peer was asked make the next one.

use crate::fabric::{FabricKind, LinkId};
use crate::op::{Answer, FailureCode, Report};
use crate::protocol::ids::{BlobId, PullId, SlotId, publication};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::LandedTensor;
use crate::protocol::meters::{Operation, PathId};
use crate::protocol::node::flows::Fetching;
use crate::protocol::node::replies::{Carried, WorkersTransfer};
use crate::protocol::references::Referred;
use crate::protocol::sessions::Op;
use crate::protocol::transfers::{Held, Pull, PullState, Readers};
use crate::tensor::{TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{HEADER_BYTES, Header};
use crate::wire::message::{Body, Role};
use smallvec::smallvec;
use std::time::Duration;

impl Carried {
    fn report(&self, now: Time, pull: &Pull, op: &Op, bytes: u64, origin: Option<TraceContext>) -> Report {
        let waited = Duration::from_micros(self.waited_us.into());
        let (queued, in_flight) = (pull.asked.since(op.since), now.since(pull.asked).saturating_sub(waited));
        let Carried { kind: fabric, copied, delta, relayed, .. } = *self;
        Report { fabric, bytes, copied, verified: 0, delta, relayed, queued, waited, in_flight, origin }
    }
}

impl Fetching<'_> {
    /// Delivers a tensor that has landed for a request. Its slot is closed, so the peer can no longer write to it.
    pub(in crate::protocol::node) fn pull_landed(
        &mut self,
        now: Time,
        link: LinkId,
        id: PullId,
        slot: SlotId,
        landed: LandedTensor,
    ) {
        let LandedTensor { header, meta, copied, trace } = landed;
        pull_slots!(self).settle_speculation(link, id);
        let Some(l) = self.links.get(link) else { return };
        let (kind, path, sender_copies) = (l.kind(), l.path(), u64::from(l.limits().sender_copies));
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if p.state == PullState::Cancelling {
            // CANCELLED is still due.
            p.slot = None;
            self.landing.free_slot(link, slot);
            return answering!(self).destination_closed(link, id);
        }
        let copied = copied + header.body_len * (sender_copies + u64::from(header.packed));
        let carried = Carried {
            kind,
            path,
            copied,
            waited_us: header.waited_us,
            delta: 0,
            identity: header.identity,
            relayed: 0,
        };
        if header.is_delta {
            return self.delta_landed(link, id, slot, LandedTensor { header, meta, copied, trace }, carried);
        }
        let bytes = meta.len_bytes();
        let (Some(pull), Some(slot)) = (self.transfers.end_pull(link, id), self.landing.take_slot(link, slot)) else {
            return;
        };
        self.links.carried_in(link, bytes);
        if let Some(memory) = pull.opened_memory() {
            self.landing.free(slot.domain, slot.range);
            memory!(self).close_memory(memory);
            return self.landed_in_place(now, link, pull, (header.version, bytes), &carried);
        }
        let Some(mut slice) = self.landing.slice(slot.domain, &slot.range) else { return };
        slice.offset += HEADER_BYTES;
        slice.len = bytes;
        let blob = Blob::new(slice, meta, slot.domain, Source::Pool(Box::new(slot.range)));
        self.came(now, link, pull, blob, &header, carried);
    }

    /// Gives a version that has come to the fetches of its request, and asks again for those that have come since.
    pub(super) fn came(
        &mut self,
        now: Time,
        link: LinkId,
        mut pull: Pull,
        blob: Blob,
        header: &Header,
        carried: Carried,
    ) {
        let blob = self.keys.insert(blob.at(header.version, pull.origin_of(header.version)));
        let held = header.identity.map(|identity| Held { blob, identity });
        self.keep_base(link, &pull, held, header);
        if let Some((of, held)) = pull.spreading(link).zip(held) {
            if self.relays.is_awaited(&of) {
                answering!(self).chunk_come(now, &of, held.identity, None, (held.blob, header.deltas_follow));
            }
            if let Some(other) = self.transfers.search_for(&of, held.identity) {
                // It was searched for at other nodes, too.
                self.came_elsewhere(now, (link, other), held, None);
            }
        }
        let (mut readers, mut next) = pull.take_readers();
        let Some(held) = held else {
            // Fetches of the version are counted: it is for one of them, and the others ask by themselves.
            readers.retain(|op| self.sessions.op(*op).is_some());
            next.extend(readers.drain(1.min(readers.len())..));
            self.hand_out(now, link, &pull, readers, blob, Some(carried));
            memory!(self).release(blob);
            for op in next {
                self.begin_pull(now, link, smallvec![op], pull.wanted(), None, None);
            }
            return;
        };
        self.hand_out(now, link, &pull, readers, blob, Some(carried));
        self.ask_again(now, link, &pull, next, held);
    }

    /// Answers the fetches of a request whose version was searched for, and is here. The caller has a reference to it.
    pub(super) fn came_elsewhere(
        &mut self,
        now: Time,
        (link, id): (LinkId, PullId),
        held: Held,
        carried: Option<Carried>,
    ) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if p.state == PullState::Cancelling {
            return;
        }
        let (readers, next) = p.take_readers();
        let wanted = p.wanted();
        // What the answer says of the request.
        let asked = Pull::new(p.asked, smallvec![], (p.key.clone(), p.select, None), p.domain, None, 0);
        pull_slots!(self).taken(link, id);
        self.hand_out(now, link, &asked, readers, held.blob, carried);
        if !next.is_empty() && self.keys.hold(held.blob).is_some() {
            self.begin_pull(now, link, next, wanted, None, Some(held));
        }
    }

    /// Handles the message UNCHANGED: the version is the one that the peer was told of.
    pub(in crate::protocol::node) fn pull_unchanged(&mut self, now: Time, link: LinkId, index: u32, version: Version) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull(link, id) else { return };
        if p.state == PullState::Cancelling {
            return;
        }
        // What a worker has lent was not proved, so it is the base of a delta and nothing else.
        if !p.is_conditional || !p.takes(version) || p.holds_lent() {
            return sending!(self)
                .violation(link, &format!("UNCHANGED for request {index:#x}, which names no such version"));
        }
        let Some(mut pull) = self.transfers.end_pull(link, id) else { return };
        let (mut readers, next) = pull.take_readers();
        match pull.take_held() {
            Some(held) => {
                self.hand_out(now, link, &pull, readers, held.blob, None);
                self.ask_again(now, link, &pull, next, held);
            }
            // Others needed the room meanwhile.
            None => {
                readers.extend(next);
                self.begin_pull(now, link, readers, pull.wanted(), None, None);
            }
        }
    }

    /// Handles the message BY_REFERENCE: the version can be read in the peer's memory until it is released.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn pull_referred(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        referred: Referred,
        version: Version,
        waited_us: u32,
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull(link, id) else { return };
        let slice = match self.references.find(link, &referred, &meta) {
            Ok(slice) => slice,
            Err(what) => return sending!(self).violation(link, &what),
        };
        if p.state == PullState::Cancelling {
            // CANCELLED is still due, and ends the request.
            return sending!(self).send(link, Role::Pull, index, Body::ReleaseReference { lease: referred.lease });
        }
        let is_late = self.landing.has_landed(link, p.slot) || p.opened_memory().is_some();
        if is_late || !p.takes(version) || p.gathered.is_some() || p.redirect().is_some() {
            return sending!(self)
                .violation(link, &format!("BY_REFERENCE for request {index:#x}, which did not ask for it"));
        }
        pull_slots!(self).settle_speculation(link, id);
        let Some((kind, path)) = self.links.get(link).map(|l| (l.kind(), l.path())) else { return };
        let Some(mut p) = self.transfers.end_pull(link, id) else { return };
        // A reference needs no slot. Without a description, the next request for this key offers none.
        self.links.forget_heard(link, &p.key);
        let source = Source::Reference { link, lease: referred.lease, ranges: referred.ranges };
        let blob = Blob::new(slice, meta, p.domain, source).at(version, p.origin_of(version));
        self.links.carried_in(link, blob.len_of(p.excerpt.as_deref()));
        if let Some(slot) = p.slot {
            room!(self).drop_slot(link, slot);
        }
        if let Some(held) = p.take_held() {
            memory!(self).release(held.blob);
        }
        self.references.begin_reading(slice.segment);
        let blob = self.keys.insert(blob);
        let (readers, next) = p.take_readers();
        self.hand_out(
            now,
            link,
            &p,
            readers,
            blob,
            Some(Carried { kind, path, copied: 0, waited_us, delta: 0, identity: None, relayed: 0 }),
        );
        memory!(self).release(blob);
        if !next.is_empty() {
            self.begin_pull(now, link, next, p.wanted(), None, None);
        }
    }

    /// Gives a version to the fetches that a request has answered. If it has come for them, the first one's report says how;
    /// the others read what lies here.
    pub(super) fn hand_out(
        &mut self,
        now: Time,
        link: LinkId,
        pull: &Pull,
        readers: Readers,
        blob: BlobId,
        mut carried: Option<Carried>,
    ) {
        let Some(b) = self.keys.blob(blob) else { return };
        let (version, origin) = (b.version, b.trace());
        let is_part = pull.is_for_parts() && !matches!(b.source, Source::Reference { .. });
        let publication = || {
            let owner = self.links.get(link)?.peer();
            Some(publication(&owner.name, owner.incarnation, carried.as_ref()?.identity?))
        };
        let part = is_part.then(|| publication().unwrap_or(0));
        let bytes = if is_part { b.meta.len_bytes() } else { b.len_of(pull.excerpt.as_deref()) };
        for op in readers {
            let Some(op) = self.sessions.finish(op) else { continue };
            let (path, report) = match carried.take() {
                Some(carried) => (carried.path, carried.report(now, pull, &op, bytes, origin)),
                None => {
                    let report = self.shared_report(now, &op, bytes, origin);
                    (PathId::HERE, report)
                }
            };
            self.hand_to(now, link, &op, (blob, version, part), (path, report));
        }
    }

    /// Counts a fetch that reads what lies here, and returns its report.
    pub(super) fn shared_report(&mut self, now: Time, op: &Op, bytes: u64, origin: Option<TraceContext>) -> Report {
        self.meters.shares(bytes);
        let (queued, waited) = (Duration::ZERO, now.since(op.since));
        let (fabric, in_flight) = (FabricKind::Local, Duration::ZERO);
        let (copied, verified, delta, relayed) = (0, 0, 0, 0);
        Report { fabric, bytes, copied, verified, delta, relayed, queued, waited, in_flight, origin }
    }

    /// Gives a version to a fetch.
    pub(super) fn hand_to(
        &mut self,
        now: Time,
        link: LinkId,
        op: &Op,
        (blob, version, part): (BlobId, Version, Option<u64>),
        (path, report): (PathId, Report),
    ) {
        // The tenants of all its fetches are that of the request.
        let lent = memory!(self).lend((op.session, op.id), blob, part, path, report);
        self.note_fetched(now, link, op, version, path, lent.map(|()| report).map_err(|failure| failure.code));
    }

    /// Answers a fetch whose version has landed in the memory of its worker, which is closed.
    fn landed_in_place(
        &mut self,
        now: Time,
        link: LinkId,
        mut pull: Pull,
        (version, bytes): (Version, u64),
        carried: &Carried,
    ) {
        let (readers, _) = pull.take_readers();
        for op in readers {
            let Some(op) = self.sessions.finish(op) else { continue };
            let report = carried.report(now, &pull, &op, bytes, pull.origin_of(version));
            self.actions.answer(op.session, op.id, Answer::Landed { version, report });
            self.meters.finished(Operation::Fetch, carried.path, &report);
            self.note_fetched(now, link, &op, version, carried.path, Ok(report));
        }
    }

    /// Notes the end of a fetch that a peer has answered.
    fn note_fetched(
        &mut self,
        now: Time,
        link: LinkId,
        op: &Op,
        version: Version,
        path: PathId,
        outcome: Result<Report, FailureCode>,
    ) {
        memory!(self).read_stream_of_peer(op.session, &op.key, op.select(), link);
        let (operation, session, key) = (Operation::Fetch, op.session, &op.key);
        let (version, trace) = (Some(version), access!(self).trace_of(op));
        replies!(self).note_ended(
            now,
            WorkersTransfer { operation, session, key, version, path, outcome, since: op.since, trace },
        );
    }

    /// Asks the peer once more, for the fetches that came after it was asked. It is told of the version that is here, to
    /// which the caller has a reference.
    fn ask_again(&mut self, now: Time, link: LinkId, pull: &Pull, next: Readers, held: Held) {
        match next.is_empty() {
            true => memory!(self).release(held.blob),
            false => self.begin_pull(now, link, next, pull.wanted(), None, Some(held)),
        }
    }
}
