//! An exchange moves rows of record batches from tasks to partitions. Of several attempts of a task one wins.
//!
//! ```no_run
//! # use transfer_client::Client;
//! # use transfer_exchange::{By, Error, ExchangeExt};
//! # async fn example(client: Client, batch: arrow_array::RecordBatch) -> Result<(), Error> {
//! let exchange = client.exchange("epoch-3").join().await?;
//! let mut task = exchange.task(2, 0).await?;
//! task.write(&batch, By::Random(7)).await?;
//! task.commit().await?;
//! let mut rows = exchange.partition(17);
//! while let Some(batch) = rows.next().await? {
//!     println!("{} rows", batch.num_rows());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`ExchangeExt`] gives the clients of `transfer-client` this call. All others are methods of [`Exchange`], [`ExchangeTask`] and
//! [`Partition`].
//!
//! # How it works
//! An exchange is keys, bundles and counters of the client's public interface: no message of the protocol knows of it.
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
//! A file knows only files above it in this table:
//!
//! | files | contents |
//! |---|---|
//! | `error` | the errors |
//! | `partition`, `block`, `scatter`, `taken` | the partition of each row; what a block is, and how it is read; rows, copied into blocks of their partitions; some rows of a batch |
//! | `order`, `passes` | the rows of a partition in an order of their own; with a bound on the memory |
//! | `names`, `record`, `manifest`, `word`, `free_words` | the keys and counters, and what lies under them |
//! | `calls` | the calls of a client that an exchange makes, and what their failures say |
//! | `bell`, `ledger` | what wakes the keeper; what this process has published |
//! | `attempt`, `threshold`, `state` | what is known of an attempt; when rows are published before the commit; what all handles of an exchange share |
//! | `part`, `merged` | fetching the blocks of a task; of several tasks together |
//! | `written`, `pieces` | what an attempt has written; publishing it before the commit |
//! | `keeper`, `task`, `read` | the end; writing and committing; reading a partition |
//! | `open` | opening, joining and releasing |
#![forbid(unsafe_code)]

mod attempt;
mod bell;
mod block;
#[cfg(test)]
mod block_tests;
mod calls;
mod error;
mod free_words;
mod keeper;
mod ledger;
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
mod state;
mod taken;
mod task;
#[cfg(test)]
mod testing;
mod threshold;
mod word;
mod written;

pub use calls::ExchangeCall;
pub use error::{End, Error, ExchangeError, PartitionError};
pub use open::{Exchange, ExchangeBuilder, ExchangeExt};
pub use partition::{Bounds, By};
pub use read::Partition;
pub use task::{Committed, ExchangeTask};
