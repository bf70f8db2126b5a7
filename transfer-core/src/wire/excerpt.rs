//! The bytes of an excerpt, in requests of workers and of sidecars.
//!
//! | field | bytes |
//! |---|---|
//! | 0: no excerpt, 1: without the metadata, 2: with it | 1 |
//! | number of ranges | 1 |
//! | for each range: its offset in the body and its length | 16 |
//!
//! In a TENSOR_REQUEST other fields lie between the number of ranges and the ranges.

use super::{Reader, WireError, Writer};
use crate::tensor::{BodyRange, Excerpt};

/// The first two fields: the kind of the excerpt, and the number of its ranges.
#[derive(Clone, Copy)]
pub(super) struct ExcerptHead {
    kind: u8,
    ranges: u8,
}

/// Appends the first two fields.
pub(super) fn write_head(w: &mut Writer, excerpt: Option<&Excerpt>) {
    let kind = excerpt.map_or(0, |excerpt| 1 + u8::from(excerpt.has_metadata()));
    w.u8(kind).u8(u8::try_from(excerpt.map_or(0, |excerpt| excerpt.ranges().len())).unwrap_or(u8::MAX));
}

/// Appends the ranges.
pub(super) fn write_ranges(w: &mut Writer, excerpt: Option<&Excerpt>) {
    for BodyRange { offset, len } in excerpt.map_or(&[][..], Excerpt::ranges) {
        w.u64(*offset).u64(*len);
    }
}

/// Reads the first two fields.
///
/// # Errors
/// [`WireError::Value`] for an unknown kind.
pub(super) fn read_head(r: &mut Reader<'_>) -> Result<ExcerptHead, WireError> {
    let (kind, ranges) = (r.u8()?, r.u8()?);
    match kind {
        0 => Reader::zero("ranges of no excerpt", ranges.into())?,
        1 | 2 => {}
        n => return Err(WireError::Value { what: "kind of excerpt", value: u64::from(n), expected: "0 to 2" }),
    }
    Ok(ExcerptHead { kind, ranges })
}

/// Reads the ranges that these first fields announce.
///
/// # Errors
/// [`WireError::Excerpt`] for ranges that are no excerpt.
pub(super) fn read_ranges(head: ExcerptHead, r: &mut Reader<'_>) -> Result<Option<Box<Excerpt>>, WireError> {
    if head.kind == 0 {
        return Ok(None);
    }
    let mut ranges = Vec::with_capacity(usize::from(head.ranges).min(r.rest().len() / 16));
    for _ in 0..head.ranges {
        ranges.push(BodyRange { offset: r.u64()?, len: r.u64()? });
    }
    Ok(Some(Box::new(Excerpt::new(head.kind == 2, ranges)?)))
}
