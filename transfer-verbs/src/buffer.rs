//! Memory of this process for a device, for programs that have no segments.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::{io, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::DeviceMemory;

/// A range is not within a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len_bytes} bytes at {offset} are not within a buffer of {size} bytes")]
pub struct OutOfBounds {
    /// The start of the range.
    pub offset: usize,
    /// The length of the range.
    pub len_bytes: usize,
    /// The size of the buffer.
    pub size: usize,
}

/// Pages of this process, private to it, and zero at first. A device may write them at any time, so they are only
/// copied from and to, and no reference to them exists.
#[derive(Debug)]
pub struct Buffer {
    start: *mut u8,
    size: usize,
}

// SAFETY: the pages are plain memory, accessed by copies only; the value owns their mapping.
unsafe impl Send for Buffer {}
// SAFETY: as above. Copies may race with each other and with a device, and then return a mixture of bytes.
unsafe impl Sync for Buffer {}

// SAFETY: the mapping lives as long as the value, is readable and writable, and no reference to it is formed.
unsafe impl DeviceMemory for Buffer {
    fn range(&self) -> (*mut u8, usize) {
        (self.start, self.size)
    }

    fn writable(&self) -> bool {
        true
    }
}

impl Buffer {
    /// Maps at least `size` bytes, whole pages, all of them present.
    pub fn new(size: usize) -> io::Result<Arc<Self>> {
        let size = size.max(1).checked_next_multiple_of(4096).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which nothing else knows.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE | MapFlags::POPULATE) }?;
        Ok(Arc::new(Self { start: start.cast(), size }))
    }

    fn at(&self, offset: usize, len_bytes: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.size => Ok(self.start.wrapping_add(offset)),
            _ => Err(OutOfBounds { offset, len_bytes, size: self.size }),
        }
    }

    /// Copies bytes into it.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: within the mapping. No slice is of its bytes, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes out of it.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, into.len())?;
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Returns a byte that a device may be about to write. What was written before it is visible afterwards.
    pub fn look(&self, offset: usize) -> Result<u8, OutOfBounds> {
        let at = self.at(offset, 1)?;
        // SAFETY: within the mapping.
        let byte = unsafe { at.read_volatile() };
        fence(Ordering::Acquire);
        Ok(byte)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this is the mapping's last use: regions hold the value.
        if let Err(error) = unsafe { munmap(self.start.cast(), self.size) } {
            tracing::warn!(%error, "{} bytes could not be unmapped", self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, OutOfBounds};
    use crate::DeviceMemory;

    #[test]
    fn bytes_are_copied_within_bounds_only() {
        let buffer = Buffer::new(5000).expect("memory");
        assert_eq!(buffer.range().1, 8192);
        buffer.write(8190, b"ab").expect("within");
        let mut read = [0; 3];
        buffer.read(8189, &mut read).expect("within");
        assert_eq!((&read, buffer.look(8191)), (b"\0ab", Ok(b'b')));
        let beyond = OutOfBounds { offset: 8191, len_bytes: 2, size: 8192 };
        assert_eq!(buffer.write(8191, b"ab"), Err(beyond));
        assert_eq!(beyond.to_string(), "2 bytes at 8191 are not within a buffer of 8192 bytes");
        assert!(buffer.read(usize::MAX, &mut read).is_err() && buffer.look(8192).is_err());
        assert_eq!(buffer.look(8191), Ok(b'b'));
    }
}
