//! Exchanges of record batches.

use crate::client::{Client, about_of};
use crate::pending::{Pending, going};
use crate::table::{Rows, Table};
use crate::{errors, options};
use arrow_array::RecordBatch;
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use transfer_client::BlockingClient;
use transfer_exchange::{Bounds, By, Error, ExchangeBuilder, ExchangeExt};

/// An exchange of record batches between workers.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct Exchange(transfer_exchange::Exchange<BlockingClient>);

pub(crate) fn open(
    client: &Client,
    py: Python<'_>,
    name: &str,
    (partitions, tasks): (u32, u32),
    deadline: Option<Duration>,
    timeout: Duration,
) -> PyResult<Pending> {
    let mut builder = client.handle(py)?.exchange(name).partitions(partitions).tasks(tasks);
    if let Some(deadline) = deadline {
        builder = builder.deadline(deadline);
    }
    made(name, builder, ExchangeBuilder::open, timeout)
}

pub(crate) fn join(client: &Client, py: Python<'_>, name: &str, timeout: Duration) -> PyResult<Pending> {
    made(name, client.handle(py)?.exchange(name), ExchangeBuilder::join, timeout)
}

type Call<T> = transfer_exchange::ExchangeCall<BlockingClient, T>;

fn made(
    name: &str,
    builder: ExchangeBuilder<BlockingClient>,
    make: fn(ExchangeBuilder<BlockingClient>) -> Call<transfer_exchange::Exchange<BlockingClient>>,
    timeout: Duration,
) -> PyResult<Pending> {
    begun(name, make(builder), timeout, |py, exchange| Ok(Py::new(py, Exchange(exchange))?.into_any()))
}

/// Begins a call.
fn begun<T: Send + 'static>(
    name: &str,
    call: Call<T>,
    timeout: Duration,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Pending> {
    let about = (name.to_owned(), Instant::now());
    let begun = call.timeout(timeout).begin();
    Ok(Pending::new(going(begun, move |py, result: Result<T, Error>| {
        finish(py, result.map_err(|e| errors::raise_exchange(py, &e, &about_of(&about)))?)
    })))
}

/// A seed, the position of the first row, the rows of a batch, and the bytes of memory.
type Order<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, u64);

#[pymethods]
impl Exchange {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The number of partitions.
    #[getter]
    fn partitions(&self) -> u32 {
        self.0.partitions()
    }

    /// The number of tasks.
    #[getter]
    fn tasks(&self) -> u32 {
        self.0.tasks()
    }

    fn _task(
        &self,
        #[pyo3(from_py_with = options::task)] task: u32,
        #[pyo3(from_py_with = options::attempt)] attempt: u32,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let name = self.0.name().to_owned();
        begun(self.0.name(), self.0.task(task, attempt), timeout, move |py, writer| {
            Ok(Py::new(py, ExchangeTask { task, attempt, name, writer: Mutex::new(Some(writer)) })?.into_any())
        })
    }

    fn _partition(
        &self,
        #[pyo3(from_py_with = options::partition)] partition: u32,
        order: Option<Order<'_>>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<ExchangeReader> {
        let mut reader = self.0.partition(partition).timeout(timeout);
        if let Some((seed, position, rows_per_batch, memory)) = order {
            let (seed, position) = (options::order(&seed)?, options::position(&position)?);
            let rows = NonZeroUsize::new(options::rows_per_batch(&rows_per_batch)?).unwrap_or(NonZeroUsize::MIN);
            reader = reader.in_order_of(seed).rows_per_batch(rows).from_position(position).memory(memory);
        }
        Ok(ExchangeReader {
            partition,
            name: self.0.name().to_owned(),
            reader: std::sync::Arc::new(Mutex::new(reader)),
        })
    }

    fn _release(&self, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        begun(self.0.name(), self.0.release(), timeout, |py, ()| Ok(py.None()))
    }
}

/// One attempt of a task.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct ExchangeTask {
    #[pyo3(get)]
    task: u32,
    #[pyo3(get)]
    attempt: u32,
    name: String,
    /// `None` once it has committed or was dropped.
    writer: Mutex<Option<transfer_exchange::ExchangeTask<BlockingClient>>>,
}

