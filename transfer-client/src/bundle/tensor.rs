//! Tensors that are about to be pushed as one bundle.

use crate::error::{BundleError, Error};
use crate::fetch::Tensor;
use crate::gathered::{DigestPlace, Piece, Pieces};
use crate::memory::{Frozen, TensorMut};
use crate::push::Source;
use transfer_core::tensor::{DType, TensorMeta, TensorName};
use transfer_core::wire::bundle::BundleTable;
use transfer_memory::view::{Bytes, Element};

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

    /// A tensor of bytes that it owns.
    pub(crate) fn owned(bytes: Vec<u8>) -> Result<BundleTensor<'a>, Error> {
        let meta = TensorMeta::of(DType::U8, &[bytes.len() as u64])?;
        Ok(BundleTensor { meta, piece: Piece::Shared(bytes.into()) })
    }

    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.piece
    }

    /// A copy of a tensor that stays writable.
    pub(crate) fn snapshot(tensor: &'a TensorMut) -> BundleTensor<'a> {
        BundleTensor { meta: tensor.meta().clone(), piece: Piece::Borrowed(tensor.as_bytes()) }
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
    // A number that no other push has. What its digests say takes its place, if it is to have some.
    let stamp = crate::unique::number();
    let table = BundleTable::new(described).map_err(BundleError::from)?.stamped(stamp);
    let metadata = table.to_bytes_before_digests();
    Ok(Source::Pieces(Box::new(Pieces {
        metadata,
        buffers,
        apart: true,
        digests: DigestPlace::Field,
        ..Pieces::default()
    })))
}
