//! A process of the benchmark. It takes a task from its standard input, does it, and answers on its standard output,
//! until the input ends.
//!
//! - [`answer`]: the answers to tasks.
//! - [`worker`]: the tasks of a worker, which uses the client.
//! - [`batches`]: a worker's tasks with many tensors at once.
//! - [`columns`]: a worker's tasks with a record batch.
//! - [`bundles`]: a worker's pushes and fetches of a bundle of many tensors.
//! - [`slices`]: a worker's tasks with slices of a matrix.
//! - [`reshard`]: a worker's tasks with a sharded state.
//! - [`shuffle`]: a worker's tasks in an exchange.
//! - [`read`]: a worker's tasks in a stream whose receiver reads every byte.
//! - [`crowd`]: the tasks of a process with several sessions.
//! - `copy`: copies of memory into the arena, and to ordinary memory.
//! - [`bare`]: the baselines, which use no part of this project.
//! - [`pace`]: the moments at which messages are sent.
//! - [`bell`]: one-byte messages between two processes. `word`: a word of memory that both map.

pub mod answer;
pub mod bare;
pub mod batches;
pub mod bell;
pub mod bundles;
pub mod columns;
mod copy;
pub mod crowd;
pub mod pace;
pub mod read;
pub mod reshard;
pub mod shuffle;
pub mod slices;
pub mod states;
mod word;
pub mod worker;

use crate::error::BenchError;
use answer::Answer;
use bare::BareTask;
use crowd::CrowdTask;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use worker::WorkerTask;

/// A task of a process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// A task for a worker.
    Worker(WorkerTask),
    /// A task for a process of a baseline.
    Bare(BareTask),
    /// A task for a process with several sessions.
    Crowd(CrowdTask),
}

impl From<WorkerTask> for Task {
    fn from(task: WorkerTask) -> Task {
        Task::Worker(task)
    }
}

impl From<BareTask> for Task {
    fn from(task: BareTask) -> Task {
        Task::Bare(task)
    }
}

impl From<CrowdTask> for Task {
    fn from(task: CrowdTask) -> Task {
        Task::Crowd(task)
    }
}

/// Does tasks until the input ends.
///
/// # Errors
/// [`BenchError::System`] if the standard streams fail.
pub fn run() -> Result<(), BenchError> {
    let (mut worker, mut bare) = (worker::Worker::default(), bare::Bare::default());
    let mut crowd = crowd::Crowd::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("read a task"))?;
        let done = match serde_json::from_str(&line) {
            Ok(Task::Worker(task)) => worker.perform(task),
            Ok(Task::Bare(task)) => bare.perform(task),
            Ok(Task::Crowd(task)) => crowd.perform(task),
            Err(e) => Err(e.into()),
        };
        let answer = done.unwrap_or_else(|e| Answer::Failed(with_causes(&*e)));
        let mut line = serde_json::to_string(&answer).map_err(BenchError::system("write an answer"))?;
        line.push('\n');
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::system("write an answer"))?;
    }
    Ok(())
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
