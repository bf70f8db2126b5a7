//! The copies that may be under way at a time, and the share of one caller.

use super::error::CopyError;
use crate::shares::{Share, Shares};

/// The slots for copies. One caller holds at most half of them, rounded up, so that others get one too.
#[derive(Debug)]
pub(super) struct Slots {
    most: u32,
    /// By the callers in words.
    taken: Shares<String>,
}

impl Slots {
    pub(super) fn new(most: u32) -> Slots {
        Slots { most, taken: Shares::default() }
    }

    /// Takes a slot for a copy of this caller.
    pub(super) fn take(&self, caller: String) -> Result<Share<String>, CopyError> {
        let most = self.most;
        self.taken.take(caller.clone(), |own, all| match own {
            _ if all >= most.into() => Err(CopyError::TooMany { most }),
            _ if own >= most.div_ceil(2).into() => Err(CopyError::TooManyOfOne { caller, own, most }),
            _ => Ok(()),
        })
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
        assert_eq!(slots.taken.holders(), 1, "who has none takes no memory");
        // A single slot is for everybody.
        drop(Slots::new(1).take("a".to_owned()).unwrap());
    }
}
