//! Allocations in the arena.

use super::loans::Loan;
use super::{Lent, Session};
use crate::error::Error;
use crate::memory::TensorMut;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::alloc::AllocError;
use transfer_memory::arena::{Arena, Block};

impl Session {
    /// The polling interval of waits for the readers of a session before this one, whose end no event tells: the sidecar of that session
    /// has ended, and its readers are other processes.
    pub(crate) const FORMER_READERS_POLL: Duration = Duration::from_millis(10);

    /// The arena.
    pub(crate) fn arena(&self) -> &Arena {
        &self.home.arena
    }

    /// Allocates `len_bytes`.
    ///
    /// # Errors
    /// [`Error::ArenaFull`], [`Error::TooLargeForArena`], [`Error::Forked`].
    pub(crate) fn allocate(&self, len_bytes: u64) -> Result<Block, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let arena = self.arena();
        let allocated = match arena.allocate(len_bytes) {
            Err(AllocError::NoRoom { .. }) if self.home.sweep() => arena.allocate(len_bytes),
            allocated => allocated,
        };
        allocated.map_err(|e| {
            let arena_bytes = arena.mapping().len();
            let (free_bytes, largest_free_bytes) = match e {
                AllocError::TooLong { .. } => return Error::TooLargeForArena { wanted_bytes: len_bytes, arena_bytes },
                AllocError::NoRoom { free_bytes, largest_free, .. } => (free_bytes, largest_free),
                _ => (arena.free_bytes(), 0),
            };
            let in_use_bytes = arena.used_bytes();
            Error::ArenaFull { wanted_bytes: len_bytes, free_bytes, largest_free_bytes, in_use_bytes, arena_bytes }
        })
    }

    /// When a wait for room looks again that is not woken before, at the latest `limit`.
    pub(crate) fn room_limit(&self, now: Instant, limit: Instant) -> Instant {
        match self.home.awaits_former_readers() {
            true => limit.min(now + Session::FORMER_READERS_POLL),
            false => limit,
        }
    }

    /// Allocates `len_bytes`. `None` if there is no room now; then `waker` is woken when memory is free again, but for memory that
    /// [`Session::room_limit`] tells of. With `last_try`, no room is an error.
    ///
    /// # Errors
    /// Those of [`Session::allocate`]; [`Error::SidecarGone`] if waiting is useless.
    pub(crate) fn allocate_or_wait(
        &self,
        len_bytes: u64,
        waker: &Waker,
        last_try: bool,
    ) -> Result<Option<Block>, Error> {
        match self.allocate(len_bytes) {
            Err(Error::ArenaFull { .. }) if !last_try => {}
            done => return done.map(Some),
        }
        if let Some(gone) = self.gone() {
            return Err(gone.into());
        }
        self.home.room.register(waker);
        match self.allocate(len_bytes) {
            Err(Error::ArenaFull { .. }) => Ok(None),
            done => done.map(Some),
        }
    }

    /// Returns a range to its owner after its push has failed. `None` if the sidecar violated the protocol.
    pub(crate) fn take_back(&self, lent: Lent) -> Option<Block> {
        self.arena().take_back(lent.allocation).ok()
    }

    /// Checks that a tensor lies in this session's arena.
    ///
    /// # Errors
    /// [`Error::OtherClient`].
    pub(crate) fn check_arena(&self, tensor: &TensorMut) -> Result<(), Error> {
        match Arc::ptr_eq(tensor.block().arena().mapping(), self.arena().mapping()) {
            true => Ok(()),
            false => Err(Error::OtherClient { meta: tensor.meta().clone() }),
        }
    }

    /// Returns memory of a fetch that has ended to its owner, and frees it if its call has been given up.
    pub(crate) fn free_destination(&self, lent: Lent) {
        // It is in the loans, so it was lent.
        let _ = self.arena().give_back(lent.allocation);
        self.room_is_free();
    }

    /// Wakes the calls that wait for room in the arena.
    pub(crate) fn room_is_free(&self) {
        // Those of a forked child are threads of its parent.
        if !self.is_forked() {
            self.home.room.wake_all();
        }
    }

    /// Frees the deltas of a push, whose other memory its caller gets.
    pub(crate) fn free_deltas(&self, loan: &Loan) {
        for (delta, _) in loan.deltas() {
            // It was lent with the push.
            let _ = self.arena().give_back(delta);
        }
    }

    /// Takes back a range that the sidecar has returned.
    pub(crate) fn give_back(&self, loan: Loan) {
        // It is in the loans, so it was lent.
        let _ = self.home.take_in(loan);
        self.room_is_free();
    }
}
