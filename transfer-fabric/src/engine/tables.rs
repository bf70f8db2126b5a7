//! Reads what workers write in front of the bodies of their pushes: the tables of bodies that lie in several ranges of an
//! arena, and the tables of bundles. Also reads the labels of exchanges. All is copied out before it is checked, so that the worker cannot change it
//! meanwhile.

use super::memory::Memory;
use std::sync::Arc;
use transfer_core::drive::Driver;
use transfer_core::exchange::{self, Label};
use transfer_core::memory::LocalSlice;
use transfer_core::op::{OpId, Push};
use transfer_core::protocol::{PushRead, SessionId};
use transfer_core::time::Time;
use transfer_core::wire::bundle::{BundleTable, InvalidBundle};
use transfer_core::wire::ranges::{ArenaRange, read_ranges};
use transfer_memory::segment::Segment;

/// Buffers for one push, reused for the next.
#[derive(Default)]
pub(super) struct Tables {
    bytes: Vec<u8>,
    ranges: Vec<ArenaRange>,
}

impl Tables {
    /// Whether there is something to read for a push.
    pub(super) fn concern(push: &Push) -> bool {
        push.ranges > 0 || push.meta.metadata_bytes() > 0 || push.key.as_str().starts_with(exchange::PREFIX)
    }

    /// Passes a push to the node, with the ranges of its table, the error of its table of a bundle, and its label. The number
    /// of ranges was checked when the record was read. If a table does not lie within the arena, it is not read, and the
    /// node reports the error.
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
            && self.copy_out(table, memory)
        {
            self.ranges.extend(read_ranges(&self.bytes));
        }
        let body_len = push.meta.len_bytes() - push.meta.body_offset();
        let metadata = driver.node.metadata_of(session, &push);
        let error = metadata.and_then(|metadata| self.check_bundle(metadata, body_len, memory).err());
        let label = driver.node.label_of(session, &push).filter(|label| self.copy_out(*label, memory));
        let label = label.and_then(|_| Label::read(&self.bytes));
        let read = PushRead { ranges: &self.ranges, error, label };
        driver.node.push_read(now, session, op, push, read);
    }

    /// Checks the table of a bundle. Other metadata is the readers' concern.
    fn check_bundle(&mut self, metadata: LocalSlice, body_len: u64, memory: &Memory) -> Result<(), InvalidBundle> {
        let start = LocalSlice { len: metadata.len.min(BundleTable::START_BYTES), ..metadata };
        let is_bundle = self.copy_out(start, memory) && BundleTable::is_bundle(&self.bytes);
        match is_bundle && self.copy_out(metadata, memory) {
            true => BundleTable::check(&self.bytes, body_len),
            false => Ok(()),
        }
    }

    /// Copies a range of an arena into `bytes`. Returns `false` if it does not lie within the arena.
    fn copy_out(&mut self, slice: LocalSlice, memory: &Memory) -> bool {
        let Some(arena) = memory.get(slice.segment) else { return false };
        self.bytes.resize(usize::try_from(slice.len).unwrap_or(0), 0);
        arena.mapping().copy_out(slice.offset, &mut self.bytes).is_ok()
    }
}
