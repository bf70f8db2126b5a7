//! Making and adopting memfds.

use super::registered::{OwnedMemory, RegisteredMemory};
use super::{Access, Mapping, PinnedBudget, ReferenceMarks, SegmentError};
use crate::Errno;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use std::sync::{Arc, OnceLock};

/// The kind of memory that a segment lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The host's main memory, which other processes may map.
    Host,
    /// Memory of this process alone: no other process can map it.
    Registered,
}

/// The kind of pages to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// The kernel's ordinary pages.
    Base,
    /// Huge pages from the host's hugetlb pool. Where the pool is empty: ordinary pages, with a request for transparent
    /// huge ones. [`Achieved`] tells which.
    Huge,
}

/// Whether to lock a segment's pages in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Do not lock.
    No,
    /// Lock where the kernel allows it; [`Achieved`] tells.
    Try,
    /// Lock, or fail with [`SegmentError::NotLocked`].
    Require,
}

/// The size, pages and locking of a segment to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentOptions {
    /// The length in bytes, rounded up to whole pages.
    pub len: u64,
    /// Which pages to ask for.
    pub pages: Pages,
    /// Whether to lock them.
    pub lock: Lock,
}

/// When a segment's pages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    Now,
    AsWritten,
}

/// The pages that a segment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Ordinary pages.
    Base,
    /// Huge pages out of the hugetlb pool, which the kernel never swaps.
    Huge {
        /// The size of one, in bytes.
        page_bytes: u64,
    },
}

/// The pages and locking that a segment got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Achieved {
    /// The pages.
    pub pages: PageKind,
    /// The reason why the pages are ordinary ones although huge ones were requested; `ENOMEM` if the pool is empty.
    pub huge_refused: Option<Errno>,
    /// Whether the pages are locked.
    pub locked: bool,
    /// The reason why the pages are not locked although that was requested.
    pub lock_refused: Option<Errno>,
}

/// A memfd, mapped here, whose size can never change; or memory of this process that is no file.
#[derive(Debug)]
pub struct Segment {
    file: File,
    mapping: Arc<Mapping>,
    fill: Fill,
    achieved: Achieved,
    /// For a segment of another sidecar: the marks that its readers set.
    references: Option<ReferenceMarks>,
}

/// The file of a segment.
#[derive(Debug)]
enum File {
    Own(OwnedFd),
    /// An empty one, for memory of this process alone: there is nothing to pass on.
    Empty(&'static OwnedFd),
}

impl File {
    /// The empty file, which all registered memory shares: a process may have more of that than descriptors.
    fn empty() -> Result<File, Errno> {
        static EMPTY: OnceLock<OwnedFd> = OnceLock::new();
        if EMPTY.get().is_none() {
            // Another thread may be faster.
            let _ = EMPTY.set(memfd("transfer-registered", false)?);
        }
        EMPTY.get().map(File::Empty).ok_or(Errno::BADF)
    }
}

/// `f_type` of hugetlbfs, from linux/magic.h.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
pub(super) const WRITER_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

impl Segment {
    /// Makes a segment, mapped read-write, prefaulted, counted in `budget` until the last reference to its mapping is
    /// gone.
    ///
    /// `name` is shown in `/proc/<pid>/maps` and has no other meaning.
    ///
    /// # Errors
    /// [`SegmentError::Budget`] where `budget` is used up, [`SegmentError::NotLocked`] where locking was required and
    /// refused, [`SegmentError::FileSize`] where it is longer than the files of this process may be,
    /// [`SegmentError::BadLength`], [`SegmentError::System`].
    pub fn create(name: &str, options: &SegmentOptions, budget: &PinnedBudget) -> Result<Segment, SegmentError> {
        let huge_refused = match options.pages {
            Pages::Base => None,
            Pages::Huge => match Segment::create_with(name, options, budget, (true, Fill::Now)) {
                Err(SegmentError::System { source, .. }) => Some(source),
                done => return done,
            },
        };
        let mut segment = Segment::create_with(name, options, budget, (false, Fill::Now))?;
        segment.achieved.huge_refused = huge_refused;
        Ok(segment)
    }

