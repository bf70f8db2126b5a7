//! Files that are written without the page cache. What is sorted is not read again soon, and the cache would only take
//! memory, and the time of a copy.

use rustix::fs::{Mode, OFlags, ftruncate, open};
use rustix::io::{Errno, write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What a direct write has to be a multiple of, on any disk.
const ALIGNED: usize = 4096;

/// The bytes of a write.
const PIECE: usize = 1 << 20;

/// A file that is being written.
pub(crate) struct Output {
    file: OwnedFd,
    buffer: Vec<u8>,
    /// Where the piece begins in the buffer, and how much of it is filled.
    start: usize,
    filled: usize,
    len: u64,
}

impl Output {
    /// Makes a file, or replaces one.
    pub(crate) fn create(path: &Path) -> std::io::Result<Output> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let create = |more: OFlags| open(path, flags | more, Mode::from_raw_mode(0o644));
        let file = match create(OFlags::DIRECT) {
            // The file system has no direct I/O.
            Err(Errno::INVAL) => create(OFlags::empty())?,
            created => created?,
        };
        let buffer = vec![0; PIECE + ALIGNED];
        let start = buffer.as_ptr().align_offset(ALIGNED);
        Ok(Output { file, buffer, start, filled: 0, len: 0 })
    }

    /// Writes bytes behind the others.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let len = bytes.len().min(PIECE - self.filled);
            let at = self.start + self.filled;
            self.buffer[at..at + len].copy_from_slice(&bytes[..len]);
            (self.filled, bytes) = (self.filled + len, &bytes[len..]);
            if self.filled == PIECE {
                self.write_piece()?;
            }
        }
        Ok(())
    }

    /// Writes the rest.
    pub(crate) fn finish(mut self) -> std::io::Result<()> {
        self.write_piece()?;
        // The last piece was written with what fills its last block.
        Ok(ftruncate(&self.file, self.len)?)
    }

    fn write_piece(&mut self) -> std::io::Result<()> {
        let end = self.start + self.filled.next_multiple_of(ALIGNED);
        let mut left = &self.buffer[self.start..end];
        while !left.is_empty() {
            match write(&self.file, left) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
        }
        (self.len, self.filled) = (self.len + self.filled as u64, 0);
        Ok(())
    }
}
