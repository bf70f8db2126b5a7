//! The memory that an export keeps: one `Arc`, which may be dropped on any thread, with or without the interpreter's
//! lock, and after the interpreter's end.

use crate::state_into;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use transfer_client::{FetchedSlice, Frozen, NotPrivate, PrivateBytes, Report, Tensor, TensorMeta, TensorMut};
use transfer_memory::forked::ForkGuard;
use transfer_memory::segment::Mapping;

/// A value that belongs to the process that made it. In a forked child its drop does nothing, because a thread of the
/// parent, which the child does not have, may have held a lock.
#[derive(Debug)]
pub(crate) struct Ours<T> {
    value: Option<T>,
    guard: Arc<ForkGuard>,
}

impl<T> Ours<T> {
    pub(crate) fn new(value: T, guard: Arc<ForkGuard>) -> Ours<T> {
        Ours { value: Some(value), guard }
    }

    pub(crate) fn guard(&self) -> &Arc<ForkGuard> {
        &self.guard
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut()
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.value.take()
    }

    pub(crate) fn set(&mut self, value: T) {
        self.value = Some(value);
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        if self.guard.is_forked() {
            std::mem::forget(self.value.take());
        }
    }
}

/// The tensor behind a buffer.
#[derive(Debug)]
enum Held {
    Writable(TensorMut),
    /// It is published, and stays with its views.
    Published(Frozen),
}

/// A tensor that is being written. Every holder of a clone of the `Arc` around this sees its memory.
#[derive(Debug)]
pub(crate) struct Written {
    /// `None` once the tensor was pushed despite its views. The views then keep only the mapping.
    tensor: Mutex<Ours<Held>>,
    address: usize,
    meta: TensorMeta,
    mapping: Arc<Mapping>,
}

/// What of a worker holds registered memory: the arena, the tensor, and the buffer.
const OWN_HOLDERS: usize = 3;

impl Written {
    pub(crate) fn new(mut tensor: TensorMut, guard: Arc<ForkGuard>) -> Arc<Written> {
        let (address, meta) = (tensor.as_mut_bytes().as_mut_ptr().expose_provenance(), tensor.meta().clone());
        let mapping = tensor.mapping().clone();
        let written =
            Arc::new(Written { tensor: Mutex::new(Ours::new(Held::Writable(tensor), guard)), address, meta, mapping });
        if written.meta.len_bytes() > 0 {
            state_into::list(address, &written);
        }
        written
    }

    /// The element type and the shape.
    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Where it lies.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Whether it can be pushed.
    pub(crate) fn is_writable(&self) -> bool {
        matches!(self.tensor.lock().get(), Some(Held::Writable(_)))
    }

    /// Whether no fabric has this registered memory any more, nor will have it: its client is closed.
    pub(crate) fn is_let_go(&self) -> bool {
        let is_let_go = Arc::strong_count(&self.mapping) <= OWN_HOLDERS;
        // What they have done there comes before what the caller does.
        fence(Ordering::Acquire);
        is_let_go
    }

    /// Takes a writable tensor out.
    pub(crate) fn take(&self) -> Option<TensorMut> {
        let mut held = self.tensor.lock();
        match held.take()? {
            Held::Writable(tensor) => Some(tensor),
            published => {
                held.set(published);
                None
            }
        }
    }

    /// Returns what `take` has taken out, after a push that failed.
    pub(crate) fn put_back(&self, tensor: TensorMut) {
        self.tensor.lock().set(Held::Writable(tensor));
    }

    /// Freezes a writable tensor for a push. The memory also stays with this.
    pub(crate) fn publish(&self) -> Option<Frozen> {
        let mut held = self.tensor.lock();
        let (frozen, now) = match held.take()? {
            Held::Writable(tensor) => {
                let frozen = tensor.freeze();
                (Some(frozen.clone()), Held::Published(frozen))
            }
            published => (None, published),
        };
        held.set(now);
        frozen
    }

