//! Views of immutable bytes.

use super::{Element, ViewError, cast};
use crate::arena::Block;
use crate::segment::{MapError, Mapping};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// The owner that keeps bytes immutable and mapped: a lease, a frozen block. It is dropped with the last view of them;
/// several views, for instance those of a record batch's buffers, may share one.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// A read-only view of bytes, with their owner. Cheap to clone and to slice; dereferences to the bytes.
#[derive(Clone)]
pub struct Bytes {
    pointer: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the bytes are immutable and valid while the owner lives, which is Send and Sync itself.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Makes a view of `len` bytes at `offset` of `mapping`, which stays mapped as long as the view lives.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`].
    ///
    /// # Safety
    /// Until `owner` is dropped, no one writes any of the bytes, as [`Mapping::as_bytes`] demands.
    pub unsafe fn of_mapping(mapping: &Arc<Mapping>, offset: u64, len: u64, owner: Owner) -> Result<Bytes, MapError> {
        let pointer = mapping.ptr_at(offset, len)?;
        // SAFETY: the range is in the mapping, which the new owner keeps mapped. The caller promises that no one
        // writes it while the old owner lives, which the new owner holds.
        Ok(unsafe { Bytes::from_raw_parts(pointer, len as usize, Arc::new((owner, mapping.clone()))) })
    }

    /// # Safety
    /// `pointer` is not null and valid for reads of `len` bytes, and no one writes them, until `owner` is dropped.
    pub(crate) unsafe fn from_raw_parts(pointer: *mut u8, len: usize, owner: Owner) -> Bytes {
        // SAFETY: the caller promises that it is not null.
        Bytes { pointer: unsafe { NonNull::new_unchecked(pointer) }, len, owner }
    }

    /// Returns the view of a part of the bytes, or `None` if `range` exceeds them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        let len = self.get(range.clone())?.len();
        // SAFETY: `get` has checked that the range starts inside the bytes or at their end.
        let pointer = unsafe { self.pointer.add(range.start) };
        Some(Bytes { pointer, len, owner: self.owner.clone() })
    }

    /// The bytes as elements.
    ///
    /// # Errors
    /// [`ViewError::WrongSize`], [`ViewError::Misaligned`], [`ViewError::InvalidValue`] for a `bool` that is neither 0
    /// nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ViewError> {
        cast(self)
    }

    /// Returns the owner if it is a `T` and has no other view; else the view.
    pub(crate) fn into_sole_owner<T: Any + Send + Sync>(self) -> Result<T, Bytes> {
        let Bytes { pointer, len, owner } = self;
        let owner = owner.downcast::<T>().map_err(|owner| Bytes { pointer, len, owner })?;
        Arc::try_unwrap(owner).map_err(|owner| Bytes { pointer, len, owner })
    }

    /// Returns the mapping that the bytes lie in, if [`Bytes::of_mapping`] made this view.
    pub(super) fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.owner.downcast_ref::<(Owner, Arc<Mapping>)>().map(|(_, mapping)| mapping)
    }

    /// Returns the mapping that the bytes lie in, and their place there, in bytes from its start. `None` for bytes of a
    /// heap.
    #[must_use]
    pub fn in_mapping(&self) -> Option<(&Arc<Mapping>, u64)> {
        let of_block = || self.owner.downcast_ref::<Block>().map(Block::mapping);
        let mapping = self.mapping().or_else(of_block)?;
        Some((mapping, mapping.offset_of(self.pointer.as_ptr())?))
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the constructors demand that the bytes are valid for reads of `len` bytes, and that no one writes
        // them, while the owner lives.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({:?}..+{})", self.pointer, self.len)
    }
}
