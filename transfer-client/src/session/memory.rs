//! Allocating in the arena.

use super::loans::Loan;
use super::{Lent, Session};
use crate::Error;
use std::task::Waker;
use std::time::Duration;
use transfer_core::alloc::AllocError;
use transfer_memory::arena::{Arena, Block};

impl Session {
    /// Who waits for room in the arena looks this often by itself: a frozen tensor that is dropped wakes nobody.
    pub(crate) const ROOM_POLL: Duration = Duration::from_millis(10);

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

    /// Allocates `len_bytes`. `None` where there is no room now; then `waker` is woken when something comes back, which may be
    /// [`Session::ROOM_POLL`] late. With `last_try`, no room is an error.
    ///
    /// # Errors
    /// As [`Session::allocate`]; [`Error::SidecarGone`] where waiting is of no use.
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
        self.room.register(waker);
        match self.allocate(len_bytes) {
            Err(Error::ArenaFull { .. }) => Ok(None),
            done => done.map(Some),
        }
    }

    /// A range whose push failed is its owner's again. None where it is not: the sidecar broke the rules.
    pub(crate) fn take_back(&self, lent: Lent) -> Option<Block> {
        self.arena().take_back(lent.allocation).ok()
    }

    /// The sidecar does not hold this range any more.
    pub(crate) fn give_back(&self, loan: Loan) {
        // It was lent, say the loans.
        let _ = self.home.take_in(loan);
        self.room.wake_all();
    }
}
