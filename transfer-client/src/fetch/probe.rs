//! Finds out what a tensor is that is too large to be fetched: by slices of it, which have no elements or few.

use crate::error::Error;
use transfer_core::tensor::{Slice, SliceDim, SliceRange, TensorMeta};

/// The first distance of the elements that show how long a tensor of one dimension is, and by how much each next one is shorter.
const FIRST_STEP: i64 = 1 << 30;
const STEP_FACTOR: i64 = 1 << 10;

/// The first distance of the bounds that show it where two elements share a byte. All of them together are more elements than an address
/// space has.
const FIRST_BOUND: i64 = 1 << 57;

/// A request that helps to find out what the tensor is.
#[derive(Debug, Clone)]
pub(super) enum Probe {
    /// None of its rows: the answer has the element type and the inner dimensions.
    Inner,
    /// All of its rows, of no elements, for the length of the outermost dimension.
    Outer { inner: TensorMeta },
    /// The length of the only dimension is at least `known`: elements from there on, at a distance. Their number says how many more
    /// there are.
    Length { flat: TensorMeta, known: i64, step: i64 },
    /// The same, by a bound that is right if there are so many elements more.
    Bound { flat: TensorMeta, known: i64, step: i64 },
    /// This is it.
    Known(TensorMeta),
}

impl Probe {
    /// What is asked for.
    pub(super) fn slice(&self) -> Slice {
        let range = |start, stop, step| SliceDim::Range(SliceRange { start: Some(start), stop, step });
        let none = range(0, Some(0), 1);
        match *self {
            Probe::Inner => Slice::new([none]),
            Probe::Outer { .. } => Slice::new([SliceRange::ALL.into(), none]),
            Probe::Length { known, step, .. } => Slice::new([range(known, None, step)]),
            Probe::Bound { known, step, .. } => {
                let at = known.saturating_add(step);
                Slice::new([range(at, Some(at), 1)])
            }
            Probe::Known(_) => Slice::default(),
        }
    }

    /// The next probe, by the description of what has come.
    pub(super) fn after(self, part: &TensorMeta) -> Result<Probe, Error> {
        let dims = part.shape().dims();
        let count = dims.first().copied().unwrap_or(0);
        Ok(match self {
            Probe::Inner if dims.len() != 1 => Probe::Outer { inner: part.clone() },
            Probe::Inner if part.dtype().elements_per_unit() == 1 => {
                Probe::Length { flat: part.clone(), known: 0, step: FIRST_STEP }
            }
            Probe::Inner => Probe::Bound { flat: part.clone(), known: 0, step: FIRST_BOUND },
            Probe::Outer { inner } => {
                let dims: Vec<_> = [count].into_iter().chain(inner.shape().dims().iter().skip(1).copied()).collect();
                Probe::Known(TensorMeta::of(inner.dtype(), &dims)?)
            }
            Probe::Length { flat, known, step } => {
                let behind_last = i64::try_from(count).unwrap_or(i64::MAX).saturating_sub(1).max(0);
                let known = known.saturating_add(behind_last.saturating_mul(step));
                match step {
                    1 => Probe::Known(flat_of(&flat, known + i64::from(count > 0))?),
                    _ => Probe::Length { flat, known, step: step / STEP_FACTOR },
                }
            }
            Probe::Bound { flat, known, step } => Probe::shorter(flat, known.saturating_add(step), step)?,
            Probe::Known(whole) => Probe::Known(whole),
        })
    }

    /// The next probe, after a bound that was wrong. `None` if it was no bound.
    pub(super) fn after_misfit(self) -> Option<Result<Probe, Error>> {
        match self {
            Probe::Bound { flat, known, step } => Some(Probe::shorter(flat, known, step)),
            _ => None,
        }
    }

    /// A bound at half the distance. It stays even.
    fn shorter(flat: TensorMeta, known: i64, step: i64) -> Result<Probe, Error> {
        match step / 2 {
            1 => flat_of(&flat, known).map(Probe::Known),
            step => Ok(Probe::Bound { flat, known, step }),
        }
    }
}

fn flat_of(flat: &TensorMeta, len: i64) -> Result<TensorMeta, Error> {
    Ok(TensorMeta::of(flat.dtype(), &[len.unsigned_abs()])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::tensor::DType;

    /// Asks a tensor until it is known. Returns what was found, and the number of requests.
    fn probed(whole: &TensorMeta) -> (TensorMeta, usize) {
        let (mut probe, mut asked) = (Probe::Inner, 0);
        loop {
            if let Probe::Known(found) = probe {
                return (found, asked);
            }
            asked += 1;
            probe = match probe.slice().of(whole) {
                Ok(part) => {
                    assert!(part.meta().len_bytes() <= 64 << 10, "{probe:?} brings {}", part.meta());
                    probe.after(part.meta()).expect("a description")
                }
                Err(_) => probe.after_misfit().expect("a bound").expect("a description"),
            };
        }
    }

    // Promise: large-tensors
    #[test]
    fn shapes_are_found_by_slices() {
        let dims: [&[u64]; 8] =
            [&[1], &[2], &[1 << 10], &[(1 << 30) + 2], &[(3 << 30) - 2], &[1 << 40], &[6, 4], &[3, 1 << 20, 2]];
        for dtype in [DType::F32, DType::U8, DType::U4] {
            for dims in dims.iter().filter(|dims| dtype != DType::U4 || dims.last() != Some(&1)) {
                let whole = TensorMeta::of(dtype, dims).expect("a shape");
                let (found, asked) = probed(&whole);
                assert_eq!(found, whole);
                let most = if dims.len() > 1 { 2 } else { 5 };
                assert!(asked <= most || dtype == DType::U4, "{asked} requests for {whole}");
            }
        }
    }
}
