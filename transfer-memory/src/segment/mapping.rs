//! A segment as one process sees it.

use super::registered::{OwnedMemory, RegisteredMemory};
use super::{MapError, Reservation, SegmentError};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MlockFlags, mlock_with};
use std::any::Any;
use std::io;
use std::ptr;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};

/// The access of a process to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A mapped segment, or memory of this process that is registered as one. Shared as `Arc<Mapping>`: the memory stays mapped for as long as anything refers to it.
///
/// Another process, or another mapping of the same segment in this one, may write the same bytes at any time.
/// Therefore no safe method hands out a reference into the memory: bytes are copied in and out through raw pointers,
/// in no order and with no atomicity that a reader could rely on. A copy of bytes that are being written is some
/// mixture of old and new. The protocol makes bytes stable (a range is leased, published, granted), and not this type.
/// Bytes that were copied out of memory that a peer can write must be checked after the copy, never before.
///
/// **The rule**: write only to ranges that you hold, by allocation, lease or grant. No code can check that here. To
/// mark the writing methods `unsafe` would change little, since every process that maps the segment can do the same.
/// But the readers of a [`Bytes`](crate::view::Bytes) or a [`Block`](crate::arena::Block) rely on the rule.
#[derive(Debug)]
pub struct Mapping {
    /// Dropped before the memory is unmapped, because it is the first field.
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
    raw: Raw,
    access: Access,
    /// The bytes that this mapping pins, counted until it is unmapped. Registered memory counts its own.
    pinned: Option<Reservation>,
    /// The segment's open file, whose lock marks it as read in a reader.
    file: Option<OwnedFd>,
    /// The same segment mapped once more, read-only.
    read_only: OnceLock<Arc<Mapping>>,
}

/// The memory of a mapping.
#[derive(Debug)]
enum Raw {
    /// It is unmapped on drop.
    Mapped(MmapRaw),
    /// It belongs to its owner.
    Registered(RegisteredMemory),
}

impl Raw {
    fn as_ptr(&self) -> *const u8 {
        self.as_mut_ptr()
    }

    fn as_mut_ptr(&self) -> *mut u8 {
        match self {
            Raw::Mapped(raw) => raw.as_mut_ptr(),
            Raw::Registered(memory) => memory.as_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Raw::Mapped(raw) => raw.len(),
            Raw::Registered(memory) => memory.len(),
        }
    }
}

