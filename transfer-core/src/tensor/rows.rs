//! Rows: some indices of a tensor's outermost dimension.

use super::excerpt::{InvalidExcerpt, MAX_EXCERPT_BYTES};
use super::{BodyBox, InvalidSlice, Misfit, Packing, Slice, SliceDim, TensorMeta};
use smallvec::SmallVec;

/// The bytes of a list in a message in front of its distances: the number of rows, and the first index.
const HEAD_BYTES: usize = 2 + 8;

/// Some rows of a tensor, of those of its outermost dimension: their indices, which rise. As many as fit into a request.
///
/// An index says nothing before the tensor is known: a negative one can be sent, and fits no tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rows(Box<[i64]>);

impl Rows {
    /// Creates a list of these rows.
    ///
    /// # Errors
    /// [`InvalidExcerpt::RowsNotRising`], [`InvalidExcerpt::TooLong`].
    pub fn new(indices: Vec<i64>) -> Result<Rows, InvalidExcerpt> {
        if let Some(pair) = indices.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(InvalidExcerpt::RowsNotRising { index: pair[1] });
        }
        match wire_bytes(&indices) {
            found if found > MAX_EXCERPT_BYTES => Err(InvalidExcerpt::TooLong { found }),
            _ => Ok(Rows(indices.into())),
        }
    }

    /// Returns how many of these rising rows, from the first one on, fit into one list.
    #[must_use]
    pub fn fitting(indices: &[i64]) -> usize {
        let mut bytes = HEAD_BYTES;
        let further = indices.windows(2).take_while(|pair| {
            bytes += distance_bytes(pair[0], pair[1]);
            bytes <= MAX_EXCERPT_BYTES
        });
        indices.len().min(1 + further.count())
    }

    /// Returns the indices.
    #[must_use]
    pub fn indices(&self) -> &[i64] {
        &self.0
    }

    /// Returns the rows of a tensor, as a tensor of their own: its description, and where they lie in the version.
    ///
    /// # Errors
    /// [`InvalidSlice`], with the first index that does not fit, the shape, and what would.
    pub fn of(&self, whole: &TensorMeta) -> Result<(TensorMeta, Packing), InvalidSlice> {
        let wrong = |index: Option<i64>, why| {
            let slice = Slice::new(index.map(SliceDim::Index));
            InvalidSlice { slice, shape: whole.shape().clone(), why }
        };
        let Some((len, inner)) = whole.shape().dims().split_first() else {
            return Err(wrong(self.0.first().copied(), Misfit::Scalar));
        };
        if inner.is_empty() && whole.dtype().elements_per_unit() > 1 {
            return Err(wrong(self.0.first().copied(), Misfit::SharedByte { dim: 0 }));
        }
        let fits = |index: i64| u64::try_from(index).is_ok_and(|index| index < *len);
        // They rise, so what lies outside is one of the ends.
        let mut ends = [self.0.first(), self.0.last()].into_iter().flatten().copied();
        if let Some(index) = ends.find(|index| !fits(*index)) {
            return Err(wrong(Some(index), Misfit::Row { index, len: *len }));
        }
        let dims: Vec<_> = std::iter::once(self.0.len() as u64).chain(inner.iter().copied()).collect();
        let meta = TensorMeta::of(whole.dtype(), &dims).map_err(|e| wrong(None, e.into()))?;
        let row_bytes = whole.len_bytes().checked_div(*len).unwrap_or(0);
        let mut boxes = SmallVec::new();
        let mut rest = &self.0[..];
        while let Some(first) = rest.first().filter(|_| row_bytes > 0) {
            let count = 1 + rest.windows(2).take_while(|pair| pair[0] + 1 == pair[1]).count();
            // It lies in the tensor, so it is a box.
            boxes.extend(
                BodyBox::new(first.cast_unsigned() * row_bytes, count as u64 * row_bytes, SmallVec::new()).ok(),
            );
            rest = &rest[count..];
        }
        Ok((meta, Packing::dense(boxes)))
    }
}

/// The number of bytes that these rising indices take in a message.
fn wire_bytes(indices: &[i64]) -> usize {
    HEAD_BYTES + indices.windows(2).map(|pair| distance_bytes(pair[0], pair[1])).sum::<usize>()
}

