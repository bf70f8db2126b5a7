//! The memory of a fabric without hardware: registered segments, and grants into them.
//!
//! The receiving side of such a fabric places the bytes itself, so it checks each write here, against the grant that
//! the write's key names.

mod grants;
#[cfg(test)]
mod tests;

pub(crate) use grants::{Grants, WriteRefused, WriteTarget};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::sync::Arc;
use transfer_core::fabric::{FabricError, LinkId, PostError};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_memory::segment::{Access, Mapping, Segment};

/// A range of a mapping that was found to lie inside it. The memory stays mapped as long as this lives.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Registered segments and the grants into them.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    segments: HashMap<SegmentId, Arc<Segment>>,
    grants: Grants,
}

impl Regions {
    pub(crate) fn register(&mut self, id: SegmentId, segment: Arc<Segment>) -> Result<(), FabricError> {
        match self.segments.entry(id) {
            Entry::Occupied(_) => Err(FabricError::AlreadyRegistered(id)),
            Entry::Vacant(slot) => {
                slot.insert(segment);
                Ok(())
            }
        }
    }

    /// Forgets a segment and the grants into it. Returns these grants.
    pub(crate) fn deregister(&mut self, id: SegmentId) -> Result<Vec<(LinkId, RemoteKey, u64)>, FabricError> {
        self.segments.remove(&id).ok_or(FabricError::UnknownSegment(id))?;
        Ok(self.grants.remove_segment(id))
    }

    /// Returns a registered segment.
    pub(crate) fn segment(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.segments.get(&id)
    }

    /// Returns the memory of a slice that is to be sent.
    pub(crate) fn source(&self, slice: &LocalSlice) -> Result<Piece, PostError> {
        let bad = || PostError::BadLocalSlice(*slice);
        let mapping = self.segments.get(&slice.segment).ok_or_else(bad)?.mapping();
        mapping.ptr_at(slice.offset, slice.len).map_err(|_| bad())?;
        Ok(Piece { mapping: mapping.clone(), offset: slice.offset, len: slice.len })
    }

    /// Opens a range to the peer of a link.
    pub(crate) fn grant(&mut self, link: LinkId, range: LocalSlice, tag: u64) -> Result<RemoteSlice, PostError> {
        let piece = self.source(&range)?;
        if piece.mapping.access() != Access::ReadWrite {
            return Err(PostError::BadLocalSlice(range));
        }
        let key = self.grants.insert(link, range.segment, piece, tag);
        Ok(RemoteSlice::new(range.offset, range.len, key))
    }

    /// Closes a range that was opened to the peer of this link. Returns whether there was such a grant.
    pub(crate) fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> bool {
        self.grants.remove(link, key, tag)
    }

    /// Closes all ranges that were opened to the peer of a dead link.
    pub(crate) fn revoke_all(&mut self, link: LinkId) {
        self.grants.remove_link(link);
    }

    /// Returns the target of a write that came over `link`.
    pub(crate) fn place(&self, link: LinkId, remote: RemoteSlice) -> Result<Option<WriteTarget>, WriteRefused> {
        self.grants.place(link, remote)
    }
}
