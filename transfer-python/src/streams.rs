//! Streams of record batches.

use crate::client::{about_of, pushed};
use crate::pending::{Pending, going};
use crate::table::{Rows, Table};
use crate::{errors, options};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::{BatchStream, BatchStreamReader, Blocking, Error, Pushed};

/// The writing end of a stream of batches.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct StreamWriter {
    /// `None` once it has ended.
    stream: Mutex<Option<BatchStream<Blocking>>>,
    #[pyo3(get)]
    key: String,
}

impl StreamWriter {
    pub(crate) fn new(stream: BatchStream<Blocking>, key: &str) -> StreamWriter {
        StreamWriter { stream: Mutex::new(Some(stream)), key: key.to_owned() }
    }
}

fn ended(py: Python<'_>) -> PyErr {
    errors::own(py, "closed", "the stream has ended")
}

#[pymethods]
impl StreamWriter {
    fn _push(&self, py: Python<'_>, rows: &Rows) -> PyResult<Vec<Pending>> {
        let mut stream = self.stream.lock();
        let stream = stream.as_mut().ok_or_else(|| ended(py))?;
        let pushes = rows.batches().iter().map(|batch| {
            let (push, about) = (stream.push(batch), (self.key.clone(), Instant::now()));
            Pending::new(going(push.begin(), move |py, result| pushed(py, result, &about, 0, None)))
        });
        Ok(pushes.collect())
    }

    fn _finish(&self, py: Python<'_>, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        let stream = self.stream.lock().take().ok_or_else(|| ended(py))?;
        let (finish, about) = (stream.finish().timeout(timeout), (self.key.clone(), Instant::now()));
        Ok(Pending::new(going(finish.begin(), move |py, result: Result<Pushed, Error>| {
            result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(py.None())
        })))
    }
}

/// The reading end of a stream of batches.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct StreamReader {
    reader: Arc<Mutex<BatchStreamReader<Blocking>>>,
    #[pyo3(get)]
    key: String,
}

impl StreamReader {
    pub(crate) fn new(reader: BatchStreamReader<Blocking>, key: &str) -> StreamReader {
        StreamReader { reader: Arc::new(Mutex::new(reader)), key: key.to_owned() }
    }
}

#[pymethods]
impl StreamReader {
    /// Begins to fetch the next batch. None if the end has been read. The call that reads the end has the result None.
    fn _next(&self) -> Option<Pending> {
        if self.reader.lock().has_ended() {
            return None;
        }
        let (reader, about) = (self.reader.clone(), (self.key.clone(), Instant::now()));
        let begun = self.reader.lock().begin();
        Some(Pending::new(going(begun, move |py, raw| {
            let taken = raw.and_then(|raw| reader.lock().take(raw));
            match taken.map_err(|e| errors::raise(py, &e, &about_of(&about)))? {
                Some(batch) => Ok(Py::new(py, Table::of_batch(batch))?.into_any()),
                None => Ok(py.None()),
            }
        })))
    }
}
