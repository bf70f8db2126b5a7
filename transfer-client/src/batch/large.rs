//! Record batches that do not fit the landing pool, and come in [buckets](crate::Fetch::bucket_bytes).

use super::calls::{FetchedBatch, FetchedTable, NamedBody, body, prove};
use super::messages::body_len;
use crate::digest::Proof;
use crate::error::{BatchError, Error};
use crate::fetch::{BodyKind, BodyLayout, LargeFetch, LargeVersion, RangesOfBody, in_buckets};
use crate::gathered::{Body, OutOfBody};
use crate::session::{Answered, Ended};
use transfer_core::op::{FetchedTensor, Report};
use transfer_core::tensor::{BodyRange, DType, Slice, TensorMeta, Version};
use transfer_memory::view::Bytes;

/// Fetches a batch.
pub(crate) fn large_batch(of: LargeVersion, _all: Option<Slice>) -> LargeFetch<FetchedBatch> {
    in_buckets(of, RangesOfBody(Batches), |all| Ok((all.version, all.batch()?)))
}

/// Fetches batches that were pushed as one version.
pub(crate) fn large_table(of: LargeVersion, _all: Option<Slice>) -> LargeFetch<FetchedTable> {
    in_buckets(of, RangesOfBody(Batches), |all| Ok((all.version, all.table()?)))
}

/// The body of batches.
#[derive(Debug)]
struct Batches;

impl BodyKind for Batches {
    type Layout = ();
    type Output = NamedBody;

    fn body(&self, of: &LargeVersion, ended: Ended) -> Result<(Body, FetchedTensor), Error> {
        let (lease, tensor) = Answered::fetched(ended, &of.session)?;
        let body = Body::new::<BatchError>(lease, &tensor)?;
        Ok((body, tensor))
    }

    fn read(&self, _: &LargeVersion, found: Body, tensor: &FetchedTensor) -> Result<BodyLayout<()>, Error> {
        let metadata = body(found, &tensor.meta)?.metadata;
        let body_len = body_len(&metadata)?;
        let all = BodyRange { offset: 0, len: body_len };
        let ranges = [all].into_iter().filter(|all| all.len > 0).collect();
        Ok(BodyLayout { layout: (), metadata, ranges, body_len })
    }

    fn is_same_push(&self, layout: &BodyLayout<()>, metadata: &[u8]) -> Result<bool, Error> {
        Ok(layout.metadata == metadata)
    }

    fn out_of_body(&self, what: OutOfBody) -> Error {
        BatchError::from(what).into()
    }

    fn finish(
        &self,
        of: &LargeVersion,
        layout: BodyLayout<()>,
        bytes: Bytes,
        version: Version,
        mut report: Report,
    ) -> Result<NamedBody, Error> {
        let BodyLayout { metadata, body_len, .. } = layout;
        let meta = TensorMeta::of(DType::U8, &[body_len])?;
        let meta = meta.with_metadata(u32::try_from(metadata.len()).unwrap_or(u32::MAX))?;
        let body = Body::of(metadata, [bytes]);
        let proof = Proof { key: &of.key, proving: of.options.proving };
        let verified = prove(&body, version, &meta, true, &proof);
        report.verified = verified.inspect_err(|e| of.session.tell_wrong_digest(e))?;
        Ok(NamedBody { body, version, report })
    }
}
