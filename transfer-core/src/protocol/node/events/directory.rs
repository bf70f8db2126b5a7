//! What the directory tells the node.

use crate::op::{Failure, FailureCode};
use crate::protocol::directory::DirectoryNews;
use crate::protocol::node::Node;
use crate::protocol::node::flows::Ownership;
use crate::tensor::Name;
use crate::time::Time;

impl Node {
    /// Handles news of the directory.
    pub fn directory_news(&mut self, now: Time, news: DirectoryNews) {
        match news {
            DirectoryNews::Attached => ownership!(self).claim_all(),
            DirectoryNews::Claimed { key, result } => ownership!(self).claimed(now, &key, result),
            DirectoryNews::KeyLost { key, owner } => ownership!(self).key_lost(now, &key, &owner),
            DirectoryNews::Located { key, node, sequence } => fetching!(self).located(now, &key, &node, sequence),
            DirectoryNews::WorkerLocated { worker, tenant, node } => {
                ownership!(self).worker_located(now, (&worker, &tenant), node.as_ref());
                if let Some(tenant) = self.config.tenants.called(tenant.as_str()) {
                    counting!(self).count(now, |counters| counters.located(tenant, &worker, node.as_ref()));
                }
            }
        }
    }
}

impl Ownership<'_> {
    /// Handles the directory's answer to a tenant about where a worker is.
    pub(in crate::protocol::node) fn worker_located(
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
                Some(node) => pushing!(self).push_to_node(now, id, node),
                None => {
                    let text = format!("no worker of the name {worker:?} is connected to any sidecar");
                    answering!(self).fail_op(id, Failure::new(FailureCode::UnknownWorker, text));
                }
            }
        }
    }
}
