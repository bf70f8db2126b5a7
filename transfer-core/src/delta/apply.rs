//! Applying deltas.

use super::{
    BLOCK_BYTES, Buffers, FIXED_BYTES, Form, LAYOUT, LENGTH_BITS, MAGIC, MAX_CHAIN, SKIP, head_bytes, section,
};
use crate::wire::{Reader, WireError};
use smallvec::SmallVec;
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
    /// This process was wrong: it has panicked, or the memory of the base, the delta or the result is not there.
    #[error("the delta was not applied because of an error of this process, which standard error or the log has")]
    Internal,
}

/// What is kept of a delta while it is applied: where it starts, where the parts of each section start, and where it ends. Index and digests
/// are read once more with each section, so that a chain takes little memory beside that in which it has landed.
#[derive(Debug)]
struct Front {
    start: u64,
    sections: Vec<u64>,
    end: u64,
}

/// The forms of a section's blocks and the lengths of their parts.
type Index = SmallVec<[(Form, u32); section::BLOCKS]>;

impl Front {
    /// Reads the front of a delta whose version has `len` bytes, and which starts at this place. All of the front is there.
    fn read(
        len: u64,
        start: u64,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), NotApplied>,
    ) -> Result<Front, NotApplied> {
        let mut front = Front { start, sections: Vec::new(), end: start + head_bytes(len) };
        for number in 0..section::count(len) {
            front.sections.push(front.end);
            front.end += front.index(len, number, read)?.iter().map(|(_, part)| u64::from(*part)).sum::<u64>();
        }
        Ok(front)
    }

    /// Checks the first bytes of a delta of a version of this length: magic, layout and length.
    fn check(bytes: &[u8], len: u64) -> Result<(), NotApplied> {
        let wrong = |what, value, expected| Err(WireError::Value { what, value, expected }.into());
        let mut r = Reader::new("a delta", bytes);
        match (r.u32()?, r.u32()?, r.u64()?) {
            (MAGIC, LAYOUT, found) if found == len => Ok(()),
            (MAGIC, LAYOUT, found) => wrong("length of a delta's version", found, "the length of its base"),
            (MAGIC, layout, _) => wrong("layout of a delta", layout.into(), "2"),
            (magic, ..) => wrong("magic of a delta", magic.into(), "\"TDLT\""),
        }
    }

    /// Reads a section's part of the index.
    fn index(
        &self,
        len: u64,
        number: u64,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), NotApplied>,
    ) -> Result<Index, NotApplied> {
        let first = number * section::BLOCKS as u64;
        let blocks = (len.div_ceil(BLOCK_BYTES as u64) - first).min(section::BLOCKS as u64) as usize;
        let mut bytes = [0; section::BLOCKS * 4];
        let bytes = &mut bytes[..blocks * 4];
        read(self.start + FIXED_BYTES as u64 + section::count(len) * 16 + first * 4, bytes)?;
        let entry = |(block, entry): (u64, &[u8; 4])| {
            let (block, entry) =
                ((len - block * BLOCK_BYTES as u64).min(BLOCK_BYTES as u64), u32::from_le_bytes(*entry));
            let (form, len) = (Form::from_number(entry >> LENGTH_BITS), entry & ((1 << LENGTH_BITS) - 1));
            let form = form.filter(|form| match form {
                Form::Unchanged => len == 0,
                Form::Whole => u64::from(len) == block,
                Form::Places(_) | Form::Runs(_) | Form::Steps => u64::from(len) < block,
            });
            let (what, expected) = ("entry of a delta's index", "a form from 0 to 6 and a length that fits it");
            let wrong = WireError::Value { what, value: entry.into(), expected };
            form.map(|form| (form, len)).ok_or_else(|| wrong.into())
        };
        (first..).zip(bytes.as_chunks().0).map(entry).collect()
    }

    /// Where the parts of a section end.
    fn end_of(&self, section: u64) -> u64 {
        self.sections.get(section as usize + 1).copied().unwrap_or(self.end)
    }
}

/// A delta, or several of which each is one of the result of the one before: they lie one behind the other, and are applied together,
/// block by block. The last one proves the result.
#[derive(Debug)]
pub struct Chain {
    len: u64,
    deltas: Vec<Front>,
}

