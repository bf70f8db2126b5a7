//! Immutable tensors.

use crate::error::Error;
use crate::memory::{TensorMut, check};
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use std::sync::Arc;
use transfer_core::tensor::{DType, TensorMeta};
use transfer_memory::arena::Block;
use transfer_memory::view::{Bytes, Element, ViewError};

/// An immutable tensor of the arena, see [`crate::TensorMut::freeze`]. Cheap to clone; all clones, and the Arrow arrays
/// made of it, share its memory, which is freed with the last of them and of its pushes.
#[derive(Debug, Clone)]
pub struct Frozen {
    bytes: Bytes,
    meta: TensorMeta,
}

impl Frozen {
    /// Makes a frozen tensor. The length of `bytes` must be that of `meta`.
    pub(crate) fn new(bytes: Bytes, meta: TensorMeta) -> Frozen {
        Frozen { bytes, meta }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.meta.dtype()
    }

    /// The dimensions, outermost first, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.meta.shape().dims()
    }

    /// Element type and shape.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The bytes, row-major.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements, row-major.
    ///
    /// [`Error::WrongType`]; [`Error::View`] if bytes of a `bool` tensor are neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        check::<T>(&self.meta)?;
        Ok(self.bytes.as_slice()?)
    }

    /// A flat Arrow array of the same memory: no byte is copied.
    ///
    /// # Errors
    /// [`Error::View`] if Arrow has no such array (`bool`, `bf16`, complex, floats of 8 bits, and all types of 4), or `A` is not the tensor's
    /// type.
    pub fn to_arrow<A: ArrowPrimitiveType>(&self) -> Result<PrimitiveArray<A>, Error> {
        Ok(self.bytes.to_arrow(self.dtype())?)
    }

    /// A flat Arrow array of the same memory, of the Arrow type that matches the tensor's; see [`Frozen::to_arrow`].
    ///
    /// # Errors
    /// [`Error::View`] if Arrow has no such array.
    pub fn to_array(&self) -> Result<ArrayRef, Error> {
        Ok(match self.dtype() {
            DType::I8 => Arc::new(self.to_arrow::<Int8Type>()?),
            DType::U8 => Arc::new(self.to_arrow::<UInt8Type>()?),
            DType::I16 => Arc::new(self.to_arrow::<Int16Type>()?),
            DType::U16 => Arc::new(self.to_arrow::<UInt16Type>()?),
            DType::I32 => Arc::new(self.to_arrow::<Int32Type>()?),
            DType::U32 => Arc::new(self.to_arrow::<UInt32Type>()?),
            DType::I64 => Arc::new(self.to_arrow::<Int64Type>()?),
            DType::U64 => Arc::new(self.to_arrow::<UInt64Type>()?),
            DType::F16 => Arc::new(self.to_arrow::<Float16Type>()?),
            DType::F32 => Arc::new(self.to_arrow::<Float32Type>()?),
            DType::F64 => Arc::new(self.to_arrow::<Float64Type>()?),
            dtype => return Err(ViewError::NoArrowType { dtype }.into()),
        })
    }

    /// Makes the tensor writable again, if nothing else holds its memory: no clone, no Arrow array, and no unfinished
    /// push.
    ///
    /// # Errors
    /// The tensor, if other code still holds its memory.
    pub fn try_into_mut(self) -> Result<TensorMut, Frozen> {
        let Frozen { bytes, meta } = self;
        match Block::thaw(bytes) {
            Ok(block) => Ok(TensorMut::new(block, meta)),
            Err(bytes) => Err(Frozen { bytes, meta }),
        }
    }

    /// The first `len_bytes` bytes, as a tensor of bytes. `None` if it has fewer. The memory is freed as a whole.
    #[must_use]
    pub fn first_bytes(self, len_bytes: u64) -> Option<Frozen> {
        let meta = TensorMeta::of(DType::U8, &[len_bytes]).ok()?;
        Some(Frozen::new(self.bytes.slice(0..usize::try_from(len_bytes).ok()?)?, meta))
    }

    /// Returns the memory without the tensor's description.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl TensorMut {
    /// Makes the tensor immutable. The result can be read, cloned and turned into Arrow arrays, and pushed any number
    /// of times, without a copy.
    #[must_use]
    pub fn freeze(self) -> Frozen {
        let (block, meta) = self.into_parts();
        Frozen::new(block.freeze(), meta)
    }
}
