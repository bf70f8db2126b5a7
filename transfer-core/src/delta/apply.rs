//! Applying a delta.

use super::{BLOCK_BYTES, FIXED_BYTES, Form, LAYOUT, LENGTH_BITS, MAGIC, SKIP, head_bytes};
use crate::wire::{Reader, WireError};
use xxhash_rust::xxh3::Xxh3;

/// Why a delta was not applied. What was made of it so far is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotApplied {
    /// It is none.
    #[error("the delta is malformed: {0}")]
    Malformed(#[from] WireError),
    /// The result is not the version.
    #[error("the delta makes other bytes than those of its version: its base is another one, or something was damaged")]
    OtherBytes,
}

/// What a delta says of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    len: u64,
    digest: [u8; 16],
}

impl Head {
    /// The length of a head, in bytes. The index follows.
    pub const BYTES: usize = FIXED_BYTES;

    /// Reads the head of a delta whose version has `len` bytes.
    ///
    /// # Errors
    /// [`NotApplied::Malformed`].
    pub fn read(bytes: &[u8; FIXED_BYTES], len: u64) -> Result<Head, NotApplied> {
        let wrong = |what, value, expected| Err(WireError::Value { what, value, expected }.into());
        let mut r = Reader::new("a delta", bytes);
        match (r.u32()?, r.u32()?, r.u64()?) {
            (MAGIC, LAYOUT, found) if found == len => {}
            (MAGIC, LAYOUT, found) => return wrong("length of a delta's version", found, "the length of its base"),
            (MAGIC, layout, _) => return wrong("layout of a delta", layout.into(), "1"),
            (magic, ..) => return wrong("magic of a delta", magic.into(), "\"TDLT\""),
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(r.raw(16)?);
        Ok(Head { len, digest })
    }

    /// The length of the index, in bytes.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        head_bytes(self.len) - FIXED_BYTES as u64
    }
}

/// A delta that is being applied, block by block.
pub struct Applying {
    head: Head,
    /// The forms and lengths of the parts that are not applied yet.
    index: std::vec::IntoIter<(Form, u32)>,
    /// The place of the next block in the version, and of its part in the delta.
    at: u64,
    from: u64,
    digest: Xxh3,
}

/// The part of the next block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Where the block lies in the version, and in the base.
    pub at: u64,
    /// The length of the block, at most [`BLOCK_BYTES`].
    pub len: usize,
    /// Where the part lies in the delta.
    pub from: u64,
    /// The length of the part, at most that of the block.
    pub part_len: usize,
    /// Whether the block is made of the base.
    pub needs_base: bool,
    form: Form,
}

impl Applying {
    /// Begins with the index of a delta of `delta_len` bytes, which lies behind its head.
    ///
    /// # Errors
    /// [`NotApplied::Malformed`], unless there is a part for each block, and nothing else.
    pub fn begin(head: Head, index: &[u8], delta_len: u64) -> Result<Applying, NotApplied> {
        let mut r = Reader::new("the index of a delta", index);
        let (mut parts, mut sum, mut left) = (Vec::with_capacity(index.len() / 4), head_bytes(head.len), head.len);
        while left > 0 {
            let block = left.min(BLOCK_BYTES as u64);
            let entry = r.u32()?;
            let (form, len) = (Form::from_number(entry >> LENGTH_BITS), entry & ((1 << LENGTH_BITS) - 1));
            let form = form.filter(|form| match form {
                Form::Unchanged => len == 0,
                Form::Whole => u64::from(len) == block,
                Form::Places(_) | Form::Runs(_) => u64::from(len) < block,
            });
            let Some(form) = form else {
                let (what, expected) = ("entry of a delta's index", "a form from 0 to 5 and a length that fits it");
                return Err(WireError::Value { what, value: entry.into(), expected }.into());
            };
            parts.push((form, len));
            (left, sum) = (left - block, sum + u64::from(len));
        }
        r.end()?;
        if sum != delta_len {
            let (what, expected) = ("length of a delta", "that of its head, its index and its parts");
            return Err(WireError::Value { what, value: delta_len, expected }.into());
        }
        let (from, digest) = (head_bytes(head.len), Xxh3::new());
        Ok(Applying { head, index: parts.into_iter(), at: 0, from, digest })
    }

    /// Takes the next part. `None`: all blocks are made.
    pub fn next_part(&mut self) -> Option<Part> {
        let (form, part_len) = self.index.next()?;
        let len = (self.head.len - self.at).min(BLOCK_BYTES as u64) as usize;
        let (at, from, needs_base) = (self.at, self.from, form != Form::Whole);
        (self.at, self.from) = (self.at + len as u64, self.from + u64::from(part_len));
        Some(Part { at, len, from, part_len: part_len as usize, needs_base, form })
    }

