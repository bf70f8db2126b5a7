//! The nodes of workers elsewhere.

use super::Sessions;
use crate::protocol::ids::OperationId;
use crate::tensor::Name;
use hashbrown::HashMap;

/// The nodes of workers elsewhere, as the directory gave them, and the operations that wait for its answer.
#[derive(Default)]
pub(super) struct Whereabouts {
    nodes: HashMap<Name, Name>,
    waiting: HashMap<Name, Vec<OperationId>>,
}

impl Sessions {
    /// Returns the node of a worker elsewhere, if it is remembered.
    pub(crate) fn node_of(&self, worker: &Name) -> Option<&Name> {
        self.elsewhere.nodes.get(worker)
    }

    /// Forgets the node of a worker, because the worker was not found there.
    pub(crate) fn forget_node_of(&mut self, worker: &Name) {
        self.elsewhere.nodes.remove(worker);
    }

    /// Adds an operation that waits for the directory to locate a worker. Returns whether it is the first one, for
    /// which the directory must be asked.
    pub(crate) fn wait_for_node_of(&mut self, worker: &Name, id: OperationId) -> bool {
        let waiting = self.elsewhere.waiting.entry(worker.clone()).or_default();
        waiting.push(id);
        waiting.len() == 1
    }

    /// Handles the directory's answer about a worker. `node` is remembered. Returns the operations that waited for it.
    pub(crate) fn located(&mut self, worker: &Name, node: Option<&Name>) -> Vec<OperationId> {
        if let Some(node) = node {
            self.elsewhere.nodes.insert(worker.clone(), node.clone());
        }
        self.elsewhere.waiting.remove(worker).unwrap_or_default()
    }
}
