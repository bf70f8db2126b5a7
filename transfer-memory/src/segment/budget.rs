//! The limit on pinned memory.

use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// A reservation that would exceed the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes of pinned memory are wanted, {free} of the configured {limit} are free")]
pub struct BudgetExceeded {
    /// The bytes asked for.
    pub wanted: u64,
    /// The bytes that were free.
    pub free: u64,
    /// The bound, in bytes.
    pub limit: u64,
}

/// Counts pinned bytes against a bound. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct PinnedBudget(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    limit: u64,
    used: AtomicU64,
}

impl PinnedBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> PinnedBudget {
        PinnedBudget(Arc::new(Counter { limit, used: AtomicU64::new(0) }))
    }

    /// The bound, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The bytes reserved now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Reserves `len` bytes until the [`Reservation`] is dropped.
    ///
    /// # Errors
    /// [`BudgetExceeded`] where fewer bytes are free; then nothing is reserved.
    pub fn reserve(&self, len: u64) -> Result<Reservation, BudgetExceeded> {
        let limit = self.0.limit;
        self.0
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| used.checked_add(len).filter(|n| *n <= limit))
            .map(|_| Reservation { budget: self.clone(), len })
            .map_err(|used| BudgetExceeded { wanted: len, free: limit - used, limit })
    }
}

/// Bytes taken out of a [`PinnedBudget`], returned on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: PinnedBudget,
    len: u64,
}

impl Reservation {
    /// The bytes reserved.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_bounded_and_come_back() {
        let budget = PinnedBudget::new(100);
        let a = budget.reserve(60).unwrap();
        assert_eq!(budget.reserve(41).unwrap_err(), BudgetExceeded { wanted: 41, free: 40, limit: 100 });
        let b = budget.clone().reserve(40).unwrap();
        assert_eq!((budget.used(), a.len_bytes(), b.len_bytes()), (100, 60, 40));
        assert!(budget.reserve(u64::MAX).is_err());
        drop(a);
        assert_eq!(budget.used(), 40);
        drop(b);
        assert_eq!(budget.used(), 0);
    }
}
