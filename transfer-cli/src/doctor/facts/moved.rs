//! Transfers of real bytes: their fabric, their rate, and whether they arrive unchanged.

use crate::error::Error;
use crate::files::Worker;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use transfer_client::{Client, DType, FabricKind, Report};
use transfer_proto::v1::StatusResponse;

/// The time-out of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);

/// The result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) fabric: FabricKind,
    pub(crate) bytes: u64,
    /// The bytes that a processor copied.
    pub(crate) copied: u64,
    /// The time from the request to the arrival.
    pub(crate) took: Duration,
    /// Whether they arrived unchanged; `None` if the sent bytes are unknown.
    pub(crate) same: Option<bool>,
}

impl Moved {
    fn of(report: &Report, took: Duration, same: Option<bool>) -> Moved {
        Moved { fabric: report.fabric, bytes: report.bytes, copied: report.copied, took, same }
    }
}

/// Pushes a tensor of that many bytes at one socket, and fetches it at the other.
pub(crate) async fn between(from: &Path, to: &Path, bytes: u64) -> Result<Moved, Error> {
    let giver = worker(from, "giver").connect(room_for_two(bytes)).await?;
    let taker = worker(to, "taker").connect(0).await?;
    let key = format!("transferctl/doctor/{}", std::process::id());
    let [_, fetched] = probe(&giver, None, &taker, &key, bytes).await?;
    Ok(fetched)
}

/// Pushes a tensor of that many bytes to a worker of another node, and fetches it back from where it has landed: a
/// transfer there, and one back. The key ends when this returns.
pub(crate) async fn there_and_back(socket: &Path, to: &str, bytes: u64) -> Result<[Moved; 2], Error> {
    let client = worker(socket, "probe").connect(room_for_two(bytes)).await?;
    let key = format!("transferctl/doctor/{}/probe", std::process::id());
    probe(&client, Some(to), &client, &key, bytes).await
}

/// Pushes a tensor and fetches it. This is done twice, and the second time counts: the first one makes links and maps memory.
async fn probe(giver: &Client, to: Option<&str>, taker: &Client, key: &str, bytes: u64) -> Result<[Moved; 2], Error> {
    let failed = |what, source| Error::Call { what, key: key.to_owned(), source };
    let once = async |version: u8| {
        let mut tensor = giver.allocate(DType::U8, [bytes]).map_err(|e| failed("push", e))?;
        fill(tensor.as_mut_bytes(), version);
        let push = giver.push_tensor(key, tensor).version(version.into()).timeout(STEP_TIMEOUT);
        let started = Instant::now();
        let pushed = match to {
            Some(worker) => push.to(worker).await,
            None => push.await,
        };
        let pushed = pushed.map_err(|e| failed("push", e.into()))?;
        let pushed = Moved::of(&pushed.report, started.elapsed(), None);
        let started = Instant::now();
        let fetch = taker.fetch(key).exactly(version.into()).timeout(STEP_TIMEOUT);
        let tensor = fetch.await.map_err(|e| failed("fetch", e))?;
        let took = started.elapsed();
        let mut sent = vec![0; tensor.as_bytes().len()];
        fill(&mut sent, version);
        Ok([pushed, Moved::of(tensor.report(), took, Some(tensor.as_bytes() == sent))])
    };
    once(1).await?;
    once(2).await
}

/// Room for both tensors: the memory of the first one returns when its reader has released it.
fn room_for_two(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(4096).saturating_mul(2)
}

/// The node of the sidecar at a socket, if it is not the sidecar with this status. If the socket refuses workers, the
/// later transfer reports that.
pub(crate) async fn another(socket: &Path, wanted: &StatusResponse) -> Option<String> {
    let client = worker(socket, "who").connect(0).await.ok()?;
    (client.incarnation() != wanted.incarnation).then(|| client.node().to_owned())
}

/// Fetches a tensor that another worker has published elsewhere.
pub(crate) async fn fetch(socket: &Path, key: &str) -> Result<Moved, Error> {
    let client: Client = worker(socket, "taker").connect(0).await?;
    let started = Instant::now();
    let tensor = client.fetch(key).timeout(STEP_TIMEOUT).await;
    let tensor = tensor.map_err(|source| Error::Call { what: "fetch", key: key.to_owned(), source })?;
    Ok(Moved::of(tensor.report(), started.elapsed(), None))
}

/// The prefix of the names of these workers.
pub(crate) const WORKERS: &str = "transferctl-doctor-";

/// Each worker has a name of its own, because the name of one that has just left may still be taken for a moment.
fn worker(socket: &Path, part: &str) -> Worker {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{WORKERS}{}-{part}-{number}", std::process::id());
    Worker { socket: socket.to_owned(), name: Some(name) }
}

/// Bytes that differ from those of another version, and of a shifted copy.
fn fill(bytes: &mut [u8], version: u8) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        // The low bits of the position, combined with the version.
        *byte = (i % 251) as u8 ^ version;
    }
}
