//! An exchange moves rows of record batches from tasks to partitions.
//!
//! It is a library on keys, bundles and counters: no message of the protocol knows of it.
//! - **Its opener** draws a random identity, makes one counter word for each task, and publishes a record that names
//!   them, and an anchor, with which all else stays. Who joins fetches the record. All other names contain the identity,
//!   so that the next exchange of the same name has nothing in common with this one.
//! - **A task** copies each row once, into blocks of its partition that lie in the arena. Nobody sees them before the
//!   commit.
//! - **A commit** publishes the blocks as bundles under keys of the attempt, and then swaps the task's word from `open` to
//!   the number of the attempt. The swap decides: who finds another attempt there deletes its bundles. A small note under
//!   a key of the task then wakes the readers.
//! - **A reader** waits for the notes, and looks at the words now and then. Of each task's bundles it fetches the blocks of
//!   its partition, which are one range: from another node those of many tasks by one request. If nobody publishes what a word says was committed, the task is lost.
//! - **A mark** of the attempt that has won keeps its bundles when its worker dies. Without a mark they end with the worker.
//!   It says how many rows the task has written, and how long they are, for the operators of its sidecar.
//! - **A keeper**, one thread for each exchange in a process, deletes what the process has published when the exchange is
//!   over.
//!
//! # Layout
//! - `partition`: the partition of each row. `scatter`: rows, copied into blocks of their partitions. `block`: what a
//!   block is, and how it is read. `order`: the rows of a partition in an order of their own;
//!   `passes`: with a bound on the memory. `taken`: some rows of a batch.
//! - `open`: opening and joining. `task`: writing and committing. `pieces`: publishing rows before the commit. `read`: a
//!   partition. `keeper`: the end.
//! - `names`, `record`, `manifest`, `word`: the keys, and what lies under them. `part`: fetching it; `merged`: of several
//!   tasks together. `shared`: what all
//!   handles of an exchange share.

mod block;
#[cfg(test)]
mod block_tests;
mod keeper;
mod manifest;
mod merged;
mod names;
mod open;
mod order;
#[cfg(test)]
mod order_tests;
mod part;
mod partition;
mod passes;
#[cfg(test)]
mod passes_tests;
mod pieces;
mod read;
mod record;
mod scatter;
mod shared;
mod taken;
mod task;
#[cfg(test)]
mod testing;
mod word;

pub use crate::request::FlowCall as ExchangeCall;
pub use open::{Exchange, ExchangeBuilder};
pub use partition::{Bounds, By};
pub use read::Partition;
pub use task::{Committed, ExchangeTask};

use crate::error::{End, ExchangeError};
use block::BlockReader;
