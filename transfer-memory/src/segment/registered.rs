//! Memory that a program has allocated by itself, and that a sidecar in its process reads and writes.

use super::Reservation;
use half::{bf16, f16};
use num_complex::Complex;
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A value that owns memory which may be registered.
///
/// # Safety
/// The range stays where it is, and valid for reads and writes, until the value is dropped, also if the value is moved. Each of its bytes
/// may have any value. No other value has any of these bytes. Nothing accesses it by way of the value while that is in another's possession.
pub unsafe trait OwnedMemory: Any + Send + Sync {
    /// The first byte, and the length in bytes.
    fn range(&mut self) -> (NonNull<u8>, usize);
}

macro_rules! vectors {
    ($($element:ty),* $(,)?) => {$(
        // SAFETY: a vector's elements stay on the heap when it is moved. Each pattern of bits is such an element.
        unsafe impl OwnedMemory for Vec<$element> {
            fn range(&mut self) -> (NonNull<u8>, usize) {
                let len = size_of_val(self.as_slice());
                (NonNull::from(self.as_mut_slice()).cast(), len)
            }
        }
    )*};
}

vectors! { u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, f16, bf16, Complex<f32>, Complex<f64> }

/// Registered memory: its owner, and where it lies.
pub(super) struct RegisteredMemory {
    start: NonNull<u8>,
    len: usize,
    /// `None` only while it is dropped.
    owner: Option<Box<dyn OwnedMemory>>,
    /// The bytes that it pins, counted until its owner is free.
    pinned: Option<Reservation>,
    /// Where the owner goes when the memory has no other holder. `None`: it is dropped.
    freed: Mutex<Option<Sender<Box<dyn OwnedMemory>>>>,
}

// SAFETY: the memory belongs to the owner, which is Send. The pointer is only an address; the rules of `Mapping` say who accesses what is
// there.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl RegisteredMemory {
    pub(super) fn new(mut owner: Box<dyn OwnedMemory>, pinned: Reservation) -> RegisteredMemory {
        let (start, len) = owner.range();
        RegisteredMemory { start, len, owner: Some(owner), pinned: Some(pinned), freed: Mutex::default() }
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_owned_by<M: OwnedMemory>(&self) -> bool {
        let owner: Option<&dyn Any> = self.owner.as_deref().map(|owner| owner as &dyn Any);
        owner.is_some_and(|owner| owner.is::<M>())
    }

    /// Returns where the owner comes when this is dropped.
    pub(super) fn freed(&self) -> Receiver<Box<dyn OwnedMemory>> {
        let (sender, receiver) = channel();
        *self.freed.lock() = Some(sender);
        receiver
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        drop(self.pinned.take());
        if let (Some(owner), Some(freed)) = (self.owner.take(), self.freed.get_mut()) {
            // Who has given up waiting leaves the owner to this.
            let _ = freed.send(owner);
        }
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}
