//! Streams of record batches.

use crate::client::{about_of, pushed};
use crate::pending::{Pending, going};
use crate::table::{Rows, Table};
use crate::{errors, options};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::{BatchStream, BatchStreamReader, BlockingClient, Error, Pushed};

/// The writing end of a stream of batches.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct StreamWriter {
    stream: Mutex<BatchStream<BlockingClient>>,
    #[pyo3(get)]
    key: String,
}

impl StreamWriter {
    pub(crate) fn new(stream: BatchStream<BlockingClient>, key: &str) -> StreamWriter {
        StreamWriter { stream: Mutex::new(stream), key: key.to_owned() }
    }
}

#[pymethods]
impl StreamWriter {
    fn _push(&self, rows: &Rows) -> Vec<Pending> {
        let mut stream = self.stream.lock();
        let pushes = rows.batches().iter().map(|batch| {
            let (push, about) = (stream.push(batch), (self.key.clone(), Instant::now()));
            Pending::new(going(push.begin(), move |py, result| pushed(py, result, &about, 0, None)))
        });
        pushes.collect()
    }

    fn _finish(&self, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> Pending {
        let finish = self.stream.lock().finish().timeout(timeout);
        let about = (self.key.clone(), Instant::now());
        Pending::new(going(finish.begin(), move |py, result: Result<Pushed, Error>| {
            result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(py.None())
        }))
    }

    /// The number of batches that a reader has not fetched, as the sidecar has said last; None before a call of `_finish` has heard it.
    #[getter]
    fn unread(&self) -> Option<u64> {
        self.stream.lock().unread()
    }
}

/// The reading end of a stream of batches.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct StreamReader {
    reader: Arc<Mutex<BatchStreamReader<BlockingClient>>>,
    #[pyo3(get)]
    key: String,
}

impl StreamReader {
    pub(crate) fn new(reader: BatchStreamReader<BlockingClient>, key: &str) -> StreamReader {
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
