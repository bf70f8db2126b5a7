//! Names of memory.
//!
//! The core never dereferences memory. It names local memory by segment, offset and length, and memory of a peer by
//! address, length and key. The two are different types, so a local name cannot be sent to a peer by mistake.

use std::fmt;

/// The alignment of every allocation, in bytes. It is Arrow's recommended alignment (Arrow columnar format, "Buffer
/// Alignment and Padding").
pub const ALIGNMENT: u64 = 64;

/// Rounds `len_bytes` up to the next multiple of [`ALIGNMENT`]. Returns `None` on overflow.
#[must_use]
pub fn padded(len_bytes: u64) -> Option<u64> {
    len_bytes.checked_add(ALIGNMENT - 1).map(|n| n & !(ALIGNMENT - 1))
}

/// The number of a segment of shared memory, assigned by the sidecar that owns it. A number is never reused within one
/// incarnation of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// The first number for a segment of a peer. These numbers count down; the numbers of this node's own segments
    /// count up.
    pub const FIRST_FOREIGN: u32 = u32::MAX - 1;

    /// No segment: what lies here is on disk. Neither kind of numbers comes to this one.
    pub const DISK: SegmentId = SegmentId(1 << 31);
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == SegmentId::DISK {
            return f.write_str("disk");
        }
        match SegmentId::FIRST_FOREIGN.checked_sub(self.0) {
            Some(n) if n <= SegmentId::FIRST_FOREIGN / 2 => write!(f, "segment {} of a peer", n + 1),
            _ => write!(f, "segment {}", self.0),
        }
    }
}

/// A range of a local segment: one scatter-gather element. The fabric that uses the range knows the segment's local
/// key.
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
    /// Returns the sub-range of `len` bytes that starts `offset` bytes into `self`, or `None` if it would exceed
    /// `self`.
    #[must_use]
    pub fn sub(&self, offset: u64, len: u64) -> Option<LocalSlice> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| LocalSlice { segment: self.segment, offset: self.offset + offset, len })
    }

    /// Returns whether the two ranges share a byte.
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

/// A key that opens one granted range of a peer's memory to one link. On verbs it is the rkey of a memory window or
/// region; other fabrics choose their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// The keys that open one range over the rails of a link: at most one for each rail, and at least one in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RailKeys {
    /// Bit `i` is set if rail `i` has a key.
    present: u8,
    keys: [u32; RailKeys::MAX_RAILS],
}

impl RailKeys {
    /// The largest number of rails of one link.
    pub const MAX_RAILS: usize = 4;

    /// Makes a set of keys from a list that is indexed by the rail's number. Returns `None` if no rail has a key, or if
    /// the list is longer than [`RailKeys::MAX_RAILS`].
    #[must_use]
    pub fn new(keys: &[Option<RemoteKey>]) -> Option<RailKeys> {
        let mut out = RailKeys { present: 0, keys: [0; RailKeys::MAX_RAILS] };
        for (rail, key) in keys.iter().enumerate() {
            let place = out.keys.get_mut(rail)?;
            if let Some(key) = key {
                *place = key.0;
                out.present |= 1 << rail;
            }
        }
        (out.present != 0).then_some(out)
    }

    /// Returns the key for a rail, or `None` if the range is not open over that rail.
    #[must_use]
    pub fn rail(&self, rail: usize) -> Option<RemoteKey> {
        let key = self.keys.get(rail)?;
        (self.present & 1 << rail != 0).then_some(RemoteKey(*key))
    }

    /// Returns the key of the lowest rail that has one. It identifies the grant.
    #[must_use]
    pub fn first(&self) -> RemoteKey {
        RemoteKey(self.keys[self.present.trailing_zeros() as usize])
    }

    /// Returns the keys of all rails, indexed by the rail's number.
    #[must_use]
    pub fn all(&self) -> [Option<RemoteKey>; RailKeys::MAX_RAILS] {
        std::array::from_fn(|rail| self.rail(rail))
    }
}

impl From<RemoteKey> for RailKeys {
    /// Makes the keys of a link with one rail.
    fn from(key: RemoteKey) -> RailKeys {
        RailKeys { present: 1, keys: [key.0, 0, 0, 0] }
    }
}

/// A range of a peer's memory, with the keys that open it, as granted by that peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    /// The start of the range in the peer's terms: a virtual address on verbs, a number of the fabric's choice
    /// elsewhere. All rails use the same address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The keys.
    pub keys: RailKeys,
}

impl RemoteSlice {
    /// Makes a range that one key opens.
    #[must_use]
    pub fn new(address: u64, len: u64, key: RemoteKey) -> RemoteSlice {
        RemoteSlice { address, len, keys: key.into() }
    }

    /// Returns the key that identifies the grant; see [`RailKeys::first`].
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.keys.first()
    }

    /// Returns the sub-range of `len` bytes that starts `offset` bytes into `self`, or `None` if it would exceed
    /// `self`.
    #[must_use]
    pub fn sub(&self, offset: u64, len: u64) -> Option<RemoteSlice> {
        let end = offset.checked_add(len)?;
        let address = self.address.checked_add(offset)?;
        (end <= self.len).then_some(RemoteSlice { address, len, keys: self.keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_segments_are_displayed_with_small_numbers() {
        let shown = |n| SegmentId(n).to_string();
        assert_eq!((shown(0), shown(7)), ("segment 0".into(), "segment 7".into()));
        assert_eq!(shown(SegmentId::FIRST_FOREIGN), "segment 1 of a peer");
        assert_eq!(shown(SegmentId::FIRST_FOREIGN - 4), "segment 5 of a peer");
        assert_eq!(shown(u32::MAX), "segment 4294967295");
    }
}
