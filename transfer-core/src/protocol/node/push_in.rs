//! Pushing, the receiver's side: grant slots, publish the versions that land in them, return the slots after reading.

use super::Node;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{FlowAt, InFlowId, RecordId, SlotId};
use crate::protocol::keys::{Blob, Claimant, Claiming, Landed, Owner, Record, Source};
use crate::protocol::landing::{InFlow, InState, LandedTensor};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, TensorMeta, Until, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::NameRef;
use std::time::Duration;

impl Node {
    /// Handles the message BUFFER_REQUEST: the first of a flow, one for larger slots, or one for another worker here.
    pub(super) fn buffer_request(
        &mut self,
        link: LinkId,
        index: u32,
        names: [NameRef; 4],
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let look_up = |n: NameRef| self.links.look_up(link, n).cloned();
        let [Ok(key), Ok(target), Ok(owner), Ok(tenant)] = names.map(look_up) else {
            return self.violation(link, "BUFFER_REQUEST uses a name that it never told");
        };
        let key = Key::from(key);
        if key.reserved_for().is_some() {
            return self.violation(link, "BUFFER_REQUEST for the key of a counter or barrier");
        }
        self.flow_requested(link, index, key, &target, (owner, &tenant), metadata_id, meta);
    }

    /// Handles a peer's request for slots, by message or by call.
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
        if self.links.get(link).is_none() {
            return;
        }
        let capacity = meta.len_bytes();
        let known = self.landing.flow_of(link, index);
        let full = self.landing.flow_count(link) >= self.config.max_requests_per_link;
        let found = match self.sessions.named(target).and_then(|s| Some((s, self.sessions.tenant_of(s)?))) {
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
            return self.other_slots((link, id), &key, found, (metadata_id, meta));
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
        let flow = InFlow::new(self.latest, index, key.clone(), (session, domain), (metadata_id, meta));
        let Some(id) = self.landing.insert_flow(link, flow) else { return };
        self.own_flow(link, id, key, owner);
    }

