//! Private, writable mappings of immutable bytes.
//!
//! Some libraries have no read-only arrays, and a write to a read-only page kills the process. They get their own
//! mapping of the pages that the bytes lie in (`MAP_PRIVATE`). It shows the same bytes with no copy, and the kernel
//! copies a page when it is written. No other mapping sees such a write. The seal `F_SEAL_FUTURE_WRITE` allows this,
//! even through a descriptor that is read-only.

use super::Bytes;
use crate::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in a private, writable mapping. Writes are seen only there. Keeps the bytes that it shows.
pub struct PrivateBytes {
    pages: NonNull<u8>,
    pages_len: usize,
    skip: usize,
    shown: Bytes,
    /// Dropped after the pages are unmapped.
    _counted: Counted,
}

// SAFETY: the pages belong to this value alone, which hands out their address and no reference. The bytes that it
// keeps are Send and Sync themselves.
unsafe impl Send for PrivateBytes {}
// SAFETY: as above.
unsafe impl Sync for PrivateBytes {}

/// The reason why there is no private mapping of some bytes. They have to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrivate {
    /// The bytes do not lie in a segment that is mapped here with its file.
    #[error("the bytes do not lie in a segment whose file is open here")]
    NoFile,
    /// A private copy of one page of the bytes would take a huge page.
    #[error("the bytes lie in huge pages")]
    HugePages,
    /// The process has as many private mappings as it may have. Programs end when there is none left for others.
    #[error("this process has {limit} private mappings, half of vm.max_map_count")]
    TooMany {
        /// The most that there may be.
        limit: usize,
    },
    /// The kernel refused.
    #[error("the kernel maps no private pages: {source}")]
    System {
        /// The kernel's error.
        source: Errno,
    },
}

impl Bytes {
    /// Maps the pages of these bytes once more, privately and writable.
    ///
    /// # Errors
    /// [`NotPrivate`].
    pub fn map_privately(&self) -> Result<PrivateBytes, NotPrivate> {
        let mapping = self.mapping().ok_or(NotPrivate::NoFile)?;
        let (file, offset) = (mapping.file().ok_or(NotPrivate::NoFile)?, mapping.offset_of(self.as_ptr()));
        let offset = offset.ok_or(NotPrivate::NoFile)?;
        let system = |source| NotPrivate::System { source };
        if crate::segment::has_huge_pages(file).map_err(system)? {
            return Err(NotPrivate::HugePages);
        }
        let counted = Counted::take()?;
        let page_bytes = rustix::param::page_size();
        let skip = (offset % page_bytes as u64) as usize;
        let pages_len = (skip + self.len()).max(1).next_multiple_of(page_bytes);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs no memory that Rust knows of. The
        // file's size is sealed, so no page of it can vanish.
        let pages = unsafe { mm::mmap(ptr::null_mut(), pages_len, protection, flags, file, offset - skip as u64) };
        let pages = NonNull::new(pages.map_err(system)?.cast()).ok_or(system(Errno::NOMEM))?;
        Ok(PrivateBytes { pages, pages_len, skip, shown: self.clone(), _counted: counted })
    }
}

/// One of the private mappings that this process may have. Returned on drop.
struct Counted;

/// The number of private mappings of this process.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Counted {
    fn take() -> Result<Counted, NotPrivate> {
        let limit = limit();
        let more = |count| (count < limit).then_some(count + 1);
        let taken = COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Counted).map_err(|_| NotPrivate::TooMany { limit })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most private mappings of this process: half of `vm.max_map_count`, whose default is 65,530.
fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let read = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        read.and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(65_530) / 2
    })
}

impl PrivateBytes {
    /// Returns the start of the bytes, which is valid for reads and writes of [`PrivateBytes::len`] bytes until this
    /// is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the bytes begin in the first of the pages.
        unsafe { self.pages.add(self.skip).as_ptr() }
    }

    /// Returns the number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether there are none")]
    pub fn len(&self) -> usize {
        self.shown.len()
    }
}

impl Drop for PrivateBytes {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped. A caller that was told its address may not use it any longer.
        let _ = unsafe { mm::munmap(self.pages.as_ptr().cast(), self.pages_len) };
    }
}

impl fmt::Debug for PrivateBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateBytes({:?}..+{})", self.as_ptr(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Access, Lock, Pages, PinnedBudget, Segment, SegmentOptions};
    use std::sync::Arc;

    #[test]
    fn private_writes_are_seen_only_there_and_the_owner_is_kept() {
        let options = SegmentOptions { len: 3 * 4096, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("private", &options, &PinnedBudget::new(options.len)).unwrap();
        segment.mapping().copy_in(5000, b"0123456789").unwrap();
        segment.seal_writers().unwrap();
        let fd = segment.fd().try_clone_to_owned().unwrap();
        let mapping = Segment::adopt_to_read(fd, segment.len(), 7).unwrap();
        assert_eq!(mapping.access(), Access::ReadOnly);
        let lease = Arc::new(());
        let watch = Arc::downgrade(&lease);
        // SAFETY: no one writes the segment from here on.
        let bytes = unsafe { Bytes::of_mapping(&mapping, 5000, 10, lease) }.unwrap();
        let private = bytes.map_privately().unwrap();
        let again = bytes.map_privately().unwrap();
        // SAFETY: ten bytes of a mapping of its own.
        let (here, there) = unsafe {
            private.as_ptr().write_bytes(b'x', 3);
            let read = |p: &PrivateBytes| std::slice::from_raw_parts(p.as_ptr(), p.len()).to_vec();
            (read(&private), read(&again))
        };
        assert_eq!((&here[..], &there[..], &bytes[..]), (&b"xxx3456789"[..], &b"0123456789"[..], &b"0123456789"[..]));
        drop((bytes, again));
        assert!(watch.upgrade().is_some());
        drop(private);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn bytes_without_a_file_are_not_mapped_privately() {
        let options = SegmentOptions { len: 4096, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("private", &options, &PinnedBudget::new(4096)).unwrap();
        // SAFETY: no one writes it.
        let bytes = unsafe { Bytes::of_mapping(segment.mapping(), 0, 10, Arc::new(())) }.unwrap();
        assert_eq!(bytes.map_privately().unwrap_err(), NotPrivate::NoFile);
    }
}
