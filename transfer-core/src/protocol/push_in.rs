//! Pushing, the receiver's side: grant slots, publish what lands in them, give them back when it has been read.

use super::ids::{FlowAt, InFlowId, RecordId, SlotId, of};
use super::keys::{Blob, Claimant, Claiming, Landed, Owner, Record, Source};
use super::link::{Landing, Link, Slot, SlotState};
use super::node::Node;
use super::slab::Slab;
use super::{SessionId, Tenant};
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Report};
use crate::tensor::{Key, Name, TensorMeta, Until, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{HEADER_BYTES, Header};
use crate::wire::message::NameRef;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// A key that a peer's worker pushes to one of ours.
pub(super) struct InFlow {
    /// What the sender calls it.
    pub(super) index: u32,
    pub(super) key: Key,
    pub(super) target: SessionId,
    pub(super) domain: Tenant,
    pub(super) capacity: u64,
    pub(super) metadata_id: u32,
    pub(super) meta: TensorMeta,
    pub(super) state: InState,
    /// Counts the requests for slots. Those of an earlier round are of no use.
    pub(super) round: u32,
    /// The lowest version that may land next.
    pub(super) next_version: u64,
    /// What has landed and is not published, in order.
    pub(super) landed: VecDeque<SlotId>,
    /// Slots for which there was no room yet.
    pub(super) missing: usize,
    /// Slots that are being granted for the answer to the request.
    pub(super) granting: usize,
    /// When it was used last, by the node's count of landings.
    pub(super) used: u64,
    /// When its slots were called back, where they are.
    pub(super) recalled: Time,
    /// Its slots, of whatever round.
    pub(super) slots: BTreeSet<SlotId>,
    /// Slots granted since the request, while they are being collected for BUFFER_RESPONSE.
    pub(super) fresh: Vec<SlotId>,
    /// What pushed the version that lands next, where the sender said so, and when it did.
    told: Option<Told>,
}

/// What a TRACE has told.
struct Told {
    version: Version,
    context: TraceContext,
    at: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InState {
    /// The directory is asked whether the key is the sender's.
    Claiming,
    /// Waiting for room.
    WaitingForRoom,
    /// Slots are being granted.
    Granting,
    /// The sender has slots, or will get them back.
    Ready,
    /// What its sender does not write into is called back, for others wait for the room.
    Reclaiming,
    /// It has none, for it was refused or has given them back. It may ask again.
    Without,
    /// The slots are called back, for the flow ends.
    Recalling,
}

impl InState {
    /// The sender has some slots, or is about to have them, and can do with more.
    pub(super) fn takes_more(self) -> bool {
        matches!(self, InState::Granting | InState::Ready)
    }
}

impl InFlow {
    /// Whether it stands in line for room there.
    pub(super) fn wants_room(&self, domain: Tenant) -> bool {
        let waits = self.state == InState::WaitingForRoom || self.state.takes_more();
        waits && self.missing > 0 && self.domain == domain
    }

    /// Something has landed. What lands first is published first, whichever slot is closed first. Answers what pushed it, where that
    /// was told.
    pub(super) fn has_landed(&mut self, slot: SlotId, version: Version) -> Option<(TraceContext, Time)> {
        self.landed.push_back(slot);
        self.next_version = version.0.saturating_add(1);
        self.told.take().filter(|told| told.version == version).map(|told| (told.context, told.at))
    }
}

impl Node {
    /// BUFFER_REQUEST: the first, one for larger slots, or one for another worker of ours.
    pub(super) fn buffer_request(
        &mut self,
        link: LinkId,
        index: u32,
        names: [NameRef; 4],
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let Some(l) = self.links.get(&link) else { return };
        let look_up = |n: NameRef| l.names_in.look_up(n).cloned();
        let [Some(key), Some(target), Some(owner), Some(tenant)] = names.map(look_up) else {
            return self.violation(link, "BUFFER_REQUEST uses a name that it never told");
        };
        let key = Key::from(key);
        if key.reserved_for().is_some() {
            return self.violation(link, "BUFFER_REQUEST for the key of a counter or barrier");
        }
        self.flow_requested(link, index, key, &target, (owner, &tenant), metadata_id, meta);
    }

    /// A peer wants slots, by message or by call.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn flow_requested(
        &mut self,
        link: LinkId,
        index: u32,
        key: Key,
        target: &Name,
        (owner, tenant): (Name, &Name),
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let Some(l) = self.links.get(&link) else { return };
        let capacity = meta.len_bytes();
        let known = l.flow_in_of.get(&index).copied();
        let full = l.flows_in.len() >= self.config.max_requests_per_link;
        let found = match self.workers.get(target).and_then(|s| Some((*s, self.sessions.get(s)?.domain))) {
            _ if self.draining => Err(self.is_draining()),
            None => Err(Failure::new(
                FailureCode::UnknownWorker,
                format!("no worker {target:?} is connected to node {:?}", self.config.name),
            )),
            Some((session, domain)) => self
                .may_land(link, &key, target, tenant, domain)
                .and_then(|()| self.check_room(&key, domain, capacity))
                .map(|()| (session, domain)),
        };
        if let Some(id) = known {
            return self.other_slots(link, id, &key, found, metadata_id, meta);
        }
        let (session, domain) = match found {
            Ok(found) => found,
            Err(failure) => return self.answer_flow(link, index, Err(failure)),
        };
        if full {
            let (node, limit) = (&self.config.name, self.config.max_requests_per_link);
            let text = format!("node {node:?} takes at most {limit} keys at a time from one peer");
            return self.answer_flow(link, index, Err(Failure::new(FailureCode::Busy, text)));
        }
        let flow = InFlow {
            index,
            key: key.clone(),
            target: session,
            domain,
            capacity,
            metadata_id,
            meta,
            state: InState::Claiming,
            round: 0,
            next_version: 0,
            landed: VecDeque::new(),
            missing: 0,
            granting: 0,
            used: 0,
            recalled: self.latest,
            slots: BTreeSet::new(),
            fresh: Vec::new(),
            told: None,
        };
        let Some(l) = self.links.get_mut(&link) else { return };
        let id = l.flows_in.insert(flow);
        l.flow_in_of.insert(index, id);
        self.own_flow(link, id, key, owner);
    }

    /// Whether a peer may push this key for a worker of the tenant that it names to one of ours.
    fn may_land(&self, link: LinkId, key: &Key, target: &Name, tenant: &Name, own: Tenant) -> Result<(), Failure> {
        let pusher = self.tenant_called(tenant).ok_or_else(|| self.unknown_tenant(tenant))?;
        self.vouched(link, pusher)?;
        if pusher != own {
            return Err(self.of_another_tenant(&format!("worker {target:?}"), own, pusher));
        }
        self.config.tenants.may_own(own, key)
    }

    fn check_room(&self, key: &Key, domain: Tenant, capacity: u64) -> Result<(), Failure> {
        let slots = self.config.slots_per_flow as u64;
        match self.pools.get(&domain) {
            Some(pool) if pool.could_hold(capacity, slots) => Ok(()),
            pool => Err(Failure::new(
                FailureCode::TooLarge,
                format!(
                    "key {key:?} needs {slots} landing slots of {capacity} bytes, the pool at node {:?} has {}",
                    self.config.name,
                    pool.map_or(0, |p| p.alloc.len_bytes())
                ),
            )),
        }
    }

    /// Makes the key the sender's, if it may have it.
    fn own_flow(&mut self, link: LinkId, id: InFlowId, key: Key, owner: Name) {
        let Some((target, tenant)) = self.flow_in(link, id).map(|f| (f.target, f.domain)) else { return };
        let record_id = self.keys.find_or_make(&key);
        let Some(before) = self.keys.record(record_id).map(Record::owner) else { return };
        match before {
            Owner::Nobody => match self.node_has_too_many_keys() {
                None => self.claim(record_id, Claiming::new((owner, tenant), Claimant::Flow((link, id)), false)),
                Some(failure) => self.refuse_flow(link, id, failure),
            },
            // The same worker, come back over another link: a new epoch, which may start from a lower version.
            Owner::Landed(landed) if (&landed.owner, landed.tenant) == (&owner, tenant) => {
                self.keys.begin_epoch(record_id);
                if let Some((old_link, old)) = self.keys.land_for(record_id, target, (link, id)) {
                    // It has not said that it will not write any more.
                    self.recall(old_link, old);
                }
                self.give_room(link, id);
            }
            Owner::Outlived(outlived) if (&outlived.owner, outlived.domain) == (&owner, tenant) => {
                let landed = Landed { owner, tenant, target, flow: Some((link, id)) };
                self.keys.give(record_id, Owner::Landed(Box::new(landed)));
                self.give_room(link, id);
            }
            Owner::Claiming(c)
                if (&c.owner, c.tenant) == (&owner, tenant) && !matches!(c.who, Claimant::Session(_)) =>
            {
                let before = self.keys.set_claimant(record_id, Claimant::Flow((link, id)));
                if let Some(Claimant::Flow((old_link, old))) = before {
                    self.recall(old_link, old);
                }
            }
            before => {
                let failure = super::claims::key_owned(&key, self.owner_name(before), &self.config.name);
                self.refuse_flow(link, id, failure);
            }
        }
    }

    /// The directory has entered the key for this flow.
    pub(super) fn flow_claimed(&mut self, now: Time, link: LinkId, id: InFlowId, record: RecordId, owner: Name) {
        let flow = self.links.get(&link).and_then(|l| l.flows_in.get(id));
        let target = flow.filter(|f| f.state != InState::Recalling).map(|f| (f.target, f.domain));
        match target {
            Some((target, tenant)) => {
                let landed = Landed { owner, tenant, target, flow: Some((link, id)) };
                self.keys.give(record, Owner::Landed(Box::new(landed)));
                self.give_room(link, id);
            }
            // Sender, target or link went away meanwhile.
            None => {
                self.keys.set_claimant(record, Claimant::Gone);
                self.end_key(now, record);
            }
        }
    }

    /// The flow does not get its key. One that is called back already ends with RECALLED.
    pub(super) fn refuse_flow(&mut self, link: LinkId, id: InFlowId, failure: Failure) {
        let Some(l) = self.links.get_mut(&link) else { return };
        if l.flows_in.get(id).is_none_or(|f| f.state == InState::Recalling) {
            return;
        }
        let Some(flow) = l.flows_in.remove(id) else { return };
        l.flow_in_of.remove(&flow.index);
        self.idle.touch(link, id);
        self.answer_flow(link, flow.index, Err(failure));
        self.keys.tidy_key(&flow.key, &mut self.actions);
    }

    pub(super) fn flow_in(&mut self, link: LinkId, id: InFlowId) -> Option<&mut InFlow> {
        self.links.get_mut(&link)?.flows_in.get_mut(id)
    }

    /// The sender has no use for its slots and wants others: larger ones, or for another worker of ours.
    fn other_slots(
        &mut self,
        link: LinkId,
        id: InFlowId,
        key: &Key,
        found: Result<(SessionId, Tenant), Failure>,
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let Some(flow) = self.flow_in(link, id) else { return };
        match flow.state {
            // That one is answered by the end of the flow.
            InState::Recalling => return,
            InState::Ready | InState::Reclaiming | InState::Without if flow.key == *key => {}
            _ => {
                return self.violation(link, "BUFFER_REQUEST for a flow that is for another key, or has no answer yet");
            }
        }
        flow.capacity = meta.len_bytes();
        flow.metadata_id = metadata_id;
        flow.meta = meta;
        flow.round = flow.round.wrapping_add(1);
        flow.missing = 0;
        let (index, before) = (flow.index, flow.domain);
        let (session, domain) = match found {
            Ok(found) => found,
            Err(failure) => {
                // What has landed stays published; the sender may ask for others.
                flow.state = InState::Without;
                self.idle.touch(link, id);
                self.serve_pool_later(before);
                self.drop_idle_slots(link, id);
                return self.answer_flow(link, index, Err(failure));
            }
        };
        flow.domain = domain;
        if std::mem::replace(&mut flow.target, session) != session {
            // Another worker may be sent the same versions.
            flow.next_version = 0;
            let record = self.keys.find(key);
            if let Some(record) = record.filter(|record| self.lands_by(*record, (link, id))) {
                self.keys.land_for(record, session, (link, id));
            }
        }
        self.serve_pool_later(before);
        self.drop_idle_slots(link, id);
        self.give_room(link, id);
    }

    /// META_DATA_UPDATE of a flow: what follows looks different and fits.
    pub(super) fn flow_described(&mut self, link: LinkId, index: u32, metadata_id: u32, meta: TensorMeta) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(flow) = l.flow_in_of.get(&index).and_then(|id| l.flows_in.get_mut(*id)) else { return };
        if !matches!(flow.state, InState::Ready | InState::Reclaiming | InState::Recalling) {
            return self.violation(link, &format!("META_DATA_UPDATE for flow {index:#x}, which has no slots"));
        }
        if meta.len_bytes() > flow.capacity {
            let what = format!("{meta} does not fit the {} bytes of flow {index:#x}", flow.capacity);
            return self.violation(link, &what);
        }
        flow.metadata_id = metadata_id;
        flow.meta = meta;
    }

    /// TRACE of a flow: what pushed the version that is about to land.
    pub(super) fn flow_traced(&mut self, now: Time, link: LinkId, index: u32, version: Version, context: TraceContext) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(flow) = l.flow_in_of.get(&index).and_then(|id| l.flows_in.get_mut(*id)) else { return };
        if !matches!(flow.state, InState::Ready | InState::Reclaiming | InState::Recalling) {
            return self.violation(link, &format!("TRACE for flow {index:#x}, which has no slots"));
        }
        flow.told = Some(Told { version, context, at: now });
    }

    /// What has landed in a flow's slot has to be what the sender said. `None` where nobody wants it any more.
    pub(super) fn check_flow_landing(
        &self,
        l: &Link,
        flow: InFlowId,
        header: &Header,
    ) -> Result<Option<TensorMeta>, String> {
        let Some(f) = l.flows_in.get(flow) else { return Ok(None) };
        if header.index != f.index {
            return Err(format!("the header names flow {:#x}, the slot is for {:#x}", header.index, f.index));
        }
        if header.metadata_id != f.metadata_id || header.body_len != f.meta.len_bytes() {
            return Err(format!(
                "the header has description {} and {} bytes, the flow has {} and {}",
                header.metadata_id,
                header.body_len,
                f.metadata_id,
                f.meta.len_bytes()
            ));
        }
        if header.version.0 < f.next_version || header.version > Version::LAST {
            return Err(format!(
                "the header has {}, which is not above the last one, or the last there can be",
                header.version
            ));
        }
        Ok(Some(f.meta.clone()))
    }

    /// Whether the versions of a key land by this flow.
    fn lands_by(&self, record: RecordId, flow: FlowAt) -> bool {
        self.keys.record(record).is_some_and(|r| r.owner().lands_by(flow))
    }

    /// The slot is closed: publishes what it holds, unless something that landed before it still waits.
    pub(super) fn deliver_flow(&mut self, now: Time, link: LinkId, id: InFlowId, closed: SlotId) {
        #[cfg(test)]
        if self.config.broken == Some(super::Broken::DeliversOutOfOrder) {
            return self.flow_landed(now, link, id, closed);
        }
        let _ = closed;
        while let Some(l) = self.links.get_mut(&link)
            && let Some(flow) = l.flows_in.get_mut(id)
            && let Some(first) = flow.landed.front().copied()
            && matches!(l.slots.get(first), Some(Slot { state: SlotState::Closed(_), .. }))
        {
            flow.landed.pop_front();
            self.flow_landed(now, link, id, first);
        }
    }

    /// A version is here, and nobody can write to it any more: publish it.
    fn flow_landed(&mut self, now: Time, link: LinkId, id: InFlowId, slot: SlotId) {
        let record = self.flow_in(link, id).map(|flow| flow.key.clone()).and_then(|key| self.keys.find(&key));
        let Some(record) = record.filter(|record| self.lands_by(*record, (link, id))) else {
            // The key ended meanwhile, or is another's.
            return self.drop_slot(link, slot);
        };
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(s) = l.slots.get_mut(slot) else { return };
        let SlotState::Closed(landing) = &s.state else { return };
        let Landing { header, meta, copied, trace } = &**landing;
        let (version, meta, copied, trace) = (header.version, meta.clone(), *copied, *trace);
        let retention = header.retention;
        let Some(pool) = self.pools.get(&s.domain) else { return };
        let mut slice = pool.slice(&s.range);
        slice.offset += HEADER_BYTES;
        slice.len = meta.len_bytes();
        let bytes = slice.len;
        let mut blob = Blob::new(slice, meta, s.domain, Source::Slot(link, slot)).retained(retention);
        blob.trace = trace.map(|(context, _)| context);
        let blob = self.keys.insert(blob);
        s.state = SlotState::Held(blob);
        l.inward.add(bytes);
        let copied = copied + bytes * u64::from(l.limits.sender_copies);
        self.meters.landed(l.path, bytes, copied);
        if let Some((context, told)) = trace {
            let report = Report {
                fabric: l.kind,
                bytes,
                copied,
                queued: Duration::ZERO,
                waited: Duration::ZERO,
                flew: now.since(told),
                origin: None,
            };
            self.note_landed(now, link, record, version, report, (context, told));
        }
        if retention.until != Until::Replaced {
            self.keep_slot(link, id, slot, blob);
        }
        self.publish(now, record, blob, version);
    }

    /// The sender will not write any more, and the flow ends.
    pub(super) fn flow_ended(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(l) = self.links.get(&link) else { return };
        let Some(id) = l.flow_in_of.get(&index).copied() else { return };
        let Some(key) = l.flows_in.get(id).map(|f| f.key.clone()) else { return };
        self.cut_call(link, index);
        self.drop_flow(link, id);
        if let Some(record) = self.keys.find(&key) {
            match self.keys.record(record).map(Record::owner) {
                Some(Owner::Landed(l)) if l.flow == Some((link, id)) => {
                    let owner = l.owner.clone();
                    self.owner_left(now, record, owner);
                }
                Some(Owner::Claiming(c)) if c.who == Claimant::Flow((link, id)) => self.end_key(now, record),
                _ => {}
            }
        }
    }

    /// Forgets a flow whose sender has said that it will not write any more, and closes its slots.
    fn drop_flow(&mut self, link: LinkId, id: InFlowId) {
        self.drop_idle_slots(link, id);
        if let Some(l) = self.links.get_mut(&link)
            && let Some(flow) = l.flows_in.remove(id)
        {
            l.flow_in_of.remove(&flow.index);
            self.idle.touch(link, id);
            for slot in flow.landed {
                self.drop_slot(link, slot);
            }
            self.serve_pool_later(flow.domain);
        }
    }

    /// A key that landed here ends: its flow's slots are called back.
    pub(super) fn landed_key_ended(&mut self, landed: &Landed) {
        if let Some((link, id)) = landed.flow {
            self.recall(link, id);
        }
    }

    /// A worker of ours is gone, and with it what others push to it.
    pub(super) fn flows_in_target_gone(&mut self, session: SessionId) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            let ids = self.links.get(&link).map(|l| l.flows_in.ids(|f| f.target == session)).unwrap_or_default();
            for id in ids {
                self.recall(link, id);
            }
        }
    }

    /// The link is gone. What has landed stays, until its owner comes back or its target goes.
    pub(super) fn flows_in_lost(&mut self, now: Time, link: LinkId, flows: &Slab<InFlow, of::InFlow>) {
        for (id, flow) in flows.iter() {
            self.idle.touch(link, id);
            let Some(record) = self.keys.find(&flow.key) else { continue };
            match self.keys.record(record).map(|r| (r.owner(), r.newest())) {
                Some((Owner::Landed(landed), newest)) if landed.flow == Some((link, id)) => {
                    self.keys.detach_flow(record);
                    if newest.is_none() {
                        self.end_key(now, record);
                    }
                }
                Some((Owner::Claiming(c), _)) if c.who == Claimant::Flow((link, id)) => {
                    self.keys.set_claimant(record, Claimant::Gone);
                }
                _ => {}
            }
        }
    }
}
