//! A fetched body: metadata, and a body that lies in one range or in many.

use crate::error::{BatchError, BundleError, Error, SessionEnd};
use crate::session::{Lease, Session};
use arrow_buffer::{Buffer, MutableBuffer};
use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::op::FetchedTensor;
use transfer_core::wire::ranges::read_ranges;
use transfer_memory::segment::copy_in_parallel;
use transfer_memory::view::Bytes;

/// A range that is not in the body, or not in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfBody {
    /// Its offset, in bytes.
    pub(crate) offset: u64,
    /// Its length, in bytes.
    pub(crate) len: u64,
    /// The length of the body, in bytes.
    pub(crate) body_len: u64,
}

impl From<OutOfBody> for BundleError {
    fn from(OutOfBody { offset, len, body_len }: OutOfBody) -> BundleError {
        BundleError::OutOfBody { offset, len, body_len }
    }
}

impl From<OutOfBody> for BatchError {
    fn from(OutOfBody { offset, len, body_len }: OutOfBody) -> BatchError {
        let number = |n| i64::try_from(n).unwrap_or(i64::MAX);
        BatchError::OutOfBody { offset: number(offset), len: number(len), body_len }
    }
}

/// A fetched body. The lease ends with the last view of it.
pub(crate) struct Body {
    /// A copy, so that it cannot change after the check.
    pub(crate) metadata: Vec<u8>,
    /// The ranges of the body, and their offsets in the body.
    parts: Vec<(u64, Bytes)>,
    /// An empty range of the fetched memory.
    empty: Option<Bytes>,
    pub(crate) len: u64,
}

impl Body {
    /// Finds the body of a fetched tensor. `E` is the error if the owner's table names ranges that it must not name.
    pub(crate) fn new<E: From<OutOfBody>>(lease: Arc<Lease>, tensor: &FetchedTensor) -> Result<Body, Error>
    where
        Error: From<E>,
    {
        let FetchedTensor { meta, slice, ranges, .. } = tensor;
        let session = lease.session();
        let (body_at, len) = (meta.body_offset(), meta.len_bytes() - meta.body_offset());
        // The length of the slice was checked when it was received.
        let cut = |offset, len| {
            slice.sub(offset, len).ok_or(SessionEnd::TooShort { slice: *slice, len_bytes: meta.len_bytes() })
        };
        let head = session.view(cut(0, u64::from(meta.metadata_bytes()))?, lease.clone())?;
        let slices = match ranges {
            0 => vec![cut(body_at, len)?],
            // A copy of the owner's table, so that it cannot change after the check.
            _ => {
                let table = session.view(cut(body_at, slice.len - body_at)?, lease.clone())?.to_vec();
                read_ranges(&table).map(|range| range.within(slice.segment)).collect()
            }
        };
        let mut parts = Vec::with_capacity(slices.len());
        let mut at = 0_u64;
        for slice in slices.into_iter().filter(|slice| slice.len > 0) {
            parts.push((at, view(session, slice, &lease, len).map_err(E::from)?));
            at = at.saturating_add(slice.len);
        }
        match at == len {
            true => Ok(Body { metadata: head.to_vec(), parts, empty: head.slice(0..0), len }),
            false => Err(E::from(OutOfBody { offset: 0, len: at, body_len: len }).into()),
        }
    }

    /// Makes a body of metadata and pieces that are there already.
    pub(crate) fn of(metadata: Vec<u8>, pieces: impl IntoIterator<Item = Bytes>) -> Body {
        let mut len = 0;
        let parts = pieces.into_iter().map(|piece| {
            len += piece.len() as u64;
            (len - piece.len() as u64, piece)
        });
        let parts = parts.collect();
        Body { metadata, parts, empty: None, len }
    }

    /// The pieces of the body, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|(_, bytes)| &bytes[..])
    }

    /// The bytes of a range, if they lie in one piece.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Result<Bytes, OutOfBody> {
        let found = match len {
            0 => self.empty.clone().filter(|_| offset <= self.len),
            _ => self.find(offset, len),
        };
        found.ok_or(OutOfBody { offset, len, body_len: self.len })
    }

    /// The bytes of a range as a buffer of Arrow, if they lie in one piece.
    pub(crate) fn buffer(&self, offset: u64, len: u64) -> Result<Buffer, OutOfBody> {
        if len == 0 && offset <= self.len {
            // An address with the alignment of every type.
            return Ok(MutableBuffer::new(0).into());
        }
        let found = self.find(offset, len).ok_or(OutOfBody { offset, len, body_len: self.len })?;
        Ok(found.to_arrow_buffer())
    }

    /// Copies a range into `to`, also where it lies in several pieces, with up to `threads` threads.
    pub(crate) fn copy_out(&self, offset: u64, to: &mut [u8], threads: usize) -> Result<(), OutOfBody> {
        let len = to.len() as u64;
        let (mut at, mut rest) = (offset, to);
        let outside = OutOfBody { offset, len, body_len: self.len };
        while !rest.is_empty() {
            let part = self.parts.partition_point(|(start, _)| *start <= at).checked_sub(1).ok_or(outside)?;
            let (start, bytes) = &self.parts[part];
            let from = bytes.get((at - start) as usize..).filter(|from| !from.is_empty()).ok_or(outside)?;
            let take = from.len().min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            copy_in_parallel(now, &from[..take], threads);
            (at, rest) = (at + take as u64, later);
        }
        Ok(())
    }

    fn find(&self, offset: u64, len: u64) -> Option<Bytes> {
        let part = self.parts.partition_point(|(start, _)| *start <= offset).checked_sub(1)?;
        let (start, bytes) = self.parts.get(part)?;
        let from = usize::try_from(offset - start).ok()?;
        bytes.slice(from..from.checked_add(usize::try_from(len).ok()?)?)
    }
}

/// Makes a view of a range that the owner's table names. The owner may name any range of the segment; its end is the
/// limit.
fn view(session: &Session, slice: LocalSlice, lease: &Arc<Lease>, body_len: u64) -> Result<Bytes, OutOfBody> {
    let LocalSlice { offset, len, .. } = slice;
    session.view(slice, lease.clone()).map_err(|_| OutOfBody { offset, len, body_len })
}
