//! Shares of something of which there is only so much: each holder has a number of them.

use hashbrown::HashMap;
use parking_lot::Mutex;
use std::hash::Hash;
use std::sync::Arc;

/// The shares that are taken. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Shares<H>(Arc<Mutex<Taken<H>>>);

#[derive(Debug)]
struct Taken<H> {
    by_holder: HashMap<H, u64>,
    all: u64,
}

/// One share. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Share<H: Eq + Hash> {
    shares: Shares<H>,
    holder: H,
}

impl<H> Default for Shares<H> {
    fn default() -> Shares<H> {
        Shares(Arc::new(Mutex::new(Taken { by_holder: HashMap::new(), all: 0 })))
    }
}

impl<H: Clone + Eq + Hash> Shares<H> {
    /// Takes a share for this holder, if `check` allows it. It gets the number of shares that the holder has, and that all have.
    pub(crate) fn take<E>(&self, holder: H, check: impl FnOnce(u64, u64) -> Result<(), E>) -> Result<Share<H>, E> {
        let mut taken = self.0.lock();
        check(taken.by_holder.get(&holder).copied().unwrap_or(0), taken.all)?;
        *taken.by_holder.entry(holder.clone()).or_default() += 1;
        taken.all += 1;
        Ok(Share { shares: self.clone(), holder })
    }

    /// The number of holders.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        self.0.lock().by_holder.len()
    }
}

impl<H: Eq + Hash> Drop for Share<H> {
    fn drop(&mut self) {
        let mut taken = self.shares.0.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_holder.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                taken.by_holder.remove(&self.holder);
            }
        }
    }
}
