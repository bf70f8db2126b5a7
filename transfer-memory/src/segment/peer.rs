//! Segments that another sidecar of this host reads.
//!
//! The other sidecar is not trusted. What it passes must not be able to kill a process that maps it, now or later, nor
//! make that process pay for memory: its size is sealed, no hole can be punched into it, and all its pages are present.

use super::{Access, ReferenceMarks, Segment, SegmentError, reader_locks};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs;

/// The unit of `st_blocks`, stat(2).
const BLOCK_BYTES: u64 = 512;

impl Segment {
    /// The descriptor to pass to another sidecar, which maps it read-only. It is an open file of its own, so that its
    /// mark ends with that mapping. Every writer of the segment must have mapped it: it is sealed now, if it was not
    /// before.
    ///
    /// # Errors
    /// [`SegmentError::System`].
    pub fn open_for_peer(&self) -> Result<OwnedFd, SegmentError> {
        if !self.writers_sealed()? {
            self.seal_writers()?;
        }
        let failed = |source| SegmentError::System { step: "open anew", len: self.len(), source };
        reader_locks::reopen(self.fd()).map_err(failed)
    }

    /// Maps a segment that another sidecar has passed, read-only, and marks it as read in that sidecar's incarnation
    /// for as long as the mapping lives. So a worker that outlives its sidecar does not overwrite a segment that is
    /// copied here. With the number of a `link` it is also kept for workers that read it by reference: see
    /// [`ReferenceMarks`].
    ///
    /// # Errors
    /// As [`Segment::adopt`]; [`SegmentError::StillWritable`] where a hole could be punched into it,
    /// [`SegmentError::Sparse`].
    pub fn adopt_from_peer(
        fd: OwnedFd,
        expected_len: u64,
        incarnation: u64,
        link: Option<u64>,
    ) -> Result<Segment, SegmentError> {
        let system = |step| move |source| SegmentError::System { step, len: expected_len, source };
        // Seals are permanent. So pages that are present after sealing stay present.
        let seals = fs::fcntl_get_seals(&fd).map_err(|source| SegmentError::NotMemfd { source })?;
        if !seals.contains(super::memfd::WRITER_SEALS) {
            return Err(SegmentError::StillWritable);
        }
        let stat = fs::fstat(fd.as_fd()).map_err(system("examine"))?;
        let pages = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
        // Pages may lie beyond the end (FALLOC_FL_KEEP_SIZE), so the first hole counts too. hugetlbfs, which reports no
        // holes, returns the end.
        let hole = fs::seek(fd.as_fd(), fs::SeekFrom::Hole(0)).map_err(system("look for holes in"))?;
        let found = pages.min(hole);
        if found < expected_len {
            return Err(SegmentError::Sparse { found, expected: expected_len });
        }
        let references = link.map(|link| ReferenceMarks { owner: incarnation, link });
        let marked = references.map_or_else(|| reader_locks::mark(fd.as_fd(), incarnation), |marks| marks.keep(&fd));
        marked.map_err(system("mark"))?;
        Segment::adopt(fd, Access::ReadOnly, expected_len)?.of_peer(references).map_err(system("keep"))
    }
}
