//! Boxes of indices, in any number of dimensions.

use smallvec::SmallVec;

/// A range of the indices of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Extent {
    /// The index behind the last one. Checked when the extent was made.
    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// The indices of both; none has the length 0.
    fn intersect(self, other: Extent) -> Extent {
        let start = self.start.max(other.start);
        Extent { start, len: self.end().min(other.end()).saturating_sub(start) }
    }
}

/// A range of the indices of each dimension, the outermost first. Without dimensions it has one element.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct IndexBox(pub(crate) SmallVec<[Extent; 4]>);

impl IndexBox {
    /// All of a shape.
    #[cfg(test)]
    pub(crate) fn all(dims: &[u64]) -> IndexBox {
        IndexBox(dims.iter().map(|len| Extent { start: 0, len: *len }).collect())
    }

    pub(crate) fn new(offset: &[u64], shape: &[u64]) -> IndexBox {
        IndexBox(offset.iter().zip(shape).map(|(start, len)| Extent { start: *start, len: *len }).collect())
    }

    pub(crate) fn shape(&self) -> Vec<u64> {
        self.0.iter().map(|extent| extent.len).collect()
    }

    /// The number of elements. That of a shape fits, and a box is no larger.
    pub(crate) fn volume(&self) -> u64 {
        self.0.iter().map(|extent| extent.len).fold(1, u64::saturating_mul)
    }

    /// A copy. Planning makes many, and this is one of memory.
    fn copy(&self) -> IndexBox {
        IndexBox(SmallVec::from_slice(&self.0))
    }

    /// The number of elements of both.
    pub(crate) fn common_volume(&self, other: &IndexBox) -> u64 {
        self.0.iter().zip(&other.0).map(|(a, b)| a.intersect(*b).len).fold(1, u64::saturating_mul)
    }

    /// The elements of both. `None` if there are none.
    pub(crate) fn intersect(&self, other: &IndexBox) -> Option<IndexBox> {
        if self.common_volume(other) == 0 {
            return None;
        }
        let mut both = self.copy();
        for (own, other) in both.0.iter_mut().zip(&other.0) {
            *own = own.intersect(*other);
        }
        Some(both)
    }

    /// Adds to `rest` what is left of this box without `hole`, which lies in it, as boxes that do not overlap. It is cut in dimension
    /// `along` first, and then in the others.
    pub(crate) fn without(mut self, hole: &IndexBox, along: usize, rest: &mut Vec<IndexBox>) {
        for dim in (0..hole.0.len()).map(|n| if n == 0 { along } else { n - usize::from(n <= along) }) {
            let cut = hole.0[dim];
            let own = self.0[dim];
            for (start, end) in [(own.start, cut.start), (cut.end(), own.end())] {
                if start < end {
                    let mut piece = self.copy();
                    piece.0[dim] = Extent { start, len: end - start };
                    rest.push(piece);
                }
            }
            self.0[dim] = cut;
        }
    }

    /// Cuts the box into pieces of about `most` elements along its outer dimensions, and the last one at multiples of `unit`.
    pub(crate) fn cut(self, most: u64, unit: u64, pieces: &mut Vec<IndexBox>) {
        let Some(dim) = self.0.iter().position(|extent| extent.len > 1).filter(|_| self.volume() > most) else {
            return pieces.push(self);
        };
        let Extent { start, len } = self.0[dim];
        let inner = self.volume() / len;
        let unit = if dim + 1 == self.0.len() { unit } else { 1 };
        let rows = (most / inner.max(1) / unit).max(1) * unit;
        if rows >= len {
            return pieces.push(self);
        }
        for first in (0..len).step_by(usize::try_from(rows).unwrap_or(usize::MAX)) {
            let mut piece = self.clone();
            piece.0[dim] = Extent { start: start + first, len: rows.min(len - first) };
            piece.cut(most, unit, pieces);
        }
    }
}

impl std::fmt::Display for IndexBox {
    /// As numpy writes it: `[0:4, 8:16]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (n, extent) in self.0.iter().enumerate() {
            write!(f, "{}{}:{}", if n > 0 { ", " } else { "" }, extent.start, extent.end())?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boxes(dims: usize) -> impl Strategy<Value = IndexBox> {
        proptest::collection::vec((0_u64..6, 1_u64..6), dims)
            .prop_map(|dims| IndexBox(dims.into_iter().map(|(start, len)| Extent { start, len }).collect()))
    }

    fn points(b: &IndexBox) -> Vec<Vec<u64>> {
        b.0.iter().fold(vec![Vec::new()], |points, extent| {
            let longer = |point: Vec<u64>| (extent.start..extent.end()).map(move |at| [&point[..], &[at]].concat());
            points.into_iter().flat_map(longer).collect()
        })
    }

    proptest! {
        #[test]
        fn rest_and_hole_are_the_box(((a, b), along, most) in
            ((0_usize..4).prop_flat_map(|n| (boxes(n), boxes(n))), 0_usize..4, 1_u64..20))
        {
            let mut all = Vec::new();
            prop_assert_eq!(a.common_volume(&b), a.intersect(&b).map_or(0, |both| both.volume()));
            if let Some(both) = a.intersect(&b) {
                a.clone().without(&both, along % a.0.len().max(1), &mut all);
                prop_assert!(points(&both).iter().all(|point| points(&b).contains(point)));
                all.push(both);
            } else {
                all.push(a.clone());
            }
            let mut cut = Vec::new();
            all.into_iter().for_each(|piece| piece.cut(most, 1, &mut cut));
            prop_assert!(cut.iter().all(|piece| piece.volume() <= most));
            let mut found: Vec<_> = cut.iter().flat_map(points).collect();
            found.sort();
            let mut expected = points(&a);
            expected.sort();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn boxes_are_written_as_numpy_writes_them() {
        assert_eq!(IndexBox::new(&[0, 8], &[4, 8]).to_string(), "[0:4, 8:16]");
        assert_eq!(IndexBox::all(&[]).to_string(), "[]");
    }
}