    /// Checks whether a peer may push this key to a worker of this node, for a worker of the tenant that it names.
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
            Owner::Nobody => match self.node_has_too_many_keys() {
                None => self.claim(record_id, Claiming::new((owner, tenant), Claimant::Flow((link, id)), false)),
                Some(failure) => self.refuse_flow(link, id, failure),
            },
            // The same worker has come back over another link. A new epoch begins, perhaps at a lower version.
            Owner::Landed(landed) if (&landed.owner, landed.tenant) == (&owner, tenant) => {
                self.keys.begin_epoch(record_id);
                if let Some(old) = self.keys.land_for(record_id, target, (link, id)) {
                    // The sender has not confirmed that it no longer writes to the old flow's slots.
                    self.recall(old);
                }
                self.give_room((link, id));
            }
            Owner::Outlived(outlived) if (&outlived.owner, outlived.domain) == (&owner, tenant) => {
                let landed = Landed { owner, tenant, target, flow: Some((link, id)) };
                self.keys.give(record_id, Owner::Landed(Box::new(landed)));
                self.give_room((link, id));
            }
            Owner::Claiming(c)
                if (&c.owner, c.tenant) == (&owner, tenant) && !matches!(c.who, Claimant::Session(_)) =>
            {
                let before = self.keys.set_claimant(record_id, Claimant::Flow((link, id)));
                if let Some(Claimant::Flow(old)) = before {
                    self.recall(old);
                }
            }
            before => {
                let failure = super::claims::key_owned(&key, self.owner_name(before), &self.config.name);
                self.refuse_flow(link, id, failure);
            }
        }
    }

    /// Handles the directory's answer that the key is entered for this flow.
    pub(super) fn flow_claimed(&mut self, now: Time, link: LinkId, id: InFlowId, record: RecordId, owner: Name) {
        let flow = self.landing.flow((link, id));
        let target = flow.filter(|f| f.state != InState::Recalling).map(|f| (f.target, f.domain));
        match target {
            Some((target, tenant)) => {
                let landed = Landed { owner, tenant, target, flow: Some((link, id)) };
                self.keys.give(record, Owner::Landed(Box::new(landed)));
                self.end_other_streams(record);
                self.give_room((link, id));
            }
            // The sender, the target or the link is gone.
            None => {
                self.keys.set_claimant(record, Claimant::Gone);
                self.end_key(now, record);
            }
        }
    }

    /// Refuses a flow that does not get its key. A flow whose slots are already called back ends with RECALLED instead.
    pub(super) fn refuse_flow(&mut self, link: LinkId, id: InFlowId, failure: Failure) {
        let Some(flow) = self.landing.refuse_flow((link, id)) else { return };
        self.answer_flow(link, flow.index, Err(failure));
        self.keys.tidy_key(&flow.key, &mut self.actions);
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
            return self.violation(at.0, "BUFFER_REQUEST for a flow that is for another key, or has no answer yet");
        };
        let found = match found {
            Ok(found) => found,
            Err(failure) => {
                self.landing.refuse_others(self.latest, at, &mut self.actions);
                return self.answer_flow(at.0, index, Err(failure));
            }
        };
        let is_another = self.landing.retarget(self.latest, at, found, &mut self.actions);
        let record = self.keys.find(key);
        if let Some(record) = record.filter(|record| is_another && self.lands_by(*record, at)) {
            self.keys.land_for(record, found.0, at);
        }
        self.give_room(at);
    }

    /// Handles the message META_DATA_UPDATE for a flow: the next versions have this description and fit the slots.
    pub(super) fn flow_described(&mut self, link: LinkId, index: u32, metadata_id: u32, meta: TensorMeta) {
        if let Err(what) = self.landing.describe(link, index, (metadata_id, meta)) {
            self.violation(link, &what);
        }
    }

    /// Handles the message TRACE for a flow: the trace context of the push whose version is about to land.
    pub(super) fn flow_traced(&mut self, now: Time, link: LinkId, index: u32, version: Version, context: TraceContext) {
        if let Err(what) = self.landing.trace(now, link, index, (version, context)) {
            self.violation(link, &what);
        }
    }

    /// Returns whether the versions of a key land through this flow.
    fn lands_by(&self, record: RecordId, flow: FlowAt) -> bool {
        self.keys.record(record).is_some_and(|r| r.owner().lands_by(flow))
    }

    /// Handles the closing of a slot. Versions are published in the order in which they landed: one waits until the
    /// slots of those before it are closed.
    pub(super) fn deliver_flow(&mut self, now: Time, at: FlowAt, closed: SlotId) {
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::DeliversOutOfOrder) {
            return self.flow_landed(now, at, closed);
        }
        let _ = closed;
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
            return self.drop_slot(link, slot);
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
                queued: Duration::ZERO,
                waited: Duration::ZERO,
                flew: now.since(told),
                origin: None,
            };
            self.note_landed(now, link, record, version, report, (context, told));
        }
        if retention.until != Until::Replaced {
            self.keep_slot(link, slot, blob);
        }
        self.publish(now, record, blob, version);
    }

    /// Ends a flow whose sender no longer writes.
    pub(super) fn flow_ended(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(id) = self.landing.flow_of(link, index) else { return };
        let Some(key) = self.landing.flow((link, id)).map(|f| f.key.clone()) else { return };
        self.cut_call(link, index);
        self.landing.end_flow(self.latest, (link, id), &mut self.actions);
        if let Some(record) = self.keys.find(&key) {
            match self.keys.record(record).map(Record::owner) {
                Some(Owner::Landed(l)) if l.flow == Some((link, id)) => {
                    let owner = (l.owner.clone(), l.tenant);
                    self.owner_left(now, record, owner, Some(0));
                }
                Some(Owner::Claiming(c)) if c.who == Claimant::Flow((link, id)) => self.end_key(now, record),
                _ => {}
            }
        }
    }

    /// Calls back the slots of the flow by which an ended key landed here.
    pub(super) fn landed_key_ended(&mut self, landed: &Landed) {
        if let Some(flow) = landed.flow {
            self.recall(flow);
        }
    }

    /// Calls back the slots of all flows to a worker of this node that is gone or has lost its name.
    pub(super) fn flows_in_target_gone(&mut self, session: SessionId) {
        for flow in self.landing.flows_where(|flow| flow.target == session) {
            self.recall(flow);
        }
    }

    /// Handles a flow of a lost link. The versions that have landed stay until their owner comes back or their target goes.
    pub(super) fn flow_in_lost(&mut self, now: Time, at: FlowAt, key: &Key) {
        let Some(record) = self.keys.find(key) else { return };
        match self.keys.record(record).map(|r| (r.owner(), r.newest())) {
            Some((Owner::Landed(landed), newest)) if landed.flow == Some(at) => {
                self.keys.detach_flow(record);
                if newest.is_none() {
                    self.end_key(now, record);
                }
            }
            Some((Owner::Claiming(c), _)) if c.who == Claimant::Flow(at) => {
                self.keys.set_claimant(record, Claimant::Gone);
            }
            _ => {}
        }
    }
}