/// Returns the system's error of a call that memmap2 made.
fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Mapping {
    /// Maps all `len` bytes of `fd`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        len: u64,
        access: Access,
        pinned: Option<Reservation>,
    ) -> Result<Mapping, SegmentError> {
        let max = isize::MAX as u64;
        let size = usize::try_from(len).ok().filter(|n| *n > 0 && len <= max);
        let size = size.ok_or(SegmentError::BadLength { len, max })?;
        let mut options = MmapOptions::new();
        options.len(size);
        let raw = match access {
            Access::ReadOnly => options.map_raw_read_only(&fd),
            Access::ReadWrite => options.map_raw(&fd),
        };
        let raw = raw.map_err(|source| SegmentError::System { step: "map", len, source: errno(&source) })?;
        Ok(Mapping::over(Raw::Mapped(raw), access, pinned))
    }

    fn over(raw: Raw, access: Access, pinned: Option<Reservation>) -> Mapping {
        Mapping { companion: OnceLock::new(), raw, access, pinned, file: None, read_only: OnceLock::new() }
    }

    /// The memory of another value, which lives as long as this.
    pub(super) fn registered(memory: RegisteredMemory) -> Mapping {
        Mapping::over(Raw::Registered(memory), Access::ReadWrite, None)
    }

    /// Whether it is memory of another value.
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.raw, Raw::Registered(_))
    }

    /// Whether it is registered memory that a value of this type owns.
    #[must_use]
    pub fn is_owned_by<M: OwnedMemory>(&self) -> bool {
        matches!(&self.raw, Raw::Registered(memory) if memory.is_owned_by::<M>())
    }

    /// Returns where the owner of registered memory comes when the last reference to this mapping is gone. `None` if it is no such memory. Of
    /// several calls the last one gets the owner.
    #[must_use]
    pub fn freed(&self) -> Option<Receiver<Box<dyn OwnedMemory>>> {
        match &self.raw {
            // What has registered the memory, too, ends before: it is the first field.
            Raw::Registered(memory) => Some(memory.freed()),
            Raw::Mapped(_) => None,
        }
    }

    /// Returns the mapping, which now keeps the open file that marks it.
    pub(super) fn marked_by(mut self, mark: OwnedFd) -> Mapping {
        self.file = Some(mark);
        self
    }

    /// Returns the mapping in which this process reads what is published in the segment: the segment once more,
    /// read-only, with page tables that are filled as it is read. The first call makes it, of a mapping that keeps its
    /// file. A reader that is not Rust could write a published version through a writable mapping.
    ///
    /// # Errors
    /// [`SegmentError::System`].
    pub fn read_only(&self) -> Result<&Arc<Mapping>, SegmentError> {
        if let Some(made) = self.read_only.get() {
            return Ok(made);
        }
        let failed = |source| SegmentError::System { step: "map read-only", len: self.len(), source };
        let file = self.file.as_ref().ok_or(Errno::BADF).map_err(failed)?;
        let again = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(failed)?;
        let made = Mapping::map(again.as_fd(), self.len(), Access::ReadOnly, None)?.marked_by(again);
        Ok(self.read_only.get_or_init(|| Arc::new(made)))
    }

    /// Says that the memory is about to be unmapped, so that [`PinnedBudget::wait_for_returning`] waits for it.
    ///
    /// [`PinnedBudget::wait_for_returning`]: super::PinnedBudget::wait_for_returning
    pub fn begin_return(&self) {
        if let Some(pinned) = &self.pinned {
            pinned.begin_return();
        }
    }

    /// Returns the segment's open file, if this mapping keeps it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Fills the page tables, and the pages themselves where the mapping is writable, so that no later access faults.
    pub(super) fn prefault(&self) -> Result<(), SegmentError> {
        let advice = match self.access {
            Access::ReadOnly => Advice::PopulateRead,
            Access::ReadWrite => Advice::PopulateWrite,
        };
        self.advise(advice).map_err(|source| SegmentError::System { step: "prefault", len: self.len(), source })
    }

    /// Asks for transparent huge pages. A wish: whether the kernel grants it depends on `shmem_enabled`.
    pub(super) fn prefer_huge(&self) -> rustix::io::Result<()> {
        self.advise(Advice::HugePage)
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        let Raw::Mapped(raw) = &self.raw else { return Ok(()) };
        rustix::io::retry_on_intr(|| raw.advise(advice).map_err(|e| errno(&e)))
    }

    /// Locks the pages in memory.
    pub(super) fn lock(&self) -> rustix::io::Result<()> {
        let Raw::Mapped(raw) = &self.raw else { return Ok(()) };
        raw.lock().map_err(|e| errno(&e))
    }

    /// Locks each page in memory once it is there.
    pub(super) fn lock_as_written(&self) -> rustix::io::Result<()> {
        // SAFETY: the range is this mapping, which stays mapped as long as `self` lives. No memory is read or written.
        unsafe { mlock_with(self.raw.as_mut_ptr().cast(), self.raw.len(), MlockFlags::ONFAULT) }
    }

    /// The length in bytes. Never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> u64 {
        self.raw.len() as u64
    }

    /// Returns the access of this process.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the place of `pointer` in bytes from the mapping's start, or from that of [`Mapping::read_only`]. `None`
    /// if it points elsewhere.
    #[must_use]
    pub fn offset_of(&self, pointer: *const u8) -> Option<u64> {
        let inside = |raw: &Raw| {
            let distance = pointer.addr().checked_sub(raw.as_ptr().addr())?;
            (distance < raw.len()).then_some(distance as u64)
        };
        inside(&self.raw).or_else(|| inside(&self.read_only.get()?.raw))
    }

    /// Returns the address of `len` bytes at `offset`, for fabrics and system calls. It is valid as long as the
    /// mapping lives, and valid for writes only if [`Mapping::access`] says so.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`].
    pub fn ptr_at(&self, offset: u64, len: u64) -> Result<*mut u8, MapError> {
        let error = MapError::OutOfBounds { offset, len, mapping_len: self.len() };
        let end = offset.checked_add(len).ok_or(error)?;
        if end > self.len() {
            return Err(error);
        }
        // SAFETY: offset <= self.len(), so the result points into the mapping or one past its end. It fits usize and
        // isize because the mapping's length does.
        Ok(unsafe { self.raw.as_mut_ptr().add(offset as usize) })
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.raw.as_mut_ptr()
    }

    pub(crate) fn writable_at(&self, offset: u64, len: u64) -> Result<*mut u8, MapError> {
        let pointer = self.ptr_at(offset, len)?;
        match self.access {
            Access::ReadWrite => Ok(pointer),
            Access::ReadOnly => Err(MapError::ReadOnly { offset, len }),
        }
    }

    /// Returns the mapping's companion: what other code keeps about it, made on first use. It is dropped with the
    /// mapping, before the memory is unmapped. A mapping has one; `None` if it is of another type.
    ///
    /// The registrations of a GPU's driver are one, which have to end before the memory does.
    #[must_use]
    pub fn companion<T: Any + Default + Send + Sync>(&self) -> Option<&T> {
        self.companion.get_or_init(|| Box::new(T::default())).downcast_ref()
    }

    /// Copies the bytes at `offset` into `to`.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`]; then `to` is unchanged.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), MapError> {
        let from = self.ptr_at(offset, to.len() as u64)?;
        // SAFETY: `from` is valid for to.len() bytes (just checked). `to` is a unique reference, so it overlaps
        // nothing that may be accessed through this mapping.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], [`MapError::ReadOnly`]; then nothing is written.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), MapError> {
        let to = self.writable_at(offset, bytes.len() as u64)?;
        // SAFETY: `to` is valid for writes of bytes.len() bytes (just checked). If `bytes` is itself a view of this
        // mapping, the contract of `as_bytes` says that no one writes it meanwhile, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies `len` bytes at `from_offset` of `from` to `offset` of this mapping. The two may be the same segment and
    /// may overlap.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] of either range, [`MapError::ReadOnly`]; then nothing is written.
    pub fn copy_from(&self, offset: u64, from: &Mapping, from_offset: u64, len: u64) -> Result<(), MapError> {
        let source = from.ptr_at(from_offset, len)?;
        let to = self.writable_at(offset, len)?;
        // SAFETY: both pointers are valid for `len` bytes (just checked); `copy` allows them to overlap.
        unsafe { ptr::copy(source, to, len as usize) };
        Ok(())
    }

    /// Writes zeros to `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], [`MapError::ReadOnly`]; then nothing is written.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), MapError> {
        let to = self.writable_at(offset, len)?;
        // SAFETY: `to` is valid for writes of `len` bytes (just checked).
        unsafe { ptr::write_bytes(to, 0, len as usize) };
        Ok(())
    }

    /// The bytes at `offset` as a slice.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`].
    ///
    /// # Safety
    /// For as long as the slice lives, no one may write any of its bytes: no other process, no other mapping of the
    /// segment, no NIC, and not this mapping's own `copy_in`, `copy_from` or `zero`. The protocol guarantees that for
    /// published and leased ranges: published bytes are immutable, and a range is reused only when no reader is left.
    pub unsafe fn as_bytes(&self, offset: u64, len: u64) -> Result<&[u8], MapError> {
        let pointer = self.ptr_at(offset, len)?;
        // SAFETY: `pointer` is valid for reads of `len` bytes for as long as `self` is borrowed; u8 has no invalid
        // values; the caller promises that no one writes them.
        Ok(unsafe { std::slice::from_raw_parts(pointer, len as usize) })
    }
}
