//! Fetches of states into buffers, which views of them see.

use crate::fetches;
use crate::into_call::{IntoCall, Lenders};
use crate::memory::{Fetched, Written};
use crate::pending::Going;
use crate::{dtype, errors};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use transfer_client::{Begun, BundleMut, FetchIntoError, FetchedInto, Landing, MemoryView, TensorMeta, TensorMut};
use transfer_memory::forked::ForkGuard;

/// How long is waited for the list of buffers. Nobody holds it for longer than a look-up takes, but for a thread that was forked away.
pub(crate) const LIST_WAIT: Duration = Duration::from_millis(10);

/// The memory of the buffers of this process, by its address. An array has no reference to the buffer whose memory it sees.
static BUFFERS: Mutex<BTreeMap<usize, Weak<Written>>> = Mutex::new(BTreeMap::new());

/// Lists the memory of a buffer.
pub(crate) fn list(address: usize, written: &Arc<Written>) {
    if let Some(mut buffers) = BUFFERS.try_lock_for(LIST_WAIT) {
        buffers.insert(address, Arc::downgrade(written));
    }
}

/// Removes memory from the list, unless that address is the one of another buffer by now.
pub(crate) fn unlist(address: usize) {
    if let Some(mut buffers) = BUFFERS.try_lock_for(LIST_WAIT)
        && buffers.get(&address).is_some_and(|listed| listed.strong_count() == 0)
    {
        buffers.remove(&address);
    }
}

/// The buffer that has these bytes, and where it begins. The buffers of a process do not overlap.
fn listed(address: usize, bytes: usize) -> Option<(usize, Arc<Written>)> {
    let (start, written) = {
        let buffers = BUFFERS.try_lock_for(LIST_WAIT)?;
        let (start, written) = buffers.range(..=address).next_back()?;
        (*start, written.upgrade()?)
    };
    let len = usize::try_from(written.meta().len_bytes()).ok()?;
    (address - start <= len && bytes <= len - (address - start)).then_some((start, written))
}

/// The last buffer that begins before this address, and where.
pub(crate) fn last_before(end: usize) -> Option<(usize, Arc<Written>)> {
    BUFFERS.lock().range(..end).rev().find_map(|(start, written)| Some((*start, written.upgrade()?)))
}

/// Whether the buffer that has these bytes is writable. It is not while it is pushed, or fetched into. `None` where no buffer has them.
#[pyfunction]
#[pyo3(name = "_in_buffer")]
pub(crate) fn in_buffer(address: usize, bytes: usize) -> Option<bool> {
    listed(address, bytes).map(|(_, written)| written.is_writable())
}

/// A name, and where the tensor of this name is fetched to: an address in a buffer, the element type, the dimensions, and the distance in bytes
/// from one index of each to the next. Without these it lies row-major.
pub(crate) type Target<'py> = (String, usize, Bound<'py, PyAny>, Vec<u64>, Option<Vec<u64>>);

/// Parts of the memory of buffers. Each buffer has a name that says which one it is.
pub(crate) struct Places {
    pub(crate) tensors: BundleMut,
    /// The name of what is fetched, that of the buffer, and the part.
    pub(crate) views: Vec<(String, String, MemoryView)>,
    buffers: Listed,
}

impl Places {
    /// Takes the buffers of these targets.
    pub(crate) fn take(py: Python<'_>, targets: Vec<Target<'_>>) -> PyResult<Places> {
        let (mut found, mut views) = (BTreeMap::new(), Vec::with_capacity(targets.len()));
        for (name, address, of, dims, strides) in targets {
            let view = |offset| view(offset, dtype::of(&of)?, &dims, strides.as_deref(), &name, py);
            let bytes = view(0)?.1;
            let listed = listed(address, bytes).ok_or_else(|| {
                errors::own(py, "pushed", &format!("the memory for {name:?} is not that of a buffer any more"))
            })?;
            let (start, written) = listed;
            views.push((name.clone(), start.to_string(), view(address - start)?.0));
            found.entry(start).or_insert((written, name));
        }
        let (mut buffers, mut tensors) = (Listed(Vec::with_capacity(found.len())), Vec::with_capacity(found.len()));
        for (start, (written, name)) in found {
            let Some(tensor) = written.take() else {
                buffers.put_back(tensors.into_iter().collect());
                let text = format!("the buffer for {name:?} was pushed already, or fetched into");
                return Err(errors::own(py, "pushed", &text));
            };
            tensors.push((start.to_string(), tensor));
            buffers.0.push(written);
        }
        Ok(Places { tensors: tensors.into_iter().collect(), views, buffers })
    }
}

