//! Element types.

use std::fmt;

/// The element type of a dense tensor. The numbers are part of the wire format and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DType {
    /// One byte each, 0 or 1.
    Bool = 1,
    /// Signed 8 bit.
    I8 = 2,
    /// Unsigned 8 bit.
    U8 = 3,
    /// Signed 16 bit.
    I16 = 4,
    /// Unsigned 16 bit.
    U16 = 5,
    /// Signed 32 bit.
    I32 = 6,
    /// Unsigned 32 bit.
    U32 = 7,
    /// Signed 64 bit.
    I64 = 8,
    /// Unsigned 64 bit.
    U64 = 9,
    /// IEEE 754 binary16.
    F16 = 10,
    /// The upper half of a binary32.
    BF16 = 11,
    /// IEEE 754 binary32.
    F32 = 12,
    /// IEEE 754 binary64.
    F64 = 13,
    /// Two binary32: real, imaginary.
    C64 = 14,
    /// 8-bit float, 4 exponent bits, finite values and NaN only (OCP 8-bit Floating Point Specification 1.0).
    F8E4M3 = 15,
    /// 8-bit float, 5 exponent bits (OCP 8-bit Floating Point Specification 1.0).
    F8E5M2 = 16,
    /// Two binary64: real, imaginary.
    C128 = 17,
    /// 8-bit power of two, 2^-127 to 2^127 or NaN: the scale of a block (OCP Microscaling Formats Specification 1.0, E8M0).
    F8E8M0 = 18,
    /// 4-bit float, 2 exponent bits, finite values only (OCP Microscaling Formats Specification 1.0, FP4). Two to a byte.
    F4E2M1 = 19,
    /// Signed 4 bit. Two to a byte.
    I4 = 20,
    /// Unsigned 4 bit. Two to a byte.
    U4 = 21,
}

impl DType {
    /// Every element type, in the order of its number.
    pub const ALL: [DType; 21] = [
        DType::Bool,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::C64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::C128,
        DType::F8E8M0,
        DType::F4E2M1,
        DType::I4,
        DType::U4,
    ];

    /// The size of a unit in bytes. A unit is one element, or the two elements that share a byte: see
    /// [`DType::elements_per_unit`].
    #[must_use]
    pub const fn size_bytes(self) -> u64 {
        match self {
            DType::Bool | DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 => 1,
            DType::F4E2M1 | DType::I4 | DType::U4 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// The number of elements in a unit: 2 for types of 4 bits, 1 for all others. Two elements of 4 bits that follow each
    /// other in the last dimension share a byte, and the first has its low bits.
    #[must_use]
    pub const fn elements_per_unit(self) -> u64 {
        match self {
            DType::F4E2M1 | DType::I4 | DType::U4 => 2,
            _ => 1,
        }
    }

    /// The element type with this number on the wire.
    #[must_use]
    pub fn from_wire(n: u8) -> Option<DType> {
        DType::ALL.into_iter().find(|d| *d as u8 == n)
    }

    /// The usual short name: `f32`, `bf16`, `bool`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I16 => "i16",
            DType::U16 => "u16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::C128 => "c128",
            DType::F8E8M0 => "f8e8m0",
            DType::F4E2M1 => "f4e2m1",
            DType::I4 => "i4",
            DType::U4 => "u4",
        }
    }

    /// The element type of this name, as [`DType::name`] gives it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_read_back() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!(d as usize, i + 1);
            assert_eq!(DType::from_wire(d as u8), Some(d));
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
        assert_eq!(DType::from_wire(0), None);
        assert_eq!(DType::from_wire(22), None);
    }
}
