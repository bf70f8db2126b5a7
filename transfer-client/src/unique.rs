//! Numbers that no other process has.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A number that nobody else has. A child that was forked has the keys of the hasher from its parent, so it is not of these alone.
pub(crate) fn number() -> u64 {
    number_of(&RandomState::new(), process::id())
}

fn number_of(keys: &impl BuildHasher, process: u32) -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    keys.hash_one((process, time, COUNT.fetch_add(1, Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_the_same_keys_have_different_numbers() {
        let keys = RandomState::new();
        let numbers = [1, 1, 2].map(|process| number_of(&keys, process));
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2], "{numbers:?}");
    }
}
