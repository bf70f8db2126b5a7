//! A part of a version: some ranges of its body, with or without its metadata.

use super::{DType, InvalidShape, TensorMeta};
use crate::memory::{ALIGNMENT, LocalSlice};
use crate::plan::GatherList;

/// The most ranges of one [`Excerpt`]. A request with this many fits in the smallest message that a fabric has.
pub const MAX_EXCERPT_RANGES: usize = 48;

/// A range of a version's body. Numbers are in bytes from the body's start, and multiples of
/// [`ALIGNMENT`].
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

/// The error for ranges that are no excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidExcerpt {
    /// More than [`MAX_EXCERPT_RANGES`] ranges.
    #[error("an excerpt has at most {MAX_EXCERPT_RANGES} ranges, this one has {found}")]
    TooMany {
        /// The number of ranges.
        found: usize,
    },
    /// A range is empty, or does not start or end at a multiple of [`ALIGNMENT`].
    #[error(
        "a range of an excerpt starts and ends at multiples of {ALIGNMENT} and is not empty, this one has {len} bytes at {offset}"
    )]
    NotAligned {
        /// Its start, in bytes.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// A range starts before the end of the one before it, or ends beyond 2^63.
    #[error(
        "the ranges of an excerpt rise and do not overlap; {len} bytes at {offset} do not follow the range before them"
    )]
    NotRising {
        /// Its start, in bytes.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
    },
}

/// A part of a version with metadata, such as a bundle: rising ranges of its body, with or without the metadata.
///
/// Where the version is read by reference, the reader gets all of it and no byte moves. Everywhere else the ranges move
/// and land one behind the other, as a body of bytes. If a range does not lie in the body, none of the ranges is sent:
/// the asker knew another version's layout, and learns it from the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Excerpt {
    with_metadata: bool,
    ranges: Vec<BodyRange>,
}

impl Excerpt {
    /// Creates an excerpt of these ranges.
    ///
    /// # Errors
    /// [`InvalidExcerpt`].
    pub fn new(with_metadata: bool, ranges: Vec<BodyRange>) -> Result<Excerpt, InvalidExcerpt> {
        if ranges.len() > MAX_EXCERPT_RANGES {
            return Err(InvalidExcerpt::TooMany { found: ranges.len() });
        }
        let mut from = 0;
        for range in &ranges {
            let BodyRange { offset, len } = *range;
            if len == 0 || !offset.is_multiple_of(ALIGNMENT) || !len.is_multiple_of(ALIGNMENT) {
                return Err(InvalidExcerpt::NotAligned { offset, len });
            }
            from = match range.end().filter(|end| offset >= from && *end < 1 << 63) {
                Some(end) => end,
                None => return Err(InvalidExcerpt::NotRising { offset, len }),
            };
        }
        Ok(Excerpt { with_metadata, ranges })
    }

    /// Creates the excerpt that is the metadata alone.
    #[must_use]
    pub fn metadata() -> Excerpt {
        Excerpt { with_metadata: true, ranges: Vec::new() }
    }

    /// Whether the metadata belongs to it.
    #[must_use]
    pub fn has_metadata(&self) -> bool {
        self.with_metadata
    }

    /// Returns the ranges, in rising order.
    #[must_use]
    pub fn ranges(&self) -> &[BodyRange] {
        &self.ranges
    }

    /// Returns the ranges that are sent out of a version: all, or none if one of them does not lie in its body.
    fn ranges_of(&self, whole: &TensorMeta) -> &[BodyRange] {
        let body_len = whole.len_bytes() - whole.body_offset();
        // They rise, so the last one has the highest end.
        match self.ranges.last().and_then(BodyRange::end) {
            Some(end) if end > body_len => &[],
            _ => &self.ranges,
        }
    }