/// The number of bytes that an index takes in a message behind another one: 7 bits of the distance in each.
fn distance_bytes(before: i64, index: i64) -> usize {
    let bits = 64 - before.abs_diff(index).leading_zeros() as usize;
    bits.div_ceil(7).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Excerpt};
    use proptest::prelude::*;

    fn rows(indices: &[i64]) -> Rows {
        Rows::new(indices.to_vec()).unwrap()
    }

    #[test]
    fn rows_that_do_not_fit_are_refused_with_index_and_shape() {
        let whole = TensorMeta::of(DType::F32, &[5, 3]).unwrap();
        let text = |indices: &[i64], whole: &TensorMeta| rows(indices).of(whole).unwrap_err().to_string();
        assert_eq!(
            text(&[1, 5], &whole),
            "slice [5] does not fit shape [5, 3]: index 5 is no row, 0 to 4 would fit; negative ones do not count from the end"
        );
        assert!(text(&[-1, 2], &whole).starts_with("slice [-1] does not fit shape [5, 3]: index -1 is no row"));
        let empty = TensorMeta::of(DType::F32, &[0, 3]).unwrap();
        assert!(text(&[0], &empty).ends_with("index 0 is no row, there are none"));
        assert_eq!(rows(&[]).of(&empty).unwrap().0, empty);
        let scalar = TensorMeta::of(DType::F32, &[]).unwrap();
        assert!(text(&[0], &scalar).contains("without dimensions"));
        let pairs = TensorMeta::of(DType::U4, &[8]).unwrap();
        assert_eq!(rows(&[0]).of(&pairs).unwrap_err().why, Misfit::SharedByte { dim: 0 });
        assert_eq!(Rows::new(vec![3, 3]), Err(InvalidExcerpt::RowsNotRising { index: 3 }));
        assert_eq!(Rows::new(vec![3, 2]), Err(InvalidExcerpt::RowsNotRising { index: 2 }));
    }

    #[test]
    fn short_rows_are_packed_and_long_ones_are_not() {
        let cut = |dims: &[u64], indices: &[i64]| {
            let whole = TensorMeta::of(DType::F32, dims).unwrap();
            Excerpt::rows(rows(indices)).of(&whole).unwrap()
        };
        for (dims, indices, packed) in [
            (&[8, 1023][..], &[1, 3][..], true),
            (&[8, 1024], &[1, 3], false),
            (&[8, 3], &[1, 2, 3], false),
            (&[8, 3], &[2], false),
            (&[8], &[2, 4], true),
        ] {
            let cut = cut(dims, indices);
            assert_eq!((cut.is_packed(), cut.may_be_gathered()), (packed, true), "{dims:?} {indices:?}");
        }
    }

    #[test]
    fn as_many_rows_fit_as_a_message_has_room_for() {
        let near: Vec<i64> = (0..2000).collect();
        assert_eq!(Rows::fitting(&near), MAX_EXCERPT_BYTES - HEAD_BYTES + 1);
        assert!(Rows::new(near[..Rows::fitting(&near)].to_vec()).is_ok());
        assert!(matches!(Rows::new(near[..=Rows::fitting(&near)].to_vec()), Err(InvalidExcerpt::TooLong { .. })));
        assert_eq!(Rows::fitting(&[i64::MIN, i64::MAX]), 2);
        assert_eq!((Rows::fitting(&[7]), Rows::fitting(&[])), (1, 0));
    }

    proptest! {
        // Promise: rows
        #[test]
        fn rows_lie_one_behind_the_other(
            len in 1_u64..40,
            inner in proptest::collection::vec(0_u64..4, 0..3),
            dtype in proptest::sample::select(&DType::ALL),
            wanted in proptest::collection::btree_set(0_i64..40, 0..40),
        ) {
            let mut dims = vec![len];
            dims.extend(inner);
            if dims.len() > 1 {
                *dims.last_mut().unwrap() *= dtype.elements_per_unit();
            } else if dtype.elements_per_unit() > 1 {
                return Ok(());
            }
            let whole = TensorMeta::of(dtype, &dims).unwrap();
            let indices: Vec<_> = wanted.into_iter().filter(|n| n.cast_unsigned() < len).collect();
            let (meta, packing) = rows(&indices).of(&whole).unwrap();
            let row = whole.len_bytes() / len;
            prop_assert_eq!(meta.shape().dims()[0], indices.len() as u64);
            prop_assert_eq!(&meta.shape().dims()[1..], &dims[1..]);
            prop_assert_eq!(packing.len_bytes(), Some(meta.len_bytes()));
            prop_assert!(!packing.has_gaps());
            let mut sent = Vec::new();
            for run in packing {
                prop_assert_eq!(run.to, sent.len() as u64);
                sent.extend(run.from..run.from + run.len);
            }
            let expected: Vec<_> = indices.iter().flat_map(|n| n.cast_unsigned() * row..(n.cast_unsigned() + 1) * row).collect();
            prop_assert_eq!(sent, expected);
        }
    }
}
