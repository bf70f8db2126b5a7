//! The tutorial of this repository: a small network learns to read handwritten digits, on two workers and a parameter server.
//!
//! Every step of the training moves tensors between processes: the workers get the newest weights and hand in their gradients. The same
//! job runs with different ways to do that, and its arithmetic is written so that **every way must end with the same weights, bit for
//! bit**: a byte that an exchange loses, repeats or mixes up between two versions shows in the result.
//!
//! Run it with `cargo run --release -p digits -- demo`.
//!
//! # Layout
//!
//! What the job is, without any process or network:
//!
//! - [`dataset`]: 1,797 real digits; unpacking, splitting, and the shard of each worker.
//! - [`model`]: the network, 64-128-10, and its gradient.
//! - [`training`]: **start here**. What a worker computes, what the parameter server computes, and in which order.
//! - [`random`]: the numbers behind splits, batches and first weights.
//! - [`mod@reference`]: the job in one process; the distributed runs are held against it.
//!
//! How weights and gradients travel:
//!
//! - [`worker`], [`ps`]: **then here**. Over transfer: a worker, and the parameter server.
//! - [`bulk`]: large tensors over transfer, from a producer to readers on two nodes.
//! - [`grpc`]: plain gRPC messages; the baseline for time.
//!
//! What makes a show of it:
//!
//! - [`demo`]: who is on the stage, act by act. [`nodes`] starts the two sidecars, [`run`] follows one training
//!   run, [`progress`] is its bar.
//! - [`event`]: what a process tells, line by line, and the clock of a training run. [`tally`] sums up its transfers.
//! - [`stage`]: the processes themselves, and how none of them stays behind; [`tied`] is its last resort.
//! - [`signals`]: how a process is told to end.
//! - [`report`]: the tables at the end.
//! - [`error`]: everything that can go wrong.

#![forbid(unsafe_code)]

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
