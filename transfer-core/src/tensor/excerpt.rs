//! A part of a version: a slice or rows of a tensor, or boxes of its body with or without its metadata.

use super::boxes::BOX_BYTES;
use super::{BodyBox, DType, InvalidShape, InvalidSlice, MAX_RANK, Misfit, Packing, Rows, Slice, TensorMeta};
use crate::memory::LocalSlice;
use crate::plan::GatherList;
use smallvec::SmallVec;

/// The most ranges of one [`Excerpt`].
pub const MAX_EXCERPT_RANGES: usize = 48;

/// The most bytes that the boxes or the rows of one [`Excerpt`] take in a message: those of its ranges. A request with this many
/// fits in the smallest message that a fabric has, and so does one with the longest [`Slice`].
pub const MAX_EXCERPT_BYTES: usize = MAX_EXCERPT_RANGES * BOX_BYTES;

/// The length from which on the runs of a box are sent from where they lie. Shorter ones are packed first.
const MIN_GATHERED_RUN: u64 = 4096;

/// The most runs that are sent from where they lie.
const MAX_GATHERED_RUNS: u64 = 1 << 14;

/// A range of a version's body, in bytes from the body's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyRange {
    /// The start of the range.
    pub offset: u64,
    /// The length of the range.
    pub len: u64,
}

impl BodyRange {
    /// Returns the end of the range, or `None` on overflow.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// The error for boxes or a slice that are no excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidExcerpt {
    /// The boxes or rows take more than [`MAX_EXCERPT_BYTES`].
    #[error("the boxes or rows of an excerpt take at most {MAX_EXCERPT_BYTES} bytes of a message, these take {found}")]
    TooLong {
        /// The bytes that they take.
        found: usize,
    },
    /// A slice names too many dimensions for any tensor.
    #[error("a slice names at most {MAX_RANK} dimensions, this one names {found}")]
    TooManyDims {
        /// The number of dimensions that it names.
        found: usize,
    },
    /// A box is empty, its runs overlap or do not rise, or it ends beyond 2^63.
    #[error("the runs of a box rise, do not overlap and are not empty; those of {run} bytes from {offset} on do not")]
    Overlapping {
        /// The start of the box, in bytes.
        offset: u64,
        /// The length of a run, in bytes.
        run: u64,
    },
    /// A row does not follow the one before it.
    #[error("the rows of an excerpt rise, and {index} does not")]
    RowsNotRising {
        /// Its index.
        index: i64,
    },
    /// A box starts before the end of the one before it.
    #[error("the boxes of an excerpt rise and do not overlap; the one at {offset} does not follow the one before it")]
    NotRising {
        /// Its start, in bytes.
        offset: u64,
    },
}

/// What an [`Excerpt`] takes of a version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ExcerptPart {
    /// Boxes of the body, in rising order, of a version with metadata, such as a bundle.
    Boxes(Box<[BodyBox]>),
    /// A slice of a tensor. The owner finds out what it is of the version that it sends.
    Slice(Slice),
    /// Rows of a tensor, likewise.
    Rows(Rows),
}

/// A part of a version: rising boxes of its body, with or without the metadata, or a slice or rows of a tensor.
///
/// Where the version is read by reference, the reader gets all of it and no byte moves. Everywhere else the boxes move
/// and land one behind the other, each at a multiple of [`ALIGNMENT`](crate::memory::ALIGNMENT) with zeros in front of it:
/// those of a slice, and rows, which have no gaps, as a tensor of its shape, others as a body of bytes. If a box does not lie in the body, none of the
/// boxes is sent: the asker knew another version's layout, and learns it from the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Excerpt {
    with_metadata: bool,
    part: ExcerptPart,
}

/// An excerpt of a certain version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The description of what is sent.
    pub meta: TensorMeta,
    /// What is sent, as boxes of the version from its metadata on.
    pub packing: Packing,
}

