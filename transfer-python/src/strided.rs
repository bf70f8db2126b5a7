//! Copies of elements that may not lie in one piece.

#![expect(unsafe_code, reason = "reads memory that others have allocated")]

use half::{bf16, f16};
use std::fmt;
use std::ptr;
use transfer_client::DType;

/// The layout of elements: an address, the dimensions, and the stride of each dimension, in bytes.
#[derive(Debug)]
pub(crate) struct Strided {
    address: usize,
    dims: Vec<u64>,
    strides: Vec<isize>,
    item_bytes: usize,
}

/// The reason why a layout that another library describes is that of no memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadLayout {
    #[error("an array has no dimensions such as {dims:?}")]
    Negative { dims: Vec<i64> },
    #[error("{layout} has no memory: its pointer is null")]
    Null { layout: String },
    #[error("{layout} exceeds the address space with its strides")]
    Outside { layout: String },
}

impl fmt::Display for Strided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of {:?} elements of {} bytes", self.dims, self.item_bytes)
    }
}

impl Strided {
    /// Makes a layout. Without `strides` the elements lie row-major.
    pub(crate) fn new(address: usize, dims: Vec<u64>, strides: Option<Vec<isize>>, item_bytes: usize) -> Strided {
        let strides = strides.unwrap_or_else(|| row_major(&dims, item_bytes));
        Strided { address, dims, strides, item_bytes }
    }

    /// Makes a layout of memory that another library describes.
    ///
    /// # Errors
    /// [`BadLayout`]: no memory lies there.
    pub(crate) fn described(
        address: usize,
        dims: &[i64],
        strides: Option<Vec<isize>>,
        item_bytes: usize,
    ) -> Result<Strided, BadLayout> {
        let known = dims.iter().map(|n| u64::try_from(*n)).collect::<Result<Vec<_>, _>>();
        let dims = known.map_err(|_| BadLayout::Negative { dims: dims.to_vec() })?;
        let layout = Strided::new(address, dims, strides, item_bytes);
        if layout.dims.contains(&0) {
            return Ok(layout);
        }
        if address == 0 {
            return Err(BadLayout::Null { layout: layout.to_string() });
        }
        match layout.ends() {
            Some(_) => Ok(layout),
            None => Err(BadLayout::Outside { layout: layout.to_string() }),
        }
    }

    /// The addresses of the first byte and of the end, if they lie in the address space. There are elements.
    fn ends(&self) -> Option<(usize, usize)> {
        let (mut first, mut last) = (self.address, self.address);
        for (count, stride) in self.dims.iter().zip(&self.strides) {
            let length = stride.unsigned_abs().checked_mul(usize::try_from(count - 1).ok()?)?;
            match *stride < 0 {
                true => first = first.checked_sub(length)?,
                false => last = last.checked_add(length)?,
            }
        }
        Some((first, last.checked_add(self.item_bytes).filter(|end| isize::try_from(end - first).is_ok())?))
    }

    pub(crate) fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// The address, if the elements lie row-major and in one piece.
    pub(crate) fn in_one_piece(&self) -> Option<usize> {
        (self.pieces().0 == 0 || self.dims.contains(&0)).then_some(self.address)
    }

    /// The first dimension from which on the elements lie in one piece, and the length of such a piece, in bytes.
    fn pieces(&self) -> (usize, usize) {
        let (mut bytes, mut from) = (self.item_bytes, self.dims.len());
        while from > 0 && (self.dims[from - 1] == 1 || self.strides[from - 1] == bytes as isize) {
            from -= 1;
            bytes = bytes.saturating_mul(self.dims[from] as usize);
        }
        (from, bytes)
    }
}

fn row_major(dims: &[u64], item_bytes: usize) -> Vec<isize> {
    let mut strides = vec![item_bytes as isize; dims.len()];
    for at in (1..dims.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(dims[at].max(1) as isize);
    }
    strides
}

/// Writes a row of items to an address, of which each lies as many bytes behind the one before it, and returns the address
/// behind what it wrote.
type Row = unsafe fn(source: *const u8, stride: isize, count: usize, to: *mut u8) -> *mut u8;

