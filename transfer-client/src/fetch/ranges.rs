//! Versions with metadata that do not fit the landing pool: their [buckets](super::Fetch::bucket_bytes) are ranges of the body.
//!
//! The first request brings the metadata, which says what the body is. The last one brings it again, behind all others, and
//! shows whether all of them were answered by one push.

use super::buckets::{Content, Described, LargeVersion, PartLen};
use crate::error::Error;
use crate::gathered::{Body, OutOfBody, copy_threads};
use crate::session::Ended;
use std::fmt::Debug;
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyRange, Excerpt, InvalidExcerpt, MAX_EXCERPT_RANGES, Version};
use transfer_memory::view::Bytes;

/// What a body is.
pub(crate) trait BodyKind: Debug {
    /// What the metadata says of it.
    type Layout: Debug;
    /// The result.
    type Output;

    /// The body of an answer.
    fn body(&self, of: &LargeVersion, ended: Ended) -> Result<(Body, FetchedTensor), Error>;

    /// Reads the metadata.
    fn read(&self, of: &LargeVersion, body: Body, tensor: &FetchedTensor) -> Result<BodyLayout<Self::Layout>, Error>;

    /// Whether other metadata of this version is of the same push.
    fn is_same_push(&self, layout: &BodyLayout<Self::Layout>, metadata: &[u8]) -> Result<bool, Error>;

    /// The error for an answer that does not have what was asked for.
    fn out_of_body(&self, what: OutOfBody) -> Error;

    /// Makes the result of the bytes of all ranges, one behind the other.
    fn finish(
        &self,
        of: &LargeVersion,
        layout: BodyLayout<Self::Layout>,
        bytes: Bytes,
        version: Version,
        report: Report,
    ) -> Result<Self::Output, Error>;
}

/// What is known of a body.
#[derive(Debug)]
pub(crate) struct BodyLayout<L> {
    pub(crate) layout: L,
    /// The metadata that it was read of.
    pub(crate) metadata: Vec<u8>,
    /// The ranges that are fetched. They rise.
    pub(crate) ranges: Vec<BodyRange>,
    /// The length of all of the body.
    pub(crate) body_len: u64,
}

/// The body of a version, or ranges of it.
#[derive(Debug)]
pub(crate) struct RangesOfBody<K>(pub(crate) K);

/// What a bucket has.
#[derive(Debug)]
pub(crate) struct Ranges {
    ranges: Vec<BodyRange>,
    with_metadata: bool,
}

/// A place in a list of ranges.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Cursor {
    range: usize,
    /// The place in that range, in bytes.
    within: u64,
}

impl Cursor {
    /// Takes the next ranges, at most `len` bytes and as many as fit into one request.
    fn take(&mut self, ranges: &[BodyRange], len: u64) -> Vec<BodyRange> {
        let (mut taken, mut left) = (Vec::new(), len);
        while let Some(range) = ranges.get(self.range)
            && left > 0
            && taken.len() < MAX_EXCERPT_RANGES
        {
            let take = (range.len - self.within).min(left);
            taken.push(BodyRange { offset: range.offset + self.within, len: take });
            (self.within, left) = (self.within + take, left - take);
            if self.within == range.len {
                (self.range, self.within) = (self.range + 1, 0);
            }
        }
        taken
    }

    fn is_at_end(&self, ranges: &[BodyRange]) -> bool {
        self.range == ranges.len()
    }
}

impl<K: BodyKind> Content for RangesOfBody<K> {
    type Layout = BodyLayout<K::Layout>;
    type Cursor = Cursor;
    type Part = Ranges;
    type Output = K::Output;

    fn describe(&self) -> Result<Excerpt, Error> {
        Ok(Excerpt::metadata())
    }

