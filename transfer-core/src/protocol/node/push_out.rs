//! Pushing, the sender's side: a flow of one key to one worker, and the slots that its sidecar has granted for it.

use super::Node;
use super::ended::Ending;
use super::publish::too_high;
use super::worker::{Op, OpKind, PushStage};
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Reply, Report};
use crate::protocol::control::BufferAsk;
use crate::protocol::ids::{BlobId, OperationId, OutFlowId, SessionId, of};
use crate::protocol::landing::TIDY_AT;
use crate::protocol::links::{Out, OutWrite, Purpose};
use crate::protocol::meters::Operation;
use crate::protocol::slab::Slab;
use crate::tensor::{Key, Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::{Body, Recall, Role};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::time::Duration;

/// One key of one worker of ours that lands at another node. Its target changes with what is pushed; the peer is asked anew then.
pub(crate) struct OutFlow {
    key: Key,
    target: Name,
    session: SessionId,
    state: FlowState,
    /// A call asks for its slots, and its answer comes in no order with the messages of the link.
    calling: bool,
    /// Room of the granted slots.
    capacity: u64,
    name: u32,
    metadata_id: u32,
    meta: TensorMeta,
    idle: VecDeque<SlotGrant>,
    queue: VecDeque<OperationId>,
    /// At this length of the queue those that have ended are taken out.
    tidy_at: usize,
    next_version: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlowState {
    /// The peer knows nothing of it, or has refused it.
    New,
    /// BUFFER_REQUEST is sent.
    Requested,
    /// Slots are granted.
    Ready,
}

/// The flows of a link to its peer.
#[derive(Default)]
pub(crate) struct OutFlows {
    flows: Slab<OutFlow, of::OutFlow>,
    by_key: HashMap<(SessionId, Key), OutFlowId>,
}

impl OutFlows {
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether one more can be named in 32 bits.
    fn has_room(&self) -> bool {
        self.flows.has_short_room()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OutFlowId, &OutFlow)> {
        self.flows.iter()
    }

    /// The flow of a worker's key.
    fn of(&self, session: SessionId, key: &Key) -> Option<OutFlowId> {
        self.by_key.get(&(session, key.clone())).copied()
    }

    /// The flow that the peer names.
    fn named(&self, index: u32) -> Option<OutFlowId> {
        self.flows.lengthen(index)
    }

    fn of_session(&self, session: SessionId) -> Vec<OutFlowId> {
        self.flows.ids(|flow| flow.session == session)
    }

    fn get_mut(&mut self, id: OutFlowId) -> Option<&mut OutFlow> {
        self.flows.get_mut(id)
    }

    fn insert(&mut self, flow: OutFlow) -> OutFlowId {
        let key = (flow.session, flow.key.clone());
        let id = self.flows.insert(flow);
        self.by_key.insert(key, id);
        id
    }

    /// Returns whether it was there.
    fn remove(&mut self, id: OutFlowId) -> bool {
        let Some(flow) = self.flows.remove(id) else { return false };
        self.by_key.remove(&(flow.session, flow.key));
        true
    }
}

#[cfg(test)]
impl OutFlow {
    pub(crate) fn state(&self) -> String {
        format!("{:?}{}", self.state, if self.calling { ", call" } else { "" })
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }
}

impl Node {
    /// Puts a push into its flow.
    pub(super) fn enqueue_push(&mut self, now: Time, id: OperationId, link: LinkId) {
        let Some(op) = self.ops.get(id) else { return };
        let (Some(meta), Some(target)) = (self.pushed_meta(op), op.target().cloned()) else { return };
        let (key, session) = (op.key.clone(), op.session);
        let require = op.require.or(self.config.require);
        let Some(l) = self.links.get_mut(&link) else { return };
        if let Some(failure) = l.unmet(require) {
            return self.fail_op(id, failure);
        }
        let tenant = self.sessions.get(&session).map(|s| s.domain);
        if let Err(failure) = tenant.map_or(Ok(()), |tenant| self.vouched(link, tenant)) {
            return self.fail_op(id, failure);
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        let flow = match l.flows_out.of(session, &key) {
            Some(flow) => flow,
            None if !l.flows_out.has_room() => {
                let text =
                    format!("{} keys are pushed to node {:?} already, the limit", l.flows_out.len(), l.peer.name);
                return self.fail_op(id, Failure::new(FailureCode::Busy, text));
            }
            None => l.flows_out.insert(OutFlow {
                key: key.clone(),
                target: target.clone(),
                session,
                state: FlowState::New,
                calling: false,
                capacity: 0,
                name: 0,
                metadata_id: 0,
                meta,
                idle: VecDeque::new(),
                queue: VecDeque::new(),
                tidy_at: TIDY_AT,
                next_version: 0,
            }),
        };
        if let Some(f) = l.flows_out.get_mut(flow) {
            if f.queue.len() >= f.tidy_at {
                // While the first waits, those behind it may come and go.
                f.queue.retain(|id| self.ops.get(*id).is_some());
                f.tidy_at = (2 * f.queue.len()).max(TIDY_AT);
            }
            f.queue.push_back(id);
        }
        self.push_stage(id, PushStage::Queued(link, flow));
        self.drain_flow(now, link, flow);
    }

    /// What an operation pushes, or prepares to push.
    fn pushed_meta(&self, op: &Op) -> Option<TensorMeta> {
        match &op.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter { .. } => None,
            OpKind::Push { blob, .. } => self.keys.blob(*blob).map(|b| b.meta.clone()),
            OpKind::Prepare { meta, .. } => Some(meta.clone()),
        }
    }

    fn flow_out(&mut self, link: LinkId, flow: OutFlowId) -> Option<&mut OutFlow> {
        self.links.get_mut(&link)?.flows_out.get_mut(flow)
    }

    /// Writes what has a slot; asks for slots where there are none, or none large enough.
    fn drain_flow(&mut self, now: Time, link: LinkId, flow: OutFlowId) {
        while let Some(f) = self.flow_out(link, flow) {
            let Some(id) = f.queue.front().copied() else { return };
            if f.state == FlowState::Requested || f.calling {
                return;
            }
            let (state, capacity, has_idle) = (f.state, f.capacity, !f.idle.is_empty());
            let (next, target) = (f.next_version, f.target.clone());
            let Some(op) = self.ops.get(id) else {
                // It ended while it was waiting.
                if let Some(f) = self.flow_out(link, flow) {
                    f.queue.pop_front();
                }
                continue;
            };
            let (Some(to), Some(meta)) = (op.target(), self.pushed_meta(op)) else { return };
            if target != *to {
                let to = to.clone();
                self.change_target(link, flow, to);
                continue;
            }
            if let OpKind::Push { version: Some(version), .. } = &op.kind
                && version.0 < next
            {
                let last = Version(next - 1);
                let text = format!("key {:?} is at {last}; {version} would not be above it", op.key);
                self.fail_op(id, Failure::new(FailureCode::VersionNotRising, text));
                continue;
            }
            if state == FlowState::New || meta.len_bytes() > capacity {
                let by_call = matches!(op.kind, OpKind::Prepare { .. });
                return self.request_buffers(link, flow, meta, by_call);
            }
            match op.kind {
                OpKind::Push { version, blob, .. } if has_idle => {
                    let version = version.unwrap_or(Version(next.max(1)));
                    match too_high(&op.key, version) {
                        Some(failure) => self.fail_op(id, failure),
                        None => self.write_pushed(now, link, flow, id, blob, version, meta),
                    }
                }
                OpKind::Prepare { .. } => {
                    if let Some(op) = self.finish_op(id) {
                        self.prepared(op.session, op.id);
                    }
                }
                _ => return,
            }
        }
    }

    /// The next push goes to another worker of that node: the slots are for the one before.
    fn change_target(&mut self, link: LinkId, flow: OutFlowId, to: Name) {
        self.keep_version(link, flow);
        let Some(f) = self.flow_out(link, flow) else { return };
        f.state = FlowState::New;
        f.target = to;
        let (session, of) = (f.session, (f.key.clone(), f.target.clone()));
        let next = self.sessions.get(&session).and_then(|s| s.versions.get(&of)).copied().unwrap_or(0);
        if let Some(f) = self.flow_out(link, flow) {
            f.next_version = next;
        }
    }

    /// Versions rise as long as the session lasts, whatever becomes of the flow.
    fn keep_version(&mut self, link: LinkId, flow: OutFlowId) {
        let Some(f) = self.flow_out(link, flow) else { return };
        let (session, next, of) = (f.session, f.next_version, (f.key.clone(), f.target.clone()));
        if next > 0
            && let Some(s) = self.sessions.get_mut(&session)
        {
            s.versions.insert(of, next);
        }
    }

    /// Asks for slots: by message, or for a flow of which the peer knows nothing yet by a call.
    fn request_buffers(&mut self, link: LinkId, flow: OutFlowId, meta: TensorMeta, by_call: bool) {
        let Some(f) = self.flow_out(link, flow) else { return };
        f.state = FlowState::Requested;
        f.capacity = meta.len_bytes();
        let by_call = by_call && f.metadata_id == 0;
        f.metadata_id += 1;
        f.meta = meta.clone();
        // The receiver takes the slots back that it had granted before.
        f.idle.clear();
        let (metadata_id, key, target) = (f.metadata_id, Name::from(f.key.clone()), f.target.clone());
        let session = f.session;
        let Some((owner, tenant)) = self.sessions.get(&session).map(|s| (s.name.clone(), s.domain)) else { return };
        let tenant = self.config.tenants.name(tenant);
        if by_call {
            let [number] = self.number(link, [&key]);
            if let Some(f) = self.flow_out(link, flow) {
                f.calling = true;
                f.name = number.id;
            }
            return self
                .ask_by_call(link, BufferAsk { flow: flow.short(), key: Key::from(key), meta, target, owner, tenant });
        }
        let [key, target, owner, tenant] = self.number(link, [&key, &target, &owner, &tenant]);
        if let Some(f) = self.flow_out(link, flow) {
            f.name = key.id;
        }
        self.send(
            link,
            Role::Push,
            flow.short(),
            Body::BufferRequest { key, target, owner, tenant, metadata_id, meta },
        );
    }

    #[allow(clippy::too_many_arguments)]
    fn write_pushed(
        &mut self,
        now: Time,
        link: LinkId,
        flow: OutFlowId,
        id: OperationId,
        blob: BlobId,
        version: Version,
        meta: TensorMeta,
    ) {
        let Some(f) = self.flow_out(link, flow) else { return };
        f.queue.pop_front();
        f.next_version = version.0.saturating_add(1);
        let changed = f.meta != meta;
        if changed {
            f.metadata_id += 1;
            f.meta = meta.clone();
        }
        let (metadata_id, name) = (f.metadata_id, f.name);
        let Some(slot) = f.idle.pop_front() else { return };
        if changed {
            self.send(link, Role::Push, flow.short(), Body::MetaDataUpdate { version, metadata_id, meta });
        }
        if let Some(Op { kind: OpKind::Push { stage, posted, .. }, .. }) = self.ops.get_mut(id) {
            *stage = PushStage::Writing;
            *posted = now;
        }
        if let Some(context) = self.keys.blob(blob).and_then(|b| b.trace) {
            self.send(link, Role::Push, flow.short(), Body::Trace { version, context });
        }
        let Some(b) = self.keys.hold_as(blob, version) else { return };
        let header = Header {
            slot: slot.number,
            index: flow.short(),
            metadata_id,
            version,
            body_len: b.meta.len_bytes(),
            pieces: 1,
            waited_us: 0,
            name,
            retention: b.retention,
        };
        let body = b.body();
        self.post(link, Out::Write(OutWrite { blob, body, slot, header, purpose: Purpose::Push(id) }));
    }

    /// The write is placed at the peer: the push is done.
    pub(super) fn push_landed(&mut self, now: Time, link: LinkId, id: OperationId, blob: BlobId) {
        if let Some(op) = self.finish_op(id)
            && let OpKind::Push { posted, .. } = op.kind
            && let (Some(l), Some(b)) = (self.links.get_mut(&link), self.keys.blob(blob))
        {
            let bytes = b.meta.len_bytes();
            l.traffic.outward.add(bytes);
            let report = Report {
                fabric: l.kind,
                bytes,
                copied: bytes * u64::from(l.limits.sender_copies + l.limits.receiver_copies),
                queued: posted.since(op.since),
                waited: Duration::ZERO,
                flew: now.since(posted),
                origin: None,
            };
            let reply = Reply::Pushed { op: op.id, version: b.version, report };
            self.actions.push(crate::protocol::action::HostAction::Reply { session: op.session, reply });
            let (path, version, trace) = (l.path, Some(b.version), b.trace);
            self.meters.finished(Operation::Push, path, &report);
            let (operation, session, key, outcome) = (Operation::Push, op.session, &op.key, Ok(report));
            self.note_ended(now, Ending { operation, session, key, version, path, outcome, since: op.since, trace });
            self.unhold(blob);
        }
        self.unhold(blob);
    }

    /// The flow that a peer calls by this index. One that has ended meanwhile is no fault of the peer's.
    fn flow_named(&self, link: LinkId, index: u32) -> Option<OutFlowId> {
        self.links.get(&link)?.flows_out.named(index)
    }

    /// The answer to a call. One that was called back meanwhile has no use for it, and goes on with what was pushed since.
    pub(super) fn flow_prepared(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        answer: Result<Vec<SlotGrant>, Failure>,
    ) {
        let Some(id) = self.flow_named(link, index) else {
            // Its worker is gone meanwhile, and the peer did not know the flow when it was told.
            return self.send(link, Role::Push, index, Body::BufferRelease);
        };
        let Some(f) = self.flow_out(link, id) else { return };
        f.calling = false;
        match (f.state, answer) {
            (FlowState::Requested, Ok(slots)) => self.buffer_response(now, link, index, slots),
            (FlowState::Requested, Err(failure)) => self.flow_refused(link, index, &failure),
            _ => self.drain_flow(now, link, id),
        }
    }

    /// Ends a flow of which it is not known what the peer makes of it. What waits for it fails.
    pub(super) fn abandon_flow(&mut self, link: LinkId, index: u32, failure: &Failure) {
        let Some(id) = self.flow_named(link, index) else {
            return self.send(link, Role::Push, index, Body::BufferRelease);
        };
        self.flow_refused(link, index, failure);
        if let Some(l) = self.links.get_mut(&link)
            && l.flows_out.remove(id)
        {
            self.send(link, Role::Push, index, Body::BufferRelease);
        }
    }

    /// BUFFER_RESPONSE, or the answer to a call.
    pub(super) fn buffer_response(&mut self, now: Time, link: LinkId, index: u32, slots: Vec<SlotGrant>) {
        let Some(id) = self.flow_named(link, index) else { return };
        let Some(f) = self.flow_out(link, id) else { return };
        let short = slots.iter().find(|s| s.capacity < f.capacity).map(|s| s.capacity);
        if f.state != FlowState::Requested || f.calling || short.is_some() {
            let what = format!("BUFFER_RESPONSE for flow {index:#x} that was not asked for, or too small ({short:?})");
            return self.violation(link, &what);
        }
        f.state = FlowState::Ready;
        f.idle.extend(slots);
        self.drain_flow(now, link, id);
    }

    /// BUFFER_IDLE.
    pub(super) fn buffer_idle(&mut self, now: Time, link: LinkId, index: u32, slot: SlotGrant) {
        let Some(id) = self.flow_named(link, index) else { return };
        let Some(f) = self.flow_out(link, id) else { return };
        match f.state {
            FlowState::Ready if slot.capacity >= f.capacity => f.idle.push_back(slot),
            // It crossed our request for larger ones, which takes it back.
            _ => return,
        }
        self.drain_flow(now, link, id);
    }

    /// ERROR_STATUS: the peer grants nothing.
    pub(super) fn flow_refused(&mut self, link: LinkId, index: u32, failure: &Failure) {
        let Some(id) = self.flow_named(link, index) else { return };
        let Some(f) = self.flow_out(link, id) else { return };
        f.state = FlowState::New;
        f.idle.clear();
        let (queue, target) = (std::mem::take(&mut f.queue), f.target.clone());
        if failure.code == FailureCode::UnknownWorker {
            self.worker_locations.remove(&target);
        }
        for op in queue {
            self.fail_op(op, failure.clone());
        }
    }

    /// BUFFER_RECALL. The answer goes behind what was written before; what is pushed from now on asks for slots again.
    pub(super) fn buffer_recall(&mut self, now: Time, link: LinkId, index: u32, why: Recall, round: u32) {
        let id = self.flow_named(link, index);
        if let (Some(id), Recall::Ends) = (id, why) {
            let target = self.flow_out(link, id).map(|f| f.target.clone());
            if let Some(target) = target {
                self.worker_locations.remove(&target);
                let text = format!("worker {target:?} is gone");
                self.flow_refused(link, index, &Failure::new(FailureCode::UnknownWorker, text));
            }
        }
        if let (Some(f), Recall::Room) = (id.and_then(|id| self.flow_out(link, id)), why) {
            f.idle.clear();
            // A request that crossed it asks for other slots already. The answer to a call may be of before or after: it does
            // not count.
            if f.state != FlowState::Requested || f.calling {
                f.state = FlowState::New;
            }
        }
        self.send(link, Role::Push, index, Body::Recalled { why, round });
        if let (Some(id), Recall::Room) = (id, why) {
            self.drain_flow(now, link, id);
        }
    }

    /// A worker of ours is gone: its flows end, behind what was posted.
    pub(super) fn flows_out_abandoned(&mut self, session: SessionId) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            let Some(l) = self.links.get_mut(&link) else { continue };
            for id in l.flows_out.of_session(session) {
                let Some(l) = self.links.get_mut(&link) else { continue };
                if !l.flows_out.remove(id) {
                    continue;
                }
                // Also where it has no slots: the peer may still have what landed before. One that does not know the flow has
                // nothing to release.
                self.send(link, Role::Push, id.short(), Body::BufferRelease);
            }
        }
    }

    pub(super) fn flows_out_lost(&mut self, flows: &OutFlows, failure: &Failure) {
        for (_, flow) in flows.iter() {
            // Its worker may be found elsewhere when it is asked for again.
            self.worker_locations.remove(&flow.target);
            if let Some(s) = self.sessions.get_mut(&flow.session) {
                s.versions.insert((flow.key.clone(), flow.target.clone()), flow.next_version);
            }
            for op in &flow.queue {
                let text = format!("while key {:?} was being pushed to {:?}, {}", flow.key, flow.target, failure.text);
                self.fail_op(*op, Failure::new(failure.code, text));
            }
        }
    }
}
