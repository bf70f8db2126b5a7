//! Boxes of a version's bytes: runs that repeat at equal distances in several dimensions, and how they are packed.

use super::MAX_RANK;
use super::excerpt::{BodyRange, InvalidExcerpt};
use crate::memory::ALIGNMENT;
use smallvec::SmallVec;

/// The bytes that a box without repeats takes in a message.
pub(super) const BOX_BYTES: usize = 8 + 8 + 1;

/// The bytes that each repeat of a box takes in a message.
const REPEAT_BYTES: usize = 8 + 8;

/// One dimension in which the bytes of a [`BodyBox`] repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Repeat {
    /// How many times they are there.
    pub count: u64,
    /// The distance from one time to the next, in bytes.
    pub stride: u64,
}

/// A box of a version's bytes: runs of `run` bytes, the first of them at `offset`, which repeat in each dimension, the
/// outermost first. The runs rise and do not overlap. A range is a box that does not repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BodyBox {
    offset: u64,
    run: u64,
    repeats: SmallVec<[Repeat; 2]>,
}

impl BodyBox {
    /// Creates a box. Runs that touch become one.
    ///
    /// # Errors
    /// [`InvalidExcerpt::Overlapping`] if it is empty, runs overlap or do not rise, or it ends beyond 2^63.
    pub fn new(offset: u64, run: u64, repeats: SmallVec<[Repeat; 2]>) -> Result<BodyBox, InvalidExcerpt> {
        let wrong = || InvalidExcerpt::Overlapping { offset, run };
        let mut found = BodyBox { offset, run, repeats: SmallVec::new() };
        if run == 0 || repeats.len() > MAX_RANK {
            return Err(wrong());
        }
        // From the innermost one on: its repeats are kept in this order until the end.
        let mut extent = run;
        for Repeat { count, stride } in repeats.into_iter().rev() {
            match count {
                0 => return Err(wrong()),
                1 => continue,
                _ if stride < extent => return Err(wrong()),
                _ => {}
            }
            extent = (count - 1).checked_mul(stride).and_then(|n| n.checked_add(extent)).ok_or_else(wrong)?;
            match found.repeats.last_mut() {
                None if stride == found.run => found.run = extent,
                Some(inner) if inner.count.checked_mul(inner.stride) == Some(stride) => {
                    inner.count = inner.count.checked_mul(count).ok_or_else(wrong)?;
                }
                _ => found.repeats.push(Repeat { count, stride }),
            }
        }
        found.repeats.reverse();
        match offset.checked_add(extent) {
            Some(end) if end < 1 << 63 => Ok(found),
            _ => Err(wrong()),
        }
    }

    /// Returns where its first byte lies.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of a run in bytes.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the dimensions in which the run repeats, the outermost first.
    #[must_use]
    pub fn repeats(&self) -> &[Repeat] {
        &self.repeats
    }

    /// Returns the number of runs.
    #[must_use]
    pub fn runs(&self) -> u64 {
        // It is at most the number of bytes, which fits.
        self.repeats.iter().map(|repeat| repeat.count).product()
    }

    /// Returns the number of its bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.runs() * self.run
    }

    /// Returns the offset behind its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.repeats.iter().map(|repeat| (repeat.count - 1) * repeat.stride).sum::<u64>() + self.run
    }

    /// Returns the box that lies `by` bytes further on. `None` beyond 2^63.
    #[must_use]
    pub fn moved(&self, by: u64) -> Option<BodyBox> {
        let _ = self.end().checked_add(by).filter(|end| *end < 1 << 63)?;
        Some(BodyBox { offset: self.offset + by, ..self.clone() })
    }

    /// Returns the number of bytes that it takes in a message.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        BodyBox::wire_bytes_with(self.repeats.len())
    }

    /// Returns the number of bytes that a box with so many repeats takes in a message.
    #[must_use]
    pub const fn wire_bytes_with(repeats: usize) -> usize {
        BOX_BYTES + repeats * REPEAT_BYTES
    }
}

impl TryFrom<BodyRange> for BodyBox {
    type Error = InvalidExcerpt;

    fn try_from(BodyRange { offset, len }: BodyRange) -> Result<BodyBox, InvalidExcerpt> {
        BodyBox::new(offset, len, SmallVec::new())
    }
}

/// A run that is copied: where it lies, where it goes, and its length, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedRun {
    /// Where it lies among the bytes that are packed.
    pub from: u64,
    /// Where it lies in the result.
    pub to: u64,
    /// Its length.
    pub len: u64,
}

/// How boxes are packed: one behind the other, each without gaps, and each at a multiple of [`ALIGNMENT`], with zeros in
/// front of it, or all without gaps. It is an iterator over the runs, which rise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing {
    boxes: SmallVec<[BodyBox; 1]>,
    /// Each box starts at a multiple of this.
    alignment: u64,
    /// The current box, and how often each of its repeats has been done.
    current: usize,
    done: SmallVec<[u64; 4]>,
    from: u64,
    to: u64,
}

impl Packing {
    /// Packs these boxes, each at a multiple of [`ALIGNMENT`].
    #[must_use]
    pub fn new(boxes: SmallVec<[BodyBox; 1]>) -> Packing {
        Packing::aligned(boxes, ALIGNMENT)
    }

    /// Packs these boxes without gaps between them.
    #[must_use]
    pub fn dense(boxes: SmallVec<[BodyBox; 1]>) -> Packing {
        Packing::aligned(boxes, 1)
    }