impl Chain {
    /// Reads what says how to make a version of `len` bytes of `delta_len` bytes of deltas. `read` copies these from a place on; it is asked
    /// for no more than there are.
    ///
    /// # Errors
    /// [`NotApplied::Malformed`], and those of `read`.
    pub fn read(
        len: u64,
        delta_len: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), NotApplied>,
    ) -> Result<Chain, NotApplied> {
        let (mut deltas, mut at) = (Vec::new(), 0);
        while at < delta_len || deltas.is_empty() {
            let what = "a delta";
            if deltas.len() > MAX_CHAIN {
                return Err(WireError::Long { what, extra: (delta_len - at) as usize }.into());
            }
            let (need, have) = (head_bytes(len), delta_len - at);
            // The magic is looked at first: a length that is not that of the version is no reason to say that something is short.
            let mut fixed = [0; FIXED_BYTES];
            let fixed = &mut fixed[..have.min(FIXED_BYTES as u64) as usize];
            read(at, fixed)?;
            Front::check(fixed, len)?;
            if have < need {
                return Err(WireError::Short { what, need: need as usize, have: have as usize }.into());
            }
            let front = Front::read(len, at, &mut read)?;
            if front.end > delta_len {
                let (what, expected) = ("length of a delta", "that of its front and its parts");
                return Err(WireError::Value { what, value: have, expected }.into());
            }
            at = front.end;
            deltas.push(front);
        }
        Ok(Chain { len, deltas })
    }

    /// How many sections the version has. Each is made and proved without the others.
    #[must_use]
    pub fn sections(&self) -> u64 {
        section::count(self.len)
    }

    /// How many deltas it has.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.deltas.len()
    }

    /// Makes a section, block by block. `base` copies bytes of the base from a place on, `delta` bytes of the deltas, and `write` puts a
    /// block to its place in the version.
    ///
    /// # Errors
    /// [`NotApplied::Malformed`], [`NotApplied::OtherBytes`], and those of the functions.
    pub fn make(
        &self,
        section: u64,
        buffers: &mut Buffers,
        base: impl Fn(u64, &mut [u8]) -> Result<(), NotApplied>,
        delta: impl Fn(u64, &mut [u8]) -> Result<(), NotApplied>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), NotApplied>,
    ) -> Result<(), NotApplied> {
        let mut digest = Xxh3::new();
        let mut read = &delta;
        let mut parts = SmallVec::<[(Index, u64); 1]>::new();
        for front in &self.deltas {
            parts.push((front.index(self.len, section, &mut read)?, front.sections[section as usize]));
        }
        let first = section * section::BLOCKS as u64;
        for number in 0..parts.first().map_or(0, |(index, _)| index.len()) {
            let at = (first + number as u64) * BLOCK_BYTES as u64;
            let len = (self.len - at).min(BLOCK_BYTES as u64) as usize;
            let block = &mut buffers.block[..len];
            // Nothing before a whole block matters.
            let whole = parts.iter().rposition(|(index, _)| index[number].0 == Form::Whole);
            if whole.is_none() {
                base(at, block)?;
            }
            for (n, (front, (index, from))) in self.deltas.iter().zip(&mut parts).enumerate() {
                let (form, part_len) = index[number];
                let part = &mut buffers.other[..part_len as usize];
                let end = *from + u64::from(part_len);
                if end > front.end_of(section) {
                    let (what, expected) = ("index of a delta", "the one that was read before");
                    return Err(WireError::Value { what, value: part_len.into(), expected }.into());
                }
                if part_len > 0 && whole.is_none_or(|whole| n >= whole) {
                    delta(*from, part)?;
                    apply_part(form, block, part)?;
                }
                *from = end;
            }
            digest.update(block);
            write(at, block)?;
        }
        let (Some(last), mut proof) = (self.deltas.last(), [0; 16]) else { return Err(NotApplied::Internal) };
        delta(last.start + FIXED_BYTES as u64 + section * 16, &mut proof)?;
        if proof == digest.digest128().to_be_bytes() { Ok(()) } else { Err(NotApplied::OtherBytes) }
    }
}

/// Changes a block by its part of a delta.
fn apply_part(form: Form, block: &mut [u8], bytes: &[u8]) -> Result<(), NotApplied> {
    match form {
        Form::Unchanged => {}
        Form::Whole => block.copy_from_slice(bytes),
        Form::Places(1) => places::<1>(block, bytes)?,
        Form::Places(_) => places::<2>(block, bytes)?,
        Form::Runs(width) => runs(block, bytes, width)?,
        Form::Steps => steps(block, bytes)?,
    }
    Ok(())
}

const OUTSIDE: WireError =
    WireError::Value { what: "place of a changed element", value: 0, expected: "one within its block" };

/// Raises and lowers elements of two bytes, and writes others to their places.
fn steps(block: &mut [u8], part: &[u8]) -> Result<(), NotApplied> {
    let mut r = Reader::new("a block of a delta", part);
    let (count, gaps) = (r.u32()? as usize, r.u32()? as usize);
    let (gaps, fallen) = (r.raw(gaps)?, r.raw(count.div_ceil(8))?);
    let rest = &part[8 + gaps.len() + fallen.len()..];
    let (mut number, mut place) = (0, 0);
    let (elements, _) = block.as_chunks_mut::<2>();
    for gap in gaps {
        place += usize::from(*gap);
        if *gap != SKIP {
            let (Some(element), true) = (elements.get_mut(place), number < count) else { return Err(OUTSIDE.into()) };
            let has_fallen = fallen[number / 8] >> (number % 8) & 1 == 1;
            let step = if has_fallen { u16::MAX } else { 1 };
            *element = u16::from_le_bytes(*element).wrapping_add(step).to_le_bytes();
            (number, place) = (number + 1, place + 1);
        }
    }
    if number < count {
        return Err(WireError::Long { what: "a block of a delta", extra: count - number }.into());
    }
    places::<2>(block, rest)
}

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

/// Applies deltas to a base that lies in one piece.
///
/// # Errors
/// [`NotApplied`].
#[cfg(any(test, feature = "sim"))]
pub fn apply(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, NotApplied> {
    let read = |from: &[u8], at: u64, to: &mut [u8]| {
        to.copy_from_slice(&from[at as usize..][..to.len()]);
        Ok(())
    };
    let chain = Chain::read(base.len() as u64, delta.len() as u64, |at, to| read(delta, at, to))?;
    // The fuzz target bounds how much memory an input takes.
    let block = vec![0; base.len().min(BLOCK_BYTES)];
    let (mut made, mut buffers) = (Vec::new(), Buffers { other: block.clone(), block });
    for section in 0..chain.sections() {
        let write = |_, block: &[u8]| {
            made.extend_from_slice(block);
            Ok(())
        };
        chain.make(section, &mut buffers, |at, to| read(base, at, to), |at, to| read(delta, at, to), write)?;
    }
    Ok(made)
}
