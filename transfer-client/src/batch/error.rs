//! What can be wrong with a record batch.

use arrow_schema::ArrowError;
use transfer_core::tensor::TensorMeta;

/// What is wrong with a record batch, or with what somebody else says is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// What was fetched as a batch is none.
    #[error("{meta} is no record batch: fetch it with fetch()")]
    NotABatch {
        /// Its description.
        meta: TensorMeta,
    },
    /// What was fetched as a tensor is none.
    #[error(
        "{meta} is no dense tensor: it was pushed as record batches; fetch it with fetch_batch(), fetch_table() or fetch_stream()"
    )]
    NotATensor {
        /// Its description.
        meta: TensorMeta,
    },
    /// What was fetched as one batch is another number of them.
    #[error("there are {found} record batches where one is expected: fetch them with fetch_table()")]
    NotOne {
        /// How many there are.
        found: usize,
    },
    /// Types that nest too deep.
    #[error("field {field:?} nests deeper than {limit} levels")]
    TooDeep {
        /// The field where it is too much.
        field: String,
        /// How deep they may nest.
        limit: usize,
    },
    /// A type that cannot be.
    #[error("field {field:?} has type {data_type}; {expected}")]
    BadType {
        /// The field.
        field: String,
        /// Its type, as Arrow writes it.
        data_type: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A batch of another schema than that of its stream or table.
    #[error("the batch has the schema {found}, its stream or table has {expected}")]
    OtherSchema {
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Metadata that cannot be.
    #[error("{what} of the batches' metadata is {found}, it must be {expected}")]
    Metadata {
        /// What is wrong.
        what: &'static str,
        /// What it is.
        found: i64,
        /// What would be right.
        expected: &'static str,
    },
    /// A buffer that does not lie where the metadata says.
    #[error("{len} bytes at {offset} are no buffer of a body of {body_len} bytes")]
    OutOfBody {
        /// Where it is said to start in the body.
        offset: i64,
        /// How long it is said to be.
        len: i64,
        /// The body.
        body_len: u64,
    },
    /// A buffer that is too short for what it is said to hold.
    #[error("a buffer of {data_type} has {found_bytes} bytes, {needed_bytes} are needed")]
    TooShort {
        /// The type, as Arrow writes it.
        data_type: String,
        /// What it needs.
        needed_bytes: u64,
        /// What it has.
        found_bytes: u64,
    },
    /// The metadata ends where more is needed.
    #[error("the batches' metadata ends where {missing} should follow")]
    Cut {
        /// What.
        missing: &'static str,
    },
    /// What Arrow says is wrong.
    #[error("{what}: {why}")]
    Arrow {
        /// What was being done.
        what: &'static str,
        /// Arrow's words.
        why: String,
    },
    /// A column that was asked for and is not there, or is of another type.
    #[error("column {column:?} is {found}, it was used as {used_as}")]
    WrongColumn {
        /// The column.
        column: String,
        /// What it is.
        found: String,
        /// What it was used as.
        used_as: String,
    },
}

impl BatchError {
    /// Arrow's words, for the caller of `map_err`.
    pub(super) fn arrow(what: &'static str) -> impl Fn(ArrowError) -> BatchError {
        move |e| BatchError::Arrow { what, why: e.to_string() }
    }
}
