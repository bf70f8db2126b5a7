//! Errors of record batches.

use arrow_schema::ArrowError;
use std::time::Duration;
use transfer_core::tensor::TensorMeta;

/// An error of a record batch, or of data that claims to be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The fetched version is not a record batch.
    #[error("{meta} is no record batch: fetch it with fetch(), or with fetch_bundle() if it is a bundle")]
    NotABatch {
        /// The description of the version.
        meta: TensorMeta,
    },
    /// The fetched version is not a dense tensor.
    #[error(
        "{meta} is no dense tensor: it was pushed as record batches or as a bundle; fetch it with fetch_batch(), fetch_table(), \
         fetch_stream() or fetch_bundle()"
    )]
    NotATensor {
        /// The description of the version.
        meta: TensorMeta,
    },
    /// The fetched version has more or less than one batch.
    #[error("there are {found} record batches where one is expected: fetch them with fetch_table()")]
    NotOne {
        /// The number of batches.
        found: usize,
    },
    /// Types are nested too deeply.
    #[error("field {field:?} nests deeper than {limit} levels")]
    TooDeep {
        /// The field that exceeds the limit.
        field: String,
        /// The greatest depth.
        limit: usize,
    },
    /// A type is not valid.
    #[error("field {field:?} has type {data_type}; {expected}")]
    BadType {
        /// The field.
        field: String,
        /// Its type, as Arrow writes it.
        data_type: String,
        /// The requirement.
        expected: &'static str,
    },
    /// The batch has another schema than its stream or table.
    #[error("the batch has the schema {found}, its stream or table has {expected}")]
    OtherSchema {
        /// The expected schema.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// The metadata is not valid.
    #[error("{what} of the batches' metadata is {found}, it must be {expected}")]
    Metadata {
        /// The wrong part.
        what: &'static str,
        /// The actual value.
        found: i64,
        /// The requirement.
        expected: &'static str,
    },
    /// A buffer lies outside of the body.
    #[error("{len} bytes at {offset} are no buffer of a body of {body_len} bytes")]
    OutOfBody {
        /// Its announced offset in the body.
        offset: i64,
        /// Its announced length.
        len: i64,
        /// The length of the body.
        body_len: u64,
    },
    /// A buffer is too short for its type and length.
    #[error("a buffer of {data_type} has {found_bytes} bytes, {needed_bytes} are needed")]
    TooShort {
        /// The type, as Arrow writes it.
        data_type: String,
        /// The needed length.
        needed_bytes: u64,
        /// The actual length.
        found_bytes: u64,
    },
    /// The metadata is incomplete.
    #[error("the batches' metadata ends where {missing} should follow")]
    Cut {
        /// The missing part.
        missing: &'static str,
    },
    /// A stream has ended, and its readers have not fetched all of it in time. It can be finished again.
    #[error(
        "stream {key:?} has ended, and {unread} of its {batches} batches, or its end, were not fetched by all its readers within {waited:?}"
    )]
    NotRead {
        /// The key of the stream.
        key: String,
        /// The number of batches that a reader has not fetched.
        unread: u64,
        /// The number of its batches.
        batches: u64,
        /// The time that the readers had.
        waited: Duration,
    },
    /// A batch was pushed to a stream that has ended.
    #[error("stream {key:?} has ended with {batches} batches, and takes no more: begin another one, under another key")]
    Ended {
        /// The key of the stream.
        key: String,
        /// The number of its batches.
        batches: u64,
    },
    /// An error of Arrow.
    #[error("{what}: {why}")]
    Arrow {
        /// The operation.
        what: &'static str,
        /// Arrow's error text.
        why: String,
    },
    /// A column is missing, or has another type.
    #[error("column {column:?} is {found}, it was used as {used_as}")]
    WrongColumn {
        /// The column.
        column: String,
        /// The actual value.
        found: String,
        /// The type as which it was used.
        used_as: String,
    },
}

impl BatchError {
    /// Converts Arrow's error, for `map_err`. `what` failed.
    pub fn arrow(what: &'static str) -> impl Fn(ArrowError) -> BatchError {
        move |e| BatchError::Arrow { what, why: e.to_string() }
    }
}
