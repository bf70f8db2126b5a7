//! Pushing, the sender's side: a flow of one key to one worker, and the slots that the peer has granted for it.

use super::publish::too_high;
use crate::fabric::LinkId;
use crate::op::{Answer, Failure, FailureCode, Report};
use crate::protocol::control::{BufferAnswer, BufferAsk};
use crate::protocol::ids::{BlobId, OperationId, OutFlowId, SessionId};
use crate::protocol::links::{Out, OutWrite, Purpose};
use crate::protocol::meters::Operation;
use crate::protocol::node::Node;
use crate::protocol::node::flows::Pushing;
use crate::protocol::node::replies::WorkersTransfer;
use crate::protocol::sessions::{Op, OpKind, PushOp, PushStage, ReserveOp};
use crate::protocol::transfers::{FlowState, OutFlow};
use crate::tensor::{Key, Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::{Body, Recall, Role};
use std::time::Duration;

impl Node {
    /// Handles a peer's answer to a call.
    pub fn buffers_prepared(&mut self, now: Time, link: LinkId, answers: Vec<BufferAnswer>) {
        pushing!(self).buffers_prepared(now, link, answers)
    }

    /// Ends the flows of a call that brought no answer, because it is unknown what the peer has done. Other flows take
    /// their place.
    pub fn prepare_failed(&mut self, link: LinkId, asks: &[BufferAsk], why: &str) {
        pushing!(self).prepare_failed(link, asks, why)
    }
}

impl Pushing<'_> {
    /// Puts a push or a reserve into the queue of its flow.
    pub(in crate::protocol::node) fn enqueue_push(&mut self, now: Time, id: OperationId, link: LinkId) {
        let Some(op) = self.sessions.op(id) else { return };
        let (Some(meta), Some(target)) = (self.pushed_meta(op), op.target().cloned()) else { return };
        let (key, session) = (op.key.clone(), op.session);
        let require = op.require.or(self.config.require);
        let Some(l) = self.links.get(link) else { return };
        if let Some(failure) = l.unmet(require) {
            return answering!(self).fail_op(id, failure);
        }
        let tenant = self.sessions.tenant_of(session);
        if let Err(failure) = tenant.map_or(Ok(()), |tenant| access!(self).vouched(link, tenant)) {
            return answering!(self).fail_op(id, failure);
        }
        let of = (session, key);
        let flow = self.transfers.flow_of(link, &of).or_else(|| {
            let next = self.next_version(session, &(of.1.clone(), target.clone()));
            let flow = OutFlow::new(of, target, meta, next);
            self.transfers.begin_flow(link, flow)
        });
        let Some(flow) = flow else {
            let flows = self.transfers.of(link).map_or(0, |l| l.flows().len());
            let peer = self.links.peer_name(link);
            let text = format!("{flows} keys are pushed to node {peer:?} already, the limit");
            return answering!(self).fail_op(id, Failure::new(FailureCode::Busy, text));
        };
        if let Some(f) = self.transfers.flow_mut(link, flow) {
            f.enqueue(id, |id| self.sessions.op(id).is_some());
        }
        self.sessions.set_push_stage(id, PushStage::Queued(link, flow));
        self.drain_flow(now, link, flow);
    }

    /// Returns the description of the tensor that an operation pushes or prepares to push.
    fn pushed_meta(&self, op: &Op) -> Option<TensorMeta> {
        match &op.kind {
            OpKind::Fetch(_) | OpKind::TakeBack(_) | OpKind::Counter(_) => None,
            OpKind::Push(PushOp { blob, .. }) => self.keys.blob(*blob).map(|b| b.meta.clone()),
            OpKind::Reserve(ReserveOp { meta, .. }) => Some(meta.clone()),
        }
    }

    /// Serves the queue of a flow: writes while slots are free, and requests slots if it has none or too small ones.
    pub(in crate::protocol::node) fn drain_flow(&mut self, now: Time, link: LinkId, flow: OutFlowId) {
        while let Some(f) = self.transfers.flow_mut(link, flow) {
            let Some(id) = f.next() else { return };
            let Some(op) = self.sessions.op(id) else {
                // The operation ended while it was waiting.
                f.drop_first();
                continue;
            };
            let (state, capacity, has_idle, next) = (f.state, f.capacity, f.has_idle(), f.next_version);
            let number = f.next_number().max(1);
            let is_for = |to: &Name| f.target == *to;
            let (Some((to, is_same)), Some(meta)) = (op.target().map(|to| (to, is_for(to))), self.pushed_meta(op))
            else {
                return;
            };
            if !is_same {
                let to = to.clone();
                self.change_target(link, flow, to);
                continue;
            }
            if let OpKind::Push(PushOp { version: Some(version), .. }) = &op.kind
                && version.0 < next
            {
                let last = Version(next - 1);
                let text = format!("key {:?} is at {last}; {version} would not be above it", op.key);
                answering!(self).fail_op(id, Failure::new(FailureCode::VersionNotRising, text));
                continue;
            }
            if state == FlowState::New || meta.len_bytes() > capacity {
                let by_call = matches!(op.kind, OpKind::Reserve(_));
                return self.request_buffers(link, flow, meta, by_call);
            }
            match op.kind {
                OpKind::Push(PushOp { stage: PushStage::Copying(_), .. }) => return,
                OpKind::Push(PushOp { version, blob, copy, .. }) if has_idle => {
                    let version = version.unwrap_or(Version(number));
                    if let Some(failure) = too_high(&op.key, version) {
                        answering!(self).fail_op(id, failure);
                        continue;
                    }
                    if copy.is_none() && access!(self).is_unreadable(link, blob) {
                        if let Err(failure) = answering!(self).copy_for_push(id, blob, (link, flow)) {
                            answering!(self).fail_op(id, failure);
                        }
                        continue;
                    }
                    self.write_pushed(now, link, flow, id, copy.unwrap_or(blob), version, meta);
                }
                OpKind::Reserve(_) => {
                    if let Some(op) = self.sessions.finish(id) {
                        self.actions.answer(op.session, op.id, Answer::Reserved);
                    }
                }
                _ => return,
            }
        }
    }

    /// Retargets a flow to another worker of the same node. Its present slots are for the previous worker.
    fn change_target(&mut self, link: LinkId, flow: OutFlowId, to: Name) {
        self.keep_version(link, flow);
        let Some(f) = self.transfers.flow_mut(link, flow) else { return };
        f.state = FlowState::New;
        f.target = to;
        let (session, way) = (f.session, f.way());
        let next = self.next_version(session, &way);
        if let Some(f) = self.transfers.flow_mut(link, flow) {
            f.next_version = next;
        }
    }

    /// Stores a flow's next version in the session. Versions rise as long as the session lasts, even if the flow ends.
    fn keep_version(&mut self, link: LinkId, flow: OutFlowId) {
        let Some(f) = self.transfers.flow(link, flow) else { return };
        if f.next_version > 0 {
            self.sessions.keep_version(f.session, f.way(), f.next_version);
        }
    }

    /// Requests slots: with `by_call` by a call if the peer does not know the flow yet, else by message.
    fn request_buffers(&mut self, link: LinkId, flow: OutFlowId, meta: TensorMeta, by_call: bool) {
        let Some(f) = self.transfers.flow_mut(link, flow) else { return };
        let (metadata_id, is_first) = f.request(meta.clone());
        let (session, key, target) = (f.session, Name::from(f.key.clone()), f.target.clone());
        let Some((owner, tenant)) = self.sessions.get(session).map(|s| (s.name().clone(), s.tenant())) else { return };
        let tenant = self.config.tenants.name(tenant);
        if by_call && is_first {
            let [number] = sending!(self).number(link, [&key]);
            if let Some(f) = self.transfers.flow_mut(link, flow) {
                f.calling = true;
                f.name = number.id;
            }
            let ask = BufferAsk { flow: flow.short(), key: Key::from(key), meta, target, owner, tenant };
            return self.transfers.ask_by_call(link, ask);
        }
        let [key, target, owner, tenant] = sending!(self).number(link, [&key, &target, &owner, &tenant]);
        if let Some(f) = self.transfers.flow_mut(link, flow) {
            f.name = key.id;
        }
        sending!(self).send(
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
        let Some(f) = self.transfers.flow_mut(link, flow) else { return };
        let name = f.name;
        let Some((slot, metadata_id, is_new)) = f.write(version.0, &meta) else { return };
        if is_new {
            sending!(self).send(link, Role::Push, flow.short(), Body::MetaDataUpdate { version, metadata_id, meta });
        }
        let mut copy = None;
        if let Some(Op { kind: OpKind::Push(push), .. }) = self.sessions.op_mut(id) {
            (push.stage, push.posted, copy) = (PushStage::Writing, now, push.copy.take());
        }
        if let Some(context) = self.keys.blob(blob).and_then(|b| b.trace()) {
            sending!(self).send(link, Role::Push, flow.short(), Body::Trace { version, context });
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
            retention: b.retention(),
            packed: copy.is_some(),
            identity: None,
            deltas_follow: false,
            is_delta: false,
            spreads: false,
        };
        let body = b.body();
        sending!(self).post(link, Out::Write(OutWrite { blob, body, slot, header, purpose: Purpose::Push(id) }));
        // The write alone holds the copy now.
        copy.into_iter().for_each(|copy| memory!(self).release(copy));
    }

    /// Completes a push whose write is placed at the peer.
    pub(in crate::protocol::node) fn push_landed(&mut self, now: Time, link: LinkId, id: OperationId, blob: BlobId) {
        if let Some(op) = self.sessions.finish(id)
            && let OpKind::Push(PushOp { posted, blob: pushed, .. }) = op.kind
            && let (Some(l), Some(b)) = (self.links.get(link), self.keys.blob(blob))
        {
            let bytes = b.meta.len_bytes();
            let copies = l.limits().sender_copies + l.limits().receiver_copies + u32::from(pushed != blob);
            let report = Report {
                fabric: l.kind(),
                bytes,
                copied: bytes * u64::from(copies),
                verified: 0,
                relayed: 0,
                delta: 0,
                queued: posted.since(op.since),
                waited: Duration::ZERO,
                in_flight: now.since(posted),
                origin: None,
            };
            let (path, version, trace) = (l.path(), Some(b.version), b.trace());
            self.actions.answer(op.session, op.id, Answer::Pushed { version: b.version, link_rate: 0, report });
            self.links.carried_out(link, bytes);
            self.meters.finished(Operation::Push, path, &report);
            let (operation, session, key, outcome) = (Operation::Push, op.session, &op.key, Ok(report));
            replies!(self).note_ended(
                now,
                WorkersTransfer { operation, session, key, version, path, outcome, since: op.since, trace },
            );
            memory!(self).release(pushed);
        }
        memory!(self).release(blob);
    }

    /// Handles the answer to a call. A flow whose slots were called back meanwhile drops the answer, and continues with
    /// the pushes that have come since.
    pub(in crate::protocol::node) fn flow_prepared(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        answer: Result<Vec<SlotGrant>, Failure>,
    ) {
        let Some(id) = self.transfers.flow_named(link, index) else {
            // The flow's worker is gone. The peer did not know the flow when the first BUFFER_RELEASE came, so a second
            // one follows.
            return sending!(self).send(link, Role::Push, index, Body::BufferRelease);
        };
        let Some(f) = self.transfers.flow_mut(link, id) else { return };
        f.calling = false;
        match (f.state, answer) {
            (FlowState::Requested, Ok(slots)) => self.buffer_response(now, link, index, slots),
            (FlowState::Requested, Err(failure)) => self.flow_refused(link, index, &failure),
            _ => self.drain_flow(now, link, id),
        }
    }

    /// Ends a flow when it is unknown what the peer has done for it. The operations that wait in it fail.
    pub(in crate::protocol::node) fn abandon_flow(&mut self, link: LinkId, index: u32, failure: &Failure) {
        let Some(id) = self.transfers.flow_named(link, index) else {
            return sending!(self).send(link, Role::Push, index, Body::BufferRelease);
        };
        self.flow_refused(link, index, failure);
        if self.transfers.end_flow(link, id) {
            sending!(self).send(link, Role::Push, index, Body::BufferRelease);
        }
    }

    /// Handles the message BUFFER_RESPONSE, or the answer to a call: the peer has granted slots.
    pub(in crate::protocol::node) fn buffer_response(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        slots: Vec<SlotGrant>,
    ) {
        let Some(id) = self.transfers.flow_named(link, index) else { return };
        let Some(f) = self.transfers.flow_mut(link, id) else { return };
        if let Err(short) = f.grant(slots) {
            let what = format!("BUFFER_RESPONSE for flow {index:#x} that was not asked for, or too small ({short:?})");
            return sending!(self).violation(link, &what);
        }
        self.drain_flow(now, link, id);
    }

    /// Handles the message BUFFER_IDLE: the peer gives the flow one slot.
    pub(in crate::protocol::node) fn buffer_idle(&mut self, now: Time, link: LinkId, index: u32, slot: SlotGrant) {
        let Some(id) = self.transfers.flow_named(link, index) else { return };
        if self.transfers.flow_mut(link, id).is_some_and(|f| f.give_back(slot)) {
            self.drain_flow(now, link, id);
        }
    }

    /// Handles the message ERROR_STATUS for a flow: the peer grants no slots.
    pub(in crate::protocol::node) fn flow_refused(&mut self, link: LinkId, index: u32, failure: &Failure) {
        let Some(id) = self.transfers.flow_named(link, index) else { return };
        let Some(f) = self.transfers.flow_mut(link, id) else { return };
        let (queue, session, target) = (f.refuse(), f.session, f.target.clone());
        if failure.code == FailureCode::UnknownWorker {
            memory!(self).forget_node_of_worker(session, &target);
        }
        for op in queue {
            answering!(self).fail_op(op, failure.clone());
        }
    }

    /// Handles the message BUFFER_RECALL. The answer goes behind the writes that came before it. Later pushes request
    /// slots again.
    pub(in crate::protocol::node) fn buffer_recall(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        why: Recall,
        round: u32,
    ) {
        let id = self.transfers.flow_named(link, index);
        if let (Some(id), Recall::Ends) = (id, why) {
            let found = self.transfers.flow(link, id).map(|f| (f.session, f.target.clone()));
            if let Some((session, target)) = found {
                memory!(self).forget_node_of_worker(session, &target);
                let text = format!("worker {target:?} is gone");
                self.flow_refused(link, index, &Failure::new(FailureCode::UnknownWorker, text));
            }
        }
        if let (Some(f), Recall::Room) = (id.and_then(|id| self.transfers.flow_mut(link, id)), why) {
            f.recall();
        }
        sending!(self).send(link, Role::Push, index, Body::Recalled { why, round });
        if let (Some(id), Recall::Room) = (id, why) {
            self.drain_flow(now, link, id);
        }
    }

    /// Ends the flows of a worker that is gone or has lost its name. BUFFER_RELEASE goes behind what was posted before.
    pub(in crate::protocol::node) fn flows_out_abandoned(&mut self, session: SessionId) {
        for (link, id) in self.transfers.flows_of(session) {
            self.transfers.end_flow(link, id);
            // A flow without slots sends this, too, because the peer may still have versions that have landed. A peer
            // that does not know the flow has nothing to release.
            sending!(self).send(link, Role::Push, id.short(), Body::BufferRelease);
        }
    }

    pub(in crate::protocol::node) fn flow_out_lost(&mut self, flow: &OutFlow, failure: &Failure) {
        // The target may be at another node when it is looked up again.
        memory!(self).forget_node_of_worker(flow.session, &flow.target);
        self.sessions.keep_version(flow.session, flow.way(), flow.next_number());
        for op in flow.queue() {
            let text = format!("while key {:?} was being pushed to {:?}, {}", flow.key, flow.target, failure.text);
            answering!(self).fail_op(*op, Failure::new(failure.code, text));
        }
    }

    /// Returns the lowest version that a worker may push next for a key and target at another node.
    fn next_version(&self, session: SessionId, way: &(Key, Name)) -> u64 {
        let kept = self.sessions.get(session).map_or(0, |s| s.next_version(way));
        kept.max(self.endings.next_version(session, way))
    }
}

impl Pushing<'_> {
    /// Handles a peer's answer to a call.
    fn buffers_prepared(&mut self, now: Time, link: LinkId, answers: Vec<BufferAnswer>) {
        if self.links.get(link).is_none() {
            return;
        }
        for (flow, answer) in answers {
            self.flow_prepared(now, link, flow, answer);
        }
    }

    /// Ends the flows of a call that brought no answer, because it is unknown what the peer has done. Other flows take
    /// their place.
    fn prepare_failed(&mut self, link: LinkId, asks: &[BufferAsk], why: &str) {
        for ask in asks {
            let text = format!("landing slots for key {:?} could not be asked for: {why}", ask.key);
            self.abandon_flow(link, ask.flow, &Failure::new(FailureCode::PeerUnreachable, text));
        }
    }
}
