//! Errors of partitioning.

use transfer_client::BatchError;

/// The reason why a batch cannot be partitioned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The batch has no such column.
    #[error("there is no column {column:?} to partition by: the columns are {columns}")]
    NoColumn {
        /// The column that was named.
        column: String,
        /// The columns that exist.
        columns: String,
    },
    /// No column was named.
    #[error("no column was named to partition by: name one or more")]
    NoColumns,
    /// The type of a column cannot be used like that.
    #[error("column {column:?} is {data_type}, {expected}")]
    BadKey {
        /// The column.
        column: String,
        /// Its type, as Arrow writes it; that of the inner column if that is what cannot be used.
        data_type: String,
        /// The requirement.
        expected: &'static str,
    },
    /// A row names a partition that does not exist.
    #[error("row {row} of the batch has {value} in column {column:?}: partitions are 0 to {}", partitions - 1)]
    OutOfRange {
        /// The column.
        column: String,
        /// The row of the batch, from 0.
        row: usize,
        /// The value.
        value: i128,
        /// The number of partitions.
        partitions: u32,
    },
    /// A row names no partition.
    #[error("row {row} of the batch has null in column {column:?}, which must name a partition")]
    IsNull {
        /// The column.
        column: String,
        /// The row of the batch, from 0.
        row: usize,
    },
    /// There are too many bounds, or too few.
    #[error("there are {found} bounds for {partitions} partitions: there must be {}", partitions - 1)]
    BoundsCount {
        /// The number of bounds.
        found: usize,
        /// The number of partitions.
        partitions: u32,
    },
    /// The columns of the bounds have other lengths, or there are more or fewer than names.
    #[error(
        "{columns} columns were named, and the bounds have columns of {lengths:?} values: each needs a column, all of one length"
    )]
    BoundsShape {
        /// The number of names.
        columns: usize,
        /// The lengths of the bounds' columns.
        lengths: Vec<usize>,
    },
    /// The bounds are not sorted.
    #[error("bound {at} is less than bound {} before it: bounds must ascend", at - 1)]
    BoundsUnsorted {
        /// The index of the bound that is too small.
        at: usize,
    },
    /// The bounds have another type than the column.
    #[error("column {column:?} is {found}, its bounds are {bounds}: they must have one type")]
    BoundsType {
        /// The column.
        column: String,
        /// Its type, as Arrow writes it.
        found: String,
        /// The type of its bounds.
        bounds: String,
    },
    /// The sample has no rows.
    #[error("a sample without rows has no bounds: give it some")]
    EmptySample,
    /// A batch has too many rows.
    #[error("the batch has {rows} rows: a batch that is partitioned has at most {}", u32::MAX)]
    TooManyRows {
        /// The number of rows.
        rows: usize,
    },
    /// The batch itself is not valid, or not one of its exchange.
    #[error(transparent)]
    Batch(#[from] BatchError),
}
