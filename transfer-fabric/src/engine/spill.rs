//! Versions that are written to disk and read back: between the state machine and the thread for the disk.

use super::run::Run;
use crate::disk::{Done, MemoryRange};
use transfer_core::memory::LocalSlice;
use transfer_core::protocol::{SpillId, Tenant};
use transfer_core::tensor::Packing;
use transfer_core::time::Time;

impl Run {
    pub(super) fn write_to_disk(&mut self, now: Time, id: SpillId, tenant: Tenant, from: &[LocalSlice], len: u64) {
        let places: Option<Vec<_>> = from.iter().map(|slice| self.place(*slice)).collect();
        match (&self.disk, places) {
            (Some(disk), Some(places)) => disk.write(id, tenant, places, len),
            // The state machine names segments that exist, and asks for nothing without a disk.
            _ => self.driver.node.spill_written(now, id, false),
        }
    }

    pub(super) fn read_from_disk(&mut self, now: Time, id: SpillId, packing: Packing, to: LocalSlice, tag: u64) {
        match (&self.disk, self.place(to)) {
            (Some(disk), Some(to)) => disk.read(id, packing, to, tag),
            _ => self.driver.node.spill_read(now, tag, Err("there is no disk")),
        }
    }

    pub(super) fn place(&self, slice: LocalSlice) -> Option<MemoryRange> {
        let segment = self.memory.get(slice.segment)?.clone();
        Some(MemoryRange { segment, offset: slice.offset, len: slice.len })
    }

    /// Takes what the disk has done. Returns whether there was anything.
    pub(super) fn disk_done(&mut self, now: Time) -> bool {
        let mut active = false;
        while let Some(done) = self.disk.as_ref().and_then(|disk| disk.done()) {
            active = true;
            match done {
                Done::Written(id, result) => {
                    if let Err(why) = &result {
                        tracing::warn!(why, "a version is not written to disk, and stays in memory");
                    }
                    self.driver.node.spill_written(now, id, result.is_ok());
                }
                Done::Read(tag, result) => {
                    if let Err(why) = &result {
                        tracing::error!(why, "a version on disk is lost");
                    }
                    self.driver.node.spill_read(now, tag, result.as_ref().copied().map_err(String::as_str));
                }
            }
        }
        active
    }
}
