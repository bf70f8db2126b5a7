//! The short free ranges, sorted by place and then by length: nearly the lowest fit in constant time.
//!
//! The region is divided into zones. Each has a list of its short free ranges for each of 52 length classes, four to a power of
//! two, and a bit set of the lists that are not empty. The longest class of each zone is kept in a tree of bytes with 64 children
//! to a node, so that the lowest zone with a range that is long enough is found by scanning a few cache lines.

use super::records::{NONE, Records};

/// A range of fewer granules than this is short at most: 1 MiB.
pub(super) const SHORT_GRANULES: u64 = 1 << 14;

const SUB_BITS: u32 = 2;
const CLASSES: usize = class_of(SHORT_GRANULES - 1) as usize + 1;
const FAN_OUT: usize = 64;

/// The granules of a zone, where the region has at most [`MAX_ZONES`] of that size: 4 MiB.
const ZONE_GRANULES: u64 = 1 << 16;
const MAX_ZONES: u64 = 1 << 16;

/// How many ranges of the wanted length's own class are compared in a zone.
const RANGES_PER_ZONE: usize = 16;

/// The class of a length. Rises with the length, and starts at 1: 0 stands for "none".
const fn class_of(granules: u64) -> u8 {
    if granules < 1 << SUB_BITS {
        return granules as u8;
    }
    let shift = granules.ilog2() - SUB_BITS;
    ((shift + 1) << SUB_BITS) as u8 | ((granules >> shift) & ((1 << SUB_BITS) - 1)) as u8
}

#[derive(Debug)]
pub(super) struct Short {
    zone_granules: u64,
    /// Heads of the lists, [`CLASSES`] of each zone.
    heads: Vec<u32>,
    /// Bit `c` of a zone is set where its list of class `c` is not empty.
    classes: Vec<u64>,
    /// The highest set bit of each zone, above it the highest of each 64, and so on up to one node.
    highest: Vec<Vec<u8>>,
}

impl Short {
    /// Without any range yet, for a region of `granules`.
    pub(super) fn new(granules: u64) -> Short {
        let zone_granules = granules.div_ceil(MAX_ZONES).max(ZONE_GRANULES);
        let zones = granules.div_ceil(zone_granules).max(1) as usize;
        let mut highest = vec![vec![0; zones]];
        let mut nodes = zones;
        while nodes > FAN_OUT {
            nodes = nodes.div_ceil(FAN_OUT);
            highest.push(vec![0; nodes]);
        }
        Short { zone_granules, heads: vec![NONE; zones * CLASSES], classes: vec![0; zones], highest }
    }

    /// Puts a free range of fewer than [`SHORT_GRANULES`] granules in.
    pub(super) fn insert(&mut self, records: &mut Records, id: u32) {
        let (zone, class) = self.place(records, id);
        let head = &mut self.heads[zone * CLASSES + usize::from(class)];
        records.set_list_prev(id, NONE);
        records.set_list_next(id, *head);
        if *head != NONE {
            records.set_list_prev(*head, id);
        }
        *head = id;
        self.classes[zone] |= 1 << class;
        if class > self.highest[0][zone] {
            self.update_highest(zone);
        }
    }

    /// Takes a range out, whose start and length must be what they were when it went in.
    pub(super) fn remove(&mut self, records: &mut Records, id: u32) {
        let (prev, next) = records.list_links(id);
        if next != NONE {
            records.set_list_prev(next, prev);
        }
        if prev != NONE {
            records.set_list_next(prev, next);
            return;
        }
        let (zone, class) = self.place(records, id);
        self.heads[zone * CLASSES + usize::from(class)] = next;
        if next == NONE {
            self.classes[zone] &= !(1 << class);
            if class == self.highest[0][zone] {
                self.update_highest(zone);
            }
        }
    }

    /// A range of at least `granules` in the lowest zone that surely has one.
    pub(super) fn find(&self, records: &Records, granules: u64) -> Option<u32> {
        let own = class_of(granules);
        // In the first classes and at each class's first length every range fits; otherwise only the next class is sure to.
        let sure = if class_of(granules.saturating_sub(1)) < own { own } else { own + 1 };
        let zone = self.lowest_zone(sure)?;
        let fitting = self.list(records, zone, own).take(RANGES_PER_ZONE).find(|id| records.len(*id) >= granules);
        fitting.or_else(|| {
            let class = (self.classes[zone] & (u64::MAX << sure)).trailing_zeros();
            self.list(records, zone, class as u8).next()
        })
    }

    /// As [`Short::find`], but looks at every range that is not sure to fit. For when everything else has failed.
    pub(super) fn find_unsure(&self, records: &Records, granules: u64) -> Option<u32> {
        let own = class_of(granules);
        let zones = (0..self.classes.len()).filter(|zone| self.classes[*zone] & (1 << own) != 0);
        zones.flat_map(|zone| self.list(records, zone, own)).find(|id| records.len(*id) >= granules)
    }

    /// The length of the longest range.
    pub(super) fn longest(&self, records: &Records) -> u64 {
        let class = self.highest.last().and_then(|top| top.iter().copied().max()).unwrap_or(0);
        let zones = self.highest[0].iter().enumerate().filter(|(_, highest)| class > 0 && **highest == class);
        zones.flat_map(|(zone, _)| self.list(records, zone, class)).map(|id| records.len(id)).max().unwrap_or(0)
    }

    fn place(&self, records: &Records, id: u32) -> (usize, u8) {
        ((records.start(id) / self.zone_granules) as usize, class_of(records.len(id)))
    }

    fn list<'a>(&self, records: &'a Records, zone: usize, class: u8) -> impl Iterator<Item = u32> + use<'a> {
        let head = self.heads.get(zone * CLASSES + usize::from(class)).copied().unwrap_or(NONE);
        records.list_from(head)
    }

    fn update_highest(&mut self, zone: usize) {
        let mut value = self.classes[zone].checked_ilog2().unwrap_or(0) as u8;
        let mut at = zone;
        for level in 0..self.highest.len() {
            if self.highest[level][at] == value {
                return;
            }
            self.highest[level][at] = value;
            at /= FAN_OUT;
            let siblings = self.highest[level].chunks(FAN_OUT).nth(at).unwrap_or(&[]);
            value = siblings.iter().copied().max().unwrap_or(0);
        }
    }

    fn lowest_zone(&self, class: u8) -> Option<usize> {
        let mut at = 0;
        for nodes in self.highest.iter().rev() {
            let children = nodes.chunks(FAN_OUT).nth(at)?;
            at = at * FAN_OUT + children.iter().position(|highest| *highest >= class)?;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_the_length_and_fit_a_word() {
        let mut last = 0;
        for len in 1..SHORT_GRANULES {
            let class = class_of(len);
            assert!(class == last || class == last + 1, "{len}");
            last = class;
        }
        assert_eq!(usize::from(last) + 1, CLASSES);
        const { assert!(CLASSES <= 64) };
    }
}
