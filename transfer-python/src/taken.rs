//! Buffers that a push of several takes, and that come back if it fails.

use crate::buffer::Buffer;
use crate::client::pushed;
use crate::memory::Ours;
use crate::options::PushOptions;
use crate::pending::{Pending, going_push};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Instant;
use transfer_client::{BlockingClient, Frozen, TensorMut};
use transfer_memory::forked::ForkGuard;

/// Takes all of these buffers, or none.
pub(crate) fn take_all(py: Python<'_>, buffers: &[Bound<'_, Buffer>], aliases: bool) -> PyResult<Vec<Frozen>> {
    let mut taken = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        match buffer.get().take(py, aliases) {
            Ok(tensor) => taken.push(tensor),
            Err(e) => {
                buffers.iter().zip(taken).for_each(|(buffer, tensor)| buffer.get().put_back(tensor));
                return Err(e);
            }
        }
    }
    Ok(taken.into_iter().map(TensorMut::freeze).collect())
}

/// Pushes buffers as one version, of which `copied` bytes were copied there before. Either all are taken, or none. A failed push gives
/// them back.
pub(crate) fn push_bundle(
    py: Python<'_>,
    handle: &BlockingClient,
    guard: Arc<ForkGuard>,
    key: &str,
    (names, buffers): (Vec<String>, Vec<Bound<'_, Buffer>>),
    (aliases, copied): (bool, u64),
    options: PushOptions,
) -> PyResult<Pending> {
    let frozen = take_all(py, &buffers, aliases)?;
    let is_long = options.reads_all();
    let push = options.apply(handle.push_bundle(key, names.into_iter().zip(&frozen)));
    let (about, buffers) = ((key.to_owned(), Instant::now()), buffers.into_iter().map(Bound::unbind));
    let mut taken = Ours::new(buffers.zip(frozen).collect::<Vec<_>>(), guard);
    Ok(Pending::new(going_push(push.begin(), is_long, move |py, result| {
        if result.is_err() {
            put_back(taken.take());
        }
        pushed(py, result, &about, copied, None)
    })))
}

/// Gives the buffers back whose memory no other code can reach.
pub(crate) fn put_back(taken: Option<Vec<(Py<Buffer>, Frozen)>>) {
    for (buffer, frozen) in taken.into_iter().flatten() {
        if let Ok(tensor) = frozen.try_into_mut() {
            buffer.get().put_back(tensor);
        }
    }
}
