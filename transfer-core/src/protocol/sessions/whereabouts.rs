//! The nodes of workers elsewhere.

use super::Sessions;
use crate::protocol::ids::OperationId;
use crate::protocol::tenant::Tenant;
use crate::tensor::Name;
use hashbrown::HashMap;

/// The nodes of workers elsewhere, as the directory gave them to each tenant, and the operations that wait for its
/// answer. Workers of two tenants may have one name.
#[derive(Default)]
pub(super) struct Whereabouts {
    nodes: HashMap<(Tenant, Name), Name>,
    waiting: HashMap<(Tenant, Name), Vec<OperationId>>,
}

impl Sessions {
    /// Returns the node of a worker elsewhere, if it is remembered.
    pub(crate) fn node_of(&self, tenant: Tenant, worker: &Name) -> Option<&Name> {
        self.elsewhere.nodes.get(&(tenant, worker.clone()))
    }

    /// Forgets the node of a worker, because the worker was not found there.
    pub(crate) fn forget_node_of(&mut self, tenant: Tenant, worker: &Name) {
        self.elsewhere.nodes.remove(&(tenant, worker.clone()));
    }

    /// Adds an operation that waits for the directory to locate a worker. Returns whether it is the first one, for
    /// which the directory must be asked.
    pub(crate) fn wait_for_node_of(&mut self, tenant: Tenant, worker: &Name, id: OperationId) -> bool {
        let waiting = self.elsewhere.waiting.entry((tenant, worker.clone())).or_default();
        waiting.push(id);
        waiting.len() == 1
    }

    /// Handles the directory's answer about a worker. `node` is remembered. Returns the operations that waited for it.
    pub(crate) fn located(&mut self, tenant: Tenant, worker: &Name, node: Option<&Name>) -> Vec<OperationId> {
        if let Some(node) = node {
            self.elsewhere.nodes.insert((tenant, worker.clone()), node.clone());
        }
        self.elsewhere.waiting.remove(&(tenant, worker.clone())).unwrap_or_default()
    }
}
