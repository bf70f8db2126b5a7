//! The bytes of an excerpt, in requests of workers and of sidecars.
//!
//! | field | bytes |
//! |---|---|
//! | 0: no excerpt, 1: boxes without the metadata, 2: boxes with it, 3: a slice, 4: rows | 1 |
//! | number of boxes, or of dimensions of the slice; 0 for rows | 1 |
//! | for each box: its offset in the body, the length of a run, the number of its repeats | 8, 8, 1 |
//! | &nbsp;&nbsp; for each repeat: its count and its stride | 8, 8 |
//! | for each dimension: a bit set of what follows: 1 start, 2 stop, 4 a step that is not 1; or 8 for an index | 1 |
//! | &nbsp;&nbsp; each of them | 8 |
//! | for rows: their number, and the first index if there is one | 2, 8 |
//! | &nbsp;&nbsp; for each other index: its distance from the one before, 7 bits in a byte, the lowest first; the highest bit of a byte says that another one follows | 1 to 10 |
//!
//! In a TENSOR_REQUEST other fields lie between the second field and the boxes, dimensions or rows.

use super::{Reader, WireError, Writer};
use crate::tensor::{
    BodyBox, Excerpt, ExcerptPart, MAX_EXCERPT_BYTES, MAX_RANK, Repeat, Rows, Slice, SliceDim, SliceRange,
};
use smallvec::SmallVec;

const SLICE: u8 = 3;
const ROWS: u8 = 4;

const START: u8 = 1;
const STOP: u8 = 2;
const STEP: u8 = 4;
const INDEX: u8 = 8;

/// The first two fields: the kind of the excerpt, and the number of its boxes or dimensions.
#[derive(Clone, Copy)]
pub(super) struct ExcerptHead {
    kind: u8,
    count: u8,
}

/// Appends the first two fields.
pub(super) fn write_head(w: &mut Writer, excerpt: Option<&Excerpt>) {
    let (kind, count) = match excerpt.map(|excerpt| (excerpt.part(), excerpt.has_metadata())) {
        None => (0, 0),
        Some((ExcerptPart::Boxes(boxes), with_metadata)) => (1 + u8::from(with_metadata), boxes.len()),
        Some((ExcerptPart::Slice(slice), _)) => (SLICE, slice.dims().len()),
        Some((ExcerptPart::Rows(_), _)) => (ROWS, 0),
    };
    w.u8(kind).u8(u8::try_from(count).unwrap_or(u8::MAX));
}

/// Appends the boxes, dimensions or rows.
pub(super) fn write_part(w: &mut Writer, excerpt: Option<&Excerpt>) {
    match excerpt.map(Excerpt::part) {
        None => {}
        Some(ExcerptPart::Boxes(boxes)) => boxes.iter().for_each(|b| write_box(w, b)),
        Some(ExcerptPart::Slice(slice)) => slice.dims().iter().for_each(|dim| write_dim(w, *dim)),
        Some(ExcerptPart::Rows(rows)) => write_rows(w, rows.indices()),
    }
}

fn write_rows(w: &mut Writer, indices: &[i64]) {
    // A list has fewer: it fits into a message.
    w.u16(u16::try_from(indices.len()).unwrap_or(u16::MAX));
    if let Some(first) = indices.first() {
        w.u64(first.cast_unsigned());
    }
    for pair in indices.windows(2) {
        let mut distance = pair[0].abs_diff(pair[1]);
        while distance > 0x7f {
            w.u8(distance as u8 | 0x80);
            distance >>= 7;
        }
        w.u8(distance as u8);
    }
}

fn read_rows(r: &mut Reader<'_>) -> Result<Rows, WireError> {
    let count = r.u16()?;
    let mut indices = Vec::with_capacity(usize::from(count).min(MAX_EXCERPT_BYTES));
    for _ in 0..count {
        let index = match indices.last() {
            None => r.u64()?.cast_signed(),
            Some(before) => read_distance(r, *before)?,
        };
        indices.push(index);
    }
    Ok(Rows::new(indices)?)
}

fn read_distance(r: &mut Reader<'_>, before: i64) -> Result<i64, WireError> {
    let mut distance = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        let bits = u64::from(byte & 0x7f);
        let wrong = WireError::Value {
            what: "distance of two rows",
            value: bits,
            expected: "one that leads to an i64, in as few bytes as it needs",
        };
        if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
            return Err(wrong);
        }
        distance |= bits << shift;
        if byte & 0x80 == 0 {
            return before.checked_add_unsigned(distance).ok_or(wrong);
        }
    }
    Err(WireError::Value { what: "bytes of the distance of two rows", value: 11, expected: "at most 10" })
}

