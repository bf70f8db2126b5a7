//! Versions on disk: the threads that write and read them, and the files.
//!
//! The data-plane thread hands over jobs and never waits for the disk. Two threads do them: all reads that are asked
//! for come before the next piece of a write, so that a reader waits for one piece at most.
//!
//! Each tenant has one file. It has no name, so it ends with the process, however that ends, and no worker gets its
//! descriptor. A version lies in one piece, at a multiple of [`BLOCK`]. Each block has a checksum, which is kept in memory
//! and compared at every read. Space that is free is used again, and given back to the file system meanwhile.
//!
//! # Layout
//! - `file`: a file without a name, with direct I/O where the file system has it.
//! - `space`: which parts of a file are free.
//! - `store`: versions in files, with their checksums.
//! - `worker`: the threads.

mod file;
mod space;
mod store;
#[cfg(test)]
mod tests;
mod worker;

pub use file::DiskError;
pub(crate) use store::{MemoryRange, Store};
pub(crate) use worker::{Disk, Done};

/// The unit of space and of checksums, in bytes. It is a multiple of what direct I/O asks for on any disk.
const BLOCK: usize = 16 << 10;

/// The most bytes that are written or read at once.
const PIECE: usize = 4 << 20;
