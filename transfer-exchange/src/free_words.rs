//! The numbers of the counters that a worker uses for exchanges.

use parking_lot::Mutex;

/// The numbers of a client. They outlast its sessions and its exchanges.
#[derive(Debug, Default)]
pub(super) struct FreeWords(Mutex<FreeNumbers>);

impl FreeWords {
    pub(super) fn take(&self, count: u32) -> Vec<u32> {
        self.0.lock().take(count)
    }

    pub(super) fn give_back(&self, numbers: &[u32]) {
        self.0.lock().give_back(numbers);
    }
}

/// Numbers that are taken, returned and taken again, so that as few as possible are in use.
#[derive(Debug, Default)]
struct FreeNumbers {
    free: Vec<u32>,
    made: u32,
}

impl FreeNumbers {
    fn take(&mut self, count: u32) -> Vec<u32> {
        let mut next = || {
            self.free.pop().unwrap_or_else(|| {
                self.made += 1;
                self.made - 1
            })
        };
        (0..count).map(|_| next()).collect()
    }

    fn give_back(&mut self, numbers: &[u32]) {
        self.free.extend_from_slice(numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_never_twice_at_a_time() {
        let mut numbers = FreeNumbers::default();
        let first = numbers.take(3);
        let second = numbers.take(2);
        assert_eq!((first.clone(), second), (vec![0, 1, 2], vec![3, 4]));
        numbers.give_back(&first);
        let mut third = numbers.take(4);
        third.sort_unstable();
        assert_eq!(third, [0, 1, 2, 5]);
    }
}