fn write_box(w: &mut Writer, b: &BodyBox) {
    w.u64(b.offset()).u64(b.run()).u8(u8::try_from(b.repeats().len()).unwrap_or(u8::MAX));
    for Repeat { count, stride } in b.repeats() {
        w.u64(*count).u64(*stride);
    }
}

fn write_dim(w: &mut Writer, dim: SliceDim) {
    match dim {
        SliceDim::Index(index) => {
            w.u8(INDEX).u64(index.cast_unsigned());
        }
        SliceDim::Range(SliceRange { start, stop, step }) => {
            let step = Some(step).filter(|step| *step != 1);
            let given = [(start, START), (stop, STOP), (step, STEP)];
            w.u8(given.iter().filter(|(n, _)| n.is_some()).map(|(_, bit)| bit).sum());
            for n in given.iter().filter_map(|(n, _)| *n) {
                w.u64(n.cast_unsigned());
            }
        }
    }
}

/// Reads the first two fields.
///
/// # Errors
/// [`WireError::Value`] for an unknown kind, and for a slice of more dimensions than a tensor has.
pub(super) fn read_head(r: &mut Reader<'_>) -> Result<ExcerptHead, WireError> {
    let (kind, count) = (r.u8()?, r.u8()?);
    let value = u64::from(count);
    match kind {
        0 => Reader::zero("boxes of no excerpt", value)?,
        1 | 2 => {}
        SLICE if usize::from(count) <= MAX_RANK => {}
        SLICE => return Err(WireError::Value { what: "dimensions of a slice", value, expected: "at most 32" }),
        ROWS => Reader::zero("boxes of rows", value)?,
        n => return Err(WireError::Value { what: "kind of excerpt", value: u64::from(n), expected: "0 to 4" }),
    }
    Ok(ExcerptHead { kind, count })
}

/// Reads the boxes, dimensions or rows that these first fields announce.
///
/// # Errors
/// [`WireError::Excerpt`] for boxes that are no excerpt.
pub(super) fn read_part(head: ExcerptHead, r: &mut Reader<'_>) -> Result<Option<Box<Excerpt>>, WireError> {
    let ExcerptHead { kind, count } = head;
    let excerpt = match kind {
        0 => return Ok(None),
        SLICE => {
            let dims: Result<Vec<_>, _> = (0..count).map(|_| read_dim(r)).collect();
            Excerpt::slice(Slice::new(dims?))?
        }
        ROWS => Excerpt::rows(read_rows(r)?),
        _ => {
            let boxes: Result<Vec<_>, _> = (0..count).map(|_| read_box(r)).collect();
            Excerpt::new(kind == 2, boxes?)?
        }
    };
    Ok(Some(Box::new(excerpt)))
}

fn read_box(r: &mut Reader<'_>) -> Result<BodyBox, WireError> {
    let (offset, run, count) = (r.u64()?, r.u64()?, r.u8()?);
    let value = u64::from(count);
    if usize::from(count) > MAX_RANK {
        return Err(WireError::Value { what: "repeats of a box", value, expected: "at most 32" });
    }
    let mut repeats = SmallVec::new();
    for _ in 0..count {
        repeats.push(Repeat { count: r.u64()?, stride: r.u64()? });
    }
    let found = BodyBox::new(offset, run, repeats)?;
    match found.repeats().len() == usize::from(count) && found.run() == run {
        true => Ok(found),
        false => Err(WireError::Value { what: "repeats of a box", value, expected: "fewer, as some runs touch" }),
    }
}

fn read_dim(r: &mut Reader<'_>) -> Result<SliceDim, WireError> {
    let given = r.u8()?;
    let what = "fields of a dimension of a slice";
    let wrong = WireError::Value { what, value: u64::from(given), expected: "0 to 8" };
    if given == INDEX {
        return Ok(SliceDim::Index(r.u64()?.cast_signed()));
    }
    if given > START | STOP | STEP {
        return Err(wrong);
    }
    let mut field = |bit| (given & bit != 0).then(|| r.u64().map(u64::cast_signed)).transpose();
    let (start, stop, step) = (field(START)?, field(STOP)?, field(STEP)?);
    match step {
        Some(1) => Err(WireError::Value { what: "step of a slice", value: 1, expected: "another if it is given" }),
        step => Ok(SliceDim::Range(SliceRange { start, stop, step: step.unwrap_or(1) })),
    }
}
