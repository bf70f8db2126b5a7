//! When an attempt publishes blocks before the commit.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// An attempt publishes its blocks once they take this part of the arena, as 1 / `ARENA_SHARES`. Smaller ones wait a while for
/// room that others leave, because many small bundles are slow to read. The second one is for an arena in which waiting was
/// in vain: most of it is taken for long.
const ARENA_SHARES: (u64, u64) = (4, 16);

/// The bytes of blocks that an attempt collects before it publishes them, if there is no room.
#[derive(Debug, Default)]
pub(super) struct PublishThreshold {
    in_vain: AtomicBool,
}

impl PublishThreshold {
    /// Returns the threshold for an arena of this length, in bytes.
    pub(super) fn of(&self, arena: u64) -> u64 {
        let (first, later) = ARENA_SHARES;
        arena / if self.in_vain.load(Relaxed) { later } else { first }
    }

    /// Notes that waiting for room was in vain.
    pub(super) fn waited_in_vain(&self) {
        self.in_vain.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::PublishThreshold;

    #[test]
    fn who_waited_in_vain_collects_less() {
        let threshold = PublishThreshold::default();
        assert_eq!(threshold.of(64 << 20), 16 << 20);
        threshold.waited_in_vain();
        assert_eq!(threshold.of(64 << 20), 4 << 20);
    }
}
