//! Boards: what is published on a host, as a table in shared memory in which its workers look by themselves.
//!
//! A sidecar has one board for each user id. Its data plane alone writes there; the workers of that user map it read-only. Who finds a
//! tensor there *marks* it as read, in words of its own session that only it writes, and the sidecar reads. So a fetch of what is there
//! asks nobody: no system call, no doorbell, no copy.
//!
//! # The board
//! A page whose first bytes are the liveness of the sidecar: a word that tells whether it runs, and then entries of [`ENTRY_BYTES`], of which there are a power of two. A
//! key has its entry in one of the [`PROBES`] places from its [hash](hash_of) on; a key that finds none is not shown.
//!
//! | word of an entry | field |
//! |---|---|
//! | 0 | sequence: odd while the entry is being written |
//! | 1 | hash of the key |
//! | 2 | ticket: names this showing of this version, for ever; 0: nothing is shown |
//! | 3 | version |
//! | 4 | segment u32, element type u8, rank u8, length of the key u16 |
//! | 5 | where the tensor begins in its segment, in bytes |
//! | 6 | dimensions, one word each, and then the key's bytes, padded with zeros |
//!
//! # Marks
//! A line of [`MARKS_HEADER_BYTES`] (word 0: the sidecar honours the marks; word 1 and 2: fetches that found something, and their
//! bytes), and then [`BUCKETS`] lines of [`BUCKET_MARKS`] words: each 0, or a ticket that is being read. A ticket is marked in the
//! bucket of its number alone. So whoever asks whether a ticket is marked looks at one line for each session.
//!
//! # No memory is given back under a reader
//! By Dekker's argument, as in the [rings](crate::ring). A reader *marks the ticket, fences, and looks whether the entry's sequence is
//! the one that it has read*; only then it reads the tensor. The sidecar *changes the entry, fences, and looks for marks*; only where
//! there is none it gives the memory back. One of the fences comes first. If the reader's does, the sidecar finds the mark. If the
//! sidecar's does, the reader finds another sequence, and takes its mark away.
//!
//! The way back is the same: the reader *clears its mark, fences, and looks at the sequence*. Where that has changed the sidecar may have seen
//! the mark and be waiting, so the reader tells it, which looks for marks again.
//!
//! # Notices
//! A key that workers wait for is shown by its owner itself. The entry names a *notice* then, in the place of a tensor: element type 0xff, the
//! segment of its owner's notices, the offset in there, and, as its one dimension, the number of its owner's arena. A notice is
//! [`NOTICE_BYTES`] long and written as an entry is, by the worker alone:
//!
//! | word of a notice | field |
//! |---|---|
//! | 0 | sequence: odd while it is being written, or while the push that it is about is on its way into the ring |
//! | 1 | ticket, as the worker has numbered it; 0: nothing is shown |
//! | 2 | version |
//! | 3 | element type u8, rank u8 |
//! | 4 | where the tensor begins in the arena, in bytes |
//! | 5 | dimensions, one word each |
//!
//! The worker *takes the notice down, shows the push to the sidecar, puts the notice up, and wakes who waits for it*. The argument above holds as
//! it stands: the sidecar looks for marks of the version before after it has heard of the push, and so after the notice was down. Because it is
//! up only when the push is in the ring, the sidecar finds there what anybody has found in the notice. A reader looks at both sequences, so
//! the sidecar ends what a notice shows by changing its own entry.
//!
//! Who waits sleeps on all the words at once that may tell it more: the sequence of the notice, that of the entry, the sidecar's life, the word by
//! which its own marks are honoured, and one of its own process.
//!
//! # Trust
//! Workers trust their sidecar. What a notice says is its worker's word, who could as well write what it likes into its tensors: it is looked at
//! for what would lead a reader out of that worker's arena, and harms no other. A sidecar compares what a worker writes with tickets, and shows its counts: one that writes nonsense there
//! keeps memory from being used again, as it could by keeping leases, and only until its session ends.

mod entry;
mod futex;
mod layout;
mod liveness;
mod marks;
mod notice;
#[cfg(test)]
mod notice_tests;
mod reader;
mod table;
#[cfg(test)]
mod tests;
mod words;

pub use layout::{
    BUCKET_MARKS, BUCKETS, ENTRY_BYTES, HEADER_BYTES, MARKS_BYTES, MARKS_HEADER_BYTES, NOTICE_BYTES, NOTICES_BYTES,
    PROBES, board_bytes, entries_of, hash_of,
};
pub use liveness::{Liveness, LivenessError};
pub use marks::SessionMarks;
pub use notice::{Alarm, NoticeState, NoticeWriter, Watch};
pub use reader::{BoardReader, Found, Mark, NotHeld, Seen};
pub use table::{BoardWriter, NoRoom};
