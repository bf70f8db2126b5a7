//! Tensors of a bundle that are asked for, and what has landed of them.

use super::fetched::FetchedBundle;
use crate::error::{BundleError, Error};
use crate::fetch::{FetchedSlice, Tensor, span};
use crate::gathered::Body;
use crate::landing::Piece;
use crate::session::{Answered, Ended, Session};
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::memory::{ALIGNMENT, padded};
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{
    BodyBox, BodyRange, DType, Excerpt, ExcerptPart, InvalidExcerpt, Key, Packing, Slice, TensorBox, TensorMeta,
    TensorName, Version,
};
use transfer_core::wire::bundle::{BundleEntry, BundleTable};

/// A tensor that is asked for, or a slice of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) slice: Option<Slice>,
}

/// What has come: the names and slices, in the table's order.
pub(crate) struct Parts {
    pub(crate) parts: Vec<(TensorName, FetchedSlice)>,
    pub(crate) version: Version,
    pub(crate) report: Report,
}

/// A body, and the boxes of the version's body that it consists of, each with its offset in this body. Both rise. `None`:
/// all of it.
pub(crate) struct Landed {
    pub(crate) body: Body,
    pub(crate) boxes: Option<Vec<(BodyBox, u64)>>,
}

impl std::fmt::Debug for Landed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landed").field("boxes", &self.boxes.as_ref().map(Vec::len)).finish_non_exhaustive()
    }
}

/// A tensor of the table that is asked for, or what the slice of it is.
pub(crate) struct Part<'a> {
    pub(crate) entry: &'a BundleEntry,
    pub(crate) found: Option<TensorBox>,
}

impl Part<'_> {
    /// Returns the bytes of the version's body, if there are any. Those of a tensor are a range, with the zeros behind
    /// it.
    fn bytes(&self) -> Result<Option<BodyBox>, Error> {
        let BundleEntry { offset, meta, .. } = self.entry;
        // The sum of all lengths was checked when the table was read.
        let len = padded(meta.len_bytes()).unwrap_or(0);
        match &self.found {
            Some(found) => Ok(found.bytes(*offset)),
            None if len == 0 => Ok(None),
            None => Ok(Some(BodyRange { offset: *offset, len }.try_into().map_err(BundleError::from)?)),
        }
    }

    /// Element type and shape of the tensor, or of its slice.
    pub(crate) fn meta(&self) -> &TensorMeta {
        self.found.as_ref().map_or(&self.entry.meta, TensorBox::meta)
    }

    /// Returns where its bytes begin among these boxes, if they are there. The place of each box is behind it.
    fn place_in(&self, own: &BodyBox, boxes: &[(BodyBox, u64)]) -> Option<u64> {
        let before = boxes.partition_point(|(b, _)| b.offset() <= own.offset()).checked_sub(1)?;
        let (b, at) = boxes.get(before)?;
        // Tensors beside each other come as one range.
        let is_in_range = self.found.is_none() && b.repeats().is_empty() && own.end() <= b.end();
        (b == own || is_in_range).then(|| at + own.offset() - b.offset())
    }

    /// Returns what it is in this body, if it is there.
    pub(crate) fn take(
        &self,
        landed: &Landed,
        version: Version,
        report: Report,
    ) -> Result<Option<FetchedSlice>, Error> {
        let BundleEntry { offset, meta, .. } = self.entry;
        let slice = |at, len| landed.body.bytes(at, len).map_err(BundleError::from);
        let Some(boxes) = &landed.boxes else {
            return Ok(Some(match &self.found {
                None => FetchedSlice::landed(slice(*offset, meta.len_bytes())?, meta.clone(), version, report),
                Some(found) => {
                    let (first, len) = span(found);
                    let bytes = slice(offset + first as u64, len as u64)?;
                    FetchedSlice::viewed(bytes, found, version, report)
                }
            }));
        };
        let meta = self.meta();
        let Some(own) = self.bytes()? else {
            return Ok(Some(FetchedSlice::landed(slice(0, 0)?, meta.clone(), version, report)));
        };
        let Some(at) = self.place_in(&own, boxes) else { return Ok(None) };
        Ok(Some(FetchedSlice::landed(slice(at, meta.len_bytes())?, meta.clone(), version, report)))
    }
}

