//! The segments by number, and the landing headers in them.

use super::listing::SegmentRole;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::drive::{HeaderBytes, HeaderMemory};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_memory::segment::Segment;

#[derive(Default)]
pub(super) struct Memory {
    segments: HashMap<SegmentId, Arc<Segment>>,
    /// Their roles, in the order of their numbers; used only for lists.
    roles: BTreeMap<SegmentId, SegmentRole>,
}

impl Memory {
    pub(super) fn insert(&mut self, id: SegmentId, segment: Arc<Segment>, role: SegmentRole) {
        self.segments.insert(id, segment);
        self.roles.insert(id, role);
    }

    pub(super) fn remove(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        self.roles.remove(&id);
        self.segments.remove(&id)
    }

    pub(super) fn roles(&self) -> &BTreeMap<SegmentId, SegmentRole> {
        &self.roles
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.segments.get(&id)
    }
}

impl HeaderMemory for Memory {
    fn read_header(&self, slice: LocalSlice) -> Option<HeaderBytes> {
        let mut bytes = HeaderBytes::from([0; 64]);
        // Copied out, so that the peer cannot change the bytes after they were checked.
        self.segments.get(&slice.segment)?.mapping().copy_out(slice.offset, &mut bytes).ok()?;
        Some(bytes)
    }

    fn write_header(&mut self, slice: LocalSlice, header: &HeaderBytes) -> bool {
        self.segments.get(&slice.segment).is_some_and(|s| s.mapping().copy_in(slice.offset, header).is_ok())
    }
}