    /// Makes a segment of which most is seldom used, mapped read-write and counted in `budget` as a whole. Each of its pages comes
    /// when it is written, and is locked then if that is wanted.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create_sparse(name: &str, len: u64, lock: Lock, budget: &PinnedBudget) -> Result<Segment, SegmentError> {
        let options = SegmentOptions { len, pages: Pages::Base, lock };
        Segment::create_with(name, &options, budget, (false, Fill::AsWritten))
    }

    /// Makes a segment of memory that this process has, counted in `budget` until the last reference to its mapping is gone. It is
    /// neither prefaulted nor locked.
    ///
    /// # Errors
    /// [`SegmentError::Budget`], [`SegmentError::BadLength`] for memory without a byte, [`SegmentError::System`]; with the owner.
    pub fn registered(
        mut owner: Box<dyn OwnedMemory>,
        budget: &PinnedBudget,
    ) -> Result<Segment, (SegmentError, Box<dyn OwnedMemory>)> {
        let len = owner.range().1 as u64;
        let prepared = || {
            let max = i64::MAX as u64;
            let pinned =
                budget.reserve(Some(len).filter(|len| *len > 0).ok_or(SegmentError::BadLength { len, max })?)?;
            let failed = |source| SegmentError::System { step: "create", len, source };
            Ok::<_, SegmentError>((pinned, File::empty().map_err(failed)?))
        };
        match prepared() {
            Ok((pinned, file)) => {
                let achieved =
                    Achieved { pages: PageKind::Base, huge_refused: None, locked: false, lock_refused: None };
                let mapping = Arc::new(Mapping::registered(RegisteredMemory::new(owner, pinned)));
                Ok(Segment { file, mapping, fill: Fill::AsWritten, achieved, references: None })
            }
            Err(e) => Err((e, owner)),
        }
    }

