//! The segments that a worker has mapped.

use super::SessionError;
use crate::segment::{Mapping, ReferenceMarks, Segment};
use crate::view::{Bytes, Owner};
use hashbrown::HashMap;
use parking_lot::RwLock;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use transfer_core::memory::{LocalSlice, SegmentId};

/// A segment as the sidecar passed it, not mapped yet.
#[derive(Debug)]
pub struct PassedSegment {
    /// Its number.
    pub id: SegmentId,
    /// Its length in bytes, as the sidecar says.
    pub len: u64,
    /// Its marks, if it is another sidecar's.
    pub references: Option<ReferenceMarks>,
    /// Its descriptor.
    pub fd: OwnedFd,
}

/// The segments that a worker has mapped, by number. Thread-safe.
#[derive(Debug)]
pub struct Segments {
    known: RwLock<HashMap<SegmentId, Arc<Mapping>>>,
    /// The sidecar's incarnation, with which this process marks the segments that it maps.
    incarnation: u64,
}

impl Segments {
    /// Makes an empty set, for a sidecar of this incarnation.
    #[must_use]
    pub fn new(incarnation: u64) -> Segments {
        Segments { known: RwLock::default(), incarnation }
    }

    /// Maps a passed segment read-only, unless it is mapped already, and keeps the mapping until it is forgotten. The
    /// segment is marked as read as long as the mapping is used; see [`is_marked`](crate::segment::is_marked). The mark
    /// counts only for a check after this sidecar's end, so the caller must find the sidecar alive after this has
    /// returned, before it uses the mapping.
    ///
    /// # Errors
    /// [`SessionError::Segment`] if the descriptor is not what was announced, [`SessionError::SegmentChanged`],
    /// [`SessionError::NotKept`].
    pub fn adopt(&self, passed: PassedSegment) -> Result<Arc<Mapping>, SessionError> {
        let PassedSegment { id, len, references, fd } = passed;
        if let Some(known) = self.get(id) {
            return match known.len() == len {
                true => Ok(known),
                false => Err(SessionError::SegmentChanged { segment: id, known: known.len(), found: len }),
            };
        }
        // Outside of the lock, because filling the page tables of a large segment takes a while.
        let mapping = match references {
            None => Segment::adopt_to_read(fd, len, self.incarnation)?,
            Some(marks) => {
                let mapping = Segment::adopt_reference(fd, len, marks)?;
                mapping.ok_or(SessionError::NotKept { segment: id })?
            }
        };
        Ok(self.known.write().entry(id).or_insert(mapping).clone())
    }

    /// Adds an existing mapping.
    pub fn insert(&self, id: SegmentId, mapping: Arc<Mapping>) {
        self.known.write().insert(id, mapping);
    }

    /// The mapping of a segment, if it is known.
    #[must_use]
    pub fn get(&self, id: SegmentId) -> Option<Arc<Mapping>> {
        self.known.read().get(&id).cloned()
    }

    /// Whether this range is mapped.
    #[must_use]
    pub fn holds(&self, slice: LocalSlice) -> bool {
        let known = self.known.read();
        known.get(&slice.segment).is_some_and(|mapping| mapping.ptr_at(slice.offset, slice.len).is_ok())
    }

    /// Returns a view of a range that the sidecar has leased to this worker. The lease ends when `owner` is dropped,
    /// with the last view: its `Drop` must tell the sidecar so, and until then the sidecar ensures that the range is
    /// not written.
    ///
    /// # Errors
    /// [`SessionError::UnknownSegment`], [`SessionError::BadRange`]: the sidecar broke the rules.
    pub fn view(&self, slice: LocalSlice, owner: Owner) -> Result<Bytes, SessionError> {
        let mapping = self.get(slice.segment).ok_or(SessionError::UnknownSegment { slice })?;
        // SAFETY: a sidecar leases only published ranges, and these are immutable until their last lease ends. A
        // worker trusts its sidecar with that, as with the memory itself. If a body lies in several ranges, its
        // owner's table names them. An owner whose table names ranges that it still writes is like an owner that
        // writes its published tensors: it harms the workers of its own user id that read its tensors, whom nothing
        // guards from it.
        let view = unsafe { Bytes::of_mapping(&mapping, slice.offset, slice.len, owner) };
        view.map_err(|source| SessionError::BadRange { segment: slice.segment, source })
    }

    /// Forgets a mapping; its memory is unmapped with the last view of it.
    pub fn forget(&self, id: SegmentId) {
        self.known.write().remove(&id);
    }
}