impl Excerpt {
    /// Creates an excerpt of these boxes of a body.
    ///
    /// # Errors
    /// [`InvalidExcerpt::TooLong`], [`InvalidExcerpt::NotRising`].
    pub fn new(with_metadata: bool, boxes: Vec<BodyBox>) -> Result<Excerpt, InvalidExcerpt> {
        let found = boxes.iter().map(BodyBox::wire_bytes).sum();
        if found > MAX_EXCERPT_BYTES {
            return Err(InvalidExcerpt::TooLong { found });
        }
        let mut from = 0;
        for b in &boxes {
            if b.offset() < from {
                return Err(InvalidExcerpt::NotRising { offset: b.offset() });
            }
            from = b.end();
        }
        Ok(Excerpt { with_metadata, part: ExcerptPart::Boxes(boxes.into()) })
    }

    /// Creates an excerpt of these ranges of a body.
    ///
    /// # Errors
    /// [`InvalidExcerpt`].
    pub fn of_ranges(
        with_metadata: bool,
        ranges: impl IntoIterator<Item = BodyRange>,
    ) -> Result<Excerpt, InvalidExcerpt> {
        let boxes: Result<_, _> = ranges.into_iter().map(BodyBox::try_from).collect();
        Excerpt::new(with_metadata, boxes?)
    }

    /// Creates the excerpt that is a slice of a tensor.
    ///
    /// # Errors
    /// [`InvalidExcerpt::TooManyDims`].
    pub fn slice(slice: Slice) -> Result<Excerpt, InvalidExcerpt> {
        match slice.dims().len() {
            found if found > MAX_RANK => Err(InvalidExcerpt::TooManyDims { found }),
            _ => Ok(Excerpt { with_metadata: false, part: ExcerptPart::Slice(slice) }),
        }
    }

    /// Creates the excerpt that is some rows of a tensor.
    #[must_use]
    pub fn rows(rows: Rows) -> Excerpt {
        Excerpt { with_metadata: false, part: ExcerptPart::Rows(rows) }
    }

    /// Creates the excerpt that is the metadata alone.
    #[must_use]
    pub fn metadata() -> Excerpt {
        Excerpt { with_metadata: true, part: ExcerptPart::Boxes(Box::default()) }
    }

    /// Whether the metadata belongs to it.
    #[must_use]
    pub fn has_metadata(&self) -> bool {
        self.with_metadata
    }

    /// Returns what it takes of a version besides the metadata.
    #[must_use]
    pub fn part(&self) -> &ExcerptPart {
        &self.part
    }

    /// Returns what is sent out of a version.
    ///
    /// # Errors
    /// [`InvalidSlice`] for a slice or rows that do not fit the version.
    pub fn of(&self, whole: &TensorMeta) -> Result<Cut, InvalidSlice> {
        match &self.part {
            ExcerptPart::Slice(slice) => {
                let found = slice.of(whole)?;
                let packing = Packing::new(found.bytes(whole.body_offset()).into_iter().collect());
                let meta = found.meta().clone();
                debug_assert_eq!(packing.len_bytes(), Some(meta.len_bytes()), "{slice} of {whole}");
                Ok(Cut { meta, packing })
            }
            ExcerptPart::Rows(rows) => rows.of(whole).map(|(meta, packing)| Cut { meta, packing }),
            ExcerptPart::Boxes(boxes) => self.cut(boxes, whole).map_err(|e| InvalidSlice {
                slice: Slice::default(),
                shape: whole.shape().clone(),
                why: Misfit::from(e),
            }),
        }
    }