    fn create_with(
        name: &str,
        options: &SegmentOptions,
        budget: &PinnedBudget,
        (huge, fill): (bool, Fill),
    ) -> Result<Segment, SegmentError> {
        let failed = |step| move |source| SegmentError::System { step, len: options.len, source };
        let fd = memfd(name, huge).map_err(failed("create"))?;
        let stat = fs::fstat(&fd).map_err(failed("examine"))?;
        let page_bytes = if huge { stat.st_blksize as u64 } else { rustix::param::page_size() as u64 };
        let max = i64::MAX as u64;
        let bad_length = SegmentError::BadLength { len: options.len, max };
        let len = options.len.checked_next_multiple_of(page_bytes).filter(|n| *n > 0 && *n <= max);
        let len = len.ok_or(bad_length)?;
        // Checked here, because the disposition of the signal belongs to the program that this library is in.
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < len) {
            return Err(SegmentError::FileSize { len, limit });
        }
        let pinned = budget.reserve(len)?;
        fs::ftruncate(&fd, len).map_err(failed("size"))?;
        fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(failed("seal"))?;
        let mapping = Mapping::map(fd.as_fd(), len, Access::ReadWrite, Some(pinned))?;
        let pages = if huge { PageKind::Huge { page_bytes } } else { PageKind::Base };
        if options.pages == Pages::Huge && !huge {
            // Only a request: kernels without transparent huge pages refuse it.
            let _ = mapping.prefer_huge();
        }
        if fill == Fill::Now {
            mapping.prefault()?;
        }
        let lock = || match fill {
            Fill::Now => mapping.lock(),
            Fill::AsWritten => mapping.lock_as_written(),
        };
        let lock_refused = match options.lock {
            Lock::No => None,
            Lock::Try => lock().err(),
            Lock::Require => {
                lock().map_err(|source| SegmentError::NotLocked { len, source })?;
                None
            }
        };
        let locked = options.lock != Lock::No && lock_refused.is_none();
        let achieved = Achieved { pages, huge_refused: None, locked, lock_refused };
        Ok(Segment { file: File::Own(fd), mapping: Arc::new(mapping), fill, achieved, references: None })
    }

    /// Maps a memfd that came from another process, and fills the page tables of the mapping, unless pages are missing: then its maker
    /// has made it [sparse](Segment::create_sparse). The maker of the segment counts and locks its pages; this mapping does neither.
    ///
    /// # Errors
    /// [`SegmentError::NotMemfd`], [`SegmentError::Unsealed`] where its size could change under the mapping,
    /// [`SegmentError::WrongSize`] where it is not `expected_len` bytes, [`SegmentError::System`].
    pub fn adopt(fd: OwnedFd, access: Access, expected_len: u64) -> Result<Segment, SegmentError> {
        Segment::adopt_counted(fd, access, expected_len, None)
    }

    fn adopt_counted(
        fd: OwnedFd,
        access: Access,
        expected_len: u64,
        pinned: Option<super::Reservation>,
    ) -> Result<Segment, SegmentError> {
        // The seals come first: once they are set, the size that is read next is final.
        let seals = fs::fcntl_get_seals(&fd).map_err(|source| SegmentError::NotMemfd { source })?;
        let can = match (seals.contains(SealFlags::SHRINK), seals.contains(SealFlags::GROW)) {
            (true, true) => None,
            (false, true) => Some("shrunk"),
            (true, false) => Some("grown"),
            (false, false) => Some("shrunk and grown"),
        };
        if let Some(can) = can {
            return Err(SegmentError::Unsealed { can });
        }
        let stat =
            fs::fstat(&fd).map_err(|source| SegmentError::System { step: "examine", len: expected_len, source })?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found != expected_len {
            return Err(SegmentError::WrongSize { found, expected: expected_len });
        }
        let pages = match has_huge_pages(fd.as_fd()) {
            Ok(true) => PageKind::Huge { page_bytes: stat.st_blksize as u64 },
            _ => PageKind::Base,
        };
        // What is counted here is as good as made here.
        let is_whole = pages != PageKind::Base || u64::try_from(stat.st_blocks).unwrap_or(0) >= found / 512;
        let fill = if pinned.is_some() || is_whole { Fill::Now } else { Fill::AsWritten };
        let mapping = Mapping::map(fd.as_fd(), expected_len, access, pinned)?;
        if fill == Fill::Now {
            mapping.prefault()?;
        }
        let achieved = Achieved { pages, huge_refused: None, locked: false, lock_refused: None };
        Ok(Segment { file: File::Own(fd), mapping: Arc::new(mapping), fill, achieved, references: None })
    }

    /// Maps a segment that a sidecar passed to a reader, and marks it as read in that incarnation while the mapping
    /// lives; see [`is_marked`](super::is_marked).
    ///
    /// # Errors
    /// As [`Segment::adopt`].
    pub fn adopt_to_read(fd: OwnedFd, expected_len: u64, incarnation: u64) -> Result<Arc<Mapping>, SegmentError> {
        let failed = |source| SegmentError::System { step: "mark", len: expected_len, source };
        super::reader_locks::mark(fd.as_fd(), incarnation).map_err(failed)?;
        let Segment { file, mapping, .. } = Segment::adopt(fd, Access::ReadOnly, expected_len)?;
        match (Arc::try_unwrap(mapping), file) {
            (Ok(mapping), File::Own(fd)) => Ok(Arc::new(mapping.marked_by(fd))),
            (Ok(mapping), File::Empty(_)) => Ok(Arc::new(mapping)),
            (Err(shared), _) => Ok(shared),
        }
    }

    /// Maps a worker's own arena, and keeps its file for [`Bytes::map_privately`](crate::view::Bytes::map_privately).
    ///
    /// # Errors
    /// As [`Segment::adopt`].
    pub fn adopt_to_write(fd: OwnedFd, expected_len: u64) -> Result<Segment, SegmentError> {
        let failed = |source| SegmentError::System { step: "duplicate the descriptor of", len: expected_len, source };
        Segment::adopt(fd, Access::ReadWrite, expected_len)?.of_peer(None).map_err(failed)
    }

    /// Maps the arena of a worker that got it from another incarnation of this sidecar. The mapping is read-only,
    /// because the seals allow no other, and no other is needed. It is locked and counted in `budget`, like an arena
    /// that is made here.
    ///
    /// # Errors
    /// As [`Segment::adopt`] and [`Segment::create`]; [`SegmentError::StillWritable`] if processes other than the
    /// worker could map it for writing.
    pub fn take_again(
        fd: OwnedFd,
        expected_len: u64,
        lock: Lock,
        budget: &PinnedBudget,
    ) -> Result<Segment, SegmentError> {
        let pinned = budget.reserve(expected_len)?;
        let mut segment = Segment::adopt_counted(fd, Access::ReadOnly, expected_len, Some(pinned))?;
        if !segment.writers_sealed()? {
            return Err(SegmentError::StillWritable);
        }
        let refused = if lock == Lock::No { None } else { segment.mapping.lock().err() };
        if let (Lock::Require, Some(source)) = (lock, refused) {
            return Err(SegmentError::NotLocked { len: expected_len, source });
        }
        segment.achieved.locked = lock != Lock::No && refused.is_none();
        segment.achieved.lock_refused = refused;
        Ok(segment)
    }

    /// Seals the segment against further writers: from now on every new mapping is read-only, however its process got
    /// the descriptor. Existing mappings keep their access. Call it once every writer has mapped the segment.
    ///
    /// # Errors
    /// [`SegmentError::System`].
    pub fn seal_writers(&self) -> Result<(), SegmentError> {
        let failed = |source| SegmentError::System { step: "seal", len: self.len(), source };
        if !self.writers_sealed()? {
            fs::fcntl_add_seals(self.fd(), WRITER_SEALS).map_err(failed)?;
        }
        // Before the seal, a writer could punch holes into the file. From here on it cannot. Fill the holes that it
        // may have punched.
        match self.fill {
            Fill::Now => self.mapping.prefault(),
            Fill::AsWritten => Ok(()),
        }
    }

    /// Whether [`Segment::seal_writers`] has been called, here or in another process.
    ///
    /// # Errors
    /// [`SegmentError::System`].
    pub fn writers_sealed(&self) -> Result<bool, SegmentError> {
        let seals = fs::fcntl_get_seals(self.fd());
        let seals = seals.map_err(|source| SegmentError::System { step: "examine", len: self.len(), source })?;
        Ok(seals.contains(WRITER_SEALS))
    }

    /// The mapping.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The descriptor, to pass on.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.file {
            File::Own(fd) => fd.as_fd(),
            File::Empty(fd) => fd.as_fd(),
        }
    }

    /// Gives the descriptor away; the mapping stays as long as it is used.
    ///
    /// # Errors
    /// [`SegmentError::System`] for registered memory, which has none.
    pub fn into_fd(self) -> Result<OwnedFd, SegmentError> {
        match self.file {
            File::Own(fd) => Ok(fd),
            File::Empty(_) => {
                Err(SegmentError::System { step: "pass on", len: self.mapping.len(), source: Errno::BADF })
            }
        }
    }

    /// Returns the length in bytes: the requested length, rounded up to whole pages. Never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// The marks that a reader of a segment of another sidecar must set.
    #[must_use]
    pub fn references(&self) -> Option<ReferenceMarks> {
        self.references
    }

    /// Returns the segment as one of another sidecar. The open file of its descriptor is marked, and stays marked
    /// until this value and its mapping are gone.
    pub(super) fn of_peer(self, references: Option<ReferenceMarks>) -> Result<Segment, crate::Errno> {
        let mark = rustix::io::fcntl_dupfd_cloexec(self.fd(), 0)?;
        let Segment { file, mapping, fill, achieved, .. } = self;
        let mapping = match Arc::try_unwrap(mapping) {
            Ok(mapping) => Arc::new(mapping.marked_by(mark)),
            Err(shared) => shared,
        };
        Ok(Segment { file, mapping, fill, achieved, references })
    }

    /// The kind of its memory.
    #[must_use]
    pub fn memory_kind(&self) -> MemoryKind {
        match self.mapping.is_registered() {
            true => MemoryKind::Registered,
            false => MemoryKind::Host,
        }
    }

    /// The number of the device whose memory it is; 0 for the host's.
    #[must_use]
    pub fn device(&self) -> u32 {
        0
    }

    /// The options that were achieved.
    #[must_use]
    pub fn achieved(&self) -> &Achieved {
        &self.achieved
    }
}

/// Whether a memfd has pages of the hugetlb pool.
pub(crate) fn has_huge_pages(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(fs::fstatfs(fd)?.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC)
}

/// Makes an empty memfd that can be sealed and is closed on exec. If the kernel supports it, it cannot be executed.
fn memfd(name: &str, huge: bool) -> rustix::io::Result<OwnedFd> {
    // The kernel takes 249 bytes and no NUL; the name is a label, so it is cut rather than refused.
    let mut label: String = name.chars().filter(|c| *c != '\0').collect();
    label.truncate(label.floor_char_boundary(200));
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge {
        flags |= MemfdFlags::HUGETLB;
    }
    match fs::memfd_create(label.as_str(), flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => fs::memfd_create(label.as_str(), flags),
        done => done,
    }
}
