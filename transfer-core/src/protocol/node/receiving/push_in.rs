//! Pushing, the receiver's side: grant slots, publish the versions that land in them, return the slots after reading.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::ids::{FlowAt, InFlowId, RecordId, SessionId, SlotId};
use crate::protocol::keys::{Blob, Claimant, Claiming, Landed, Owner, Record, Source};
use crate::protocol::landing::{InFlow, InState, LandedTensor, Recalled};
use crate::protocol::node::flows::Receiving;
use crate::protocol::node::rules::key_owned;
use crate::protocol::rules::Broken;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, TensorMeta, Until, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::{NameRef, Recall};
use std::time::Duration;

impl Receiving<'_> {
    /// Handles the message BUFFER_REQUEST: the first of a flow, one for larger slots, or one for another worker here.
    pub(in crate::protocol::node) fn buffer_request(
        &mut self,
        link: LinkId,
        index: u32,
        names: [NameRef; 4],
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let look_up = |n: NameRef| self.links.look_up(link, n).cloned();
        let [Ok(key), Ok(target), Ok(owner), Ok(tenant)] = names.map(look_up) else {
            return sending!(self).violation(link, "BUFFER_REQUEST uses a name that it never told");
        };
        let key = Key::from(key);
        if key.reserved_for().is_some() {
            return sending!(self).violation(link, "BUFFER_REQUEST for the key of a counter or barrier");
        }
        self.flow_requested(link, index, key, &target, (owner, &tenant), metadata_id, meta);
    }

    /// Handles a peer's request for slots, by message or by call.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn flow_requested(
        &mut self,
        link: LinkId,
        index: u32,
        key: Key,
        target: &Name,
        (owner, tenant): (Name, &Name),
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        if self.links.get(link).is_none() {
            return;
        }
        let capacity = meta.len_bytes();
        let known = self.landing.flow_of(link, index);
        let full = self.landing.flow_count(link) >= self.config.max_requests_per_link;
        let found = match self.sessions.named(target).and_then(|s| Some((s, self.sessions.tenant_of(s)?))) {
            _ if self.common.draining => Err(access!(self).is_draining()),
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
            return self.other_slots((link, id), &key, found, (metadata_id, meta));
        }
        let (session, domain) = match found {
            Ok(found) => found,
            Err(failure) => return calls!(self).answer_flow(link, index, Err(failure)),
        };
        if full {
            let (node, limit) = (&self.config.name, self.config.max_requests_per_link);
            let text = format!("node {node:?} takes at most {limit} keys at a time from one peer");
            return calls!(self).answer_flow(link, index, Err(Failure::new(FailureCode::Busy, text)));
        }
        let flow = InFlow::new(self.common.latest, index, key.clone(), (session, domain), (metadata_id, meta));
        let Some(id) = self.landing.insert_flow(link, flow) else { return };
        self.own_flow(link, id, key, owner);
    }

    /// Checks whether a peer may push this key to a worker of this node, for a worker of the tenant that it names.
    fn may_land(&self, link: LinkId, key: &Key, target: &Name, tenant: &Name, own: Tenant) -> Result<(), Failure> {
        let pusher = access!(self).tenant_called(tenant).ok_or_else(|| access!(self).unknown_tenant(tenant))?;
        access!(self).vouched(link, pusher)?;
        if pusher != own {
            return Err(access!(self).of_another_tenant(&format!("worker {target:?}"), own, pusher));
        }
        self.config.tenants.may_own(own, key)
    }

    fn check_room(&self, key: &Key, domain: Tenant, capacity: u64) -> Result<(), Failure> {
        let slots = self.config.slots_per_flow as u64;
        if self.landing.could_hold(domain, capacity, slots) {
            return Ok(());
        }
        let (node, has) = (&self.config.name, self.landing.pool_bytes(domain));
        let text =
            format!("key {key:?} needs {slots} landing slots of {capacity} bytes, the pool at node {node:?} has {has}");
        Err(Failure::new(FailureCode::TooLarge, text))
    }

    /// Makes the sender the owner of the key, if it may own it.
    fn own_flow(&mut self, link: LinkId, id: InFlowId, key: Key, owner: Name) {
        let Some((target, tenant)) = self.landing.flow((link, id)).map(|f| (f.target, f.domain)) else { return };
        let record_id = self.keys.find_or_make(&key);
        let Some(before) = self.keys.record(record_id).map(Record::owner) else { return };
        match before {
            Owner::Nobody => match limits!(self).node_has_too_many_keys() {
                None => {
                    pushing!(self).claim(record_id, Claiming::new((owner, tenant), Claimant::Flow((link, id)), false))
                }
                Some(failure) => room!(self).refuse_flow(link, id, failure),
            },
            // The same worker has come back over another link. A new epoch begins, perhaps at a lower version.
            Owner::Landed(landed) if (&landed.owner, landed.tenant) == (&owner, tenant) => {
                self.keys.begin_epoch(record_id);
                if let Some(old) = self.keys.land_for(record_id, target, (link, id)) {
                    // The sender has not confirmed that it no longer writes to the old flow's slots.
                    room!(self).recall(old);
                }
                room!(self).give_room((link, id));
            }
            Owner::Outlived(outlived) if (&outlived.owner, outlived.domain) == (&owner, tenant) => {
                let landed = Landed { owner, tenant, target, flow: Some((link, id)) };
                self.keys.give(record_id, Owner::Landed(Box::new(landed)));
                room!(self).give_room((link, id));
            }
            Owner::Claiming(c)
                if (&c.owner, c.tenant) == (&owner, tenant) && !matches!(c.who, Claimant::Session(_)) =>
            {
                let before = self.keys.set_claimant(record_id, Claimant::Flow((link, id)));
                if let Some(Claimant::Flow(old)) = before {
                    room!(self).recall(old);
                }
            }
            before => {
                let failure = key_owned(&key, self.sessions.owner_name(before), &self.config.name);
                room!(self).refuse_flow(link, id, failure);
            }
        }
    }

    /// Handles the directory's answer that the key is entered for this flow.
    pub(in crate::protocol::node) fn flow_claimed(
        &mut self,
        now: Time,
        link: LinkId,
        id: InFlowId,
        record: RecordId,
        owner: Name,
    ) {
        let flow = self.landing.flow((link, id));
        let target = flow.filter(|f| f.state != InState::Recalling).map(|f| (f.target, f.domain));
        match target {
            Some((target, tenant)) => {
                let landed = Landed { owner, tenant, target, flow: Some((link, id)) };
                self.keys.give(record, Owner::Landed(Box::new(landed)));
                answering!(self).end_other_streams(record);
                room!(self).give_room((link, id));
            }
            // The sender, the target or the link is gone.
            None => {
                self.keys.set_claimant(record, Claimant::Gone);
                ownership!(self).end_key(now, record);
            }
        }
    }

    /// Handles the request of a flow's sender for other slots: larger ones, or for another worker of this node. The
    /// present slots are of no use to the sender.
    fn other_slots(
        &mut self,
        at: FlowAt,
        key: &Key,
        found: Result<(SessionId, Tenant), Failure>,
        described: (u32, TensorMeta),
    ) {
        // The end of the flow answers this request.
        if self.landing.flow(at).is_none_or(|flow| flow.state == InState::Recalling) {
            return;
        }
        let Some(index) = self.landing.request_others(at, key, described).map(|flow| flow.index) else {
            return sending!(self)
                .violation(at.0, "BUFFER_REQUEST for a flow that is for another key, or has no answer yet");
        };
        let found = match found {
            Ok(found) => found,
            Err(failure) => {
                self.landing.refuse_others(self.common.latest, at, self.actions);
                return calls!(self).answer_flow(at.0, index, Err(failure));
            }
        };
        let is_another = self.landing.retarget(self.common.latest, at, found, self.actions);
        let record = self.keys.find(key);
        if let Some(record) = record.filter(|record| is_another && self.lands_by(*record, at)) {
            self.keys.land_for(record, found.0, at);
        }
        room!(self).give_room(at);
    }

    /// Handles the message META_DATA_UPDATE for a flow: the next versions have this description and fit the slots.
    pub(in crate::protocol::node) fn flow_described(
        &mut self,
        link: LinkId,
        index: u32,
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        if let Err(what) = self.landing.describe(link, index, (metadata_id, meta)) {
            sending!(self).violation(link, &what);
        }
    }

    /// Handles the message TRACE for a flow: the trace context of the push whose version is about to land.
    pub(in crate::protocol::node) fn flow_traced(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        version: Version,
        context: TraceContext,
    ) {
        if let Err(what) = self.landing.trace(now, link, index, (version, context)) {
            sending!(self).violation(link, &what);
        }
    }

    /// Returns whether the versions of a key land through this flow.
    fn lands_by(&self, record: RecordId, flow: FlowAt) -> bool {
        self.keys.record(record).is_some_and(|r| r.owner().lands_by(flow))
    }

    /// Handles the closing of a slot. Versions are published in the order in which they landed: one waits until the
    /// slots of those before it are closed.
    pub(in crate::protocol::node) fn deliver_flow(&mut self, now: Time, at: FlowAt, closed: SlotId) {
        if self.config.rules.breaks(Broken::DeliversOutOfOrder) {
            return self.flow_landed(now, at, closed);
        }
        while let Some(first) = self.landing.next_landed(at) {
            self.flow_landed(now, at, first);
        }
    }

    /// Publishes a version that has landed. Its slot is closed, so the sender can no longer write to it.
    fn flow_landed(&mut self, now: Time, at: FlowAt, slot: SlotId) {
        let link = at.0;
        let record = self.landing.flow(at).and_then(|flow| self.keys.find(&flow.key));
        let Some(record) = record.filter(|record| self.lands_by(*record, at)) else {
            // The key has ended meanwhile, or belongs to another owner.
            return room!(self).drop_slot(link, slot);
        };
        let Some(l) = self.links.get(link) else { return };
        let Some((domain, slice, LandedTensor { header, meta, copied, trace })) = self.landing.closed(link, slot)
        else {
            return;
        };
        let (version, retention, copied, trace, bytes) = (header.version, header.retention, *copied, *trace, slice.len);
        let blob = Blob::new(slice, meta.clone(), domain, Source::Slot(link, slot)).retained(retention);
        let blob = blob.traced(trace.map(|(context, _)| context));
        let blob = self.keys.insert(blob);
        self.landing.hold(link, slot, blob);
        let (fabric, copied) = (l.kind(), copied + bytes * u64::from(l.limits().sender_copies));
        self.meters.landed(l.path(), bytes, copied);
        self.links.carried_in(link, bytes);
        if let Some((context, told)) = trace {
            let report = Report {
                fabric,
                bytes,
                copied,
                verified: 0,
                relayed: 0,
                delta: 0,
                queued: Duration::ZERO,
                waited: Duration::ZERO,
                in_flight: now.since(told),
                origin: None,
            };
            replies!(self).note_landed(now, link, record, version, report, (context, told));
        }
        if retention.until != Until::Replaced {
            room!(self).keep_slot(link, slot, blob);
        }
        answering!(self).publish(now, record, blob, version);
    }

    /// Ends a flow whose sender no longer writes.
    pub(in crate::protocol::node) fn flow_ended(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(id) = self.landing.flow_of(link, index) else { return };
        let Some(key) = self.landing.flow((link, id)).map(|f| f.key.clone()) else { return };
        calls!(self).cut_call(link, index);
        self.landing.end_flow(self.common.latest, (link, id), self.actions);
        if let Some(record) = self.keys.find(&key) {
            match self.keys.record(record).map(Record::owner) {
                Some(Owner::Landed(l)) if l.flow == Some((link, id)) => {
                    let owner = (l.owner.clone(), l.tenant);
                    ownership!(self).owner_left(now, record, owner, Some(0));
                }
                Some(Owner::Claiming(c)) if c.who == Claimant::Flow((link, id)) => {
                    ownership!(self).end_key(now, record)
                }
                _ => {}
            }
        }
    }

    /// Handles a flow of a lost link. The versions that have landed stay until their owner comes back or their target goes.
    pub(in crate::protocol::node) fn flow_in_lost(&mut self, now: Time, at: FlowAt, key: &Key) {
        let Some(record) = self.keys.find(key) else { return };
        match self.keys.record(record).map(|r| (r.owner(), r.newest())) {
            Some((Owner::Landed(landed), newest)) if landed.flow == Some(at) => {
                self.keys.detach_flow(record);
                if newest.is_none() {
                    ownership!(self).end_key(now, record);
                }
            }
            Some((Owner::Claiming(c), _)) if c.who == Claimant::Flow(at) => {
                self.keys.set_claimant(record, Claimant::Gone);
            }
            _ => {}
        }
    }

    /// Handles the message RECALLED: the sender no longer writes into the slots that were called back.
    pub(in crate::protocol::node) fn recalled(&mut self, now: Time, link: LinkId, index: u32, why: Recall, round: u32) {
        let Some(id) = self.landing.flow_of(link, index) else { return };
        match self.landing.recalled(self.common.latest, (link, id), why, round, self.actions) {
            Recalled::Nothing => {}
            Recalled::Ends => self.flow_ended(now, link, index),
            Recalled::Violation => {
                sending!(self).violation(link, &format!("RECALLED for flow {index:#x}, which does not end"))
            }
        }
    }
}
