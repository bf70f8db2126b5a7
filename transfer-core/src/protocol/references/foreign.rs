//! Memory of peers that workers of this node read by reference.

use super::References;
use crate::fabric::LinkId;
use crate::memory::{ALIGNMENT, LocalSlice, SegmentId};
use crate::protocol::action::{Actions, HostAction};
use crate::tensor::TensorMeta;
use crate::wire::ranges::{MAX_RANGES, table_bytes};

/// A segment of a peer that workers of this node may read.
#[derive(Default)]
pub(super) struct Foreign {
    /// The number of blobs of this node that lie in the segment.
    blobs: u64,
    /// Whether the segment gets no more blobs: the peer no longer names it, or the link is lost.
    ended: bool,
}

impl Foreign {
    #[cfg(test)]
    pub(super) fn blobs(&self) -> u64 {
        self.blobs
    }
}

/// A version that is not sent: the reader reads it in the segment of its owner.
pub(crate) struct Referred {
    pub(crate) lease: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// The number of ranges in the table behind the metadata. 0: the body lies there.
    pub(crate) ranges: u32,
}

impl References {
    /// Keeps a peer's segment for workers of this node, under a number of this node. Returns `false` if the link is
    /// gone.
    pub(crate) fn keep(&mut self, link: LinkId, handle: u32, segment: SegmentId, len_bytes: u64) -> bool {
        let Some(l) = self.links.get_mut(&link) else { return false };
        l.kept.insert(handle, (segment, len_bytes));
        self.foreign.insert(segment, Foreign::default());
        true
    }

    /// Handles the end of a segment: the peer will not name it again.
    pub(crate) fn segment_gone(&mut self, link: LinkId, handle: u32, actions: &mut Actions) {
        if let Some((segment, _)) = self.links.get_mut(&link).and_then(|l| l.kept.remove(&handle)) {
            self.foreign_ended(segment, actions);
        }
    }

    /// Returns the memory of a version that the peer refers to, or of its metadata and the table of its ranges: the
    /// reader checks the ranges, as it does for a worker of its own node. The error says what is wrong with the reference.
    pub(crate) fn find(&self, link: LinkId, referred: &Referred, meta: &TensorMeta) -> Result<LocalSlice, String> {
        let Referred { segment: handle, offset, ranges, .. } = *referred;
        let len = match ranges {
            0 => meta.len_bytes(),
            1..=MAX_RANGES => meta.body_offset() + table_bytes(ranges),
            _ => return Err(format!("BY_REFERENCE to a body of {ranges} ranges; {MAX_RANGES} is the limit")),
        };
        let Some((segment, segment_len)) = self.links.get(&link).and_then(|l| l.kept.get(&handle)).copied() else {
            return Err(format!("BY_REFERENCE into segment {handle}, which was not passed, or is not kept here"));
        };
        if !offset.is_multiple_of(ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > segment_len) {
            return Err(format!(
                "BY_REFERENCE to {len} bytes at {offset} of segment {handle}; they must begin at a multiple of {ALIGNMENT} and end \
                 within its {segment_len} bytes"
            ));
        }
        Ok(LocalSlice { segment, offset, len })
    }

    /// Counts a blob of this node that now lies in the segment.
    pub(crate) fn begin_reading(&mut self, segment: SegmentId) {
        if let Some(foreign) = self.foreign.get_mut(&segment) {
            foreign.blobs += 1;
        }
    }

    /// Removes a blob of this node that lay in the segment.
    pub(crate) fn end_reading(&mut self, segment: SegmentId, actions: &mut Actions) {
        if let Some(foreign) = self.foreign.get_mut(&segment) {
            foreign.blobs = foreign.blobs.saturating_sub(1);
        }
        self.tidy(segment, actions);
    }

    pub(super) fn foreign_ended(&mut self, segment: SegmentId, actions: &mut Actions) {
        if let Some(foreign) = self.foreign.get_mut(&segment) {
            foreign.ended = true;
        }
        self.tidy(segment, actions);
    }

    fn tidy(&mut self, segment: SegmentId, actions: &mut Actions) {
        if self.foreign.get(&segment).is_some_and(|foreign| foreign.ended && foreign.blobs == 0) {
            self.foreign.remove(&segment);
            actions.push(HostAction::SegmentUnused { segment });
        }
    }
}