/// A request for what belongs to places of the caller, of a version with a known table.
#[derive(Debug)]
pub(crate) struct PartsRequest {
    /// `None`: all of the version.
    pub(crate) excerpt: Option<Excerpt>,
    /// What comes.
    pub(crate) meta: TensorMeta,
    pub(crate) pieces: Vec<Piece>,
}

/// What is wanted, and the number and the bytes of its place, if it has one with elements.
pub(crate) type PlacedPart<'a, 'b> = (&'b Part<'a>, Option<(usize, BodyBox)>);

impl PartsRequest {
    /// Asks for all of a version.
    pub(crate) fn of_whole<'a: 'b, 'b>(
        table: &BundleTable,
        parts: impl IntoIterator<Item = PlacedPart<'a, 'b>>,
    ) -> Result<PartsRequest, Error> {
        let meta = meta_of(table, table.body_len())?;
        let piece = |(part, place): PlacedPart<'a, 'b>| {
            let (place, to) = place?;
            Some(Piece { at: meta.body_offset() + part.entry.offset, place, to })
        };
        let pieces = parts.into_iter().filter_map(piece).collect();
        Ok(PartsRequest { excerpt: None, meta, pieces })
    }

    /// Asks for the table and these parts, which are in the order of the table. `None` if that is more than one request can name.
    pub(crate) fn of_parts(table: &BundleTable, parts: Vec<PlacedPart<'_, '_>>) -> Result<Option<PartsRequest>, Error> {
        let boxes = boxes_of(parts.iter().map(|(part, _)| *part))?;
        let excerpt = match Excerpt::new(true, boxes.clone()) {
            Err(InvalidExcerpt::TooLong { .. }) => return Ok(None),
            excerpt => excerpt.map_err(BundleError::from)?,
        };
        let meta = meta_of(table, packed_bytes(&boxes))?;
        let boxes = placed(boxes);
        let mut pieces = Vec::with_capacity(parts.len());
        for (part, place) in parts {
            if let (Some((place, to)), Some(own)) = (place, part.bytes()?)
                && let Some(at) = part.place_in(&own, &boxes)
            {
                pieces.push(Piece { at: meta.body_offset() + at, place, to });
            }
        }
        Ok(Some(PartsRequest { excerpt: Some(excerpt), meta, pieces }))
    }

    /// The boxes that are asked for, of parts.
    pub(crate) fn boxes(&self) -> Vec<BodyBox> {
        match self.excerpt.as_ref().map(Excerpt::part) {
            Some(ExcerptPart::Boxes(boxes)) => boxes.to_vec(),
            _ => Vec::new(),
        }
    }
}

/// The description of a body of so many bytes behind this table.
fn meta_of(table: &BundleTable, body_len: u64) -> Result<TensorMeta, Error> {
    let metadata_bytes = u32::try_from(table.len_bytes()).unwrap_or(u32::MAX);
    Ok(TensorMeta::of(DType::U8, &[body_len])?.with_metadata(metadata_bytes)?)
}

/// Whole tensors of these names, in this order.
pub(crate) fn named_parts<'a, 'n>(
    table: &'a BundleTable,
    names: impl IntoIterator<Item = &'n str>,
) -> Result<Vec<Part<'a>>, Error> {
    let part = |name: &str| {
        let at = table.find(name).ok_or_else(|| BundleError::NoSuchTensor { name: name.to_owned() })?;
        Ok(Part { entry: &table.entries()[at], found: None })
    };
    names.into_iter().map(part).collect()
}

