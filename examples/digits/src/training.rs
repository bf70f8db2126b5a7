//! The job: what a worker computes, what the parameter server computes, and in which order. Nothing here knows how the two talk.
//!
//! Synchronous data-parallel SGD. Version 0 of the weights is the initialisation; in step v every worker computes the gradient at
//! version v over a batch of its own shard, and the server makes version v + 1 out of their average:
//!
//! ```text
//!   worker 0   weights v ──► gradient over a batch of shard 0 ──┐
//!                                                               ├──► server: average, momentum, update ──► weights v + 1
//!   worker 1   weights v ──► gradient over a batch of shard 1 ──┘
//! ```
//!
//! Three programs are built of these two halves: the reference in one process, the job over gRPC messages, and the job over transfer.

use crate::dataset::{Dataset, Example};
use crate::error::Error;
use crate::model::{self, Score};
use crate::random::Random;

/// How many workers there are. Their gradients are averaged in the order of their ranks, whoever is faster.
pub const WORKERS: usize = 2;
/// Examples in one worker's batch.
pub const BATCH: usize = 32;
/// The step size in the first step. It falls linearly towards 0 in the last, which settles the noise of small batches.
pub const LEARNING_RATE: f32 = 0.2;
/// How much of the last movement stays in the next one.
pub const MOMENTUM: f32 = 0.9;
/// The accuracy on held-out digits that the job has to reach.
pub const ACCURACY_GOAL: f32 = 0.97;

/// What every process of one job has to agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Job {
    /// Steps to train; the final weights have this version.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Where the split, the first weights and every batch follow from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Job {
    /// The job as one tells it to a role.
    #[must_use]
    pub fn flags(&self) -> String {
        format!("--steps {} --seed {}", self.steps, self.seed)
    }

    /// Whether the server looks at the held-out digits after making `version`: some 25 times in a job, the last version included.
    #[must_use]
    pub fn is_milestone(&self, version: u64) -> bool {
        version == self.steps || version.is_multiple_of(self.steps.div_ceil(25))
    }
}

/// A worker's half: its share of the examples.
#[derive(Debug)]
pub struct Worker {
    job: Job,
    rank: usize,
    shard: Vec<Example>,
}

impl Worker {
    /// The worker number `rank`, which is less than [`WORKERS`].
    ///
    /// # Errors
    /// [`Error::Data`] and [`Error::Io`] if the data set is damaged.
    pub fn new(job: Job, rank: usize) -> Result<Worker, Error> {
        Ok(Worker { job, rank, shard: Dataset::load(job.seed)?.shard(rank, WORKERS) })
    }

    /// Writes the gradient at `weights`, which are those of version `step`, over `gradient`.
    pub fn gradient(&self, step: u64, weights: &[f32], gradient: &mut [f32]) {
        // The batch follows from rank and step alone. A worker has no state, so one that is started again in step 500 goes on as if
        // nothing had happened.
        let mut random = Random::for_purpose(self.job.seed, &[2, self.rank as u64, step]);
        let batch: [Example; BATCH] =
            std::array::from_fn(|_| self.shard[random.below(self.shard.len())].nudged(&mut random));
        model::gradient(weights, &batch, gradient);
    }
}

/// The parameter server's half: the current weights and how they have been moving.
#[derive(Debug)]
pub struct Server {
    job: Job,
    version: u64,
    weights: Vec<f32>,
    velocity: Vec<f32>,
    test: Vec<Example>,
}

impl Server {
    /// A server at version 0.
    ///
    /// # Errors
    /// [`Error::Data`] and [`Error::Io`] if the data set is damaged.
    pub fn new(job: Job) -> Result<Server, Error> {
        let velocity = vec![0.0; model::PARAMETERS];
        let test = Dataset::load(job.seed)?.test;
        Ok(Server { job, version: 0, weights: model::initial_weights(job.seed), velocity, test })
    }

    /// Makes the next version out of the workers' gradients at the current one, in the order of their ranks.
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

    /// How many updates there have been.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The weights of the current version.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// How good they are on the held-out digits.
    #[must_use]
    pub fn score(&self) -> Score {
        model::evaluate(&self.weights, &self.test)
    }
}

/// The sign of a good job: the bits of all weights, for a comparison that no rounding can blur (and in which NaN equals itself).
#[must_use]
pub fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}
