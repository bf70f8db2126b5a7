//! Reads what workers write in front of the bodies of their pushes: the tables of bodies that lie in several ranges of an
//! arena, and the tables of bundles. Also reads the labels of exchanges. All is copied out before it is checked, so that the worker cannot change it
//! meanwhile. Long tables are read over several rounds (`long_tables`).

use super::long_tables::{ENTRIES, LongRead, copy_out, is_long};
use super::memory::Memory;
use std::collections::VecDeque;
use std::sync::Arc;
use transfer_core::drive::Driver;
use transfer_core::exchange::{self, Label};
use transfer_core::memory::LocalSlice;
use transfer_core::op::{OpId, Push};
use transfer_core::protocol::{PushRead, SessionId};
use transfer_core::time::Time;
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::ranges::{ArenaRange, read_ranges};
use transfer_memory::segment::Segment;

/// Buffers for one push, reused for the next.
#[derive(Default)]
pub(super) struct Tables {
    bytes: Vec<u8>,
    ranges: Vec<ArenaRange>,
    /// The pushes with long tables, at most one of each session. The first one is being read.
    long: VecDeque<LongRead>,
}

impl Tables {
    /// Whether there is something to read for a push.
    pub(super) fn concern(push: &Push) -> bool {
        push.ranges > 0 || push.meta.metadata_bytes() > 0 || push.key.as_str().starts_with(exchange::PREFIX)
    }

    /// Passes a push to the node, with the ranges of its table, the error of its table of a bundle, and its label. The number
    /// of ranges was checked when the record was read. If a table does not lie within the arena, it is not read, and the
    /// node reports the error.
    ///
    /// Returns `false` for a push with long tables: [`step`](Tables::step) passes it to the node later. Until then the caller
    /// takes no request of that session, so that its requests keep their order.
    #[must_use]
    pub(super) fn push(
        &mut self,
        driver: &mut Driver<Arc<Segment>>,
        now: Time,
        session: SessionId,
        (op, push): (OpId, Push),
        memory: &Memory,
    ) -> bool {
        let (table, metadata) = (driver.node.table_of(session, &push), driver.node.metadata_of(session, &push));
        let head = metadata.map(|metadata| LocalSlice { len: metadata.len.min(BundleTable::START_BYTES), ..metadata });
        let bundle = metadata.filter(|_| head.is_some_and(|head| self.copy_out(head, memory)));
        let bundle = bundle.filter(|_| BundleTable::is_bundle(&self.bytes));
        let mut is_long = is_long(&push, bundle);
        let body_len = push.meta.len_bytes() - push.meta.body_offset();
        let mut error = None;
        if let Some(bundle) = bundle
            && !is_long
            && self.copy_out(bundle, memory)
        {
            // By the copy that is checked: the worker may write another number meanwhile.
            is_long = BundleTable::tensors_in(&self.bytes) > ENTRIES;
            error = if is_long { None } else { BundleTable::check(&self.bytes, body_len).err() };
        }
        if is_long {
            self.long.push_back(LongRead::new(session, (op, push), table, bundle));
            return false;
        }
        self.ranges.clear();
        if let Some(table) = table
            && self.copy_out(table, memory)
        {
            self.ranges.extend(read_ranges(&self.bytes));
        }
        let label = driver.node.label_of(session, &push).filter(|label| self.copy_out(*label, memory));
        let label = label.and_then(|_| Label::read(&self.bytes));
        let read = PushRead { ranges: &self.ranges, error, label };
        driver.node.push_read(now, session, op, push, read);
        true
    }

    /// Whether no push is being read.
    pub(super) fn is_idle(&self) -> bool {
        self.long.is_empty()
    }

    /// Reads a piece of the first push with long tables, and passes it to the node once all of it is read. Returns its
    /// session then.
    pub(super) fn step(&mut self, driver: &mut Driver<Arc<Segment>>, now: Time, memory: &Memory) -> Option<SessionId> {
        let is_read = self.long.front_mut()?.step(memory);
        let LongRead { session, op, push, ranges, error, .. } = self.long.pop_front_if(|_| is_read)?;
        driver.node.push_read(now, session, op, push, PushRead { ranges: &ranges, error, label: None });
        Some(session)
    }

    /// Drops the push of a session that is over.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.long.retain(|read| read.session != session);
    }

    /// Copies a range of an arena into `bytes`. Returns `false` if it does not lie within the arena.
    fn copy_out(&mut self, slice: LocalSlice, memory: &Memory) -> bool {
        self.bytes.resize(usize::try_from(slice.len).unwrap_or(0), 0);
        copy_out(slice, &mut self.bytes, memory)
    }
}
