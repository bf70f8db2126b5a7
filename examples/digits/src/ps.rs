//! The parameter server over transfer: it publishes weights, fetches gradients, updates the weights, and repeats.

use crate::error::Error;
use crate::event::{Direction, Event, Reporter, Transfers};
use crate::model::PARAMETERS;
use crate::signals::Signals;
use crate::tally::Tally;
use crate::training::{Job, Server, WORKERS};
use std::path::Path;
use std::time::{Duration, Instant};
use transfer_client::{Client, Tensor};

/// The parameter server's name as a worker of transfer, to which the workers push.
pub const NAME: &str = "ps";
/// The key of the weights. Its versions are those of the job: 0 is the initialisation, and version v is the result of v
/// updates.
pub const WEIGHTS: &str = "weights";
/// The time for which server and workers wait for each other: enough to start them by hand, one after the other.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(120);

/// The key of the gradients of worker `rank`. Their version is that of the weights for which they were computed.
#[must_use]
pub fn gradient_key(rank: usize) -> String {
    format!("grad/{rank}")
}

/// Serves one job through the sidecar that listens at `sidecar`, until it is told to end. Until then, the final weights
/// can be fetched.
///
/// # Errors
/// [`Error::Transfer`] if a call fails, [`Error::Unexpected`] if a gradient does not fit this model,
/// [`Error::Interrupted`] if it is told to end before the job is done, and those of [`Event::emit`].
pub async fn serve(job: Job, sidecar: &Path) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let client = Client::connect(sidecar).name(NAME).await?;
    tokio::select! {
        result = train(job, &client) => result?,
        () = signals.told_to_end() => return Err(Error::Interrupted),
    }
    // A process's published versions end with its session, except for their readers. So it stays until no worker needs
    // them.
    signals.told_to_end().await;
    Ok(())
}

/// The training loop: each step makes one version from two gradients.
async fn train(job: Job, client: &Client) -> Result<(), Error> {
    let mut server = Server::new(job)?;
    let mut reporter = Reporter::new(job);
    let mut published = Tally::default();

    publish(client, &server, &mut published).await?;
    while server.version() < job.steps {
        let gradients = fetch_gradients(client, server.version()).await?;
        let [first, second] = &gradients;
        server.update([first.as_slice()?, second.as_slice()?]);
        // The gradients are released first: a gradient from another node occupies a landing slot, and its worker has
        // only a few.
        drop(gradients);
        reporter.updated(&server)?;
        publish(client, &server, &mut published).await?;
    }

    let node = client.node().to_owned();
    Event::Transfers(Transfers { node, direction: Direction::Published, tally: published }).emit()
}

/// Publishes the current version. The server updates its weights in place, but a published tensor must not change, so
/// it publishes a snapshot: the slice is copied into the shared memory, once for all readers, and the report counts the
/// copy.
async fn publish(client: &Client, server: &Server, tally: &mut Tally) -> Result<(), Error> {
    let started = Instant::now();
    let done = client.push_slice(WEIGHTS, [PARAMETERS as u64], server.weights()).version(server.version()).await?;
    tally.add(&done.report, started.elapsed());
    Ok(())
}

/// Fetches every worker's gradient at the weights of `version`, in the order of their ranks.
async fn fetch_gradients(client: &Client, version: u64) -> Result<[Tensor; WORKERS], Error> {
    let keys: [String; WORKERS] = std::array::from_fn(gradient_key);
    // All fetches are sent together, and awaited together.
    let fetched = client.fetch_many(keys).exactly(version).timeout(PEER_TIMEOUT).await;
    let gradients = fetched.into_iter().collect::<Result<Vec<Tensor>, _>>()?;
    if gradients.iter().any(|gradient| gradient.shape() != [PARAMETERS as u64]) {
        return Err(Error::Unexpected { what: "shape of a gradient" });
    }
    gradients.try_into().map_err(|_| Error::Unexpected { what: "number of gradients" })
}
