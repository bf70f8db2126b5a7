//! Bundles that do not fit the landing pool, and come in [buckets](crate::Fetch::bucket_bytes). The stamp in the table, which no other push
//! has, says whether all of them were answered by one push.

use super::fetched::FetchedBundle;
use super::parts::{Part, Parts, Wanted, boxes_of, bundle, fetched, parts, table_of};
use crate::digest::{Proof, Proving};
use crate::error::{BundleError, Error};
use crate::fetch::{
    BodyKind, BodyLayout, BucketCall, FetchedSlice, LargeFetch, LargeVersion, RangesOfBody, in_buckets,
};
use crate::gathered::{Body, OutOfBody, copy_threads};
use crate::session::Ended;
use transfer_core::memory::padded;
use transfer_core::op::{FetchedTensor, Report};
use transfer_core::tensor::{BodyBox, BodyRange, DType, Key, Slice, TensorMeta, Version};
use transfer_core::wire::bundle::BundleTable;
use transfer_memory::view::Bytes;

/// Fetches all of a bundle.
pub(crate) fn large_bundle(of: LargeVersion, _all: Option<Slice>) -> LargeFetch<FetchedBundle> {
    in_buckets(of, RangesOfBody(TensorsOfBundle { wanted: None }), |parts| Ok((parts.version, bundle(parts)?)))
}

/// Fetches these whole tensors of a bundle.
pub(crate) fn large_parts(of: LargeVersion, wanted: Vec<Wanted>) -> BucketCall<RangesOfBody<TensorsOfBundle>> {
    BucketCall::new(of, RangesOfBody(TensorsOfBundle { wanted: Some(wanted) }))
}

/// Tensors of a bundle, whole ones.
#[derive(Debug)]
pub(crate) struct TensorsOfBundle {
    /// `None`: all of them.
    wanted: Option<Vec<Wanted>>,
}

impl TensorsOfBundle {
    fn parts<'a>(&self, key: &Key, table: &'a BundleTable) -> Result<Vec<Part<'a>>, Error> {
        match &self.wanted {
            None => Ok(table.entries().iter().map(|entry| Part { entry, found: None }).collect()),
            Some(wanted) => parts(key, table, wanted),
        }
    }
}

impl BodyKind for TensorsOfBundle {
    type Layout = BundleTable;
    type Output = Parts;

    fn body(&self, of: &LargeVersion, ended: Ended) -> Result<(Body, FetchedTensor), Error> {
        fetched(&of.session, ended)
    }

    fn read(&self, of: &LargeVersion, body: Body, tensor: &FetchedTensor) -> Result<BodyLayout<BundleTable>, Error> {
        let table = table_of(&body, tensor)?;
        // Boxes of whole tensors do not repeat.
        let range = |b: BodyBox| BodyRange { offset: b.offset(), len: b.len_bytes() };
        let ranges = boxes_of(&self.parts(&of.key, &table)?)?.into_iter().map(range).collect();
        let body_len = table.body_len();
        Ok(BodyLayout { layout: table, metadata: body.metadata, ranges, body_len })
    }

    fn is_same_push(&self, layout: &BodyLayout<BundleTable>, metadata: &[u8]) -> Result<bool, Error> {
        let table = BundleTable::read(metadata).map_err(BundleError::from)?;
        Ok(table.stamp() == layout.layout.stamp())
    }

    fn out_of_body(&self, what: OutOfBody) -> Error {
        BundleError::from(what).into()
    }

    /// Makes tensors of what has landed.
    fn finish(
        &self,
        of: &LargeVersion,
        layout: BodyLayout<BundleTable>,
        bytes: Bytes,
        version: Version,
        mut report: Report,
    ) -> Result<Parts, Error> {
        let BodyLayout { layout: table, metadata, .. } = layout;
        // Part of a version is not proved, so these are all tensors, and with them all of the body.
        if of.options.proving != Proving::Not {
            let meta = TensorMeta::of(DType::U8, &[table.body_len()])?;
            let meta = meta.with_metadata(u32::try_from(metadata.len()).unwrap_or(u32::MAX))?;
            let proof = Proof { key: &of.key, proving: of.options.proving };
            let head = (version, &meta, &metadata[..]);
            let compared = proof.compare(head, table.digests(), true, copy_threads(), [&bytes[..]]);
            report.verified = compared.inspect_err(|e| of.session.tell_wrong_digest(e))?;
        }
        let mut at = 0;
        let landed = self.parts(&of.key, &table)?.into_iter().map(|Part { entry, .. }| {
            let len = entry.meta.len_bytes();
            // The sum of all lengths was checked when the table was read, and is that of the memory.
            let part = bytes.slice(at as usize..(at + len) as usize);
            let missing = BundleError::OutOfBody { offset: entry.offset, len, body_len: table.body_len() };
            at += padded(len).unwrap_or(len);
            let tensor = FetchedSlice::landed(part.ok_or(missing)?, entry.meta.clone(), version, report);
            Ok((entry.name.clone(), tensor))
        });
        let parts = landed.collect::<Result<_, BundleError>>()?;
        Ok(Parts { parts, version, report })
    }
}
