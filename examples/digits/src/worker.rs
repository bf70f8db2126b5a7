//! A worker over transfer: it fetches the weights, computes the gradient, and pushes it.
//!
//! A worker talks only to the sidecar of its own node. The sidecars know where the parameter server is, and carry the
//! tensors. So the worker next to the server and the worker on the other node run the same code.

use crate::error::Error;
use crate::event::{Direction, Event, Transfers};
use crate::model::PARAMETERS;
use crate::ps;
use crate::tally::Tally;
use crate::training::{Job, Worker};
use std::path::Path;
use std::time::Instant;
use transfer_client::{Client, DType};

/// Does all steps of worker `rank`, through the sidecar that listens at `sidecar`.
///
/// # Errors
/// [`Error::Transfer`] if a call fails, [`Error::Unexpected`] if the weights do not fit this model, and those of
/// [`Event::emit`].
pub async fn work(job: Job, rank: usize, sidecar: &Path) -> Result<(), Error> {
    let worker = Worker::new(job, rank)?;
    let client = Client::connect(sidecar).name(format!("worker-{rank}")).await?;
    let gradient_key = ps::gradient_key(rank);
    let (mut fetched, mut pushed) = (Tally::default(), Tally::default());

    for step in 0..job.steps {
        // Fetches the weights of exactly this step, and waits for them if they do not exist yet. They are read in
        // place: in the server's memory if the server is on this node, else in the landing slot.
        let started = Instant::now();
        let weights = client.fetch(ps::WEIGHTS).exactly(step).timeout(ps::PEER_TIMEOUT).await?;
        fetched.add(weights.report(), started.elapsed());
        if weights.shape() != [PARAMETERS as u64] {
            return Err(Error::Unexpected { what: "shape of the weights" });
        }

        // The gradient is computed in the arena, from where it is sent.
        let mut gradient = client.allocate(DType::F32, [PARAMETERS as u64])?;
        worker.gradient(step, weights.as_slice()?, gradient.as_mut_slice()?);
        // The worker has finished reading this version, so its memory becomes free for a later one.
        drop(weights);

        // The push consumes the tensor, because a published tensor must not change. It ends when the gradient has
        // landed on the server's node.
        let started = Instant::now();
        let done = client.push_tensor(&gradient_key, gradient).version(step).to(ps::NAME).await?;
        pushed.add(&done.report, started.elapsed());
    }

    // A worker's published versions end with its session. The last gradient has been used when the weights made from it
    // exist, so the worker stays until then.
    client.fetch(ps::WEIGHTS).exactly(job.steps).timeout(ps::PEER_TIMEOUT).await?;

    for (direction, tally) in [(Direction::Fetched, fetched), (Direction::Pushed, pushed)] {
        Event::Transfers(Transfers { node: client.node().to_owned(), direction, tally }).emit()?;
    }
    Ok(())
}
