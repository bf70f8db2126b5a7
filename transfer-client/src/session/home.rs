//! The arena, which outlives sessions: a sidecar that was restarted gets it again.

use super::{Loan, Session};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use std::sync::{Arc, Weak};
use transfer_memory::arena::{Arena, NotLent};
use transfer_memory::forked::ForkGuard;
use transfer_memory::segment::is_marked;

/// A session that is over, of which something may still be read.
#[derive(Debug)]
pub(crate) struct Former {
    incarnation: u64,
    /// This process's own fetched tensors keep it.
    session: Weak<Session>,
}

impl Former {
    pub(crate) fn new(incarnation: u64, session: &Arc<Session>) -> Former {
        Former { incarnation, session: Arc::downgrade(session) }
    }
}

/// What one arena is, over all its sessions.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) arena: Arena,
    pub(crate) fd: OwnedFd,
    /// Whose it is.
    guard: ForkGuard,
    /// Allocations that the sidecar does not hold any more, and that readers from before its restart may still read.
    awaited: Mutex<Vec<(u64, Vec<Arc<Former>>)>>,
}

impl Home {
    pub(crate) fn new(arena: Arena, fd: OwnedFd, guard: ForkGuard) -> Home {
        Home { arena, fd, guard, awaited: Mutex::default() }
    }

    /// Whether this process is a forked child: then the arena is its parent's, and so are the sessions over it.
    pub(crate) fn is_forked(&self) -> bool {
        self.guard.is_forked()
    }

    /// Whether nobody reads any more what was published in those sessions: no tensor of this process, and no other process.
    pub(crate) fn is_read_no_more(&self, formers: &[Arc<Former>]) -> bool {
        formers.iter().all(|former| {
            // Where the kernel does not say, somebody may.
            former.session.strong_count() == 0 && matches!(is_marked(&self.fd, former.incarnation), Ok(false))
        })
    }

    /// The sidecar does not hold what that push lent any more.
    pub(crate) fn take_in(&self, loan: Loan) -> Result<(), NotLent> {
        let Loan { lent, along, formers, .. } = loan;
        for allocation in along {
            self.give_back(allocation, formers.clone())?;
        }
        self.give_back(lent.allocation, formers)
    }

    /// The sidecar holds that allocation once less. It is free once its readers from before a restart are done, too.
    fn give_back(&self, allocation: u64, formers: Vec<Arc<Former>>) -> Result<(), NotLent> {
        if self.is_read_no_more(&formers) {
            return self.arena.give_back(allocation);
        }
        self.awaited.lock().push((allocation, formers));
        Ok(())
    }

    /// Frees what those readers are done with. Whether there was some.
    pub(crate) fn sweep(&self) -> bool {
        let mut awaited = self.awaited.lock();
        let before = awaited.len();
        awaited.retain(|(allocation, formers)| {
            let done = self.is_read_no_more(formers);
            // It was lent, or it would not stand here.
            !done || self.arena.give_back(*allocation).is_err()
        });
        awaited.len() < before
    }
}
