//! Boards: tables in shared memory of what is published on a host. Workers read them without asking their sidecar.
//!
//! A sidecar has one board for each user id. Only its data plane writes there; the workers of that user map it
//! read-only. A worker that finds a tensor sets a *hazard pointer* to it, in words of its own session. Only that worker
//! writes these words, and the sidecar reads them. So a fetch of a version on the board needs no system call, no
//! doorbell and no copy.
//!
//! # The board
//! A page that begins with the liveness word, which tells whether the sidecar runs; then a power of two of entries of
//! [`ENTRY_BYTES`] each. The entry of a key is one of the [`PROBES`] entries that start at its [hash](hash_of). A key
//! that finds none of them free is not shown.
//!
//! | word of an entry | field |
//! |---|---|
//! | 0 | sequence: odd while the entry is being written |
//! | 1 | hash of the key |
//! | 2 | ticket: names this publication of this version, and is never used again; 0: the entry is empty |
//! | 3 | version |
//! | 4 | segment u32, element type u8, rank u8, length of the key u16 |
//! | 5 | where the tensor begins in its segment, in bytes |
//! | 6 | dimensions, one word each, and then the key's bytes, padded with zeros |
//!
//! # Hazard pointers
//! A header of [`HAZARDS_HEADER_BYTES`] (word 0: 1 while the sidecar honours the hazard pointers; words 1 and 2:
//! successful fetches, and their bytes), and then [`BUCKETS`] cache lines of [`BUCKET_HAZARDS`] words. Each word is 0,
//! or a ticket that is being read. A hazard pointer to a ticket lies in the bucket that the ticket's number selects, so
//! a search for it reads one cache line of each session.
//!
//! # No memory is given back under a reader
//! By Dekker's argument, as in the [rings](crate::ring). A reader *sets a hazard pointer to the ticket, fences, and
//! checks that the entry's sequence is the one that it has read*; only then does it read the tensor. The sidecar
//! *changes the entry, fences, and looks for hazard pointers*; it frees the memory only where there is none. One of the
//! fences comes first. If the reader's does, the sidecar finds the hazard pointer. If the sidecar's does, the reader
//! finds another sequence, and clears its hazard pointer.
//!
//! A release works the same way: the reader *clears its hazard pointer, fences, and checks the sequence*. If the
//! sequence has changed, the sidecar may have seen the hazard pointer and be waiting. So the reader tells the sidecar,
//! which looks for hazard pointers again.
//!
//! # Notices
//! The owner of a key that workers wait for shows its versions itself. The board's entry then names a *notice* in place
//! of a tensor: element type 0xff, the segment of the owner's notices, the offset in it, and, as the one dimension, the
//! number of the owner's arena. A notice is [`NOTICE_BYTES`] long. It is a seqlock entry that the worker alone writes:
//!
//! | word of a notice | field |
//! |---|---|
//! | 0 | sequence: odd while it is being written, or while the push that it describes is not yet in the ring |
//! | 1 | ticket, as the worker has numbered it; 0: nothing is shown |
//! | 2 | version |
//! | 3 | element type u8, rank u8 |
//! | 4 | where the tensor begins in the arena, in bytes |
//! | 5 | dimensions, one word each |
//!
//! The worker *begins the update of the notice, writes the push into the ring, publishes the notice, and wakes the
//! waiters*. The argument above still holds: the sidecar looks for hazard pointers to the previous version after it has
//! read the push, and so after the update of the notice began. The notice is published only when the push is in the
//! ring, so the sidecar finds in the ring every version that a reader has found in the notice. A reader checks both
//! sequences, so the sidecar withdraws what a notice shows by changing its own entry.
//!
//! A waiter sleeps on five words at once: the sequence of the notice, the sequence of the entry, the sidecar's
//! liveness, the word that says whether its own hazard pointers are honoured, and one of its own process.
//!
//! # Trust
//! Workers trust their sidecar. A notice says what its worker wrote, and that worker could write anything into its
//! tensors as well. Readers check only that a notice does not lead them out of that worker's arena, so it harms no
//! other. A sidecar compares a worker's hazard pointers with tickets, and reports its counts. A worker that writes
//! nonsense there keeps memory from being reused, as it could by keeping leases, and only until its session ends.

mod entry;
mod futex;
mod hazards;
mod layout;
mod liveness;
mod notice;
#[cfg(test)]
mod notice_tests;
mod reader;
mod table;
#[cfg(test)]
mod tests;
mod words;

pub use hazards::SessionHazards;
pub use layout::{
    BUCKET_HAZARDS, BUCKETS, ENTRY_BYTES, HAZARDS_BYTES, HAZARDS_HEADER_BYTES, HEADER_BYTES, NOTICE_BYTES,
    NOTICES_BYTES, PROBES, board_bytes, entries_of, hash_of,
};
pub use liveness::{Liveness, LivenessError};
pub use notice::{Alarm, NoticeState, NoticeWriter, Watch};
pub use reader::{BoardReader, HazardPointer, Lookup, NotHeld, Snapshot};
pub use table::{BoardWriter, NoRoom};
