//! Finding the node of a worker, and the link to a node.

use super::Node;
use crate::fabric::LinkId;
use crate::op::{Answer, Failure, FailureCode, OpId, Prepare};
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::ids::OperationId;
use crate::protocol::ids::SessionId;
use crate::protocol::sessions::{FetchStage, Op, OpKind, PushStage};
use crate::tensor::Name;
use crate::time::Time;

impl Node {
    /// Returns the link to a node. If there is none, the operation waits and a link is requested.
    pub(super) fn connect_for(&mut self, id: OperationId, node: &Name) -> Option<LinkId> {
        self.links.connect(id, node, &mut self.actions)
    }

    pub(super) fn go_on_with_link(&mut self, now: Time, id: OperationId, link: LinkId) {
        match self.sessions.op(id).map(|op| &op.kind) {
            Some(OpKind::Fetch { stage: FetchStage::Connecting(_), .. }) => self.start_pull(now, id, link),
            Some(
                OpKind::Push { stage: PushStage::Connecting(_), .. }
                | OpKind::Prepare { stage: PushStage::Connecting(_), .. },
            ) => self.enqueue_push(now, id, link),
            Some(OpKind::Counter) => self.count(now, |counters| counters.connected(now, id, link)),
            _ => {}
        }
    }

    /// Starts a push or a prepare for a worker at another sidecar.
    pub(super) fn push_there(&mut self, now: Time, op: Op) {
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

    pub(super) fn push_to_node(&mut self, now: Time, id: OperationId, node: &Name) {
        if *node == self.config.name {
            let Some(to) = self.sessions.op(id).and_then(Op::target) else { return };
            if self.sessions.named(to).is_none() {
                let text = format!("worker {to:?} has just left node {node:?}");
                return self.fail_op(id, Failure::new(FailureCode::UnknownWorker, text));
            }
            // The target has connected to this node meanwhile, so its tenant can be checked now.
            let may = self.sessions.op(id).map_or(Ok(()), |op| self.may_push(op.session, &op.key, op.target()));
            if let Err(failure) = may {
                return self.fail_op(id, failure);
            }
            if let Some(op) = self.sessions.finish(id) {
                match op.kind {
                    OpKind::Prepare { .. } => self.actions.answer(op.session, op.id, Answer::Prepared),
                    _ => self.push_here(now, op),
                }
            }
            return;
        }
        match self.connect_for(id, node) {
            Some(link) => self.enqueue_push(now, id, link),
            None => self.sessions.set_push_stage(id, PushStage::Connecting(node.clone())),
        }
    }

    /// Forgets where an operation's key or target is, because that node cannot be reached. Later it may be elsewhere.
    pub(super) fn forget_node_of(&mut self, id: OperationId) {
        let Some(op) = self.sessions.op(id) else { return };
        if op.key.reserved_for().is_some() {
            return self.counters.forget_home_of(&op.key);
        }
        match op.target() {
            Some(to) => {
                let (session, to) = (op.session, to.clone());
                self.forget_node_of_worker(session, &to);
            }
            None => drop(self.keys.forget_location(&op.key)),
        }
    }

    /// Forgets where the target of a session's push is.
    pub(super) fn forget_node_of_worker(&mut self, session: SessionId, to: &Name) {
        if let Some(tenant) = self.sessions.tenant_of(session) {
            self.sessions.forget_node_of(tenant, to);
        }
    }

    /// Handles a worker's request for landing slots before the first push needs them.
    pub(super) fn prepare(&mut self, now: Time, session: SessionId, op: OpId, prepare: Prepare) {
        if let Some(failure) = self.is_busy(session).or_else(|| self.no_name(session, &prepare.key)) {
            return self.refuse(session, op, failure);
        }
        if let Err(failure) = self.may_push(session, &prepare.key, Some(&prepare.to)) {
            return self.refuse(session, op, failure);
        }
        if self.sessions.named(&prepare.to).is_some() {
            // The target is at this node and gets the tensor by reference, without slots.
            return self.actions.answer(session, op, Answer::Prepared);
        }
        let Prepare { key, meta, to, timeout } = prepare;
        let kind = OpKind::Prepare { to, meta, stage: PushStage::Claiming };
        let op = Op { session, id: op, key, since: now, deadline: now + timeout, require: None, kind };
        self.push_there(now, op);
    }

    /// Handles the directory's answer to a tenant about where a worker is.
    pub(in crate::protocol) fn worker_located(
        &mut self,
        now: Time,
        (worker, tenant): (&Name, &Name),
        node: Option<&Name>,
    ) {
        if *worker == self.config.name {
            self.parents_answered(now);
        }
        let Some(tenant) = self.config.tenants.called(tenant.as_str()) else { return };
        for id in self.sessions.located(tenant, worker, node.filter(|node| **node != self.config.name)) {
            match node {
                Some(node) => self.push_to_node(now, id, node),
                None => {
                    let text = format!("no worker of the name {worker:?} is connected to any sidecar");
                    self.fail_op(id, Failure::new(FailureCode::UnknownWorker, text));
                }
            }
        }
    }
}
