//! The nodes of workers elsewhere.

use super::Sessions;
use crate::protocol::ids::OperationId;
use crate::tensor::Name;
use hashbrown::HashMap;

/// Where workers elsewhere are, as the directory said, and who waits for its answer.
#[derive(Default)]
pub(super) struct Whereabouts {
    nodes: HashMap<Name, Name>,
    waiting: HashMap<Name, Vec<OperationId>>,
}

impl Sessions {
    /// The node of a worker elsewhere, as far as it is remembered.
    pub(crate) fn node_of(&self, worker: &Name) -> Option<&Name> {
        self.elsewhere.nodes.get(worker)
    }

    /// A worker has not been found where it was said to be.
    pub(crate) fn forget_node_of(&mut self, worker: &Name) {
        self.elsewhere.nodes.remove(worker);
    }

    /// An operation waits for the directory to say where a worker is. Whether it is the first, and the directory has to be asked.
    pub(crate) fn wait_for_node_of(&mut self, worker: &Name, id: OperationId) -> bool {
        let waiting = self.elsewhere.waiting.entry(worker.clone()).or_default();
        waiting.push(id);
        waiting.len() == 1
    }

    /// The directory said where a worker is; `node` is remembered. Returns the operations that waited for that.
    pub(crate) fn located(&mut self, worker: &Name, node: Option<&Name>) -> Vec<OperationId> {
        if let Some(node) = node {
            self.elsewhere.nodes.insert(worker.clone(), node.clone());
        }
        self.elsewhere.waiting.remove(worker).unwrap_or_default()
    }
}
