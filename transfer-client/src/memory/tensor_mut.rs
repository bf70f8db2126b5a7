//! Writable tensors.

use crate::error::Error;
use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::tensor::{DType, TensorMeta};
use transfer_memory::arena::Block;
use transfer_memory::segment::Mapping;
use transfer_memory::view::Element;

/// A tensor in the arena, or in memory that was [registered](crate::Client::register), writable by its one owner until it is pushed. Its
/// memory is freed when it is dropped.
///
/// Its contents are left over from earlier tensors, because it is meant to be overwritten; [`TensorMut::fill_zero`]
/// clears it.
#[derive(Debug)]
pub struct TensorMut {
    block: Block,
    meta: TensorMeta,
}

impl TensorMut {
    /// Makes a tensor. The length of `block` must be that of `meta`.
    pub(crate) fn new(block: Block, meta: TensorMeta) -> TensorMut {
        TensorMut { block, meta }
    }

    /// Makes a tensor of bytes of an allocation, for programs that have an arena of their own.
    ///
    /// # Errors
    /// [`Error::Shape`] for a length that no tensor has.
    pub fn of_block(block: Block) -> Result<TensorMut, Error> {
        let meta = TensorMeta::of(DType::U8, &[block.slice().len])?;
        Ok(TensorMut::new(block, meta))
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    pub(crate) fn into_parts(self) -> (Block, TensorMeta) {
        (self.block, self.meta)
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

    /// The range of the arena.
    #[must_use]
    pub fn slice(&self) -> LocalSlice {
        self.block.slice()
    }

    /// The memory in which it lies, which stays mapped with this: the arena's, or its own if it is registered.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        self.block.mapping()
    }

    /// Whether it is memory that was [registered](crate::Client::register), and not a range of the arena.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.block.is_registered()
    }

    /// The bytes, row-major.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.block.as_bytes()
    }

    /// The bytes, row-major and writable.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.block.as_bytes_mut()
    }

    /// The elements, row-major.
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::View`] if bytes of a `bool` tensor are neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        check::<T>(&self.meta)?;
        Ok(self.block.as_slice()?)
    }

    /// The elements, row-major and writable.
    ///
    /// # Errors
    /// Those of [`TensorMut::as_slice`]. A fresh `bool` tensor may hold bytes that are no `bool`: call
    /// [`TensorMut::fill_zero`] first.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], Error> {
        check::<T>(&self.meta)?;
        Ok(self.block.as_mut_slice()?)
    }

    /// Writes zeros.
    pub fn fill_zero(&mut self) {
        self.block.as_bytes_mut().fill(0);
    }
}

/// Checks that `meta` describes elements of type `T`.
pub(crate) fn check<T: Element>(meta: &TensorMeta) -> Result<(), Error> {
    match T::DTYPE == meta.dtype() {
        true => Ok(()),
        false => Err(Error::WrongType { meta: meta.clone(), asked: T::DTYPE }),
    }
}
