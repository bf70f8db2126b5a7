//! A disk without latency: the versions that a node has written.

use super::SimMemory;
use crate::memory::LocalSlice;
use crate::protocol::SpillId;
use crate::tensor::Packing;
use std::collections::BTreeMap;

/// The disk of a node.
#[derive(Debug, Default)]
pub struct SimDisk(BTreeMap<SpillId, Vec<u8>>);

impl SimDisk {
    /// Writes ranges, back to back. Returns whether they are registered, and the number is new.
    pub fn write(&mut self, memory: &SimMemory, id: SpillId, from: &[LocalSlice]) -> bool {
        let all: Option<Vec<_>> = from.iter().map(|slice| memory.read(*slice)).collect();
        all.is_some_and(|all| self.0.insert(id, all.concat()).is_none())
    }

    /// Packs what lies in a version into memory. Returns whether both are there.
    pub fn read(&self, memory: &SimMemory, id: SpillId, packing: Packing, to: LocalSlice) -> bool {
        self.0.get(&id).is_some_and(|bytes| memory.pack_bytes(bytes, packing, to))
    }

    /// Frees a version. Returns whether it was there.
    pub fn free(&mut self, id: SpillId) -> bool {
        self.0.remove(&id).is_some()
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
