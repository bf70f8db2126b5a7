//! Names of memory.
//!
//! The core never dereferences anything. It names local memory by segment, offset and length, and memory of a peer by address,
//! length and key. The two are different types, so a local name cannot be sent to a peer by mistake.

use std::fmt;

/// Every allocation starts at a multiple of this many bytes: Arrow's recommended alignment (Arrow columnar format, "Buffer
/// Alignment and Padding").
pub const ALIGNMENT: u64 = 64;

/// Rounds `len_bytes` up to the next multiple of [`ALIGNMENT`]. `None` on overflow.
#[must_use]
pub fn padded(len_bytes: u64) -> Option<u64> {
    len_bytes.checked_add(ALIGNMENT - 1).map(|n| n & !(ALIGNMENT - 1))
}

/// A segment of shared memory, numbered by the sidecar that owns it. Never reused within one incarnation of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

/// A range of a local segment: one scatter-gather element. The fabric that uses it knows the segment's local key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalSlice {
    /// The segment.
    pub segment: SegmentId,
    /// Offset of the first byte from the segment's start.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl LocalSlice {
    /// The sub-range of `len` bytes that starts `offset` bytes into `self`. `None` where it would leave `self`.
    #[must_use]
    pub fn sub(&self, offset: u64, len: u64) -> Option<LocalSlice> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| LocalSlice { segment: self.segment, offset: self.offset + offset, len })
    }

    /// Whether the two ranges share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &LocalSlice) -> bool {
        self.segment == other.segment
            && self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

impl fmt::Display for LocalSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}..+{}]", self.segment, self.offset, self.len)
    }
}

/// A key that opens one granted range of a peer's memory to one link: the rkey of a memory window on verbs, its equal elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// A range of a peer's memory with the key that opens it, as granted by that peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    /// Where the range starts in the peer's terms: a virtual address on verbs, whatever the fabric chose elsewhere.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The key.
    pub key: RemoteKey,
}

impl RemoteSlice {
    /// The sub-range of `len` bytes that starts `offset` bytes into `self`. `None` where it would leave `self`.
    #[must_use]
    pub fn sub(&self, offset: u64, len: u64) -> Option<RemoteSlice> {
        let end = offset.checked_add(len)?;
        let address = self.address.checked_add(offset)?;
        (end <= self.len).then_some(RemoteSlice { address, len, key: self.key })
    }
}