    /// Makes a block: `block` has the bytes of the base, if they are needed, and `bytes` those of the part.
    ///
    /// # Errors
    /// [`NotApplied::Malformed`].
    pub fn make(&mut self, part: &Part, block: &mut [u8], bytes: &[u8]) -> Result<(), NotApplied> {
        match part.form {
            Form::Unchanged => {}
            Form::Whole => block.copy_from_slice(bytes),
            Form::Places(1) => places::<1>(block, bytes)?,
            Form::Places(_) => places::<2>(block, bytes)?,
            Form::Runs(width) => runs(block, bytes, width)?,
        }
        self.digest.update(block);
        Ok(())
    }

    /// Ends once all blocks are made.
    ///
    /// # Errors
    /// [`NotApplied::OtherBytes`].
    pub fn finish(self) -> Result<(), NotApplied> {
        let is_whole = self.at == self.head.len && self.digest.digest128().to_be_bytes() == self.head.digest;
        if is_whole { Ok(()) } else { Err(NotApplied::OtherBytes) }
    }
}

const OUTSIDE: WireError =
    WireError::Value { what: "place of a changed element", value: 0, expected: "one within its block" };

/// Writes elements of `W` bytes to their places.
fn places<const W: usize>(block: &mut [u8], part: &[u8]) -> Result<(), NotApplied> {
    let mut r = Reader::new("a block of a delta", part);
    let count = r.u32()? as usize;
    let gaps = part.len().checked_sub(4 + count.saturating_mul(W)).unwrap_or(usize::MAX);
    let (gaps, (values, _)) = (r.raw(gaps)?, r.raw(count.saturating_mul(W))?.as_chunks::<W>());
    let (mut values, mut place) = (values.iter(), 0);
    let (elements, _) = block.as_chunks_mut::<W>();
    for gap in gaps {
        place += usize::from(*gap);
        if *gap != SKIP {
            let (Some(element), Some(value)) = (elements.get_mut(place), values.next()) else {
                return Err(OUTSIDE.into());
            };
            *element = *value;
            place += 1;
        }
    }
    match values.len() {
        0 => Ok(()),
        extra => Err(WireError::Long { what: "a block of a delta", extra: extra * W }.into()),
    }
}

/// Writes runs of elements of `width` bytes.
fn runs(block: &mut [u8], part: &[u8], width: usize) -> Result<(), NotApplied> {
    // The runs are read twice: the values begin behind the last one.
    let mut heads = Reader::new("a block of a delta", part);
    let count = heads.u32()?;
    let mut values = Reader::new("a block of a delta", part);
    values.raw(4)?;
    for _ in 0..count {
        leb128(&mut values)?;
        leb128(&mut values)?;
    }
    let mut place = 0_usize;
    for _ in 0..count {
        let (gap, len) = (leb128(&mut heads)? as usize * width, leb128(&mut heads)? as usize * width);
        place += gap;
        let run = block.get_mut(place..place + len).ok_or(OUTSIDE)?;
        run.copy_from_slice(values.raw(len)?);
        place += len;
    }
    Ok(values.end()?)
}

/// Reads a number of at most 21 bits.
fn leb128(r: &mut Reader<'_>) -> Result<u32, WireError> {
    let mut number = 0;
    for shift in [0, 7, 14] {
        let byte = r.u8()?;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(WireError::Value { what: "number in a delta", value: number.into(), expected: "at most 2097151" })
}

/// Applies a delta to a base that lies in one piece.
///
/// # Errors
/// [`NotApplied`].
#[cfg(any(test, feature = "sim"))]
pub fn apply(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, NotApplied> {
    let short = WireError::Short { what: "a delta", need: FIXED_BYTES, have: delta.len() };
    let (head, rest) = delta.split_first_chunk().ok_or(short)?;
    let head = Head::read(head, base.len() as u64)?;
    let index = Reader::new("the index of a delta", rest).raw(head.index_bytes() as usize)?;
    let mut applying = Applying::begin(head, index, delta.len() as u64)?;
    let mut made = base.to_vec();
    while let Some(part) = applying.next_part() {
        let block = &mut made[part.at as usize..][..part.len];
        applying.make(&part, block, &delta[part.from as usize..][..part.part_len])?;
    }
    applying.finish()?;
    Ok(made)
}
