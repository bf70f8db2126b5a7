//! An exchange moves rows of record batches from tasks to partitions.
//!
//! # Layout
//! - `partition`: the partition of each row. `scatter`: rows, copied into blocks of their partitions. `block`: what a
//!   block is, and how it is read. `order`: the rows of a partition in an order of their own.

#[allow(dead_code, reason = "used by the tasks of an exchange")]
mod block;
#[allow(dead_code, reason = "used by the tasks of an exchange")]
mod order;
mod partition;
#[allow(dead_code, reason = "used by the tasks of an exchange")]
mod scatter;
#[cfg(test)]
mod testing;

pub use partition::{Bounds, By, PartitionError};
