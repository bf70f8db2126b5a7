//! The job: the computation of a worker and of the parameter server, and the order of their steps. It does not depend
//! on the exchange between them.
//!
//! Synchronous data-parallel SGD. Version 0 of the weights is the initialisation. In step v every worker computes the
//! gradient at version v over a batch of its own shard, and the server makes version v + 1 from their average:
//!
//! ```text
//!   worker 0   weights v ──► gradient over a batch of shard 0 ──┐
//!                                                               ├──► server: average, momentum, update ──► weights v + 1
//!   worker 1   weights v ──► gradient over a batch of shard 1 ──┘
//! ```
//!
//! Three programs use these two halves: the reference in one process, the job over gRPC messages, and the job over
//! transfer.

use crate::dataset::{Dataset, Example};
use crate::error::Error;
use crate::model::{self, Score};
use crate::random::Random;

/// The number of workers. Their gradients are averaged in the order of their ranks, whichever arrives first.
pub const WORKERS: usize = 2;
/// The number of examples in a worker's batch.
pub const BATCH: usize = 32;
/// The step size in the first step. It falls linearly towards 0 in the last, which settles the noise of small batches.
pub const LEARNING_RATE: f32 = 0.2;
/// The share of the last movement that stays in the next one.
pub const MOMENTUM: f32 = 0.9;
/// The accuracy on held-out digits that the job has to reach.
pub const ACCURACY_GOAL: f32 = 0.97;

/// The parameters of a job, which all its processes must share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Job {
    /// Steps to train; the final weights have this version.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// The seed of the split, the first weights and every batch.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Job {
    /// The job as command-line flags of a role.
    #[must_use]
    pub fn flags(&self) -> String {
        format!("--steps {} --seed {}", self.steps, self.seed)
    }

    /// Whether the server evaluates `version` on the held-out digits: some 25 versions of a job, the last one included.
    #[must_use]
    pub fn is_milestone(&self, version: u64) -> bool {
        version == self.steps || version.is_multiple_of(self.steps.div_ceil(25))
    }
}

/// The half of a worker, with its share of the examples.
#[derive(Debug)]
pub struct Worker {
    job: Job,
    rank: usize,
    shard: Vec<Example>,
}

impl Worker {
    /// Makes the worker of this `rank`, which is less than [`WORKERS`].
    ///
    /// # Errors
    /// [`Error::Data`] and [`Error::Io`] if the data set is damaged.
    pub fn new(job: Job, rank: usize) -> Result<Worker, Error> {
        Ok(Worker { job, rank, shard: Dataset::load(job.seed)?.shard(rank, WORKERS) })
    }

    /// Writes the gradient at `weights`, which have version `step`, to `gradient`.
    pub fn gradient(&self, step: u64, weights: &[f32], gradient: &mut [f32]) {
        // The batch follows from rank and step alone. A worker has no state, so one that is restarted in step 500
        // continues unchanged.
        let mut random = Random::for_purpose(self.job.seed, &[2, self.rank as u64, step]);
        let batch: [Example; BATCH] =
            std::array::from_fn(|_| self.shard[random.below(self.shard.len())].nudged(&mut random));
        model::gradient(weights, &batch, gradient);
    }
}

/// The half of the parameter server: the current weights, and their last movement.
#[derive(Debug)]
pub struct Server {
    job: Job,
    version: u64,
    weights: Vec<f32>,
    velocity: Vec<f32>,
    test: Vec<Example>,
}

impl Server {
    /// Makes a server at version 0.
    ///
    /// # Errors
    /// [`Error::Data`] and [`Error::Io`] if the data set is damaged.
    pub fn new(job: Job) -> Result<Server, Error> {
        let velocity = vec![0.0; model::PARAMETERS];
        let test = Dataset::load(job.seed)?.test;
        Ok(Server { job, version: 0, weights: model::initial_weights(job.seed), velocity, test })
    }

    /// Makes the next version from the workers' gradients at the current one, in the order of their ranks.
    pub fn update(&mut self, gradients: [&[f32]; WORKERS]) {
        let remaining = 1.0 - self.version as f32 / self.job.steps as f32;
        let rate = LEARNING_RATE * remaining;
        let [first, second] = gradients;
        for (index, weight) in self.weights.iter_mut().enumerate() {
            let average = (first[index] + second[index]) * 0.5;
            self.velocity[index] = MOMENTUM * self.velocity[index] + average;
            *weight -= rate * self.velocity[index];
        }
        self.version += 1;
    }

    /// The number of updates so far.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The weights of the current version.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The score of the current weights on the held-out digits.
    #[must_use]
    pub fn score(&self) -> Score {
        model::evaluate(&self.weights, &self.test)
    }
}

/// The bits of all weights, for a comparison without rounding, in which NaN equals itself.
#[must_use]
pub fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}