    fn described(
        &mut self,
        of: &LargeVersion,
        ended: Ended,
    ) -> Result<Described<BodyLayout<K::Layout>, K::Output>, Error> {
        let (body, tensor) = match self.0.body(of, ended) {
            // A tensor without metadata, or a version that is fetched a number of times, has no parts.
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => return Err(of.why.clone().into()),
            answer => answer?,
        };
        let layout = self.0.read(of, body, &tensor)?;
        let FetchedTensor { version, mut report, is_part, ref meta, .. } = tensor;
        if !is_part {
            // By reference, the report is that of all of the version.
            report.bytes = meta.body_offset();
        }
        let len = layout.ranges.iter().map(|range| range.len).sum();
        Ok(Described::Known { version, report, layout, len })
    }

    fn next(&self, layout: &BodyLayout<K::Layout>, at: &mut Cursor, len: u64) -> Option<(Ranges, PartLen)> {
        let ranges = at.take(&layout.ranges, len);
        let bytes = ranges.iter().map(|range| range.len).sum();
        // The last one comes behind all others, so that its metadata speaks for them.
        let is_last = at.is_at_end(&layout.ranges);
        (!ranges.is_empty()).then_some((Ranges { ranges, with_metadata: is_last }, PartLen { bytes, is_last }))
    }

    fn ask(&self, part: &Ranges) -> Result<Excerpt, Error> {
        let excerpt = Excerpt::of_ranges(part.with_metadata, part.ranges.iter().copied());
        Ok(excerpt.map_err(|e: InvalidExcerpt| Failure::new(FailureCode::Invalid, e.to_string()))?)
    }

    fn land(
        &self,
        of: &LargeVersion,
        layout: &BodyLayout<K::Layout>,
        part: &Ranges,
        ended: Ended,
        to: &mut [u8],
    ) -> Result<Option<u64>, Error> {
        let (body, tensor) = self.0.body(of, ended)?;
        if part.with_metadata && !self.0.is_same_push(layout, &body.metadata)? {
            return Ok(None);
        }
        let len = if tensor.is_part { to.len() as u64 } else { layout.body_len };
        if body.len != len {
            return Err(self.0.out_of_body(OutOfBody { offset: 0, len, body_len: body.len }));
        }
        let (mut from, mut rest) = (0, to);
        for BodyRange { offset, len } in part.ranges.iter().copied() {
            let (now, later) = rest.split_at_mut(len as usize);
            // By reference all of the body is there.
            let at = if tensor.is_part { from } else { offset };
            body.copy_out(at, now, copy_threads()).map_err(|what| self.0.out_of_body(what))?;
            (from, rest) = (from + len, later);
        }
        Ok(Some(tensor.report.copied))
    }

    fn finish(
        &self,
        of: &LargeVersion,
        layout: BodyLayout<K::Layout>,
        bytes: Bytes,
        version: Version,
        report: Report,
    ) -> Result<K::Output, Error> {
        self.0.finish(of, layout, bytes, version, report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> BodyRange {
        BodyRange { offset, len }
    }

    // Promise: buckets
    #[test]
    fn buckets_cut_ranges_and_leave_nothing_out() {
        let ranges = [range(0, 640), range(1024, 64), range(2048, 256)];
        let mut cursor = Cursor::default();
        assert_eq!(cursor.take(&ranges, 512), [range(0, 512)]);
        assert_eq!(cursor.take(&ranges, 256), [range(512, 128), range(1024, 64), range(2048, 64)]);
        assert!(!cursor.is_at_end(&ranges));
        assert_eq!(cursor.take(&ranges, 512), [range(2112, 192)]);
        assert!(cursor.is_at_end(&ranges) && cursor.take(&ranges, 512).is_empty());
        // As many ranges as one request has.
        let many: Vec<_> = (0..=MAX_EXCERPT_RANGES as u64).map(|n| range(n * 128, 64)).collect();
        let mut cursor = Cursor::default();
        assert_eq!(cursor.take(&many, 1 << 20).len(), MAX_EXCERPT_RANGES);
        assert_eq!(cursor.take(&many, 1 << 20), many[MAX_EXCERPT_RANGES..]);
    }
}
