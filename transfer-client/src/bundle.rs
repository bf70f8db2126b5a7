//! Bundles: many tensors that are published as one version, and fetched as one.
//!
//! A bundle has one key, one version and one lease. A fetch therefore never returns tensors of two versions, and a push
//! publishes all tensors or none. Its table of names and shapes is not trusted: see [`BundleTable`].

use crate::buckets::InBuckets;
use crate::face::Face;
use crate::fetch::Fetch;
use crate::gate::Gate;
use crate::gathered::{Body, OutOfBody, Piece, Pieces};
use crate::handle::to_key;
use crate::keys::ToKey;
use crate::push::{Push, Source};
use crate::reclaim::Way;
use crate::subscriber::Subscriber;
use crate::tensor::Lease;
use crate::{BundleMut, Error, Frozen, Handle, Tensor, TensorMut, TwoBuffers};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use transfer_core::op::FetchedTensor;
use transfer_core::op::Report;
use transfer_core::tensor::{DType, InvalidExcerpt, TensorMeta, TensorName, Version};
use transfer_core::wire::bundle::{BundleTable, InvalidBundle};
use transfer_memory::view::{Bytes, Element};

/// An error of a bundle, or of data that claims to be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The table of names and shapes is not valid.
    #[error(transparent)]
    Table(#[from] InvalidBundle),
    /// The fetched version is not a bundle.
    #[error("{meta} is no bundle: fetch it with fetch(), or with fetch_table() if it is record batches")]
    NotABundle {
        /// The description of the version.
        meta: TensorMeta,
    },
    /// The tensors of the table do not fill the body.
    #[error("the tensors of the bundle have {expected_bytes} bytes, its body has {found_bytes}")]
    WrongLength {
        /// The length that follows from the table, in bytes.
        expected_bytes: u64,
        /// The length of the body, in bytes.
        found_bytes: u64,
    },
    /// The version has no tensor of this name.
    #[error("the bundle has no tensor {name:?}")]
    NoSuchTensor {
        /// The name.
        name: String,
    },
    /// Two slices of one tensor are asked for with one fetch.
    #[error("tensor {name:?} of the bundle is asked for with two slices: make a fetch for each")]
    NamedTwice {
        /// The name.
        name: String,
    },
    /// The boxes of some tensors cannot be asked for.
    #[error(transparent)]
    Excerpt(#[from] InvalidExcerpt),
    /// A tensor cannot be taken back, because this process may still read its memory. Its version stays published.
    #[error(
        "{name:?} of the bundle, {meta}, cannot be taken back: this process still holds its memory, as a frozen tensor or \
         an array of it, or it was pushed a second time; the version stays published"
    )]
    NotAlone {
        /// The tensor's name.
        name: String,
        /// The tensor's description.
        meta: TensorMeta,
    },
    /// A tensor does not lie in the body, or not in one piece.
    #[error("{len} bytes at {offset} are no tensor of a body of {body_len} bytes")]
    OutOfBody {
        /// Its offset in the body, in bytes.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
        /// The length of the body, in bytes.
        body_len: u64,
    },
}

impl From<OutOfBody> for BundleError {
    fn from(OutOfBody { offset, len, body_len }: OutOfBody) -> BundleError {
        BundleError::OutOfBody { offset, len, body_len }
    }
}

/// A tensor that is about to be pushed as a part of a bundle.
///
/// A [`TensorMut`], a [`Frozen`] tensor and a [`Tensor`] convert into it. Memory in the arena of the pushing client is
/// pushed in place. Any other memory is copied into the arena once, which the report counts.
#[derive(Debug)]
pub struct BundleTensor<'a> {
    meta: TensorMeta,
    piece: Piece<'a>,
}

impl<'a> BundleTensor<'a> {
    /// Makes a tensor of elements in any memory, row-major.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::WrongLength`].
    pub fn from_slice<T: Element>(dims: impl AsRef<[u64]>, elements: &'a [T]) -> Result<BundleTensor<'a>, Error> {
        BundleTensor::from_bytes(T::DTYPE, dims, bytemuck::cast_slice(elements))
    }

    /// Makes a tensor of bytes in any memory; see [`BundleTensor::from_slice`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::WrongLength`].
    pub fn from_bytes(dtype: DType, dims: impl AsRef<[u64]>, bytes: &'a [u8]) -> Result<BundleTensor<'a>, Error> {
        let meta = TensorMeta::of(dtype, dims.as_ref())?;
        let (expected_bytes, found_bytes) = (meta.len_bytes(), bytes.len() as u64);
        match expected_bytes == found_bytes {
            true => Ok(BundleTensor { meta, piece: Piece::Borrowed(bytes) }),
            false => Err(Error::WrongLength { meta, expected_bytes, found_bytes }),
        }
    }

    fn shared(meta: &TensorMeta, bytes: &Bytes) -> BundleTensor<'a> {
        BundleTensor { meta: meta.clone(), piece: Piece::Shared(bytes.to_arrow_buffer()) }
    }
}

impl From<TensorMut> for BundleTensor<'_> {
    /// Freezes the tensor. Its memory is freed with its last reader, even if the push fails.
    fn from(tensor: TensorMut) -> Self {
        Self::from(&tensor.freeze())
    }
}

impl From<&Frozen> for BundleTensor<'_> {
    fn from(tensor: &Frozen) -> Self {
        Self::shared(tensor.meta(), tensor.bytes())
    }
}

impl From<&Tensor> for BundleTensor<'_> {
    fn from(tensor: &Tensor) -> Self {
        Self::shared(tensor.meta(), tensor.bytes())
    }
}

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

