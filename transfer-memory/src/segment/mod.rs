//! Segments: memory that several processes map.
//!
//! A segment is one memfd. It is sized once, prefaulted and, where allowed, locked, because a fresh page fault costs
//! several times the copy that causes it: nothing on a hot path touches memory for the first time. It is sealed:
//!
//! | seal | when | what it prevents |
//! |---|---|---|
//! | `F_SEAL_SHRINK`, `F_SEAL_GROW` | at creation | SIGBUS in every process that maps it |
//! | `F_SEAL_FUTURE_WRITE`, `F_SEAL_SEAL` | [`Segment::seal_writers`], once every writer has mapped it | any further writer, also one who reopens the descriptor through `/proc`; holes punched into it |
//!
//! Memory of a worker's own may be a segment as well, if the sidecar is inside the worker's process ([`Segment::registered`]). It is no
//! memfd, so no other process can map it.
//!
//! A descriptor opened read-only would protect nothing, because its holder can reopen it for writing; the seal does.

mod budget;
mod copy;
mod error;
mod mapping;
mod memfd;
mod peer;
mod reader_locks;
mod reference;
mod registered;
mod stream;
mod word;

pub(crate) use budget::allowed;
pub use budget::{BudgetExceeded, PinnedBudget, Reservation};
pub use copy::copy_in_parallel;
pub use error::{MapError, SegmentError};
pub use mapping::{Access, Mapping};
pub(crate) use memfd::has_huge_pages;
pub use memfd::{Achieved, Lock, MemoryKind, PageKind, Pages, Segment, SegmentOptions};
pub use reader_locks::is_marked;
pub(crate) use reader_locks::reopen;
pub use reference::ReferenceMarks;
pub use registered::OwnedMemory;
pub use stream::STREAM_FROM;

#[cfg(test)]
mod peer_tests;
#[cfg(test)]
mod tests;
