//! A fetched body: metadata, and a body that lies in one range or in many.

use super::BatchError;
use crate::Error;
use crate::session::{Gone, Landed, Session};
use crate::tensor::Lease;
use arrow_buffer::{Buffer, MutableBuffer};
use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::wire::ranges::read_ranges;
use transfer_memory::view::Bytes;

/// A fetched body. The lease ends with the last buffer.
pub(super) struct Body {
    /// A copy, so that it cannot change after the check.
    pub(super) metadata: Vec<u8>,
    /// The ranges of the body, and their offsets in the body.
    parts: Vec<(u64, Bytes)>,
    pub(super) len: u64,
}

impl Body {
    pub(super) fn new(lease: Arc<Lease>, landed: &Landed) -> Result<Body, Error> {
        let Landed { meta, slice, ranges, .. } = landed;
        let session = lease.session();
        if meta.metadata_bytes() == 0 {
            return Err(BatchError::NotABatch { meta: meta.clone() }.into());
        }
        let (body_at, len) = (meta.body_offset(), meta.len_bytes() - meta.body_offset());
        // The length of the slice was checked when it was received.
        let cut =
            |offset, len| slice.sub(offset, len).ok_or(Gone::TooShort { slice: *slice, len_bytes: meta.len_bytes() });
        let metadata = session.view(cut(0, u64::from(meta.metadata_bytes()))?, lease.clone())?.to_vec();
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
            parts.push((at, view(session, slice, &lease, len)?));
            at = at.saturating_add(slice.len);
        }
        match at == len {
            true => Ok(Body { metadata, parts, len }),
            false => Err(out_of_body(0, at, len).into()),
        }
    }

    /// Makes a body that was not fetched.
    #[cfg(test)]
    pub(super) fn of(metadata: Vec<u8>, pieces: impl IntoIterator<Item = Bytes>) -> Body {
        let mut len = 0;
        let parts = pieces.into_iter().map(|piece| {
            len += piece.len() as u64;
            (len - piece.len() as u64, piece)
        });
        let parts = parts.collect();
        Body { metadata, parts, len }
    }

    /// The bytes of a range, if they lie in one piece.
    pub(super) fn buffer(&self, offset: u64, len: u64) -> Result<Buffer, BatchError> {
        if len == 0 && offset <= self.len {
            // An address with the alignment of every type.
            return Ok(MutableBuffer::new(0).into());
        }
        let part = self.parts.partition_point(|(start, _)| *start <= offset).checked_sub(1);
        let bytes = part.and_then(|n| self.parts.get(n)).and_then(|(start, bytes)| {
            let from = usize::try_from(offset - start).ok()?;
            bytes.slice(from..from.checked_add(usize::try_from(len).ok()?)?)
        });
        bytes.map(|bytes| bytes.to_arrow_buffer()).ok_or_else(|| out_of_body(offset, len, self.len))
    }
}

/// Makes a view of a range that the owner's table names. The owner may name any range of the segment; its end is the
/// limit.
fn view(session: &Session, slice: LocalSlice, lease: &Arc<Lease>, body_len: u64) -> Result<Bytes, Error> {
    session.view(slice, lease.clone()).map_err(|_| out_of_body(slice.offset, slice.len, body_len).into())
}

fn out_of_body(offset: u64, len: u64, body_len: u64) -> BatchError {
    let number = |n| i64::try_from(n).unwrap_or(i64::MAX);
    BatchError::OutOfBody { offset: number(offset), len: number(len), body_len }
}