/// Copies the elements to `to`, row-major.
///
/// # Safety
/// The elements are valid for reads. `to` is valid for writes of `len` bytes, the length of all elements. The two may
/// overlap only if they are the same memory.
pub(crate) unsafe fn copy(from: &Strided, to: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    let (outer, piece) = from.pieces();
    let source = ptr::with_exposed_provenance::<u8>(from.address);
    // SAFETY: the caller's contract.
    unsafe { copy_pieces(source, from, 0, outer, piece, &mut to.clone()) };
}

/// Copies elements that have a byte each to `to`, row-major, as types of 4 bits lie there: two to a byte, the first in its
/// low bits.
///
/// # Safety
/// As [`copy`], for half as many bytes. The last dimension is even. The two do not overlap.
pub(crate) unsafe fn pack(from: &Strided, to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { convert(from, to, pack_items) };
}

/// The element types between which [`cast`] casts.
pub(crate) const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Copies floats of one type to `to`, row-major, as those of another type: the nearest, and of two the even one. Returns
/// whether there is such a cast; if not, it copies nothing.
///
/// # Safety
/// As [`copy`], for the bytes that the elements have as the other type. The two do not overlap.
pub(crate) unsafe fn cast(from: &Strided, of: DType, to: *mut u8, wanted: DType) -> bool {
    let row: Row = match (of, wanted) {
        (DType::F16, DType::BF16) => cast_items::<f16, bf16>,
        (DType::F16, DType::F32) => cast_items::<f16, f32>,
        (DType::F16, DType::F64) => cast_items::<f16, f64>,
        (DType::BF16, DType::F16) => cast_items::<bf16, f16>,
        (DType::BF16, DType::F32) => cast_items::<bf16, f32>,
        (DType::BF16, DType::F64) => cast_items::<bf16, f64>,
        (DType::F32, DType::F16) => cast_items::<f32, f16>,
        (DType::F32, DType::BF16) => cast_items::<f32, bf16>,
        (DType::F32, DType::F64) => cast_items::<f32, f64>,
        (DType::F64, DType::F16) => cast_items::<f64, f16>,
        (DType::F64, DType::BF16) => cast_items::<f64, bf16>,
        (DType::F64, DType::F32) => cast_items::<f64, f32>,
        _ => return false,
    };
    // SAFETY: the caller's contract.
    unsafe { convert(from, to, row) };
    true
}

/// A float that has a nearest one of the type `T`.
trait Nearest<T> {
    fn nearest(self) -> T;
}

macro_rules! nearest {
    ($($from:ty => $to:ty, $by:expr;)*) => {$(
        impl Nearest<$to> for $from {
            fn nearest(self) -> $to {
                $by(self)
            }
        }
    )*};
}

// Each rounds once: an f16 and a bf16 are exact as an f32.
nearest! {
    f16 => bf16, |x: f16| bf16::from_f32(x.to_f32());
    f16 => f32, f16::to_f32;
    f16 => f64, f16::to_f64;
    bf16 => f16, |x: bf16| f16::from_f32(x.to_f32());
    bf16 => f32, bf16::to_f32;
    bf16 => f64, bf16::to_f64;
    f32 => f16, f16::from_f32;
    f32 => bf16, bf16::from_f32;
    f32 => f64, f64::from;
    f64 => f16, |x: f64| f16::from_f32(to_odd(x));
    f64 => bf16, |x: f64| bf16::from_f32(to_odd(x));
    f64 => f32, |x: f64| x as f32;
}

/// The f32 beside a number that is no f32 whose last bit is 1. It is on the same side of the middle between two shorter floats as
/// the number itself, so that rounding it to one of those is rounding once. `half` does not look at the lower half of an f64.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let wide = f64::from(near);
    if !near.is_finite() || wide == x {
        return near;
    }
    f32::from_bits((near.to_bits() - u32::from(wide.abs() > x.abs())) | 1)
}

/// # Safety
/// The contract of [`Row`]: the elements are valid for reads, and `to` for writes of as many of the other type.
unsafe fn cast_items<S: Nearest<T> + Copy, T>(source: *const u8, stride: isize, count: usize, to: *mut u8) -> *mut u8 {
    let to = to.cast::<T>();
    for i in 0..count {
        // SAFETY: this is the element of this index, and its place. Neither need be aligned.
        unsafe {
            let item = source.offset(stride * i as isize).cast::<S>().read_unaligned();
            to.add(i).write_unaligned(item.nearest());
        }
    }
    // SAFETY: the result is at most one past the end.
    unsafe { to.add(count).cast() }
}

