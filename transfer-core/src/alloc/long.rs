//! The long free ranges, sorted into bins by length: nearly the best fit in constant time.
//!
//! Two levels of bit sets, after TLSF (Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems", 2004), but
//! with 64 bins to each power of two: a bin holds lengths within 1.6 % of each other.

use super::records::{NONE, Records};

const SUB_BITS: u32 = 6;
const SUBBINS: u64 = 1 << SUB_BITS;

/// How many ranges of a bin are compared before the best of them is taken, when any range of a higher bin would do.
const RANGES_PER_BIN: usize = 32;

#[derive(Debug)]
pub(super) struct Long {
    /// Bit `l` is set where level `l` has a set bit.
    levels: u64,
    /// Bit `s` of level `l` is set where the bin has a range.
    subs: Vec<u64>,
    heads: Vec<u32>,
}

/// The bin of a length. Rises with the length; shorter lengths never have a higher bin.
fn bin_of(granules: u64) -> usize {
    let bin = if granules < SUBBINS {
        granules
    } else {
        let shift = granules.ilog2() - SUB_BITS;
        (u64::from(shift + 1) << SUB_BITS) | ((granules >> shift) & (SUBBINS - 1))
    };
    // At most 59 levels of 64 bins: it fits.
    bin as usize
}

impl Long {
    /// Empty bins for lengths up to `granules`.
    pub(super) fn new(granules: u64) -> Long {
        let levels = (bin_of(granules) >> SUB_BITS) + 1;
        Long { levels: 0, subs: vec![0; levels], heads: vec![NONE; levels << SUB_BITS] }
    }

    /// Puts a free range in.
    pub(super) fn insert(&mut self, records: &mut Records, id: u32) {
        let bin = bin_of(records.len(id));
        let head = self.heads[bin];
        records.set_list_prev(id, NONE);
        records.set_list_next(id, head);
        if head == NONE {
            self.subs[bin >> SUB_BITS] |= 1 << (bin & (SUBBINS as usize - 1));
            self.levels |= 1 << (bin >> SUB_BITS);
        } else {
            records.set_list_prev(head, id);
        }
        self.heads[bin] = id;
    }

    /// Takes a range out, whose length must be what it was when it went in.
    pub(super) fn remove(&mut self, records: &mut Records, id: u32) {
        let (prev, next) = records.list_links(id);
        if next != NONE {
            records.set_list_prev(next, prev);
        }
        if prev != NONE {
            records.set_list_next(prev, next);
            return;
        }
        let bin = bin_of(records.len(id));
        self.heads[bin] = next;
        if next == NONE {
            let level = bin >> SUB_BITS;
            self.subs[level] &= !(1 << (bin & (SUBBINS as usize - 1)));
            if self.subs[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    /// A free range of at least `granules`, nearly the shortest; `None` only where there is none.
    pub(super) fn find(&self, records: &Records, granules: u64) -> Option<u32> {
        let own = bin_of(granules);
        if own >= self.heads.len() {
            return None;
        }
        let own_bin = |looks| self.best_in(records, own, granules, looks);
        own_bin(RANGES_PER_BIN)
            .or_else(|| self.next_bin(own + 1).and_then(|bin| self.best_in(records, bin, granules, RANGES_PER_BIN)))
            .or_else(|| own_bin(usize::MAX))
    }

    /// The length of the longest free range.
    pub(super) fn longest(&self, records: &Records) -> u64 {
        if self.levels == 0 {
            return 0;
        }
        let level = self.levels.ilog2() as usize;
        let bin = (level << SUB_BITS) | self.subs[level].ilog2() as usize;
        self.list(records, bin).map(|id| records.len(id)).max().unwrap_or(0)
    }

    fn list<'a>(&self, records: &'a Records, bin: usize) -> impl Iterator<Item = u32> + use<'a> {
        records.list_from(self.heads[bin])
    }

    fn best_in(&self, records: &Records, bin: usize, granules: u64, looks: usize) -> Option<u32> {
        let fitting = self.list(records, bin).take(looks).map(|id| (records.len(id), id));
        fitting.filter(|(len, _)| *len >= granules).min().map(|(_, id)| id)
    }

    /// The lowest bin from `bin` on that is not empty.
    fn next_bin(&self, bin: usize) -> Option<usize> {
        let level = bin >> SUB_BITS;
        let subs = self.subs.get(level)? & (u64::MAX << (bin & (SUBBINS as usize - 1)));
        if subs != 0 {
            return Some((level << SUB_BITS) | subs.trailing_zeros() as usize);
        }
        let levels = self.levels & u64::MAX.checked_shl(level as u32 + 1).unwrap_or(0);
        if levels == 0 {
            return None;
        }
        let level = levels.trailing_zeros() as usize;
        Some((level << SUB_BITS) | self.subs[level].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_rise_with_the_length() {
        let mut last = 0;
        for len in 0..100_000 {
            let bin = bin_of(len);
            assert!(bin == last || bin == last + 1, "{len}");
            last = bin;
        }
        for shift in 7..63 {
            assert_eq!(bin_of(1 << shift), bin_of((1 << shift) - 1) + 1);
        }
        assert!(bin_of(u64::MAX) < 64 * 64);
    }
}
