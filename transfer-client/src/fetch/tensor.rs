//! Fetched tensors.

use super::slice::FetchedSlice;
use crate::digest::Proof;
use crate::error::{BatchError, Error};
use crate::gathered::{Body, copy_threads};
use crate::memory::Frozen;
use crate::session::Lease;
use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::op::FetchedTensor;
use transfer_core::op::Report;
use transfer_core::tensor::{DType, TensorMeta, Version};
use transfer_core::wire::digests::Digests;
use transfer_memory::view::{Bytes, Element, NotPrivate, PrivateBytes};

/// A fetched tensor: read-only, in the sidecar's memory. Cheap to clone; all clones, and the Arrow arrays made of it,
/// share its memory, which is released with the last of them.
///
/// It keeps its session open, and stays readable even if the sidecar dies.
#[derive(Debug, Clone)]
pub struct Tensor {
    view: Frozen,
    version: Version,
    report: Report,
}

impl Tensor {
    pub(crate) fn new(lease: Arc<Lease>, tensor: FetchedTensor) -> Result<Tensor, Error> {
        if tensor.meta.metadata_bytes() > 0 {
            return Tensor::with_digests(lease, tensor, None);
        }
        let FetchedTensor { version, meta, slice, report, .. } = tensor;
        let exact = LocalSlice { len: meta.len_bytes(), ..slice };
        let bytes = lease.session().clone().view(exact, lease)?;
        Ok(Tensor { view: Frozen::new(bytes, meta), version, report })
    }

    pub(crate) fn take(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<Tensor, Error> {
        if tensor.meta.metadata_bytes() > 0 {
            return Tensor::with_digests(lease, tensor, Some(proof));
        }
        proof.compare((tensor.version, &tensor.meta, &[]), None, true, 1, [])?;
        Tensor::new(lease, tensor)
    }

    /// A tensor that has digests in front of it.
    fn with_digests(lease: Arc<Lease>, tensor: FetchedTensor, proof: Option<&Proof<'_>>) -> Result<Tensor, Error> {
        let body = Body::new::<BatchError>(lease, &tensor)?;
        let FetchedTensor { version, meta, ranges, mut report, .. } = tensor;
        let (described, digests) = match Digests::read_of_tensor(&body.metadata) {
            Ok(Some((described, digests)))
                if described.clone().with_metadata(meta.metadata_bytes()).as_ref() == Ok(&meta) =>
            {
                (described, digests)
            }
            _ => return Err(BatchError::NotATensor { meta }.into()),
        };
        if let Some(proof) = proof {
            let head = (version, &meta, &body.metadata[..]);
            report.verified = proof.compare(head, Some(&digests), ranges == 0, copy_threads(), body.pieces())?;
        }
        let bytes = body.bytes(0, body.len).map_err(BatchError::from)?;
        Ok(Tensor { view: Frozen::new(bytes, described), version, report })
    }

    /// A tensor of these bytes: one of a bundle, or one that has come in buckets.
    pub(crate) fn of_bytes(bytes: Bytes, meta: TensorMeta, version: Version, report: Report) -> Tensor {
        Tensor { view: Frozen::new(bytes, meta), version, report }
    }

    /// Notes how many bytes of all that came with it were compared with digests.
    pub(crate) fn verified(&mut self, bytes: u64) {
        self.report.verified = bytes;
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        self.view.bytes()
    }

    /// The slice that is all of it.
    pub(crate) fn as_whole_slice(&self) -> FetchedSlice {
        FetchedSlice::landed(self.bytes().clone(), self.meta().clone(), self.version, self.report)
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.view.dtype()
    }

    /// The dimensions, outermost first, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.view.shape()
    }

    /// Element type and shape.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        self.view.meta()
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.0
    }

    /// The report of the fetch: which fabric carried it, what was copied, and where the time went.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The bytes, row-major.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.view.as_bytes()
    }

    /// The elements, row-major.
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::View`] if bytes of a `bool` tensor are neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        self.view.as_slice()
    }

    /// A flat Arrow array of the same memory: no byte is copied.
    ///
    /// # Errors
    /// [`Error::View`] if Arrow has no such array (`bool`, `bf16`, complex, floats of 8 bits, and all types of 4), or `A` is not the tensor's
    /// type.
    pub fn to_arrow<A: ArrowPrimitiveType>(&self) -> Result<PrimitiveArray<A>, Error> {
        self.view.to_arrow()
    }

    /// A flat Arrow array of the same memory, of the Arrow type that matches the tensor's; see [`Tensor::to_arrow`].
    ///
    /// # Errors
    /// [`Error::View`] if Arrow has no such array.
    pub fn to_array(&self) -> Result<ArrayRef, Error> {
        self.view.to_array()
    }

    /// A private, writable mapping of the tensor's pages. It shows the same bytes; writes are visible to no other
    /// process.
    ///
    /// # Errors
    /// [`NotPrivate`]: copy the bytes.
    pub fn map_privately(&self) -> Result<PrivateBytes, NotPrivate> {
        self.view.bytes().map_privately()
    }

    /// Returns the memory without the tensor's description. It is released with the last view of it.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.view.into_bytes()
    }
}
