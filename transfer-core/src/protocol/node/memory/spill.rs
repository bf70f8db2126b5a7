//! Versions on disk: which are written, and what follows. The state machine is in `protocol/spill`; `copies` reads them
//! back.
//!
//! The version keeps its key and its number. A write makes a second blob, which lies on disk, and puts it in the place of
//! the first one. So readers of the memory keep it, and it goes back to its worker as soon as the last one is done, as
//! with a version that was replaced.

use crate::memory::{LocalSlice, SegmentId};
use crate::protocol::action::HostAction;
use crate::protocol::ids::{BlobId, SessionId};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::node::Node;
use crate::protocol::node::flows::Memory;
use crate::protocol::spill::{SpillId, Writing};
use crate::tensor::{Key, Spill};
use crate::time::Time;

/// Shorter versions stay in memory.
const MIN_SPILL_BYTES: u64 = 1 << 16;

impl Node {
    /// Handles the answer to [`HostAction::SpillWrite`]: the version is written. `false`: it could not be, and nothing
    /// of it is on disk.
    pub fn spill_written(&mut self, now: Time, id: SpillId, well: bool) {
        self.common.latest = now;
        memory!(self).spill_written(now, id, well);
    }
}

impl Memory<'_> {
    /// Notes a version that a worker has just published.
    pub(in crate::protocol::node) fn may_be_spilled(&mut self, session: SessionId, key: &Key, blob: BlobId) {
        let Some(b) = self.keys.blob(blob) else { return };
        let (spill, len) = (b.retention().spill, b.meta.len_bytes());
        if spill == Spill::Never
            || b.counts_fetches()
            || self.keys.is_announced(blob)
            || len < MIN_SPILL_BYTES && spill == Spill::Allowed
        {
            return;
        }
        if let (Source::Arena(_), Some(s)) = (&b.source, self.sessions.get(session)) {
            self.spills.came(s.arena(), b.domain, (key.clone(), blob), len, spill == Spill::Now);
        }
    }

    /// Asks the host to write versions, if memory is short.
    pub(in crate::protocol::node) fn spill(&mut self) {
        while self.spills.is_due() {
            let keys = &*self.keys;
            // The publication alone holds it.
            let is_cold = |blob| keys.blob(blob).is_some_and(|b| b.holders() == 1);
            let Some(Writing { id, blob, tenant, len, .. }) = self.spills.next(is_cold) else { return };
            if let Some(from) = self.keys.hold(blob).map(Blob::body) {
                self.actions.push(HostAction::SpillWrite { id, tenant, from, len });
            }
        }
    }

    /// Handles the answer to [`HostAction::SpillWrite`]: the version is written. `false`: it could not be, and nothing
    /// of it is on disk.
    fn spill_written(&mut self, now: Time, id: SpillId, well: bool) {
        let Some(Writing { blob, key, .. }) = self.spills.written(now, id, well) else { return };
        if well {
            match self.spilled(&key, blob, id) {
                true => {
                    self.exchanges.spilled(blob, id);
                    self.release(blob);
                }
                // It has ended meanwhile, or is being taken back.
                false => self.forget_spilled(id),
            }
        }
        self.release(blob);
    }

    /// Puts a version on disk in the place of the one in memory. Returns `false` if that is not published any more.
    fn spilled(&mut self, key: &Key, blob: BlobId, id: SpillId) -> bool {
        let Some(b) = self.keys.blob(blob) else { return false };
        let slice = LocalSlice { segment: SegmentId::DISK, offset: 0, len: b.meta.len_bytes() };
        let spilled = b.moved_to(slice, Source::Disk(id));
        self.keys.move_to(key, blob, spilled, self.actions)
    }
}
