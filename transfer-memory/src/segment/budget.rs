//! The limit on pinned memory.

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// A reservation that would exceed the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} bytes of pinned memory are wanted, {free} of the configured {limit} are free{}",
    allowed(*group_limit)
)]
pub struct BudgetExceeded {
    /// The bytes asked for.
    pub wanted: u64,
    /// The bytes that were free.
    pub free: u64,
    /// The bound, in bytes.
    pub limit: u64,
    /// The memory that the control group of the process allows, in bytes, if it limits it.
    pub group_limit: Option<u64>,
}

/// Returns the end of an error's sentence: the memory that the control group allows.
pub(crate) fn allowed(group_limit: Option<u64>) -> String {
    group_limit.map_or_else(String::new, |limit| format!("; the sidecar's memory cgroup allows {limit} bytes"))
}

/// Counts pinned bytes against a bound. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct PinnedBudget(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    limit: u64,
    group_limit: Option<u64>,
    used: AtomicU64,
    /// Those of the used bytes that are being unmapped now.
    returning: Mutex<u64>,
    /// Some of them have been returned.
    returned: Condvar,
}

impl PinnedBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> PinnedBudget {
        PinnedBudget::within(limit, None)
    }

    /// A budget of `limit` bytes in a process whose control group allows `group_limit` bytes; errors say so.
    #[must_use]
    pub fn within(limit: u64, group_limit: Option<u64>) -> PinnedBudget {
        PinnedBudget(Arc::new(Counter {
            limit,
            group_limit,
            used: AtomicU64::new(0),
            returning: Mutex::new(0),
            returned: Condvar::new(),
        }))
    }

    /// The bound, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// The memory that the control group of the process allows, in bytes, if it limits it.
    #[must_use]
    pub fn group_limit(&self) -> Option<u64> {
        self.0.group_limit
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
        let Counter { limit, group_limit, .. } = *self.0;
        self.0
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| used.checked_add(len).filter(|n| *n <= limit))
            .map(|_| Reservation { budget: self.clone(), len, is_returning: AtomicU64::new(0) })
            .map_err(|used| BudgetExceeded { wanted: len, free: limit - used, limit, group_limit })
    }

    /// Waits for memory that is being unmapped now, if only with it `len` bytes are free. It takes the system a second to
    /// unmap some GiB. Nothing is reserved: whether there is enough is for [`PinnedBudget::reserve`] to say.
    pub fn wait_for_returning(&self, len: u64, deadline: Instant) {
        let mut returning = self.0.returning.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let used = self.used();
            let fits = |used: u64| used.checked_add(len).is_some_and(|n| n <= self.0.limit);
            if fits(used) || !fits(used.saturating_sub(*returning)) {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.returned.wait_timeout(returning, left);
            returning = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Bytes taken out of a [`PinnedBudget`], returned on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: PinnedBudget,
    len: u64,
    /// Not 0 once these bytes count as returning.
    is_returning: AtomicU64,
}

impl Reservation {
    /// Says that the bytes are about to be returned, so that [`PinnedBudget::wait_for_returning`] waits for them.
    pub(super) fn begin_return(&self) {
        let mut returning = self.budget.0.returning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_returning.swap(1, Ordering::Relaxed) == 0 {
            *returning += self.len;
        }
    }

    /// The bytes reserved.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let counter = &self.budget.0;
        if self.is_returning.load(Ordering::Relaxed) == 0 {
            counter.used.fetch_sub(self.len, Ordering::Relaxed);
            return;
        }
        let mut returning = counter.returning.lock().unwrap_or_else(PoisonError::into_inner);
        counter.used.fetch_sub(self.len, Ordering::Relaxed);
        *returning -= self.len;
        counter.returned.notify_all();
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn reservations_are_bounded_and_come_back() {
        let budget = PinnedBudget::new(100);
        let a = budget.reserve(60).unwrap();
        assert_eq!(
            budget.reserve(41).unwrap_err(),
            BudgetExceeded { wanted: 41, free: 40, limit: 100, group_limit: None }
        );
        let b = budget.clone().reserve(40).unwrap();
        assert_eq!((budget.used(), a.len_bytes(), b.len_bytes()), (100, 60, 40));
        assert!(budget.reserve(u64::MAX).is_err());
        drop(a);
        assert_eq!(budget.used(), 40);
        drop(b);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn memory_that_is_being_unmapped_is_waited_for() {
        let budget = PinnedBudget::new(100);
        let (kept, ending) = (budget.reserve(30).unwrap(), budget.reserve(60).unwrap());
        let far = Instant::now() + Duration::from_secs(600);
        // These would hang if they waited: nothing is returning, enough is free, and too little will be.
        budget.wait_for_returning(20, far);
        ending.begin_return();
        ending.begin_return();
        budget.wait_for_returning(10, far);
        budget.wait_for_returning(71, far);
        budget.wait_for_returning(u64::MAX, far);
        budget.wait_for_returning(70, Instant::now());
        assert_eq!(budget.reserve(70).unwrap_err().free, 10);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                budget.wait_for_returning(70, far);
                budget.reserve(70).map(|reserved| reserved.len_bytes())
            });
            drop(ending);
            assert_eq!(waiting.join().unwrap(), Ok(70));
        });
        drop(kept);
        // What has been returned does not count as returning any longer.
        let all = budget.reserve(100).unwrap();
        budget.wait_for_returning(60, far);
        assert_eq!(all.len_bytes(), 100);
    }
}