/// A part of the memory of one buffer.
pub(crate) struct OnePlace {
    pub(crate) tensor: TensorMut,
    pub(crate) view: MemoryView,
    pub(crate) buffer: Arc<Written>,
}

impl OnePlace {
    /// Takes the buffer of this target.
    pub(crate) fn take(py: Python<'_>, target: Target<'_>) -> PyResult<Option<OnePlace>> {
        let Places { tensors, views, buffers } = Places::take(py, vec![target])?;
        let (tensor, view) = (tensors.into_iter().next(), views.into_iter().next());
        let place = |(((_, tensor), (_, _, view)), buffer)| OnePlace { tensor, view, buffer };
        Ok(tensor.zip(view).zip(buffers.0.into_iter().next()).map(place))
    }
}

/// A part of a buffer, and the number of bytes from its first to its last one.
fn view(
    offset: usize,
    of: transfer_client::DType,
    dims: &[u64],
    strides: Option<&[u64]>,
    name: &str,
    py: Python<'_>,
) -> PyResult<(MemoryView, usize)> {
    let about = errors::About { key: Some(name), waited: None };
    let raise = |e: transfer_client::Error| errors::raise(py, &e, &about);
    let meta = TensorMeta::of(of, dims).map_err(|e| raise(e.into()))?;
    let row_major = |meta: &TensorMeta| {
        let mut inner = of.size_bytes();
        let units: Vec<u64> = meta.unit_dims().collect();
        let mut strides = vec![0; units.len()];
        for (stride, len) in strides.iter_mut().zip(units).rev() {
            *stride = inner;
            inner = inner.saturating_mul(len.max(1));
        }
        strides
    };
    let strides = strides.map_or_else(|| row_major(&meta), <[u64]>::to_vec);
    let view = MemoryView::strided(of, dims, offset as u64, &strides).map_err(raise)?;
    let bytes = usize::try_from(view.end_bytes()).unwrap_or(usize::MAX).saturating_sub(offset);
    Ok((view, bytes))
}

/// The buffers of a bundle, in the order of its tensors.
struct Listed(Vec<Arc<Written>>);

/// A fetch into tensors under way.
type Fetching = Begun<'static, Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>>;

/// Begins a fetch into buffers. `begin` makes it of them, and of what belongs where.
pub(crate) fn begin(
    places: Places,
    key: &str,
    guard: Arc<ForkGuard>,
    begin: impl FnOnce(BundleMut, Vec<(String, String, MemoryView)>) -> Fetching,
) -> Box<dyn Going> {
    let Places { tensors, views, buffers } = places;
    let about = (key.to_owned(), Instant::now());
    Box::new(IntoCall::new(begin(tensors, views), buffers, about, guard))
}

impl Lenders for Listed {
    type Memory = BundleMut;

    fn memory_of(fetched: FetchedInto<BundleMut>) -> BundleMut {
        fetched.into_tensors()
    }

    fn put_back(&self, memory: BundleMut) {
        self.0.iter().zip(memory).for_each(|(buffer, (_, tensor))| buffer.put_back(tensor));
    }

    fn finish(
        &self,
        py: Python<'_>,
        fetched: FetchedInto<BundleMut>,
        about: &(String, Instant),
        guard: &Arc<ForkGuard>,
    ) -> PyResult<Py<PyAny>> {
        let landed: Vec<_> = fetched.landings().map(|(name, landing)| (name.to_owned(), landing)).collect();
        let rest = fetched.rest().iter().map(|(name, tensor)| (name.clone(), Fetched::Whole(tensor.clone()))).collect();
        let found = (rest, fetched.version(), *fetched.report());
        self.put_back(fetched.into_tensors());
        let landings = PyDict::new(py);
        for (name, landing) in landed {
            landings.set_item(name, (landing.to_string(), landing == Landing::InPlace))?;
        }
        let made = fetches::made(py, Ok(found), about, guard)?;
        Ok((made, landings).into_pyobject(py)?.into_any().unbind())
    }
}
