//! Rust types as element types.

use super::ViewError;
use bytemuck::checked::{self, CheckedCastError};
use bytemuck::{CheckedBitPattern, NoUninit, Pod, PodCastError, Zeroable};
use half::{bf16, f16};
use num_complex::Complex;
use transfer_core::tensor::DType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type whose memory is that of one tensor element, or of two that share a byte. Sealed: the element types are [`DType`]'s.
pub trait Element: sealed::Sealed + CheckedBitPattern + NoUninit + Send + Sync {
    /// The element type.
    const DTYPE: DType;
}

/// An 8-bit float with 4 exponent bits, as its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// An 8-bit float with 5 exponent bits, as its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

/// A scale of a block: the biased exponent of a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E8M0(pub u8);

/// Two 4-bit floats, as their bits: the first has the low ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct F4E2M1x2(pub u8);

/// Two signed 4-bit integers, as their bits: the first has the low ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct I4x2(pub u8);

/// Two unsigned 4-bit integers, as their bits: the first has the low ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct U4x2(pub u8);

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$rust>() as u64 == DType::$dtype.size_bytes());
    )*};
}

elements! {
    bool => Bool,
    i8 => I8,
    u8 => U8,
    i16 => I16,
    u16 => U16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f16 => F16,
    bf16 => BF16,
    f32 => F32,
    f64 => F64,
    Complex<f32> => C64,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
    Complex<f64> => C128,
    F8E8M0 => F8E8M0,
    F4E2M1x2 => F4E2M1,
    I4x2 => I4,
    U4x2 => U4,
}

pub(crate) fn cast<T: Element>(bytes: &[u8]) -> Result<&[T], ViewError> {
    checked::try_cast_slice(bytes).map_err(|e| explain::<T>(e, bytes.len(), bytes.as_ptr().addr()))
}

pub(crate) fn cast_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T], ViewError> {
    let (len, address) = (bytes.len(), bytes.as_ptr().addr());
    checked::try_cast_slice_mut(bytes).map_err(|e| explain::<T>(e, len, address))
}

fn explain<T: Element>(e: CheckedCastError, len: usize, address: usize) -> ViewError {
    let dtype = T::DTYPE;
    match e {
        CheckedCastError::InvalidBitPattern => ViewError::InvalidValue { dtype },
        CheckedCastError::PodCastError(PodCastError::TargetAlignmentGreaterAndInputNotAligned) => {
            ViewError::Misaligned { dtype, needed: align_of::<T>(), address }
        }
        CheckedCastError::PodCastError(_) => ViewError::WrongSize { len, dtype, size: size_of::<T>() },
    }
}
