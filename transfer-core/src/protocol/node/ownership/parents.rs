//! Versions that stay with the parent of their key: what follows the end of a worker, and of a parent. The state machine
//! is in `protocol/parents`.

use super::endings::Ending;
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::keys::Owner;
use crate::protocol::node::flows::Ownership;
use crate::tensor::Key;
use crate::time::Time;

impl Ownership<'_> {
    /// Looks whether the parents of such keys are still there.
    pub(in crate::protocol::node) fn look_for_parents(&mut self, now: Time) {
        let keys = &*self.keys;
        // A claim may still be refused, and gives the key back to the worker that has left.
        let stays = |key: &Key| matches!(keys.owner(key), Some(Owner::Outlived(_) | Owner::Claiming(_)));
        let is_here = |key: &Key| !matches!(keys.owner(key), None | Some(Owner::Nobody));
        let asked = self.parents.look(now, stays, is_here);
        if asked.is_empty() {
            return;
        }
        for key in asked {
            self.actions.ask_directory(DirectoryRequest::Resolve { key, newer_than: 0 });
        }
        // The directory answers in order, and it always answers this. Any name would do.
        let worker = self.config.name.clone();
        self.actions.ask_directory(DirectoryRequest::ResolveWorker { tenant: worker.clone(), worker });
    }

    /// Handles the directory's answer to the question behind those for parents.
    pub(in crate::protocol::node) fn parents_answered(&mut self, now: Time) {
        let (absent, gone) = self.parents.answered();
        for key in absent {
            let resolving = self.keys.find(&key).is_some_and(|id| self.keys.is_resolving(id));
            if !resolving {
                self.actions.ask_directory(DirectoryRequest::StopResolve { key });
            }
        }
        self.end(now, Ending::Orphans(gone));
    }
}
