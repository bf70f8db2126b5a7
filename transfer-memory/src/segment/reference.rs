//! Segments of another sidecar of this host that workers here read by reference.
//!
//! The owner of such a segment has to know when its last reader has stopped, in whatever order the processes between
//! them die. So each process that maps the segment marks it (see [`is_marked`]) with three numbers:
//!
//! | mark | set by | until | for |
//! |---|---|---|---|
//! | the owner's incarnation | both | the mapping ends | the worker that writes the segment, after its sidecar's death |
//! | keeper | the sidecar that was passed the segment, before it reports that | it no longer needs the segment | the reader, and the owner |
//! | reader | each worker that is passed it on | its mapping ends | the owner, after the link's end |
//!
//! A worker sets its marks, *then* checks that the keeper's mark is still set, and only then reads. The owner of a link
//! that has ended finds the keeper's mark gone, and *then* looks for readers' marks. The keeper's mark does not come
//! back, so every reader had marked the segment before the owner looked. No time-out is needed, and no process has to
//! be awake.

use super::{Mapping, Segment, SegmentError, is_marked, reader_locks};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The numbers by which a segment that is read by reference is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReferenceMarks {
    /// The incarnation of the sidecar that owns the segment.
    pub owner: u64,
    /// The number that the two sidecars have given to their link. Each link has another one.
    pub link: u64,
}

impl ReferenceMarks {
    fn reader(self) -> u64 {
        self.link & !1
    }

    fn keeper(self) -> u64 {
        self.link | 1
    }

    /// Marks a segment as its keeper does.
    pub(super) fn keep(self, fd: impl AsFd) -> Result<(), crate::Errno> {
        reader_locks::mark(fd.as_fd(), self.owner)?;
        reader_locks::mark(fd.as_fd(), self.keeper())
    }
}

impl Segment {
    /// Maps a segment of another sidecar that this worker's sidecar has passed on, read-only, and marks it as read for
    /// as long as the mapping lives. Returns `None` if this worker's sidecar no longer keeps it: then no worker may
    /// read it.
    ///
    /// # Errors
    /// As [`Segment::adopt`].
    pub fn adopt_reference(
        fd: OwnedFd,
        expected_len: u64,
        marks: ReferenceMarks,
    ) -> Result<Option<Arc<Mapping>>, SegmentError> {
        let failed = |source| SegmentError::System { step: "mark", len: expected_len, source };
        reader_locks::mark(fd.as_fd(), marks.owner).map_err(failed)?;
        reader_locks::mark(fd.as_fd(), marks.reader()).map_err(failed)?;
        // Only after both marks are set: see the module.
        if !is_marked(&fd, marks.keeper()).map_err(failed)? {
            return Ok(None);
        }
        Segment::adopt_to_read(fd, expected_len, marks.owner).map(Some)
    }

    /// Whether a process at the other end of that link may still read this segment by reference. Also `true` if the
    /// kernel does not say.
    #[must_use]
    pub fn is_referenced(&self, link: u64) -> bool {
        let marks = ReferenceMarks { owner: 0, link };
        // In this order: see the module.
        let kept = is_marked(self.fd(), marks.keeper());
        let read = is_marked(self.fd(), marks.reader());
        (kept, read) != (Ok(false), Ok(false))
    }
}
