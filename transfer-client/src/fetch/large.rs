//! Tensors and slices that do not fit the landing pool.
//!
//! Their buckets are slices of exactly one version, so they come as any slice does: the owner keeps nothing between two of
//! them. What the tensor is, is found out by slices without elements first.

use super::buckets::{Content, Described, LargeVersion, PartLen, in_buckets};
use super::call::LargeFetch;
use super::probe::Probe;
use super::ranges::{BodyKind, BodyLayout, RangesOfBody};
use super::slice::FetchedSlice;
use super::tensor::Tensor;
use crate::digest::Proof;
use crate::error::{BatchError, Error};
use crate::gathered::{Body, OutOfBody, copy_threads};
use crate::request::Call;
use crate::session::{Answered, Ended, deadline};
use std::ops::ControlFlow;
use std::task::Waker;
use std::time::Instant;
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyRange, Excerpt, Slice, SlicePieces, TensorMeta, Version};
use transfer_core::wire::digests::Digests;
use transfer_memory::segment::copy_in_parallel;
use transfer_memory::view::Bytes;

/// Fetches all of a tensor.
pub(crate) fn large_tensor(of: LargeVersion, _all: Option<Slice>) -> LargeFetch<Tensor> {
    let (limit, kept) = (deadline(Instant::now(), of.options.timeout), of.clone());
    let call = in_buckets(of, SlicesOfTensor::new(Slice::default()), tensor_of);
    Box::new(LargeTensor { of: kept, limit, call, has_slices: true })
}

/// Fetches a slice, or all of the tensor.
pub(super) fn large_slice(of: LargeVersion, slice: Option<Slice>) -> LargeFetch<FetchedSlice> {
    let content = SlicesOfTensor::new(slice.unwrap_or_default());
    in_buckets(of, content, |slice| Ok((Version(slice.version()), slice)))
}

/// The tensor of which this is all.
fn tensor_of(all: FetchedSlice) -> Result<(Version, Tensor), Error> {
    let (version, meta, report) = (Version(all.version()), all.meta().clone(), *all.report());
    Ok((version, Tensor::of_bytes(all.into_bytes(), meta, version, report)))
}

/// The fetch of a tensor: by its slices, or, if it has none, as one with digests.
struct LargeTensor {
    of: LargeVersion,
    /// The deadline of both.
    limit: Instant,
    call: LargeFetch<Tensor>,
    has_slices: bool,
}

impl Call for LargeTensor {
    type Output = Result<(Version, Tensor), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let fetched = match self.call.step(waker) {
            ControlFlow::Continue(at) => return ControlFlow::Continue(at),
            ControlFlow::Break(fetched) => fetched,
        };
        match fetched {
            Err(Error::Failed(failure)) if self.has_slices && failure == self.of.why => {
                self.has_slices = false;
                self.of.options.timeout = self.limit.saturating_duration_since(Instant::now());
                self.call = in_buckets(self.of.clone(), RangesOfBody(TensorWithDigests), tensor_of);
                self.call.step(waker)
            }
            fetched => ControlFlow::Break(fetched),
        }
    }

    fn needs_timer(&self) -> bool {
        self.call.needs_timer()
    }
}

/// A tensor with digests, whose metadata says what it is.
#[derive(Debug)]
struct TensorWithDigests;

impl BodyKind for TensorWithDigests {
    type Layout = (TensorMeta, Digests);
    type Output = FetchedSlice;

    fn body(&self, of: &LargeVersion, ended: Ended) -> Result<(Body, FetchedTensor), Error> {
        let (lease, tensor) = Answered::fetched(ended, &of.session)?;
        let body = Body::new::<BatchError>(lease, &tensor)?;
        Ok((body, tensor))
    }

    fn read(
        &self,
        _: &LargeVersion,
        body: Body,
        tensor: &FetchedTensor,
    ) -> Result<BodyLayout<(TensorMeta, Digests)>, Error> {
        let Ok(Some(layout)) = Digests::read_of_tensor(&body.metadata) else {
            return Err(BatchError::NotATensor { meta: tensor.meta.clone() }.into());
        };
        let body_len = layout.0.len_bytes();
        let all = BodyRange { offset: 0, len: body_len };
        let ranges = [all].into_iter().filter(|all| all.len > 0).collect();
        Ok(BodyLayout { layout, metadata: body.metadata, ranges, body_len })
    }

    fn is_same_push(&self, layout: &BodyLayout<(TensorMeta, Digests)>, metadata: &[u8]) -> Result<bool, Error> {
        // The digests are part of it.
        Ok(layout.metadata == metadata)
    }

    fn out_of_body(&self, what: OutOfBody) -> Error {
        BatchError::from(what).into()
    }

    fn finish(
        &self,
        of: &LargeVersion,
        layout: BodyLayout<(TensorMeta, Digests)>,
        bytes: Bytes,
        version: Version,
        mut report: Report,
    ) -> Result<FetchedSlice, Error> {
        let BodyLayout { layout: (described, digests), metadata, .. } = layout;
        let metadata_bytes = u32::try_from(metadata.len()).unwrap_or(u32::MAX);
        let meta = described.clone().with_metadata(metadata_bytes)?;
        let proof = Proof { key: &of.key, proving: of.options.proving };
        let head = (version, &meta, &metadata[..]);
        let compared = proof.compare(head, Some(&digests), true, copy_threads(), [&bytes[..]]);
        report.verified = compared.inspect_err(|e| of.session.tell_wrong_digest(e))?;
        Ok(FetchedSlice::landed(bytes, described, version, report))
    }
}

