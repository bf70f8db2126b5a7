//! The tutorial of this repository: a small network learns to read handwritten digits, on two workers and a parameter
//! server.
//!
//! Every step of the training moves tensors between processes: the workers get the newest weights and hand in their
//! gradients. The same job runs with different exchanges, and its arithmetic is written so that **every exchange must
//! end with the same weights, bit for bit**: a byte that an exchange loses, repeats or mixes up between two versions
//! changes the result.
//!
//! Run it with `cargo run --release -p digits -- demo`.
//!
//! # Layout
//!
//! The job, without any process or network:
//!
//! - [`dataset`]: 1,797 real digits; unpacking, splitting, and the shard of each worker.
//! - [`model`]: the network, 64-128-10, and its gradient.
//! - [`training`]: **start here**. The computation of a worker, that of the parameter server, and their order.
//! - [`random`]: the random numbers of splits, batches and first weights.
//! - [`mod@reference`]: the job in one process; the distributed runs are compared with it.
//!
//! The exchange of weights and gradients:
//!
//! - [`worker`], [`ps`]: **then here**. A worker and the parameter server over transfer.
//! - [`bulk`]: large tensors over transfer, from a producer to readers on two nodes.
//! - [`grpc`]: plain gRPC messages; the baseline for time.
//!
//! The demo:
//!
//! - [`demo`]: the parts of the demo. [`nodes`] starts the two sidecars, [`run`] follows one training run, [`progress`]
//!   is its bar.
//! - [`event`]: the lines that a process writes, and the clock of a training run. [`tally`] sums up its transfers.
//! - [`stage`]: the processes, which all end with the demo; [`tied`] ensures that even after SIGKILL.
//! - [`signals`]: the signals that end a process.
//! - [`report`]: the tables at the end.
//! - [`error`]: the errors.

#![forbid(unsafe_code)]
// They panic where their output cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod bulk;
pub mod dataset;
pub mod demo;
pub mod error;
pub mod event;
pub mod grpc;
pub mod model;
pub mod nodes;
pub mod progress;
pub mod ps;
pub mod random;
pub mod reference;
pub mod report;
pub mod run;
pub mod signals;
pub mod stage;
pub mod tally;
pub mod tied;
pub mod training;
pub mod worker;
