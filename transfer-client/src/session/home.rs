//! The arena, which outlives sessions: a restarted sidecar gets it again.

use super::wait::Waiters;
use super::{Loan, Session};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use transfer_memory::arena::{Arena, NotLent};
use transfer_memory::forked::ForkGuard;
use transfer_memory::segment::is_marked;

/// An ended session whose versions may still be read.
#[derive(Debug)]
pub(crate) struct Former {
    incarnation: u64,
    /// The fetched tensors of this process keep it alive.
    session: Weak<Session>,
}

impl Former {
    pub(crate) fn new(incarnation: u64, session: &Arc<Session>) -> Former {
        Former { incarnation, session: Arc::downgrade(session) }
    }
}

/// One arena, over all its sessions.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) arena: Arena,
    pub(crate) fd: OwnedFd,
    /// The process that owns it.
    guard: Arc<ForkGuard>,
    /// The waiters for room in the arena.
    pub(super) room: Arc<Waiters>,
    /// Allocations that the sidecar has returned, but that readers from before its restart may still read.
    awaited: Mutex<Vec<(u64, Vec<Arc<Former>>)>>,
    /// Whether a restarted sidecar has taken the arena, which it maps read-only.
    is_returned: AtomicBool,
}

impl Home {
    pub(crate) fn new(arena: Arena, fd: OwnedFd, guard: ForkGuard) -> Home {
        let (guard, room) = (Arc::new(guard), Arc::<Waiters>::default());
        let (is_ours, waiters) = (guard.clone(), room.clone());
        arena.on_free(move || {
            // The waiters that a forked child has a copy of are threads of its parent.
            if !is_ours.is_forked() {
                waiters.wake_all();
            }
        });
        Home { arena, fd, guard, room, awaited: Mutex::default(), is_returned: AtomicBool::new(false) }
    }

    /// Records that a restarted sidecar has taken the arena.
    pub(super) fn has_returned(&self) {
        self.is_returned.store(true, Ordering::Relaxed);
    }

    /// Whether a restarted sidecar has taken the arena: it cannot write it.
    pub(crate) fn is_returned(&self) -> bool {
        self.is_returned.load(Ordering::Relaxed)
    }

    /// Whether this process is a forked child: then the arena and its sessions belong to the parent.
    pub(crate) fn is_forked(&self) -> bool {
        self.guard.is_forked()
    }

    /// Whether the versions of those sessions have no reader left, in this process or in another.
    pub(crate) fn is_read_no_more(&self, formers: &[Arc<Former>]) -> bool {
        formers.iter().all(|former| {
            // If the kernel does not answer, a process may still read.
            former.session.strong_count() == 0 && matches!(is_marked(&self.fd, former.incarnation), Ok(false))
        })
    }

    /// Takes back everything that a push has lent.
    pub(crate) fn take_in(&self, loan: Loan) -> Result<(), NotLent> {
        let deltas = loan.deltas();
        let Loan { lent, along, formers, .. } = loan;
        for allocation in along.into_iter().chain(deltas.into_iter().map(|(offset, _)| offset)) {
            self.give_back(allocation, formers.clone())?;
        }
        self.give_back(lent.allocation, formers)
    }

    /// Takes an allocation back from the sidecar. It is free once its readers from before a restart are done, too.
    fn give_back(&self, allocation: u64, formers: Vec<Arc<Former>>) -> Result<(), NotLent> {
        if self.is_read_no_more(&formers) {
            return self.arena.give_back(allocation);
        }
        self.awaited.lock().push((allocation, formers));
        Ok(())
    }

    /// Whether memory is awaited whose readers are those of a former session. No event says when they are done.
    pub(super) fn awaits_former_readers(&self) -> bool {
        !self.awaited.lock().is_empty()
    }

    /// Frees the allocations whose readers are done. Returns whether there were any.
    pub(crate) fn sweep(&self) -> bool {
        let mut awaited = self.awaited.lock();
        let before = awaited.len();
        awaited.retain(|(allocation, formers)| {
            let done = self.is_read_no_more(formers);
            // It was lent, or it would not be in this list.
            !done || self.arena.give_back(*allocation).is_err()
        });
        awaited.len() < before
    }
}
