//! Record batches, as Arrow's C structs (the PyCapsule interface).

#![expect(unsafe_code, reason = "the capsules hold structs of C")]

use crate::errors;
use crate::metadata::{self, NotText};
use crate::report::Report;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ptr::NonNull;
use std::sync::Arc;
use transfer_client::{FetchedBatch, FetchedTable};

fn refused(py: Python<'_>, error: &ArrowError) -> PyErr {
    errors::invalid(py, &format!("not a table of Arrow: {error}"))
}

/// Why a stream cannot be read.
enum Unreadable {
    NotText(NotText),
    Arrow(ArrowError),
}

impl Unreadable {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Unreadable::NotText(why) => errors::invalid(py, &why.to_string()),
            Unreadable::Arrow(why) => refused(py, why),
        }
    }
}

/// Reads a schema whose names and metadata are text.
fn schema_of(schema: &FFI_ArrowSchema) -> Result<Schema, Unreadable> {
    metadata::check(schema).map_err(Unreadable::NotText)?;
    Schema::try_from(schema).map_err(Unreadable::Arrow)
}

/// Reads all batches of a stream.
fn read(mut stream: FFI_ArrowArrayStream) -> Result<(SchemaRef, Vec<RecordBatch>), Unreadable> {
    if let Some(get_schema) = stream.get_schema() {
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream lives, and the schema is the place for its answer. A schema may be asked for several times.
        let failed = unsafe { get_schema(&raw mut stream, &raw mut schema) };
        // The reader says why it has failed.
        if failed == 0 {
            metadata::check(&schema).map_err(Unreadable::NotText)?;
        }
    }
    let reader = RecordBatchStreamReader::try_new(stream).map_err(Unreadable::Arrow)?;
    Ok((reader.schema(), reader.collect::<Result<Vec<_>, _>>().map_err(Unreadable::Arrow)?))
}

/// Takes the struct out of a capsule. The capsule then contains a released struct.
fn take<T>(capsule: &Bound<'_, PyAny>, name: &std::ffi::CStr, take: impl FnOnce(NonNull<T>) -> T) -> PyResult<T> {
    Ok(take(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.cast()))
}

/// Record batches of one schema, taken from any object with Arrow's capsules.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Rows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Rows {
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }
}

#[pymethods]
impl Rows {
    /// The rows of `value`. A schema has no rows.
    #[new]
    fn new(value: &Bound<'_, PyAny>) -> PyResult<Rows> {
        let py = value.py();
        if value.hasattr("__arrow_c_array__")? {
            let made = value.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
            // SAFETY: capsules of these names point to such structs, and the caller may move out of them.
            let (schema, array) = unsafe {
                let schema: FFI_ArrowSchema =
                    take(&made.get_item(0)?, c"arrow_schema", |p| FFI_ArrowSchema::from_raw(p.as_ptr()))?;
                let array: FFI_ArrowArray =
                    take(&made.get_item(1)?, c"arrow_array", |p| FFI_ArrowArray::from_raw(p.as_ptr()))?;
                (schema, array)
            };
            let fields = schema_of(&schema).map_err(|e| e.raise(py))?;
            // SAFETY: the producer guarantees that the array has that schema.
            let mut data = unsafe { from_ffi(array, &schema) }.map_err(|e| refused(py, &e))?;
            data.align_buffers();
            let batch = RecordBatch::from(StructArray::from(data));
            let batch = batch.with_schema(Arc::new(fields)).map_err(|e| refused(py, &e))?;
            return Ok(Rows { schema: batch.schema(), batches: vec![batch] });
        }
        if value.hasattr("__arrow_c_stream__")? {
            let made = value.call_method0("__arrow_c_stream__")?;
            // SAFETY: as above.
            let stream: FFI_ArrowArrayStream =
                unsafe { take(&made, c"arrow_array_stream", |p| FFI_ArrowArrayStream::from_raw(p.as_ptr()))? };
            // A stream that reads from a Python object takes the interpreter's lock by itself.
            let (schema, batches) = py.detach(|| read(stream)).map_err(|e| e.raise(py))?;
            return Ok(Rows { schema, batches });
        }
        if value.hasattr("__arrow_c_schema__")? {
            let made = value.call_method0("__arrow_c_schema__")?;
            // SAFETY: as above.
            let schema: FFI_ArrowSchema =
                unsafe { take(&made, c"arrow_schema", |p| FFI_ArrowSchema::from_raw(p.as_ptr()))? };
            let schema = schema_of(&schema).map_err(|e| e.raise(py))?;
            return Ok(Rows { schema: Arc::new(schema), batches: Vec::new() });
        }
        let text = format!("a {} is no table: what has Arrow's capsules is", value.get_type().name()?);
        Err(pyo3::exceptions::PyTypeError::new_err(text))
    }
}

/// Fetched record batches. Any library that accepts Arrow's capsules accepts it: `pyarrow.table(t)`,
/// `polars.DataFrame(t)`.
///
/// Tables made from it share its memory, and keep it.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    #[pyo3(get)]
    version: u64,
    report: transfer_client::Report,
}

impl Table {
    pub(crate) fn new(table: FetchedTable) -> Table {
        let (version, report, schema) = (table.version(), *table.report(), table.schema().clone());
        Table { schema, batches: table.into_batches(), version, report }
    }

    pub(crate) fn of_batch(batch: FetchedBatch) -> Table {
        let (version, report) = (batch.version(), *batch.report());
        let batch = batch.into_batch();
        Table { schema: batch.schema(), batches: vec![batch], version, report }
    }
}

impl Table {
    /// Rows of an exchange, and the report of the fetch that brought the last of them.
    pub(crate) fn of_rows(batch: RecordBatch, report: transfer_client::Report) -> Table {
        // What a task has committed is the only version of its key.
        Table { schema: batch.schema(), batches: vec![batch], version: 1, report }
    }
}

#[pymethods]
impl Table {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The report of the fetch.
    #[getter]
    fn report(&self) -> Report {
        Report::new(self.report)
    }

    /// A pyarrow table that shares the memory.
    fn pyarrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pyarrow")?.call_method1("table", (slf,))
    }

    /// The schema, as an Arrow capsule.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref()).map_err(|e| refused(py, &e))?;
        Ok(PyCapsule::new_with_value(py, schema, c"arrow_schema")?.into_any())
    }

    /// The batches, as an Arrow capsule. Their schema cannot be changed, which the interface allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        drop(requested_schema);
        let batches: Vec<_> = self.batches.iter().cloned().map(Ok).collect();
        let reader = RecordBatchIterator::new(batches, self.schema.clone());
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        Ok(PyCapsule::new_with_value(py, stream, c"arrow_array_stream")?.into_any())
    }

    /// What never changes is its own copy.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        let what = format!("the table of version {}", self.version);
        Err(errors::no_pickle(py, &what, "pass its key and version and fetch it there, or pass a copy, t.pyarrow()"))
    }

    fn __repr__(&self) -> String {
        format!("<Table of {} rows, version {}>", self.num_rows(), self.version)
    }
}
