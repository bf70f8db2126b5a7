//! Weights that are updated in place: versions that are taken back, and two buffers that take turns.

use crate::buffer::Buffer;
use crate::client::{Client, about_of, pushed};
use crate::pending::{Pending, going};
use crate::{dtype, errors, options};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Instant;
use transfer_client::{Blocking, Error, Gate, TensorMut};
use transfer_memory::forked::ForkGuard;

pub(crate) fn gate(gate: Gate<Blocking>, guard: Arc<ForkGuard>, key: &str) -> Pending {
    let about = (key.to_owned(), Instant::now());
    Pending::new(going(gate.begin(), move |py, result: Result<TensorMut, Error>| {
        let tensor = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        Ok(Py::new(py, Buffer::new(tensor, guard))?.into_any())
    }))
}

/// Two buffers of one key that take turns.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct TwoBuffers {
    buffers: Mutex<transfer_client::TwoBuffers<Blocking>>,
    guard: Arc<ForkGuard>,
    #[pyo3(get)]
    key: String,
}

impl TwoBuffers {
    pub(crate) fn new(
        client: &Client,
        py: Python<'_>,
        key: &str,
        shape: &[u64],
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<TwoBuffers> {
        let made = client.handle(py)?.two_buffers(key, dtype::of(dtype)?, shape);
        let about = errors::About { key: Some(key), waited: None };
        let buffers = Mutex::new(made.map_err(|e| errors::raise(py, &e, &about))?);
        Ok(TwoBuffers { buffers, guard: client.guard().clone(), key: key.to_owned() })
    }
}

#[pymethods]
impl TwoBuffers {
    fn _turn(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        if self.guard.is_forked() {
            return Err(errors::forked(py));
        }
        let turn = self.buffers.lock().turn().timeout(options::duration(py, timeout)?);
        Ok(gate(turn, self.guard.clone(), &self.key))
    }

    fn _push(
        &self,
        py: Python<'_>,
        buffer: Bound<'_, Buffer>,
        version: u64,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let timeout = options::duration(py, timeout)?;
        let tensor = buffer.get().take(py, false)?;
        let push = self.buffers.lock().push(tensor, version).timeout(timeout);
        let (about, buffer) = ((self.key.clone(), Instant::now()), buffer.unbind());
        Ok(Pending::new(going(push.begin(), move |py, result| pushed(py, result, &about, 0, Some(&buffer)))))
    }
}
