//! Shared memory: the segments that a worker and its sidecar both map, and the messages that describe them.
//!
//! The sidecar creates every segment, so that it can bound, pin and register it. A worker maps what it is handed.
//! Everything that a worker can write is treated as hostile: its messages and ring records are copied out and checked
//! before use, and shared memory is reached only through a bounds check.
//!
//! # Layout
//! - [`segment`]: sealed, prefaulted, pinned memfds; mappings of them; the budget that bounds what is pinned.
//! - [`ring`]: single-producer single-consumer rings of byte records in shared memory.
//! - [`socket`]: Unix sockets that carry messages, file descriptors and one-byte doorbells.
//! - [`session`]: the handshake between a worker and its sidecar, and what each side holds afterwards.
//! - [`board`]: the table of published versions that workers read without a call, and their hazard pointers.
//! - [`arena`]: a worker's allocations in the segment that it writes.
//! - [`cgroup`]: the memory that control groups allow.
//! - [`forked`]: detects that this process is a forked child.
//! - [`view`]: read-only views of a leased range: typed slices, Arrow buffers.
//!
//! Linux only: memfd seals, `MADV_POPULATE_WRITE` (5.14) and `F_SEAL_FUTURE_WRITE` (5.1) have no equal elsewhere.

pub mod arena;
pub mod board;
pub mod cgroup;
pub mod forked;
pub mod ring;
pub mod segment;
pub mod session;
pub mod socket;
mod sync;
pub mod view;

pub use rustix::io::Errno;
