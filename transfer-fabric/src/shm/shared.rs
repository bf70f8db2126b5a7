//! The memory that both sides of a link write: two rings, and words by which each side signals the other.
//!
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | the nonce, 16 bytes | the acceptor, who makes the memory |
//! | 128 | not 0: the acceptor has ended the link | the acceptor |
//! | 256 | not 0: the initiator has ended the link | the initiator |
//! | 384 | counts while the acceptor copies | the acceptor |
//! | 512 | counts while the initiator copies | the initiator |
//! | 4096 | the ring from the acceptor to the initiator | both, as a ring is |
//! | behind it | the ring from the initiator to the acceptor | both |
//!
//! **Why a side says that it has ended the link** before it does anything else: from then on its memory may be used
//! again, and the receiver may be copying from it at that moment. The receiver checks the word after each copy, and
//! discards a copy that ended later.
//!
//! The memory has ordinary pages. The initiator seals it once both sides have mapped it, so that no process can punch
//! a hole into it any longer.

use super::note::{NONCE_BYTES, Nonce};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use transfer_core::fabric::FabricError;
use transfer_memory::ring::{Consumer, HEADER_BYTES, Producer, RingRange};
use transfer_memory::segment::{Access, Lock, Mapping, PageKind, Pages, PinnedBudget, Segment, SegmentOptions};

/// The size of each ring: more than a thousand records.
const RING_BYTES: u32 = 128 << 10;

const NONCE_AT: u64 = 0;
const ACCEPTOR_ENDED_AT: u64 = 128;
const INITIATOR_ENDED_AT: u64 = 256;
const ACCEPTOR_COPIES_AT: u64 = 384;
const INITIATOR_COPIES_AT: u64 = 512;
const TO_INITIATOR_AT: u64 = 4096;
const TO_ACCEPTOR_AT: u64 = TO_INITIATOR_AT + HEADER_BYTES + RING_BYTES as u64;

/// The size of the memory: whole pages, even if a page has 64 KiB.
const LEN: u64 = (TO_ACCEPTOR_AT + HEADER_BYTES + RING_BYTES as u64).next_multiple_of(64 << 10);

const _: () = assert!(TO_ACCEPTOR_AT.is_multiple_of(128) && NONCE_AT + NONCE_BYTES as u64 <= ACCEPTOR_ENDED_AT);

/// One side's view of the memory.
#[derive(Debug)]
pub(super) struct LinkMemory {
    mapping: Arc<Mapping>,
    acceptor: bool,
    pub(super) out: Producer,
    pub(super) incoming: Consumer,
}

fn failed(error: impl std::fmt::Display) -> FabricError {
    FabricError::Device { what: "sharing the memory of a link", why: error.to_string() }
}

impl LinkMemory {
    /// Makes new memory as its acceptor. Returns it with its descriptor, which is for the initiator.
    pub(super) fn make(budget: &PinnedBudget, nonce: &Nonce) -> Result<(LinkMemory, OwnedFd), FabricError> {
        let options = SegmentOptions { len: LEN, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("transfer-link", &options, budget).map_err(failed)?;
        segment.mapping().copy_in(NONCE_AT, nonce).map_err(failed)?;
        let shared = LinkMemory::of(segment.mapping().clone(), true)?;
        Ok((shared, segment.into_fd().map_err(failed)?))
    }

    /// Maps the memory that the acceptor passed. Returns it with the nonce in it.
    pub(super) fn adopt(fd: OwnedFd) -> Result<(LinkMemory, Nonce), FabricError> {
        let segment = Segment::adopt(fd, Access::ReadWrite, LEN).map_err(failed)?;
        if segment.achieved().pages != PageKind::Base {
            return Err(failed("it lies in huge pages, which can run out under who maps them"));
        }
        segment.seal_writers().map_err(failed)?;
        let mut nonce = Nonce::default();
        segment.mapping().copy_out(NONCE_AT, &mut nonce).map_err(failed)?;
        Ok((LinkMemory::of(segment.mapping().clone(), false)?, nonce))
    }

    fn of(mapping: Arc<Mapping>, acceptor: bool) -> Result<LinkMemory, FabricError> {
        let ring = |offset| RingRange { offset, capacity: RING_BYTES };
        let (out, incoming) = match acceptor {
            true => (TO_INITIATOR_AT, TO_ACCEPTOR_AT),
            false => (TO_ACCEPTOR_AT, TO_INITIATOR_AT),
        };
        let out = Producer::new(mapping.clone(), ring(out)).map_err(failed)?;
        let incoming = Consumer::new(mapping.clone(), ring(incoming)).map_err(failed)?;
        Ok(LinkMemory { mapping, acceptor, out, incoming })
    }

    /// Tells the peer to discard everything that it copies from this side from now on.
    pub(super) fn end(&self) {
        let at = if self.acceptor { ACCEPTOR_ENDED_AT } else { INITIATOR_ENDED_AT };
        // The word exists, because the mapping has the length that was asked for.
        if let Ok(word) = self.mapping.word_at(at) {
            word.store(1, Ordering::SeqCst);
        }
        // This orders the word before later writes to the memory that was being sent from.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the peer has not ended the link yet. If so, everything that was copied before this call is
    /// valid.
    pub(super) fn peer_stands(&self) -> bool {
        // This orders the copies before the check.
        fence(Ordering::SeqCst);
        let at = if self.acceptor { INITIATOR_ENDED_AT } else { ACCEPTOR_ENDED_AT };
        self.mapping.word_at(at).is_ok_and(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Tells the peer that this side is copying for it, because a long write is acknowledged only at its end.
    pub(super) fn beat(&self) {
        let at = if self.acceptor { ACCEPTOR_COPIES_AT } else { INITIATOR_COPIES_AT };
        if let Ok(word) = self.mapping.word_at(at) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the count that the peer raises while it copies.
    pub(super) fn peer_beats(&self) -> u32 {
        let at = if self.acceptor { INITIATOR_COPIES_AT } else { ACCEPTOR_COPIES_AT };
        self.mapping.word_at(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The memory itself, for tests that overwrite it.
    #[cfg(test)]
    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
