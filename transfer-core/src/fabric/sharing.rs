//! Passing segments to a peer of the same host, for fabrics that can.

use super::{LinkId, PostError};
use crate::memory::SegmentId;

/// A fabric that passes segments to its peer: [`Fabric::sharing`](super::Fabric::sharing).
pub trait Sharing {
    /// How this fabric is handed a segment's memory.
    type Memory;

    /// Passes a segment to the peer, if it was not before, for its workers to read by reference.
    /// [`FabricEvent::SegmentKept`](super::FabricEvent::SegmentKept) follows once the peer has marked it as kept. Only on links
    /// that [`FabricEvent::References`](super::FabricEvent::References) was reported for.
    ///
    /// # Errors
    /// [`PostError`]. [`PostError::Full`] passes by itself.
    fn share(&mut self, link: LinkId, segment: SegmentId) -> Result<(), PostError>;

    /// Takes a segment that [`FabricEvent::SegmentCame`](super::FabricEvent::SegmentCame) was reported for, with its length in
    /// bytes, and tells the peer. `None` where the link has ended, or the peer has taken the segment back.
    fn keep(&mut self, link: LinkId, handle: u32) -> Option<(Self::Memory, u64)>;
}
