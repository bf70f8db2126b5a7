//! Finding the node of a worker, and the link to a node.

use crate::op::{Answer, Failure, FailureCode, OpId, Reserve};
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::ids::{OperationId, SessionId};
use crate::protocol::node::flows::Pushing;
use crate::protocol::sessions::{Op, OpKind, PushStage, ReserveOp};
use crate::tensor::Name;
use crate::time::Time;

impl Pushing<'_> {
    /// Starts a push or a reserve for a worker at another sidecar.
    pub(in crate::protocol::node) fn push_there(&mut self, now: Time, op: Op) {
        let Some((to, tenant)) = op.target().cloned().zip(self.sessions.tenant_of(op.session)) else { return };
        let id = self.sessions.begin(op);
        match self.sessions.node_of(tenant, &to).cloned() {
            Some(node) => self.push_to_node(now, id, &node),
            None => {
                self.sessions.set_push_stage(id, PushStage::Locating(to.clone()));
                if self.sessions.wait_for_node_of(tenant, &to, id) {
                    let tenant = self.config.tenants.name(tenant);
                    self.actions.ask_directory(DirectoryRequest::ResolveWorker { worker: to, tenant });
                }
            }
        }
    }

    pub(in crate::protocol::node) fn push_to_node(&mut self, now: Time, id: OperationId, node: &Name) {
        if *node == self.config.name {
            let Some(to) = self.sessions.op(id).and_then(Op::target) else { return };
            if self.sessions.named(to).is_none() {
                let text = format!("worker {to:?} has just left node {node:?}");
                return answering!(self).fail_op(id, Failure::new(FailureCode::UnknownWorker, text));
            }
            // The target has connected to this node meanwhile, so its tenant can be checked now.
            let may =
                self.sessions.op(id).map_or(Ok(()), |op| access!(self).may_push(op.session, &op.key, op.target()));
            if let Err(failure) = may {
                return answering!(self).fail_op(id, failure);
            }
            if let Some(op) = self.sessions.finish(id) {
                match op.kind {
                    OpKind::Reserve(_) => self.actions.answer(op.session, op.id, Answer::Reserved),
                    _ => self.push_here(now, op),
                }
            }
            return;
        }
        match sending!(self).connect_for(id, node) {
            Some(link) => self.enqueue_push(now, id, link),
            None => self.sessions.set_push_stage(id, PushStage::Connecting(node.clone())),
        }
    }

    /// Handles a worker's request for landing slots before the first push needs them.
    pub(in crate::protocol::node) fn reserve(&mut self, now: Time, session: SessionId, op: OpId, reserve: Reserve) {
        if let Some(failure) = access!(self).is_busy(session).or_else(|| access!(self).no_name(session, &reserve.key)) {
            return replies!(self).refuse(session, op, failure);
        }
        if let Err(failure) = access!(self).may_push(session, &reserve.key, Some(&reserve.to)) {
            return replies!(self).refuse(session, op, failure);
        }
        if self.sessions.named(&reserve.to).is_some() {
            // The target is at this node and gets the tensor by reference, without slots.
            return self.actions.answer(session, op, Answer::Reserved);
        }
        let Reserve { key, meta, to, timeout } = reserve;
        let kind = OpKind::Reserve(ReserveOp { to, meta, stage: PushStage::Claiming });
        let op = Op { session, id: op, key, since: now, deadline: now + timeout, require: None, kind };
        self.push_there(now, op);
    }
}
