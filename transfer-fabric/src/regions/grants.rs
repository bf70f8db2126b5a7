//! Grants: which key opens which range to which link.

use super::Piece;
use hashbrown::HashMap;
use std::sync::Arc;
use transfer_core::fabric::LinkId;
use transfer_core::memory::{RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::Mapping;

/// The reason why a write failed its check. The write touched nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteRefused {
    /// The key does not exist, or no longer exists.
    #[error("a write with key {:#x}, which opens nothing", .0.0)]
    UnknownKey(RemoteKey),
    /// The key was granted to another peer.
    #[error("a write with key {:#x}, which was granted to another link", .0.0)]
    ForeignKey(RemoteKey),
    /// The range is not inside the granted range.
    #[error("a write to {address:#x}..+{len} with a key that opens {granted_address:#x}..+{granted_len}")]
    OutOfBounds {
        /// The address in the write.
        address: u64,
        /// The length in the write.
        len: u64,
        /// The granted address.
        granted_address: u64,
        /// The granted length.
        granted_len: u64,
    },
}

/// The target of a write, inside one grant.
#[derive(Debug)]
pub(crate) struct WriteTarget {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) offset: u64,
    pub(crate) key: RemoteKey,
}

#[derive(Debug)]
struct Grant {
    link: LinkId,
    segment: SegmentId,
    range: Piece,
    tag: u64,
}

/// The grants of all links of one fabric. Keys are unique across links, so that the key of one link opens nothing on
/// another.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    by_key: HashMap<u32, Grant>,
    count: u32,
}

impl Grants {
    pub(super) fn insert(&mut self, link: LinkId, segment: SegmentId, range: Piece, tag: u64) -> RemoteKey {
        loop {
            // The keys spread over all numbers, so that a key that is off by a little opens nothing. The odd factor
            // repeats no key within 2^32 grants; after that, keys that are still in use are skipped.
            self.count = self.count.wrapping_add(1);
            let key = self.count.wrapping_mul(0x9E37_79B1);
            if !self.by_key.contains_key(&key) {
                self.by_key.insert(key, Grant { link, segment, range, tag });
                return RemoteKey(key);
            }
        }
    }

    pub(super) fn remove(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> bool {
        let ours = self.by_key.get(&key.0).is_some_and(|grant| grant.link == link && grant.tag == tag);
        ours && self.by_key.remove(&key.0).is_some()
    }

    pub(super) fn remove_link(&mut self, link: LinkId) {
        self.by_key.retain(|_, grant| grant.link != link);
    }

    pub(super) fn remove_segment(&mut self, segment: SegmentId) -> Vec<(LinkId, RemoteKey, u64)> {
        let gone = self.by_key.extract_if(|_, grant| grant.segment == segment);
        gone.map(|(key, grant)| (grant.link, RemoteKey(key), grant.tag)).collect()
    }

    /// Returns the target of a write. Returns `None` for a write of no bytes, whose key is not checked; hardware does
    /// not check it either.
    pub(super) fn place(&self, link: LinkId, remote: RemoteSlice) -> Result<Option<WriteTarget>, WriteRefused> {
        let RemoteSlice { address, len, .. } = remote;
        let key = remote.key();
        if len == 0 {
            return Ok(None);
        }
        let Grant { link: owner, range, .. } = self.by_key.get(&key.0).ok_or(WriteRefused::UnknownKey(key))?;
        if *owner != link {
            return Err(WriteRefused::ForeignKey(key));
        }
        let inside = |skip: &u64| skip.checked_add(len).is_some_and(|end| end <= range.len);
        if address.checked_sub(range.offset).filter(inside).is_none() {
            let (granted_address, granted_len) = (range.offset, range.len);
            return Err(WriteRefused::OutOfBounds { address, len, granted_address, granted_len });
        }
        Ok(Some(WriteTarget { mapping: range.mapping.clone(), offset: address, key }))
    }
}