/// A slice of a tensor of an unknown shape.
#[derive(Debug)]
struct SlicesOfTensor {
    wanted: Slice,
    probe: Probe,
    /// The version that the first answer was of, and its report, which names the fabric and how long the fetch was queued.
    found: Option<(Version, Report)>,
}

impl SlicesOfTensor {
    fn new(wanted: Slice) -> SlicesOfTensor {
        SlicesOfTensor { wanted, probe: Probe::Inner, found: None }
    }

    /// Whether this describes that piece of the tensor.
    fn is_piece(&self, part: &Slice, found: &TensorMeta) -> bool {
        matches!(&self.probe, Probe::Known(whole) if part.of(whole).is_ok_and(|part| part.meta() == found))
    }

    /// Goes on with the next probe, unless it is known what the tensor is.
    fn learned(&mut self, of: &LargeVersion, next: Probe) -> Result<Described<SlicePieces, FetchedSlice>, Error> {
        self.probe = next;
        let (version, report) = self.found.ok_or_else(|| of.why.clone())?;
        let Probe::Known(whole) = &self.probe else { return Ok(Described::Asks(version)) };
        // Before anything moves.
        prove(of, version, whole)?;
        let layout = SlicePieces::new(&self.wanted, whole).map_err(|e| {
            let text = format!("key {:?} has {whole}: {e}", of.key.as_str());
            Failure::new(FailureCode::Invalid, text)
        })?;
        let len = layout.meta().len_bytes();
        Ok(Described::Known { version, report, layout, len })
    }
}

impl Content for SlicesOfTensor {
    type Layout = SlicePieces;
    /// In bytes of the slice.
    type Cursor = u64;
    type Part = Slice;
    type Output = FetchedSlice;

    fn describe(&self) -> Result<Excerpt, Error> {
        self.ask(&self.probe.slice())
    }

    fn described(&mut self, of: &LargeVersion, ended: Ended) -> Result<Described<SlicePieces, FetchedSlice>, Error> {
        let (lease, tensor) = match Answered::fetched(ended, &of.session) {
            // A bound that is wrong; or a scalar, or a version that has no slices, and comes as a whole or not at all.
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => {
                let next = self.probe.clone().after_misfit().ok_or_else(|| of.why.clone())??;
                return self.learned(of, next);
            }
            answer => answer?,
        };
        if !tensor.is_part {
            let slice = FetchedSlice::take(lease, tensor, &of.key, &self.wanted)?;
            prove(of, Version(slice.version()), slice.meta())?;
            return Ok(Described::There(slice));
        }
        let FetchedTensor { version, meta, report, .. } = tensor;
        let report = Report { bytes: 0, copied: 0, ..report };
        self.found.get_or_insert((version, report));
        let next = self.probe.clone().after(&meta)?;
        self.learned(of, next)
    }

    fn begin_again(&mut self) {
        (self.probe, self.found) = (Probe::Inner, None);
    }

    fn next(&self, layout: &SlicePieces, at: &mut u64, len: u64) -> Option<(Slice, PartLen)> {
        let (slice, bytes) = layout.piece(*at, len)?;
        *at += bytes;
        Some((slice, PartLen { bytes, is_last: false }))
    }

    fn ask(&self, part: &Slice) -> Result<Excerpt, Error> {
        Ok(Excerpt::slice(part.clone()).map_err(|e| Failure::new(FailureCode::Invalid, e.to_string()))?)
    }

    fn land(
        &self,
        of: &LargeVersion,
        _: &SlicePieces,
        part: &Slice,
        ended: Ended,
        to: &mut [u8],
    ) -> Result<Option<u64>, Error> {
        let landed = Answered::fetched(ended, &of.session)
            .and_then(|(lease, tensor)| FetchedSlice::take(lease, tensor, &of.key, part));
        let landed = match landed {
            Ok(landed) if self.is_piece(part, landed.meta()) && landed.meta().len_bytes() == to.len() as u64 => landed,
            // Another push has the same number of version, and another shape.
            Ok(_) => return Ok(None),
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut rest = to;
        landed.each_run(|run| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(run.len());
            copy_in_parallel(now, run, copy_threads());
            rest = later;
        });
        Ok(Some(landed.report().copied))
    }

    fn finish(
        &self,
        _: &LargeVersion,
        layout: SlicePieces,
        bytes: Bytes,
        version: Version,
        report: Report,
    ) -> Result<FetchedSlice, Error> {
        Ok(FetchedSlice::landed(bytes, layout.meta().clone(), version, report))
    }
}

/// Refuses it if it has to have digests: what has slices has none.
fn prove(of: &LargeVersion, version: Version, meta: &TensorMeta) -> Result<(), Error> {
    let proof = Proof { key: &of.key, proving: of.options.proving };
    proof.compare((version, meta, &[]), None, true, 1, []).map(|_| ())
}
