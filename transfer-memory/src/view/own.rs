//! Memory of this process alone, for what has no place in a segment.

use super::Bytes;
use crate::cgroup;
use memmap2::{Advice, MmapMut};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are written before they are read, as a whole or a part at a time. They are zero before. Memory is taken with the
/// first write to a page.
#[derive(Debug)]
pub struct OwnMemory {
    map: MmapMut,
    len: usize,
}

impl OwnMemory {
    /// Asks for `len` bytes.
    ///
    /// # Errors
    /// That of the kernel, where there is not so much memory, or the process may not have it; `OutOfMemory`, with the limit, where its
    /// control groups allow less. The kernel would end the process there, once the pages are written.
    pub fn new(len: u64) -> io::Result<OwnMemory> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        within(len as u64, cgroup::memory_limit(Path::new("/proc/self")))?;
        let map = MmapMut::map_anon(len.max(1))?;
        // A wish: it is faster with huge pages.
        let _ = map.advise(Advice::HugePage);
        Ok(OwnMemory { map, len })
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }

    /// Makes the bytes immutable. Their memory is freed with the last view.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        let (pointer, len) = (self.map.as_ptr().cast_mut(), self.len);
        // SAFETY: the bytes stay mapped while the map lives, which only the views own now, in their common box. Nothing
        // writes through it there.
        unsafe { Bytes::from_raw_parts(pointer, len, Arc::new(self.map)) }
    }
}

/// Refuses more bytes than the control groups allow.
fn within(len: u64, limit: Option<u64>) -> io::Result<()> {
    match limit.filter(|limit| len > *limit) {
        Some(limit) => {
            let text = format!("the memory cgroup of this process allows {limit} bytes");
            Err(io::Error::new(io::ErrorKind::OutOfMemory, text))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: large-tensors
    #[test]
    fn more_than_the_control_groups_allow_is_refused() {
        assert!(within(4096, Some(4096)).is_ok() && within(u64::MAX, None).is_ok());
        let e = within(4097, Some(4096)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(e.to_string(), "the memory cgroup of this process allows 4096 bytes");
    }

    #[test]
    fn own_memory_is_zero_then_written_then_shared() {
        let mut memory = OwnMemory::new(10_000).unwrap();
        assert!(memory.as_mut_bytes().iter().all(|byte| *byte == 0));
        memory.as_mut_bytes()[9_000..].fill(7);
        let bytes = memory.freeze();
        let part = bytes.slice(8_999..9_001).unwrap();
        drop(bytes);
        assert_eq!(&part[..], [0, 7]);
        assert!(part.map_privately().is_err(), "it has no file");
        assert!(OwnMemory::new(0).unwrap().freeze().is_empty());
        assert!(OwnMemory::new(1 << 62).is_err());
    }
}
