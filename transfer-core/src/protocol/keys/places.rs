//! A set of records by their places. Most workers publish many keys in a row, so it keeps one bit for each of 64 places
//! that follow each other: less than a byte for each of many keys.

use std::collections::BTreeMap;

#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Places(BTreeMap<u32, u64>);

/// The word of a place, and its bit there.
fn at(place: u32) -> (u32, u64) {
    (place / u64::BITS, 1 << (place % u64::BITS))
}

impl Places {
    pub(super) fn insert(&mut self, place: u32) {
        let (word, bit) = at(place);
        *self.0.entry(word).or_default() |= bit;
    }

    pub(super) fn remove(&mut self, place: u32) {
        let (word, bit) = at(place);
        if let Some(bits) = self.0.get_mut(&word) {
            *bits &= !bit;
            if *bits == 0 {
                self.0.remove(&word);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first place that is this one or a later one.
    pub(super) fn first_from(&self, from: u32) -> Option<u32> {
        let (first, bit) = at(from);
        self.0.range(first..).find_map(|(word, bits)| {
            let bits = if *word == first { bits & !(bit - 1) } else { *bits };
            (bits != 0).then(|| word * u64::BITS + bits.trailing_zeros())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(places: &Places) -> Vec<u32> {
        let next = |from: &Option<u32>| from.and_then(|from| places.first_from(from));
        std::iter::successors(next(&Some(0)), |last| next(&last.checked_add(1))).collect()
    }

    #[test]
    fn places_are_kept_in_order_and_leave_nothing_behind() {
        let mut places = Places::default();
        let all = [0, 1, 63, 64, 65, 1000, u32::MAX];
        for place in all.iter().rev().chain(&all) {
            places.insert(*place);
        }
        assert_eq!(all_of(&places), all);
        for (from, first) in [(0, 0), (2, 63), (63, 63), (64, 64), (66, 1000), (1001, u32::MAX)] {
            assert_eq!(places.first_from(from), Some(first));
        }
        places.remove(64);
        places.remove(2);
        places.remove(5000);
        assert_eq!(all_of(&places), [0, 1, 63, 65, 1000, u32::MAX]);
        for place in all {
            assert!(!places.is_empty());
            places.remove(place);
        }
        assert!(places.is_empty() && places.0.is_empty());
    }
}