/// What chooses the partition of a row.
#[derive(FromPyObject)]
enum Partitioning {
    #[pyo3(transparent)]
    Columns(Vec<String>),
    #[pyo3(transparent)]
    Seed(u64),
}

fn ended(py: Python<'_>) -> PyErr {
    errors::own(py, "closed", "this attempt has been committed or dropped")
}

#[pymethods]
impl ExchangeTask {
    /// The number of rows that were written.
    #[getter]
    fn rows(&self) -> u64 {
        self.writer.lock().as_ref().map_or(0, transfer_exchange::ExchangeTask::rows)
    }

    /// Begins to write a batch of `rows`. None if it has no such batch. `how` is one of "hash", "column", "random", "range"
    /// and "round_robin", with columns or a seed, and with bounds.
    fn _write(
        &self,
        py: Python<'_>,
        rows: &Rows,
        batch: usize,
        how: (String, Option<Partitioning>, Option<Py<Rows>>),
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Option<Pending>> {
        let (how, by, bounds) = how;
        let Some(batch) = rows.batches().get(batch) else { return Ok(None) };
        let columns: Vec<&str> = match &by {
            Some(Partitioning::Columns(columns)) => columns.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let bounds = bounds.map(|bounds| bounds_of(py, bounds.get())).transpose()?;
        let by = match (how.as_str(), &by, &bounds) {
            ("hash", ..) => By::Hash(&columns),
            ("column", ..) if columns.len() == 1 => By::Column(columns[0]),
            ("random", Some(Partitioning::Seed(seed)), _) => By::Random(*seed),
            ("range", _, Some(bounds)) => By::Range(bounds),
            ("round_robin", ..) => By::RoundRobin,
            _ => return Err(errors::invalid(py, &format!("rows cannot be partitioned by {how:?} like this"))),
        };
        // The call chooses the partition of each row, which takes a while: other threads of Python run meanwhile.
        let call = py.detach(|| self.writer.lock().as_mut().map(|writer| writer.write(batch, by)));
        begun(&self.name, call.ok_or_else(|| ended(py))?, timeout, |py, ()| Ok(py.None())).map(Some)
    }

    fn _commit(&self, py: Python<'_>, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        let writer = self.writer.lock().take().ok_or_else(|| ended(py))?;
        begun(&self.name, writer.commit(), timeout, |py, committed| {
            Ok(committed.rows.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Drops what was written.
    fn drop(&self) {
        drop(self.writer.lock().take());
    }
}

/// Bounds of a table: its columns are those that rows are compared by.
fn bounds_of(py: Python<'_>, rows: &Rows) -> PyResult<Bounds> {
    let batch = match rows.batches() {
        [batch] => batch.clone(),
        _ => return Err(errors::invalid(py, "bounds are one record batch: one row for each bound")),
    };
    let names = batch.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    Bounds::new(names, batch.columns().to_vec()).map_err(|e| errors::invalid(py, &e.to_string()))
}

/// The reader of a partition.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct ExchangeReader {
    #[pyo3(get)]
    partition: u32,
    name: String,
    reader: std::sync::Arc<Mutex<transfer_exchange::Partition<BlockingClient>>>,
}

#[pymethods]
impl ExchangeReader {
    /// The number of rows that were read, if they have an order.
    #[getter]
    fn position(&self) -> u64 {
        self.reader.lock().position()
    }

    /// Begins to read the next batch. The result is None at the end.
    fn _next(&self) -> Pending {
        let (reader, about) = (self.reader.clone(), (self.name.clone(), Instant::now()));
        let begun = self.reader.lock().begin();
        Pending::new(going(begun, move |py, next: Result<Option<RecordBatch>, Error>| {
            let next = next.map_err(|e| errors::raise_exchange(py, &e, &about_of(&about)))?;
            match next.zip(reader.lock().report()) {
                Some((batch, report)) => Ok(Py::new(py, Table::of_rows(batch, report))?.into_any()),
                None => Ok(py.None()),
            }
        }))
    }
}