impl<F: Face> Fetch<F, FetchedBundle> {
    /// The length of a bucket, 32 MiB by default and at least 64 KiB. A version that does not fit the landing pool is fetched
    /// in buckets: ranges that land in the pool one after the other, and are copied into memory of this process, which the report
    /// counts. Two are on their way at a time. Where the pool is smaller than a bucket, buckets are halved. If the version is
    /// replaced meanwhile, the fetch begins again with the newer one, until its time-out.
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.call.bucket_bytes(bytes);
        self
    }
}

fn take_bundle(lease: Arc<Lease>, tensor: FetchedTensor) -> Result<FetchedBundle, Error> {
    let body = Body::new::<BundleError>(lease, &tensor)?;
    let FetchedTensor { version, meta, report, .. } = tensor;
    if !BundleTable::is_bundle(&body.metadata) {
        return Err(BundleError::NotABundle { meta }.into());
    }
    let table = BundleTable::read(&body.metadata).map_err(BundleError::from)?;
    let (expected_bytes, found_bytes) = (table.body_len(), body.len);
    if expected_bytes != found_bytes {
        return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
    }
    let tensor = |entry: &transfer_core::wire::bundle::BundleEntry| {
        let bytes = body.bytes(entry.offset, entry.meta.len_bytes())?;
        Ok(Tensor::of_bundle(bytes, entry.meta.clone(), version, report))
    };
    let tensors = table.entries().iter().map(tensor).collect::<Result<_, BundleError>>()?;
    Ok(FetchedBundle::new(table, tensors, version, report))
}

/// The table and the buffers of these tensors.
pub(crate) fn source<'a, N: AsRef<str>, T: Into<BundleTensor<'a>>>(
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Result<Source<'a>, Error> {
    let (mut described, mut buffers) = (Vec::new(), Vec::new());
    for (name, tensor) in tensors {
        let BundleTensor { meta, piece } = tensor.into();
        described.push((TensorName::new(name.as_ref())?, meta));
        if !piece.is_empty() {
            buffers.push(piece);
        }
    }
    // A seed that no other push has.
    let stamp = RandomState::new().hash_one(0);
    let table = BundleTable::new(described).map_err(BundleError::from)?.stamped(stamp);
    Ok(Source::Pieces(Box::new(Pieces { metadata: table.to_bytes(), buffers, apart: true, copied: 0 })))
}

impl<F: Face> Handle<F> {
    /// Publishes many tensors under `key` as one version: a fetch gets all of them, or waits. At most 131,072 tensors
    /// of any types and shapes, each with a name of 1 to 512 bytes. Tensors in this client's arena are published in place;
    /// see [`BundleTensor`].
    pub fn push_bundle<'a, N: AsRef<str>, T: Into<BundleTensor<'a>>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Push<'a, F> {
        self.push(key, source(tensors))
    }

    /// Publishes copies of tensors that stay writable as one version: a *snapshot* of weights that are updated in place.
    /// Each byte is copied once, which the report counts; see [`TwoBuffers`](crate::TwoBuffers) for the other ways.
    pub fn push_bundle_snapshot<'a, N: AsRef<str>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, &'a TensorMut)>,
    ) -> Push<'a, F> {
        let copied = |(name, tensor): (N, &'a TensorMut)| {
            (name, BundleTensor { meta: tensor.meta().clone(), piece: Piece::Borrowed(tensor.as_bytes()) })
        };
        self.push_bundle(key, tensors.into_iter().map(copied))
    }

    /// Takes the newest bundle of this worker's own `key` back, to update all its tensors in place without a copy. It
    /// is [`gate`](Self::gate) for bundles: from the moment of the call no new fetch gets the version, and once all its
    /// readers are done, its tensors are writable. Either all of them are returned, or none: if the readers take longer
    /// than the call may, it fails, and the version is published again. A tensor that this process still holds, as a
    /// [`Frozen`] tensor or an array of it, fails the call with [`BundleError::NotAlone`], and the version stays
    /// published. [`withdraw`](Self::withdraw) is for tensors that are held.
    pub fn gate_bundle(&self, key: impl ToKey) -> Gate<F, BundleMut> {
        Gate::new(self.session(), to_key(&key), Way::BUNDLE)
    }

    /// Makes two sets of tensors that take turns under `key` as bundles; see [`TwoBuffers`](crate::TwoBuffers).
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Shape`], [`BundleError::Table`].
    pub fn two_bundle_buffers<N: AsRef<str>, D: AsRef<[u64]>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, DType, D)>,
    ) -> Result<TwoBuffers<F, BundleMut>, Error> {
        let mut described = Vec::new();
        for (name, dtype, dims) in tensors {
            described.push((TensorName::new(name.as_ref())?, TensorMeta::of(dtype, dims.as_ref())?));
        }
        let table = BundleTable::new(described).map_err(BundleError::from)?;
        let layout = table.entries().iter().map(|entry| (entry.name.as_str().to_owned(), entry.meta.clone()));
        Ok(TwoBuffers::of(self.clone(), to_key(&key)?, layout.collect(), Way::BUNDLE))
    }

    /// Fetches the tensors under `key` that were pushed as one version, and waits until there is one. They are
    /// read-only, and not copied where the fabric allows. A version that does not fit the landing pool comes in
    /// [buckets](Fetch::bucket_bytes).
    pub fn fetch_bundle(&self, key: impl ToKey) -> Fetch<F, FetchedBundle> {
        Fetch::new(self.session(), to_key(&key), take_bundle).in_buckets(Some(InBuckets::new()))
    }

    /// Makes a reader of the versions of `key` that [`push_bundle`](Self::push_bundle) publishes.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn bundle_subscriber(&self, key: impl ToKey) -> Result<Subscriber<F, FetchedBundle>, Error> {
        Ok(Subscriber::new(self, &key, take_bundle)?.in_buckets(InBuckets::new))
    }
}
