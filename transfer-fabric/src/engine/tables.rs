//! Reads the tables of pushes whose body lies in several ranges of an arena. A table is copied out before it is
//! checked.

use super::memory::Memory;
use std::sync::Arc;
use transfer_core::drive::Driver;
use transfer_core::op::{OpId, Push};
use transfer_core::protocol::SessionId;
use transfer_core::time::Time;
use transfer_core::wire::ranges::{ArenaRange, read_ranges};
use transfer_memory::segment::Segment;

/// Buffers for one table, reused for the next.
#[derive(Default)]
pub(super) struct Tables {
    bytes: Vec<u8>,
    ranges: Vec<ArenaRange>,
}

impl Tables {
    /// Passes a push to the node, with the ranges of its table. The number of ranges was checked when the record was
    /// read. If the table does not lie within the arena, no ranges are read, and the node reports the error.
    pub(super) fn push(
        &mut self,
        driver: &mut Driver<Arc<Segment>>,
        now: Time,
        session: SessionId,
        (op, push): (OpId, Push),
        memory: &Memory,
    ) {
        self.ranges.clear();
        if let Some(table) = driver.node.table_of(session, &push)
            && let Some(arena) = memory.get(table.segment)
        {
            self.bytes.resize(usize::try_from(table.len).unwrap_or(0), 0);
            // Copied out, so that the worker cannot change the bytes after they were checked.
            if arena.mapping().copy_out(table.offset, &mut self.bytes).is_ok() {
                self.ranges.extend(read_ranges(&self.bytes));
            }
        }
        driver.node.push_ranges(now, session, op, push, &self.ranges);
    }
}
