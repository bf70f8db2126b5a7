//! A disk without latency: the versions that a node has written.

use super::SimMemory;
use crate::memory::LocalSlice;
use crate::protocol::SpillId;
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

    /// Reads ranges of a version into memory, back to back. Returns whether both are there.
    pub fn read(&self, memory: &SimMemory, id: SpillId, from: &[LocalSlice], to: LocalSlice) -> bool {
        let Some(bytes) = self.0.get(&id) else { return false };
        let range = |slice: &LocalSlice| bytes.get(slice.offset as usize..(slice.offset + slice.len) as usize);
        let all: Option<Vec<_>> = from.iter().map(range).collect();
        all.is_some_and(|all| memory.write(to, &all.concat()))
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
