//! A file without a name.

use super::{BLOCK, PIECE};
use rustix::fs::{FallocateFlags, Mode, OFlags, StatFs, fallocate, ftruncate, open, statfs, unlink};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The numbers of file systems that are memory.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The reason why a folder cannot take versions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The file system is memory.
    #[error("{} is on a file system in memory, where writing to disk frees none: choose a folder on a disk", folder.display())]
    InMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// A system call failed.
    #[error("{what} in {}: {why}", folder.display())]
    System {
        /// What was attempted.
        what: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
}

/// A file without a name.
#[derive(Debug)]
pub(super) struct Unnamed {
    file: OwnedFd,
}

impl Unnamed {
    /// Makes a file in this folder that only this process can open.
    pub(super) fn create(folder: &Path) -> Result<Unnamed, DiskError> {
        let system = |what: &'static str| {
            move |why: Errno| DiskError::System { what, folder: folder.to_owned(), why: why.into() }
        };
        let StatFs { f_type, .. } = statfs(folder).map_err(system("looking at the file system"))?;
        if MEMORY_FILE_SYSTEMS.contains(&(f_type as u64)) {
            return Err(DiskError::InMemory { folder: folder.to_owned() });
        }
        let file = make(folder, OFlags::DIRECT)
            // The file system has no direct I/O.
            .or_else(|why| if why == Errno::INVAL { make(folder, OFlags::empty()) } else { Err(why) })
            .map_err(system("making a file"))?;
        Ok(Unnamed { file })
    }

    /// Makes sure that there is space. A file system that cannot do that says so when it is written.
    pub(super) fn reserve(&self, at: u64, len: u64) -> Result<(), Errno> {
        // Beyond this limit the kernel ends the process by SIGXFSZ, unless its program ignores that.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| at.saturating_add(len) > limit) {
            return Err(Errno::FBIG);
        }
        match fallocate(&self.file, FallocateFlags::empty(), at, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            reserved => reserved,
        }
    }

    pub(super) fn write(&self, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, at) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(n) => (at, bytes) = (at + n as u64, &bytes[n..]),
                Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, mut at: u64, mut to: &mut [u8]) -> Result<(), Errno> {
        while !to.is_empty() {
            match pread(&self.file, &mut *to, at) {
                // The file is shorter than what was written.
                Ok(0) => return Err(Errno::IO),
                Ok(n) => (at, to) = (at + n as u64, &mut to[n..]),
                Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Gives space back to the file system, if that can take it. If not, the space is only used again.
    pub(super) fn punch(&self, at: u64, len: u64) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(&self.file, hole, at, len);
    }

    /// Ends the file here.
    pub(super) fn cut(&self, len: u64) {
        let _ = ftruncate(&self.file, len);
    }

    /// Flips a bit, for tests.
    #[cfg(test)]
    pub(super) fn damage(&self, at: u64) {
        let mut piece = Piece::new();
        let block = &mut piece.bytes()[..BLOCK];
        let start = at / BLOCK as u64 * BLOCK as u64;
        self.read(start, block).unwrap();
        block[(at - start) as usize] ^= 4;
        self.write(start, block).unwrap();
    }
}

fn make(folder: &Path, direct: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
    let mode = Mode::RUSR | Mode::WUSR;
    match open(folder, flags | OFlags::TMPFILE, mode) {
        // A file system that has no such files, or a kernel that takes the folder for what is to be opened.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        made => return made,
    }
    for n in 0..1000_u32 {
        let path = folder.join(format!(".transferd-{}-{n}", std::process::id()));
        match open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
            Err(Errno::EXIST) => {}
            made => {
                // Some file systems make the file and then refuse direct I/O.
                let unlinked = unlink(&path);
                return made.and_then(|file| unlinked.map(|()| file));
            }
        }
    }
    Err(Errno::EXIST)
}

/// Memory for one piece, as direct I/O wants it.
pub(super) struct Piece(Vec<u8>);

impl Piece {
    pub(super) fn new() -> Piece {
        Piece(vec![0; PIECE + BLOCK])
    }

    /// [`PIECE`] bytes, which start at a multiple of [`BLOCK`].
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK).min(BLOCK);
        &mut self.0[start..start + PIECE]
    }
}