    fn cut(&self, boxes: &[BodyBox], whole: &TensorMeta) -> Result<Cut, InvalidShape> {
        let (body_at, len) = (whole.body_offset(), whole.len_bytes());
        // They rise, so the last one has the highest end.
        let lies_in_body = boxes.last().is_none_or(|b| b.end() <= len - body_at);
        let boxes = if lies_in_body { boxes } else { &[][..] };
        let metadata = if self.with_metadata { whole.metadata_bytes() } else { 0 };
        let boxes = boxes.iter().filter_map(|b| b.moved(body_at));
        let body = Packing::new(boxes.clone().collect());
        let meta = TensorMeta::of(DType::U8, &[body.len_bytes().unwrap_or(u64::MAX)])?.with_metadata(metadata)?;
        let in_front = BodyBox::new(0, meta.body_offset(), SmallVec::new()).into_iter();
        Ok(Cut { meta, packing: Packing::new(in_front.chain(boxes).collect()) })
    }
}

impl Cut {
    /// Whether its bytes are packed into one range before they are sent: they consist of short runs or of very many, or
    /// there are zeros between them.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        let are_rows = self.packing.is_dense() && self.packing.boxes().len() > 1;
        let is_short = |b: &BodyBox| b.run() < MIN_GATHERED_RUN && (are_rows || !b.repeats().is_empty());
        !self.may_be_gathered() || self.packing.boxes().iter().any(is_short)
    }

    /// Whether its bytes can be sent from where they lie.
    #[must_use]
    pub fn may_be_gathered(&self) -> bool {
        self.packing.runs() <= MAX_GATHERED_RUNS && !self.packing.has_gaps()
    }

    /// Returns the local ranges that are sent out of a version that lies in `all`: its metadata and its body. `None` if
    /// `all` is shorter than the version.
    #[must_use]
    pub fn gather(self, all: impl IntoIterator<Item = LocalSlice>) -> Option<GatherList> {
        let mut list = GatherList::new();
        let (mut slices, mut start) = (all.into_iter(), 0);
        let mut slice = slices.next()?;
        for run in self.packing {
            let (mut at, end) = (run.from, run.from + run.len);
            while at < end {
                if at >= start + slice.len {
                    start += slice.len;
                    slice = slices.next()?;
                    continue;
                }
                let take = (end - at).min(start + slice.len - at);
                list.push(slice.sub(at - start, take)?);
                at += take;
            }
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SegmentId;
    use crate::tensor::{Repeat, SliceRange};
    use smallvec::smallvec;

    fn range(offset: u64, len: u64) -> BodyRange {
        BodyRange { offset, len }
    }

    fn slice(offset: u64, len: u64) -> LocalSlice {
        LocalSlice { segment: SegmentId(1), offset, len }
    }

    fn whole() -> TensorMeta {
        TensorMeta::of(DType::U8, &[640]).unwrap().with_metadata(70).unwrap()
    }

    #[test]
    fn boxes_that_are_no_excerpt_are_refused() {
        let of = |ranges: &[BodyRange]| Excerpt::of_ranges(true, ranges.to_vec());
        assert_eq!(of(&[range(64, 0)]), Err(InvalidExcerpt::Overlapping { offset: 64, run: 0 }));
        let overlapping = [range(0, 128), range(127, 64)];
        assert_eq!(of(&overlapping), Err(InvalidExcerpt::NotRising { offset: 127 }));
        let many: Vec<_> = (0..=48).map(|n| range(n * 128, 64)).collect();
        assert_eq!(of(&many), Err(InvalidExcerpt::TooLong { found: 49 * 17 }));
        assert!(of(&many[1..]).is_ok());
        assert_eq!(Excerpt::metadata(), of(&[]).unwrap());
        // A box takes all up to its end.
        let wide = BodyBox::new(0, 4, smallvec![Repeat { count: 2, stride: 100 }]).unwrap();
        let inside = BodyBox::try_from(range(50, 4)).unwrap();
        assert_eq!(Excerpt::new(false, vec![wide, inside]), Err(InvalidExcerpt::NotRising { offset: 50 }));
        let long = Slice::new(vec![SliceRange::ALL.into(); MAX_RANK + 1]);
        assert_eq!(Excerpt::slice(long), Err(InvalidExcerpt::TooManyDims { found: MAX_RANK + 1 }));
    }

    #[test]
    fn excerpt_is_cut_across_the_ranges_of_its_version() {
        // 128 bytes of metadata, and a body of 640 bytes in three pieces.
        let all = [slice(0, 128), slice(1000, 64), slice(2000, 512), slice(3000, 64)];
        let cut = |metadata, ranges: &[BodyRange]| {
            let cut = Excerpt::of_ranges(metadata, ranges.to_vec()).unwrap().of(&whole()).unwrap();
            let len = cut.meta.len_bytes();
            let list = cut.gather(all).unwrap();
            let sum: u64 = list.iter().map(|slice| slice.len).sum();
            assert_eq!(sum, len);
            list.to_vec()
        };
        assert_eq!(cut(true, &[]), [slice(0, 128)]);
        assert_eq!(cut(false, &[range(0, 64)]), [slice(1000, 64)]);
        assert_eq!(cut(true, &[range(128, 64)]), [slice(0, 128), slice(2064, 64)]);
        assert_eq!(
            cut(false, &[range(0, 128), range(512, 128)]),
            [slice(1000, 64), slice(2000, 64), slice(2448, 64), slice(3000, 64)]
        );
        assert_eq!(cut(false, &[range(0, 640)]), all[1..]);
        assert_eq!(cut(false, &[range(1, 3)]), [slice(1001, 3)]);
    }

    #[test]
    fn excerpt_beyond_the_body_is_the_metadata_alone() {
        let all = [slice(0, 128 + 640)];
        let cut = Excerpt::of_ranges(true, [range(0, 64), range(576, 128)]).unwrap().of(&whole()).unwrap();
        assert_eq!(cut.meta.len_bytes(), 128);
        assert_eq!(cut.gather(all).unwrap().to_vec(), [slice(0, 128)]);
    }

    #[test]
    fn version_shorter_than_its_description_is_not_cut() {
        let cut = Excerpt::of_ranges(false, [range(576, 64)]).unwrap().of(&whole()).unwrap();
        assert_eq!(cut.gather([slice(0, 128 + 576)]), None);
    }

    #[test]
    fn short_runs_and_gaps_are_packed_and_others_are_not() {
        let tensor = TensorMeta::of(DType::F32, &[8192, 8192]).unwrap();
        let rows = |rows: std::ops::Range<i64>, columns: std::ops::Range<i64>| {
            let slice = Slice::new([rows.into(), columns.into()]);
            Excerpt::slice(slice).unwrap().of(&tensor).unwrap()
        };
        let cases = [
            (rows(0..4096, 0..64), true, true),
            (rows(0..4096, 0..1024), false, true),
            (rows(0..4096, 0..1023), true, true),
            (rows(7..8, 0..1), false, true),
            (rows(7..9, 0..8192), false, true),
            (rows(0..8192, 5..5), false, true),
        ];
        for (cut, packed, gathered) in cases {
            assert_eq!((cut.is_packed(), cut.may_be_gathered()), (packed, gathered), "{cut:?}");
        }
        let many = TensorMeta::of(DType::U8, &[1 << 15, 8192]).unwrap();
        let cut = Excerpt::slice(Slice::new([(..).into(), (0..4096).into()])).unwrap().of(&many).unwrap();
        assert!(cut.is_packed() && !cut.may_be_gathered());
        let gap = Excerpt::of_ranges(true, [range(0, 65), range(128, 64)]).unwrap().of(&whole()).unwrap();
        assert!(gap.is_packed() && !gap.may_be_gathered());
        assert_eq!(gap.meta.len_bytes(), 128 + 128 + 64);
        let last = Excerpt::of_ranges(true, [range(0, 64), range(128, 65)]).unwrap().of(&whole()).unwrap();
        assert!(!last.is_packed());
    }
}