/// Writes all elements by `row`, which is called for the last dimension, or for as many of the last ones as lie in one
/// piece.
///
/// # Safety
/// The elements are valid for reads, and `to` for writes of all that `row` makes of them.
unsafe fn convert(from: &Strided, to: *mut u8, row: Row) {
    if from.dims.contains(&0) {
        return;
    }
    let (mut outer, piece) = from.pieces();
    let (mut count, mut stride) = (piece / from.item_bytes, from.item_bytes as isize);
    if count == 1 && outer > 0 {
        outer -= 1;
        (count, stride) = (from.dims[outer] as usize, from.strides[outer]);
    }
    let mut at = vec![0; outer];
    let (mut to, mut source) = (to, ptr::with_exposed_provenance::<u8>(from.address));
    loop {
        // SAFETY: the caller's contract; `source` is the element of the indices `at`.
        to = unsafe { row(source, stride, count, to) };
        let Some(dim) = (0..outer).rev().find(|dim| at[*dim] + 1 < from.dims[*dim]) else { return };
        for (inner, index) in at.iter_mut().enumerate().skip(dim + 1) {
            source = source.wrapping_offset(-from.strides[inner] * (from.dims[inner] - 1) as isize);
            *index = 0;
        }
        source = source.wrapping_offset(from.strides[dim]);
        at[dim] += 1;
    }
}

/// # Safety
/// The contract of [`Row`]: the bytes are valid for reads, and `to` for writes of half as many. `count` is even.
unsafe fn pack_items(source: *const u8, stride: isize, count: usize, to: *mut u8) -> *mut u8 {
    for i in 0..count / 2 {
        // SAFETY: these are the two elements of this byte.
        unsafe {
            let (low, high) = (source.offset(stride * 2 * i as isize), source.offset(stride * (2 * i + 1) as isize));
            *to.add(i) = (*low & 15) | (*high << 4);
        }
    }
    // SAFETY: the result is at most one past the end.
    unsafe { to.add(count / 2) }
}

/// Copies the part of the elements that begins at `source` from dimension `at` on, and moves `to` behind it.
///
/// # Safety
/// That of `copy`.
unsafe fn copy_pieces(source: *const u8, from: &Strided, at: usize, outer: usize, piece: usize, to: &mut *mut u8) {
    if at == outer {
        // SAFETY: `source` is a piece of the elements, and `to` has as much room.
        unsafe {
            ptr::copy(source, *to, piece);
            *to = to.add(piece);
        }
        return;
    }
    let (count, stride) = (from.dims[at] as usize, from.strides[at]);
    if at + 1 == outer && piece == from.item_bytes {
        // SAFETY: as above, element by element.
        *to = unsafe {
            match piece {
                1 => copy_items::<1>(source, stride, count, *to),
                2 => copy_items::<2>(source, stride, count, *to),
                4 => copy_items::<4>(source, stride, count, *to),
                8 => copy_items::<8>(source, stride, count, *to),
                _ => copy_items::<16>(source, stride, count, *to),
            }
        };
        return;
    }
    for i in 0..count {
        // SAFETY: these are the elements of this index.
        unsafe { copy_pieces(source.offset(stride * i as isize), from, at + 1, outer, piece, to) };
    }
}

/// Copies `count` elements of `N` bytes that lie `stride` bytes apart. Returns the address behind the last copy.
///
/// # Safety
/// The elements are valid for reads, and `to` for writes of as many bytes.
unsafe fn copy_items<const N: usize>(source: *const u8, stride: isize, count: usize, to: *mut u8) -> *mut u8 {
    for i in 0..count {
        // SAFETY: this is the element of this index, and its place. Neither need be aligned.
        unsafe {
            let item = source.offset(stride * i as isize).cast::<[u8; N]>().read_unaligned();
            to.add(i * N).cast::<[u8; N]>().write_unaligned(item);
        }
    }
    // SAFETY: the result is at most one past the end.
    unsafe { to.add(count * N) }
}
