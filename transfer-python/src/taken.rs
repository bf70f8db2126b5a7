//! Buffers that a push of several takes, and that come back if it fails.

use crate::buffer::Buffer;
use pyo3::prelude::*;
use transfer_client::{Frozen, TensorMut};

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

/// Gives the buffers back whose memory no other code can reach.
pub(crate) fn put_back(taken: Option<Vec<(Py<Buffer>, Frozen)>>) {
    for (buffer, frozen) in taken.into_iter().flatten() {
        if let Ok(tensor) = frozen.try_into_mut() {
            buffer.get().put_back(tensor);
        }
    }
}
