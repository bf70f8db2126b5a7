//! The parameter server over transfer: publish weights, fetch gradients, update, and again.

use crate::error::Error;
use crate::event::{Direction, Event, Reporter, Transfers};
use crate::model::PARAMETERS;
use crate::signals::Signals;
use crate::tally::Tally;
use crate::training::{Job, Server, WORKERS};
use std::path::Path;
use std::time::{Duration, Instant};
use transfer_client::{Client, Tensor};

/// The name under which the parameter server is known to the sidecars, and so to whoever pushes to it.
pub const NAME: &str = "ps";
/// The key of the weights. Its versions are the job's: 0 is the initialisation, version v is what v updates made of it.
pub const WEIGHTS: &str = "weights";
/// How long server and workers wait for each other: enough to start them by hand, one after the other.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The key of the gradients that worker `rank` computes. Their version is the one of the weights that they belong to.
#[must_use]
pub fn gradient_key(rank: usize) -> String {
    format!("grad/{rank}")
}

/// Serves one job, by way of the sidecar that listens at `sidecar`, until it is told to end: the final weights stay to be fetched.
///
/// # Errors
/// [`Error::Transfer`] if a call fails, [`Error::Unexpected`] if a gradient is not of this model, [`Error::Interrupted`] if it is told to end
/// before the job is done, and those of [`Event::emit`].
pub async fn serve(job: Job, sidecar: &Path) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let client = Client::connect(sidecar).name(NAME).await?;
    tokio::select! {
        result = train(job, &client) => result?,
        () = signals.told_to_end() => return Err(Error::Interrupted),
    }
    // What a process has published ends with its session, but for those who are reading it: so it stays until nobody will ask any more.
    signals.told_to_end().await;
    Ok(())
}

/// The training loop: two gradients in, one version out.
async fn train(job: Job, client: &Client) -> Result<(), Error> {
    let mut server = Server::new(job)?;
    let mut reporter = Reporter::new(job);
    let mut published = Tally::default();

    publish(client, &server, &mut published).await?;
    while server.version() < job.steps {
        let gradients = fetch_gradients(client, server.version()).await?;
        let [first, second] = &gradients;
        server.update([first.as_slice()?, second.as_slice()?]);
        // Let go of them before anything else: a gradient from another node occupies a landing slot, and its worker has only a few.
        drop(gradients);
        reporter.updated(&server)?;
        publish(client, &server, &mut published).await?;
    }

    let node = client.node().to_owned();
    Event::Transfers(Transfers { node, direction: Direction::Published, tally: published }).emit()
}

/// Publishes the current version. The server updates its weights in place, but what is published must not change any more. So it publishes
/// a snapshot: a slice of any memory is copied into the shared memory, once for all readers, and the report says so.
async fn publish(client: &Client, server: &Server, tally: &mut Tally) -> Result<(), Error> {
    let started = Instant::now();
    let done = client.push_slice(WEIGHTS, [PARAMETERS as u64], server.weights()).version(server.version()).await?;
    tally.add(&done.report, started.elapsed());
    Ok(())
}

/// Every worker's gradient at the weights of `version`, in the order of their ranks, whichever comes first.
async fn fetch_gradients(client: &Client, version: u64) -> Result<[Tensor; WORKERS], Error> {
    let keys: [String; WORKERS] = std::array::from_fn(gradient_key);
    // Asked for together and awaited together.
    let fetched = client.fetch_many(keys).exactly(version).timeout(PATIENCE).await;
    let gradients = fetched.into_iter().collect::<Result<Vec<Tensor>, _>>()?;
    if gradients.iter().any(|gradient| gradient.shape() != [PARAMETERS as u64]) {
        return Err(Error::Unexpected { what: "shape of a gradient" });
    }
    gradients.try_into().map_err(|_| Error::Unexpected { what: "number of gradients" })
}
