//! Counters and barriers of the job.

use crate::client::{Client, about_of};
use crate::pending::{Pending, going};
use crate::{errors, options};
use pyo3::prelude::*;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, Counted, Error, Swapped};

/// A counter that exists once in the job, from 0 to 2**64 - 1.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct Counter(transfer_client::Counter<BlockingClient>);

pub(crate) fn open(client: &Client, py: Python<'_>, name: &str, timeout: Duration) -> PyResult<Pending> {
    let about = (name.to_owned(), Instant::now());
    let begun = client.handle(py)?.counter(name).timeout(timeout).begin();
    Ok(Pending::new(going(begun, move |py, result: Result<_, Error>| {
        let counter = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        Ok(Py::new(py, Counter(counter))?.into_any())
    })))
}

#[pymethods]
impl Counter {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The node where it lives.
    #[getter]
    fn home(&self) -> &str {
        self.0.home()
    }

    fn _add(
        &self,
        #[pyo3(from_py_with = options::n)] n: u64,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        self.counted(self.0.add(n), timeout)
    }

    fn _get(&self, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        self.counted(self.0.get(), timeout)
    }

    fn _compare_swap(
        &self,
        #[pyo3(from_py_with = options::expected)] expected: u64,
        #[pyo3(from_py_with = options::new)] new: u64,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let about = (self.0.name().to_owned(), Instant::now());
        let begun = self.0.compare_swap(expected, new).timeout(timeout).begin();
        Ok(Pending::new(going(begun, move |py, result: Result<Swapped, Error>| {
            let swapped = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            let (done, old) = match swapped.result {
                Ok(old) => (true, old),
                Err(old) => (false, old),
            };
            Ok((done, old).into_pyobject(py)?.into_any().unbind())
        })))
    }
}

impl Counter {
    fn counted(
        &self,
        call: transfer_client::Counting<BlockingClient, Counted>,
        timeout: Duration,
    ) -> PyResult<Pending> {
        let about = (self.0.name().to_owned(), Instant::now());
        let begun = call.timeout(timeout).begin();
        Ok(Pending::new(going(begun, move |py, result: Result<Counted, Error>| {
            let counted = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(counted.old.into_pyobject(py)?.into_any().unbind())
        })))
    }
}

/// A barrier that exists once in the job.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct Barrier {
    barrier: transfer_client::Barrier<BlockingClient>,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    members: u32,
}

pub(crate) fn barrier(client: &Client, py: Python<'_>, name: &str, members: u32) -> PyResult<Barrier> {
    let barrier = client.handle(py)?.barrier(name, members);
    Ok(Barrier { barrier, name: name.to_owned(), members })
}

#[pymethods]
impl Barrier {
    fn _wait(&self, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        let about = (self.name.clone(), Instant::now());
        let begun = self.barrier.wait().timeout(timeout).begin();
        Ok(Pending::new(going(begun, move |py, result: Result<transfer_client::Round, Error>| {
            let round = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(Py::new(py, Round { number: round.number, leader: round.leader })?.into_any())
        })))
    }
}

/// A complete round of a barrier.
#[pyclass(frozen, module = "transferd")]
#[derive(Debug)]
pub(crate) struct Round {
    /// The number of the round; 0 is the first.
    #[pyo3(get)]
    number: u64,
    /// Whether this caller was the last to arrive. That is true for exactly one caller of a round.
    #[pyo3(get)]
    leader: bool,
}

#[pymethods]
impl Round {
    fn __repr__(&self) -> String {
        format!("<Round {}{}>", self.number, if self.leader { ", leader" } else { "" })
    }
}
