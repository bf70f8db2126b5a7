//! Passing segments to a peer on the same host, for fabrics that support it.

use super::{LinkId, PostError};
use crate::memory::SegmentId;

/// A fabric that passes segments to its peer. [`Fabric::sharing`](super::Fabric::sharing) returns it.
pub trait Sharing {
    /// The form in which this fabric gets a segment's memory.
    type Memory;

    /// Passes a segment to the peer, unless it was passed before, so that the peer's workers can read it by reference.
    /// [`FabricEvent::SegmentKept`](super::FabricEvent::SegmentKept) follows once the peer has marked it as kept.
    /// Allowed only on links for which [`FabricEvent::References`](super::FabricEvent::References) was reported.
    ///
    /// # Errors
    /// [`PostError`]. [`PostError::Full`] is temporary.
    fn share(&mut self, link: LinkId, segment: SegmentId) -> Result<(), PostError>;

    /// Takes a segment for which [`FabricEvent::SegmentCame`](super::FabricEvent::SegmentCame) was reported, and tells
    /// the peer. Returns its memory and its length in bytes, or `None` if the link has ended or the peer has withdrawn
    /// the segment.
    fn keep(&mut self, link: LinkId, handle: u32) -> Option<(Self::Memory, u64)>;
}
