//! Tensors of a bundle that are asked for, and what has landed of them.

use super::fetched::FetchedBundle;
use crate::error::{BundleError, Error};
use crate::fetch::{FetchedSlice, Tensor, span};
use crate::gathered::Body;
use crate::session::{Answered, Ended, Session};
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::memory::{ALIGNMENT, padded};
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyBox, BodyRange, Key, Packing, Slice, TensorBox, TensorName, Version};
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
        let meta = self.found.as_ref().map_or(meta, TensorBox::meta);
        let Some(own) = self.bytes()? else {
            return Ok(Some(FetchedSlice::landed(slice(0, 0)?, meta.clone(), version, report)));
        };
        let before = boxes.partition_point(|(b, _)| b.offset() <= own.offset()).checked_sub(1);
        let Some((b, at)) = before.and_then(|before| boxes.get(before)) else { return Ok(None) };
        // Tensors beside each other come as one range.
        let is_in_range = self.found.is_none() && b.repeats().is_empty() && own.end() <= b.end();
        if *b != own && !is_in_range {
            return Ok(None);
        }
        let bytes = slice(at + own.offset() - b.offset(), meta.len_bytes())?;
        Ok(Some(FetchedSlice::landed(bytes, meta.clone(), version, report)))
    }
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
pub(crate) fn boxes_of(parts: &[Part<'_>]) -> Result<Vec<BodyBox>, Error> {
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
    let mut end = 0_u64;
    let placed = boxes.into_iter().map(|b| {
        let at = end.next_multiple_of(ALIGNMENT);
        end = at + b.len_bytes();
        (b, at)
    });
    Ok(Landed { body, boxes: Some(placed.collect()) })
}

/// The bundle of whole tensors.
pub(crate) fn bundle(parts: Parts) -> Result<FetchedBundle, Error> {
    let Parts { parts, version, report } = parts;
    let (mut described, mut tensors) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for (name, slice) in parts {
        let meta = slice.meta().clone();
        described.push((name, meta.clone()));
        tensors.push(Tensor::of_bundle(slice.into_bytes(), meta, version, report));
    }
    let table = BundleTable::new(described).map_err(BundleError::from)?;
    Ok(FetchedBundle::new(table, tensors, version, report))
}