    /// Makes a published tensor writable again. Returns whether it is: not while the sidecar holds it.
    pub(crate) fn regain(&self) -> bool {
        let mut held = self.tensor.lock();
        let now = match held.take() {
            Some(Held::Published(frozen)) => frozen.try_into_mut().map_or_else(Held::Published, Held::Writable),
            Some(writable) => writable,
            None => return false,
        };
        let is_writable = matches!(now, Held::Writable(_));
        held.set(now);
        is_writable
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if !self.tensor.get_mut().guard().is_forked() {
            state_into::unlist(self.address);
        }
    }
}

/// A fetched tensor, or a slice of one, which may be a view of a version: then its elements lie apart.
#[derive(Debug)]
pub(crate) enum Fetched {
    Whole(Tensor),
    Slice(FetchedSlice),
}

impl Fetched {
    pub(crate) fn meta(&self) -> &TensorMeta {
        match self {
            Fetched::Whole(tensor) => tensor.meta(),
            Fetched::Slice(slice) => slice.meta(),
        }
    }

    /// The bytes from the first element to the last one.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Fetched::Whole(tensor) => tensor.as_bytes(),
            Fetched::Slice(slice) => slice.as_bytes(),
        }
    }

    /// The strides, in units, of elements that lie apart. `None`: they lie row-major, in one piece.
    fn strides(&self) -> Option<&[u64]> {
        match self {
            Fetched::Slice(slice) if !slice.is_contiguous() => Some(slice.strides()),
            _ => None,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        match self {
            Fetched::Whole(tensor) => tensor.version(),
            Fetched::Slice(slice) => slice.version(),
        }
    }

    pub(crate) fn report(&self) -> Report {
        match self {
            Fetched::Whole(tensor) => *tensor.report(),
            Fetched::Slice(slice) => *slice.report(),
        }
    }

    pub(crate) fn map_privately(&self) -> Result<PrivateBytes, NotPrivate> {
        match self {
            Fetched::Whole(tensor) => tensor.map_privately(),
            Fetched::Slice(slice) => slice.clone().into_bytes().map_privately(),
        }
    }
}

/// Memory that can be exported. A clone keeps it mapped.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    /// The memory of a fetched tensor: read-only.
    Fetched(Arc<Ours<Fetched>>),
    /// The memory of a buffer.
    Written(Arc<Written>),
}

impl Memory {
    pub(crate) fn meta(&self) -> Option<&TensorMeta> {
        match self {
            Memory::Fetched(tensor) => tensor.get().map(Fetched::meta),
            Memory::Written(written) => Some(&written.meta),
        }
    }

    /// Where the elements lie from the start address on.
    pub(crate) fn layout(&self) -> Option<Layout> {
        match self {
            Memory::Fetched(tensor) => tensor.get().map(Layout::of_fetched),
            Memory::Written(written) => Some(Layout::of(&written.meta)),
        }
    }

    /// The start address, and the number of bytes from there to the last element.
    pub(crate) fn address(&self) -> (usize, usize) {
        match self {
            Memory::Fetched(tensor) => tensor.get().map_or((0, 0), |tensor| {
                let bytes = tensor.as_bytes();
                (bytes.as_ptr().expose_provenance(), bytes.len())
            }),
            Memory::Written(written) => (written.address, written.meta.len_bytes() as usize),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        matches!(self, Memory::Written(_))
    }
}

/// A tensor's dimensions, and its strides, both in units of its element type.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    /// Whether the elements lie row-major, in one piece.
    pub(crate) is_contiguous: bool,
}

impl Layout {
    pub(crate) fn of(meta: &TensorMeta) -> Layout {
        // A dimension of 2^63 or more occurs only in a shape with 0 elements, which needs no memory.
        let shape: Vec<i64> = meta.unit_dims().map(|n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
        let mut strides = vec![1i64; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
        }
        Layout { shape, strides, is_contiguous: true }
    }

    pub(crate) fn of_fetched(fetched: &Fetched) -> Layout {
        let layout = Layout::of(fetched.meta());
        match fetched.strides() {
            None => layout,
            Some(strides) => {
                let strides = strides.iter().map(|n| i64::try_from(*n).unwrap_or(i64::MAX)).collect();
                Layout { strides, is_contiguous: false, ..layout }
            }
        }
    }
}