    fn aligned(boxes: SmallVec<[BodyBox; 1]>, alignment: u64) -> Packing {
        let mut packing = Packing { boxes, alignment, current: 0, done: SmallVec::new(), from: 0, to: 0 };
        packing.begin();
        packing
    }

    /// Whether there are no gaps between the boxes, whatever their lengths.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.alignment == 1
    }

    /// Packs all of a version with this length.
    #[must_use]
    pub fn all(len: u64) -> Packing {
        Packing::new(BodyBox::new(0, len, SmallVec::new()).into_iter().collect())
    }

    /// Returns the boxes.
    #[must_use]
    pub fn boxes(&self) -> &[BodyBox] {
        &self.boxes
    }

    /// Returns the length of the result in bytes. `None` beyond 2^63.
    #[must_use]
    pub fn len_bytes(&self) -> Option<u64> {
        let end = |at: u64, b: &BodyBox| at.checked_next_multiple_of(self.alignment)?.checked_add(b.len_bytes());
        self.boxes.iter().try_fold(0, end).filter(|len| *len < 1 << 63)
    }

    /// Returns the number of runs that are left.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.boxes.iter().fold(0, |runs, b| runs.saturating_add(b.runs()))
    }

    /// Whether there are zeros between the boxes.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        let inner = self.boxes.split_last().map_or(&[][..], |(_, inner)| inner);
        inner.iter().any(|b| !b.len_bytes().is_multiple_of(self.alignment))
    }

    fn begin(&mut self) {
        if let Some(b) = self.boxes.get(self.current) {
            self.from = b.offset;
            self.done = SmallVec::from_elem(0, b.repeats.len());
        }
    }
}

impl Iterator for Packing {
    type Item = PackedRun;

    fn next(&mut self) -> Option<PackedRun> {
        let b = self.boxes.get(self.current)?;
        let run = PackedRun { from: self.from, to: self.to, len: b.run };
        self.to += b.run;
        for (done, repeat) in self.done.iter_mut().zip(&b.repeats).rev() {
            if *done + 1 < repeat.count {
                *done += 1;
                self.from += repeat.stride;
                return Some(run);
            }
            self.from -= *done * repeat.stride;
            *done = 0;
        }
        self.current += 1;
        if self.current < self.boxes.len() {
            self.to = self.to.next_multiple_of(self.alignment);
        }
        self.begin();
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn repeat(count: u64, stride: u64) -> Repeat {
        Repeat { count, stride }
    }

    #[test]
    fn boxes_that_overlap_or_overflow_are_refused() {
        let refused = |offset, run, repeats| {
            let wrong = InvalidExcerpt::Overlapping { offset, run };
            assert_eq!(BodyBox::new(offset, run, repeats), Err(wrong));
        };
        refused(0, 0, smallvec![]);
        refused(1 << 63, 1, smallvec![]);
        refused(u64::MAX, 1, smallvec![]);
        refused(0, u64::MAX, smallvec![repeat(2, u64::MAX)]);
        refused(0, 8, smallvec![repeat(0, 8)]);
        refused(0, 8, smallvec![repeat(2, 7)]);
        refused(0, 8, smallvec![repeat(2, 0)]);
        refused(0, 8, smallvec![repeat(3, 16), repeat(4, 8)]);
        refused(0, 1, smallvec![repeat(1 << 32, 1 << 32)]);
        refused(0, 1, smallvec![repeat(u64::MAX, u64::MAX)]);
        refused(0, 1, smallvec![repeat(2, 1); MAX_RANK + 1]);
        assert!(BodyBox::new(0, (1 << 63) - 1, smallvec![]).is_ok());
    }

    #[test]
    fn runs_that_touch_become_one() {
        let found = BodyBox::new(4, 8, smallvec![repeat(5, 320), repeat(1, 7), repeat(2, 32), repeat(4, 8)]).unwrap();
        assert_eq!(found, BodyBox::new(4, 32, smallvec![repeat(5, 320), repeat(2, 32)]).unwrap());
        assert_eq!((found.run(), found.repeats(), found.len_bytes()), (64, &[repeat(5, 320)][..], 320));
        let columns = BodyBox::new(0, 4, smallvec![repeat(3, 160), repeat(4, 40)]).unwrap();
        assert_eq!((columns.repeats(), columns.end()), (&[repeat(12, 40)][..], 11 * 40 + 4));
    }

    #[test]
    fn boxes_are_packed_at_multiples_of_the_alignment() {
        let boxes = smallvec![
            BodyBox::new(100, 10, smallvec![repeat(2, 1000), repeat(3, 20)]).unwrap(),
            BodyBox::new(5000, 64, smallvec![]).unwrap(),
        ];
        let packing = Packing::new(boxes);
        assert_eq!((packing.len_bytes(), packing.runs(), packing.has_gaps()), (Some(128), 7, true));
        let runs: Vec<_> = packing.map(|run| (run.from, run.to, run.len)).collect();
        let expected = [(100, 0), (120, 10), (140, 20), (1100, 30), (1120, 40), (1140, 50)].map(|(f, t)| (f, t, 10));
        assert_eq!(runs[..6], expected);
        assert_eq!(runs[6..], [(5000, 64, 64)]);
        assert_eq!(Packing::all(0).next(), None);
    }
}
