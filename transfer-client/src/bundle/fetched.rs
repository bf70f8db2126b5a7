//! Fetched bundles.

use super::parts::table_of;
use crate::digest::Proof;
use crate::error::{BundleError, Error};
use crate::fetch::Tensor;
use crate::gathered::{Body, copy_threads};
use crate::session::Lease;
use std::sync::Arc;
use transfer_core::op::FetchedTensor;
use transfer_core::op::Report;
use transfer_core::tensor::Version;
use transfer_core::wire::bundle::BundleTable;

/// A fetched bundle, all of one version: its tensors, or [slices](crate::FetchedSlices) of them. Each keeps the memory of
/// what it lies in.
#[derive(Debug, Clone)]
pub struct FetchedBundle<T = Tensor> {
    table: Arc<BundleTable>,
    tensors: Vec<T>,
    version: u64,
    report: Report,
}

impl<T> FetchedBundle<T> {
    /// Makes a bundle of the tensors of a table, in its order.
    pub(crate) fn new(table: BundleTable, tensors: Vec<T>, version: Version, report: Report) -> FetchedBundle<T> {
        FetchedBundle { table: Arc::new(table), tensors, version: version.0, report }
    }

    pub(crate) fn table(&self) -> &Arc<BundleTable> {
        &self.table
    }

    /// The tensor of this name, if it was asked for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.tensors.get(self.table.find(name)?)
    }

    /// All names and tensors, in the order in which they were pushed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.table.entries().iter().map(|entry| entry.name.as_str()).zip(&self.tensors)
    }

    /// The number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The version of all its tensors.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The report of the fetch, of all tensors together: which fabric carried them, what was copied, and where the time
    /// went.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

impl FetchedBundle {
    /// Notes how many bytes of it were compared with digests.
    pub(crate) fn verified(mut self, bytes: u64) -> FetchedBundle {
        self.report.verified = bytes;
        self.tensors.iter_mut().for_each(|tensor| tensor.verified(bytes));
        self
    }
}

pub(crate) fn take_bundle(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedBundle, Error> {
    let body = Body::new::<BundleError>(lease, &tensor)?;
    bundle_of(&body, &tensor, proof)
}

/// The bundle whose body this is.
pub(crate) fn bundle_of(body: &Body, tensor: &FetchedTensor, proof: &Proof<'_>) -> Result<FetchedBundle, Error> {
    let FetchedTensor { version, mut report, ranges, .. } = *tensor;
    let table = table_of(body, tensor)?;
    let (expected_bytes, found_bytes) = (table.body_len(), body.len);
    if expected_bytes != found_bytes {
        return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
    }
    // A body in ranges lies in the arena of its pusher. What has moved lies in one piece, also if another worker's fetch, or a
    // push, has brought it here.
    let head = (version, &tensor.meta, &body.metadata[..]);
    report.verified = proof.compare(head, table.digests(), ranges == 0, copy_threads(), body.pieces())?;
    let tensor = |entry: &transfer_core::wire::bundle::BundleEntry| {
        let bytes = body.bytes(entry.offset, entry.meta.len_bytes())?;
        Ok(Tensor::of_bytes(bytes, entry.meta.clone(), version, report))
    };
    let tensors = table.entries().iter().map(tensor).collect::<Result<_, BundleError>>()?;
    Ok(FetchedBundle::new(table, tensors, version, report))
}
