//! The copies that may be under way at a time, and the share of one caller.

use super::error::CopyError;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// The slots for copies. One caller holds at most half of them, rounded up, so that others get one too.
#[derive(Debug)]
pub(super) struct Slots {
    most: u32,
    /// The callers in words, each with the number of its copies.
    taken: Mutex<HashMap<String, u32>>,
}

/// The slot of one copy. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    caller: String,
}

impl Slots {
    pub(super) fn new(most: u32) -> Arc<Slots> {
        Arc::new(Slots { most, taken: Mutex::default() })
    }

    /// Takes a slot for a copy of this caller.
    pub(super) fn take(self: &Arc<Self>, caller: String) -> Result<Slot, CopyError> {
        let mut taken = self.taken.lock();
        let (all, own) = (taken.values().sum::<u32>(), taken.get(&caller).copied().unwrap_or(0));
        if all >= self.most {
            return Err(CopyError::TooMany { most: self.most });
        }
        if own >= self.most.div_ceil(2) {
            return Err(CopyError::TooManyOfOne { caller, own, most: self.most });
        }
        taken.insert(caller.clone(), own + 1);
        Ok(Slot { slots: self.clone(), caller })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        if let Some(own) = taken.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: copy-folder, seen to fail
    #[test]
    fn one_caller_holds_half_of_the_slots() {
        let slots = Slots::new(3);
        let take = |who: &str| slots.take(who.to_owned());
        let first = take("a").unwrap();
        let _second = take("a").unwrap();
        let full = take("a").unwrap_err();
        assert!(matches!(&full, CopyError::TooManyOfOne { own: 2, most: 3, .. }), "{full}");
        let other = take("b").unwrap();
        assert!(matches!(take("c"), Err(CopyError::TooMany { most: 3 })));
        drop(first);
        drop(take("a").unwrap());
        drop(other);
        assert_eq!(slots.taken.lock().len(), 1, "who has none takes no memory");
        // A single slot is for everybody.
        drop(Slots::new(1).take("a".to_owned()).unwrap());
    }
}
