//! Small numbers that are used again.

/// Numbers that are taken, returned and taken again, so that as few as possible are in use.
#[derive(Debug, Default)]
pub(crate) struct FreeNumbers {
    free: Vec<u32>,
    made: u32,
}

impl FreeNumbers {
    pub(crate) fn take(&mut self, count: u32) -> Vec<u32> {
        let mut next = || {
            self.free.pop().unwrap_or_else(|| {
                self.made += 1;
                self.made - 1
            })
        };
        (0..count).map(|_| next()).collect()
    }

    pub(crate) fn give_back(&mut self, numbers: &[u32]) {
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
