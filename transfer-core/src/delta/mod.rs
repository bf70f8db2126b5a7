//! Deltas: what has changed between two versions of the same length.
//!
//! A version is cut into blocks of [`BLOCK_BYTES`], whatever its tensors are, and each block is encoded by itself, in the
//! shortest of six forms. A block can therefore be applied without the others, from its part of the base and its part of the
//! delta, and applying needs no element types. [`section::BLOCKS`] blocks are a *section*, which is made and proved by itself, so several threads
//! make a delta and apply it. A delta says how long its version is and has the digests of the version's sections, which
//! prove the result whatever the base was.
//!
//! ```text
//! offset  0  magic     u32   "TDLT"
//!         4  layout    u32   2
//!         8  length    u64   of the version, metadata included
//!        16  digests   16    for each section: XXH3 with 128 bits of its bytes in the version, canonical: the highest byte first
//!            index     u32   for each block: bits 24 to 31 its form, bits 0 to 23 the length of its part
//!            parts           one behind the other
//! ```
//!
//! Several deltas of which each begins where the one before ends are a [`Chain`]: they make the last version of the base of the first.
//!
//! | form | the part of a block |
//! |---|---|
//! | 0 | nothing: the block is that of the base |
//! | 1 | the block |
//! | 2, 3 | elements at places; elements of 1 byte, of 2 bytes: their number u32; for each a gap u8 to the element behind the one before, where 255 skips 255 elements and has no value; the values |
//! | 6 | elements of 2 bytes whose number, little endian, has risen or fallen by one, as most of those do that an optimizer changes: how many u32, the length of their gaps u32; the gaps, as in form 3; for each a bit, the lowest first, which is 1 if it has fallen, in whole bytes; then the other changed elements, as in form 3 |
//! | 4, 5 | elements in runs; elements of 1 byte, of 2 bytes: the number of runs u32; for each a gap and a length, both LEB128; the values |
//!
//! # Layout
//! - `encode`: makes a delta. `apply`: checks some, and makes their version section by section.

mod apply;
mod encode;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "sim"))]
pub use apply::apply;
pub use apply::{Chain, NotApplied};
pub use encode::{Density, Encoded, Sample, Section, TooDense, encode, encode_section, front, sample};

/// Makes the delta of versions that lie in one piece.
#[cfg(test)]
pub(crate) fn encode_bytes(base: &[u8], new: &[u8], limit: u64) -> Result<Encoded, TooDense> {
    let read = |from: &[u8], at: u64, to: &mut [u8]| to.copy_from_slice(&from[at as usize..][..to.len()]);
    encode(new.len() as u64, |at, to| read(base, at, to), |at, to| read(new, at, to), limit)
}

/// The length of a block, in bytes. One, with its part of a delta, fits the cache of a core.
pub const BLOCK_BYTES: usize = 64 << 10;

/// The length of what lies in front of the parts of a delta, for a version of `len` bytes.
#[must_use]
pub fn head_bytes(len: u64) -> u64 {
    FIXED_BYTES as u64 + section::count(len) * 16 + len.div_ceil(BLOCK_BYTES as u64) * 4
}

/// The most deltas in front of the last one of a chain.
pub const MAX_CHAIN: usize = 8;

/// Sections of a version: what one thread makes at a time.
pub mod section {
    use super::BLOCK_BYTES;

    /// How many blocks a section has: together 1 MiB.
    pub const BLOCKS: usize = 16;

    /// The number of sections of a version of `len` bytes.
    #[must_use]
    pub fn count(len: u64) -> u64 {
        len.div_ceil((BLOCKS * BLOCK_BYTES) as u64)
    }
}

/// What a thread needs to make or to apply deltas: a block, and another one or its part of a delta.
#[derive(Debug)]
pub struct Buffers {
    block: Vec<u8>,
    other: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers { block: vec![0; BLOCK_BYTES], other: vec![0; BLOCK_BYTES] }
    }
}

const MAGIC: u32 = u32::from_le_bytes(*b"TDLT");
const LAYOUT: u32 = 2;

/// The length of magic, layout and length.
const FIXED_BYTES: usize = 16;

/// The bits of the index in which the length of a part is.
const LENGTH_BITS: u32 = 24;

/// A gap that skips elements and has no value.
const SKIP: u8 = u8::MAX;

/// How a block is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Unchanged,
    Whole,
    /// Elements of this many bytes: 1 or 2.
    Places(usize),
    Runs(usize),
    /// Elements of 2 bytes that have risen or fallen by one, and others at places.
    Steps,
}

impl Form {
    fn number(self) -> u32 {
        match self {
            Form::Unchanged => 0,
            Form::Whole => 1,
            Form::Places(width) => width as u32 + 1,
            Form::Runs(width) => width as u32 + 3,
            Form::Steps => 6,
        }
    }

    fn from_number(number: u32) -> Option<Form> {
        Some(match number {
            0 => Form::Unchanged,
            1 => Form::Whole,
            2 | 3 => Form::Places(number as usize - 1),
            4 | 5 => Form::Runs(number as usize - 3),
            6 => Form::Steps,
            _ => return None,
        })
    }
}
