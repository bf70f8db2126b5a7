//! A worker over transfer: fetch the weights, compute, push the gradient.
//!
//! A worker talks to the sidecar of its own node and to nobody else. Where the parameter server is, and what carries the tensors there and
//! back, is the sidecars' business: the worker next to the server and the worker on the other node run this same code.

use crate::error::Error;
use crate::event::{Direction, Event, Transfers};
use crate::model::PARAMETERS;
use crate::ps;
use crate::tally::Tally;
use crate::training::{Job, Worker};
use std::path::Path;
use std::time::Instant;
use transfer_client::{Client, DType};

/// Does all steps of worker `rank`, by way of the sidecar that listens at `sidecar`.
///
/// # Errors
/// [`Error::Transfer`] if a call fails, [`Error::Unexpected`] if the weights are not those of this model, and those of [`Event::emit`].
pub async fn work(job: Job, rank: usize, sidecar: &Path) -> Result<(), Error> {
    let worker = Worker::new(job, rank)?;
    let client = Client::connect(sidecar).name(format!("worker-{rank}")).await?;
    let gradient_key = ps::gradient_key(rank);
    let (mut fetched, mut pushed) = (Tally::default(), Tally::default());

    for step in 0..job.steps {
        // The weights of exactly this step. They may not exist yet; then the fetch waits for them. What comes back is read where it lies:
        // in the server's memory, if the server is on this node, else where the network has put it.
        let started = Instant::now();
        let weights = client.fetch(ps::WEIGHTS).exactly(step).timeout(ps::PATIENCE).await?;
        fetched.add(weights.report(), started.elapsed());
        if weights.shape() != [PARAMETERS as u64] {
            return Err(Error::Unexpected { what: "shape of the weights" });
        }

        // The gradient is computed right where it will be sent from.
        let mut gradient = client.allocate(DType::F32, [PARAMETERS as u64])?;
        worker.gradient(step, weights.as_slice()?, gradient.as_mut_slice()?);
        // This worker is done with that version: its memory is free for a later one.
        drop(weights);

        // The push takes the tensor, for what is published must not change any more. It ends when the gradient has landed on the server's
        // node, whichever that is.
        let started = Instant::now();
        let done = client.push_tensor(&gradient_key, gradient).version(step).to(ps::NAME).await?;
        pushed.add(&done.report, started.elapsed());
    }

    // What a worker has published ends with its session. The last gradient has been used when there are weights made of it: until then it
    // stays.
    client.fetch(ps::WEIGHTS).exactly(job.steps).timeout(ps::PATIENCE).await?;

    for (direction, tally) in [(Direction::Fetched, fetched), (Direction::Pushed, pushed)] {
        Event::Transfers(Transfers { node: client.node().to_owned(), direction, tally }).emit()?;
    }
    Ok(())
}