/// What is wanted, in the table's order.
pub(crate) fn parts<'a>(key: &Key, table: &'a BundleTable, wanted: &[Wanted]) -> Result<Vec<Part<'a>>, Error> {
    let mut found: BTreeMap<usize, &Wanted> = BTreeMap::new();
    for one in wanted {
        let at = table.find(&one.name).ok_or_else(|| BundleError::NoSuchTensor { name: one.name.clone() })?;
        if found.insert(at, one).is_some_and(|before| before.slice != one.slice) {
            return Err(BundleError::NamedTwice { name: one.name.clone() }.into());
        }
    }
    let part = |(at, Wanted { name, slice }): (usize, &Wanted)| {
        let entry = &table.entries()[at];
        let found = slice.as_ref().map(|slice| slice.of(&entry.meta)).transpose().map_err(|e| {
            let text = format!("tensor {name:?} of key {key:?} has {}: {e}", entry.meta);
            Failure::new(FailureCode::Invalid, text)
        })?;
        Ok(Part { entry, found })
    };
    found.into_iter().map(part).collect()
}

/// The boxes of these tensors and slices. Whole tensors beside each other are one box.
pub(crate) fn boxes_of<'a: 'b, 'b>(parts: impl IntoIterator<Item = &'b Part<'a>>) -> Result<Vec<BodyBox>, Error> {
    let (mut boxes, mut last_is_whole) = (Vec::<BodyBox>::new(), false);
    for part in parts {
        let Some(b) = part.bytes()? else { continue };
        let is_whole = part.found.is_none();
        match boxes.last_mut() {
            Some(last) if is_whole && last_is_whole && last.end() == b.offset() => {
                let range = BodyRange { offset: last.offset(), len: b.end() - last.offset() };
                *last = range.try_into().map_err(BundleError::from)?;
            }
            _ => boxes.push(b),
        }
        last_is_whole = is_whole;
    }
    Ok(boxes)
}

/// The number of bytes that these boxes have where they land.
pub(crate) fn packed_bytes(boxes: &[BodyBox]) -> u64 {
    Packing::new(boxes.iter().cloned().collect()).len_bytes().unwrap_or(u64::MAX)
}

/// The body of an answer.
pub(crate) fn fetched(session: &Arc<Session>, ended: Ended) -> Result<(Body, FetchedTensor), Error> {
    let (lease, tensor) = Answered::fetched(ended, session)?;
    let body = Body::new::<BundleError>(lease, &tensor)?;
    Ok((body, tensor))
}

/// The table of a bundle.
pub(crate) fn table_of(body: &Body, tensor: &FetchedTensor) -> Result<BundleTable, Error> {
    if !BundleTable::is_bundle(&body.metadata) {
        return Err(BundleError::NotABundle { meta: tensor.meta.clone() }.into());
    }
    Ok(BundleTable::read(&body.metadata).map_err(BundleError::from)?)
}

/// A body that consists of these boxes.
pub(crate) fn landed(body: Body, boxes: Vec<BodyBox>) -> Result<Landed, Error> {
    let (expected_bytes, found_bytes) = (packed_bytes(&boxes), body.len);
    if expected_bytes != found_bytes {
        return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
    }
    Ok(Landed { body, boxes: Some(placed(boxes)) })
}

/// These boxes, and where each of them lies when they are packed.
fn placed(boxes: Vec<BodyBox>) -> Vec<(BodyBox, u64)> {
    let mut end = 0_u64;
    let placed = boxes.into_iter().map(|b| {
        let at = end.next_multiple_of(ALIGNMENT);
        end = at + b.len_bytes();
        (b, at)
    });
    placed.collect()
}

/// The bundle of whole tensors.
pub(crate) fn bundle(parts: Parts) -> Result<FetchedBundle, Error> {
    let Parts { parts, version, report } = parts;
    let (mut described, mut tensors) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for (name, slice) in parts {
        let meta = slice.meta().clone();
        described.push((name, meta.clone()));
        tensors.push(Tensor::of_bytes(slice.into_bytes(), meta, version, report));
    }
    let table = BundleTable::new(described).map_err(BundleError::from)?;
    Ok(FetchedBundle::new(table, tensors, version, report))
}