    /// Returns the description of what is sent out of a version.
    ///
    /// # Errors
    /// [`InvalidShape`], which a valid version and excerpt never cause.
    pub fn meta(&self, whole: &TensorMeta) -> Result<TensorMeta, InvalidShape> {
        let len = self.ranges_of(whole).iter().map(|range| range.len).sum();
        let meta = TensorMeta::of(DType::U8, &[len])?;
        meta.with_metadata(if self.with_metadata { whole.metadata_bytes() } else { 0 })
    }

    /// Returns the local ranges that are sent out of a version that lies in `all`: its metadata and its body. `None` if
    /// `all` is shorter than the version.
    #[must_use]
    pub fn cut(&self, whole: &TensorMeta, all: &[LocalSlice]) -> Option<GatherList> {
        let metadata = BodyRange { offset: 0, len: if self.with_metadata { whole.body_offset() } else { 0 } };
        let in_body = |range: &BodyRange| BodyRange { offset: whole.body_offset() + range.offset, len: range.len };
        let mut list = GatherList::new();
        let (mut slices, mut start) = (all.iter(), 0);
        let mut slice = *slices.next()?;
        for wanted in std::iter::once(metadata).chain(self.ranges_of(whole).iter().map(in_body)) {
            let (mut at, end) = (wanted.offset, wanted.end()?);
            while at < end {
                if at >= start + slice.len {
                    start += slice.len;
                    slice = *slices.next()?;
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
    fn ranges_that_are_no_excerpt_are_refused() {
        let of = |ranges: &[BodyRange]| Excerpt::new(true, ranges.to_vec());
        assert_eq!(of(&[range(64, 0)]), Err(InvalidExcerpt::NotAligned { offset: 64, len: 0 }));
        assert_eq!(of(&[range(1, 64)]), Err(InvalidExcerpt::NotAligned { offset: 1, len: 64 }));
        assert_eq!(of(&[range(0, 65)]), Err(InvalidExcerpt::NotAligned { offset: 0, len: 65 }));
        let overlapping = [range(0, 128), range(64, 64)];
        assert_eq!(of(&overlapping), Err(InvalidExcerpt::NotRising { offset: 64, len: 64 }));
        let high = range(0_u64.wrapping_sub(64), 64);
        assert_eq!(of(&[high]), Err(InvalidExcerpt::NotRising { offset: high.offset, len: 64 }));
        let many: Vec<_> = (0..=MAX_EXCERPT_RANGES as u64).map(|n| range(n * 128, 64)).collect();
        assert_eq!(of(&many), Err(InvalidExcerpt::TooMany { found: MAX_EXCERPT_RANGES + 1 }));
        assert!(of(&many[1..]).is_ok());
        assert_eq!(Excerpt::metadata(), of(&[]).unwrap());
    }

    #[test]
    fn excerpt_is_cut_across_the_ranges_of_its_version() {
        // 128 bytes of metadata, and a body of 640 bytes in three pieces.
        let all = [slice(0, 128), slice(1000, 64), slice(2000, 512), slice(3000, 64)];
        let cut = |metadata, ranges: &[BodyRange]| {
            let excerpt = Excerpt::new(metadata, ranges.to_vec()).unwrap();
            let list = excerpt.cut(&whole(), &all).unwrap();
            let sum: u64 = list.iter().map(|slice| slice.len).sum();
            assert_eq!(sum, excerpt.meta(&whole()).unwrap().len_bytes());
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
    }

    #[test]
    fn excerpt_beyond_the_body_is_the_metadata_alone() {
        let all = [slice(0, 128 + 640)];
        let excerpt = Excerpt::new(true, vec![range(0, 64), range(576, 128)]).unwrap();
        assert_eq!(excerpt.meta(&whole()).unwrap().len_bytes(), 128);
        assert_eq!(excerpt.cut(&whole(), &all).unwrap().to_vec(), [slice(0, 128)]);
    }

    #[test]
    fn version_shorter_than_its_description_is_not_cut() {
        let excerpt = Excerpt::new(false, vec![range(576, 64)]).unwrap();
        assert_eq!(excerpt.cut(&whole(), &[slice(0, 128 + 576)]), None);
    }
}
