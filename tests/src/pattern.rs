//! The contents of tensors: bytes that follow from a seed, so that a reader can tell the right ones from all others.

use crate::order::Spec;
use transfer_client::{DType, TensorMeta};

/// An odd constant with well spread bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn word(seed: u64, at: u64) -> u64 {
    let x = (seed ^ at.wrapping_mul(SPREAD)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// Fills `bytes` from a seed. The bytes of a `bool` tensor are 0 or 1.
pub fn fill(bytes: &mut [u8], dtype: DType, seed: u64) {
    let mask = if dtype == DType::Bool { 0x0101_0101_0101_0101 } else { u64::MAX };
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let mut at = 0;
    for chunk in words {
        *chunk = (word(seed, at) & mask).to_le_bytes();
        at += 1;
    }
    let last = (word(seed, at) & mask).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Returns a checksum that differs between any two contents that the tests use, also if only the order or the length
/// differs.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = (bytes.len() as u64).wrapping_mul(SPREAD);
    for chunk in words {
        sum = (sum.rotate_left(23) ^ u64::from_le_bytes(*chunk)).wrapping_mul(SPREAD);
    }
    for byte in rest {
        sum = (sum.rotate_left(23) ^ u64::from(*byte)).wrapping_mul(SPREAD);
    }
    sum
}

/// Returns the element type with this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn dtype(name: &str) -> DType {
    DType::from_name(name).unwrap_or_else(|| panic!("{name} is no element type"))
}

/// Returns the size of a tensor in bytes.
///
/// # Panics
/// If there is no such tensor.
#[must_use]
pub fn len_of(spec: &Spec) -> u64 {
    TensorMeta::of(dtype(&spec.dtype), &spec.shape).expect("a description").len_bytes()
}

/// Returns the bytes of a tensor.
#[must_use]
pub fn bytes_of(spec: &Spec) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len_of(spec)).expect("a tensor fits memory")];
    fill(&mut bytes, dtype(&spec.dtype), spec.seed);
    bytes
}

/// Returns the checksum of a tensor.
#[must_use]
pub fn sum_of(spec: &Spec) -> u64 {
    sum(&bytes_of(spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_a_swap_and_a_cut_change_the_sum() {
        let spec = Spec::bytes(1003, 7);
        let right = bytes_of(&spec);
        assert_eq!(sum(&right), spec.sum());
        assert_ne!(spec.sum(), Spec::bytes(1003, 8).sum());
        for at in [0, 500, 1002] {
            let mut wrong = right.clone();
            wrong[at] ^= 0x10;
            assert_ne!(sum(&wrong), spec.sum(), "{at}");
        }
        let mut swapped = right.clone();
        swapped.swap(8, 16);
        assert_ne!(sum(&swapped), spec.sum());
        assert_ne!(sum(&right[..1002]), spec.sum());
    }

    #[test]
    fn bool_tensors_hold_only_0_and_1() {
        let spec = Spec { dtype: "bool".into(), shape: vec![100], seed: 3 };
        let bytes = bytes_of(&spec);
        assert!(bytes.iter().all(|b| *b < 2) && bytes.contains(&0) && bytes.contains(&1));
    }
}
