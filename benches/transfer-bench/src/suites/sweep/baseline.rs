//! The baselines of the sweep: the same messages and bytes without this project.
//!
//! | place | latency | rate |
//! |---|---|---|
//! | one host | a byte through a bare relay process | none: nothing moves |
//! | shm | the same | memcpy, with one thread or with all |
//! | tcp | a byte to a process, the tensor over a socket to another one, a byte to the receiver | one bare socket |
//! | verbs | a byte through a bare relay process | perftest's `ib_write_bw`, where it is installed |

use super::super::{latencies_us, latency, tcp, verbs};
use super::topology::{Scene, Topology};
use crate::actor::answer::Answer;
use crate::actor::bare::BareTask;
use crate::actor::pace::Pace;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::Spread;

/// The result of a baseline's run.
#[derive(Debug, Clone)]
pub(super) struct Bare {
    /// The times of single messages, in microseconds.
    pub latencies_us: Vec<f64>,
    /// The nanoseconds of each tensor, for as many tensors as the system moved.
    pub ns: Option<f64>,
}

/// Does one run.
pub(super) fn measure(bench: &Bench, scene: &Scene<'_>) -> Result<Bare, BenchError> {
    let (len, count) = (scene.len, scene.batches * scene.keys);
    let latencies_us = match scene.place {
        Topology::Tcp => latency::relays(bench, len, scene.tensors)?,
        Topology::OneHost | Topology::Shm | Topology::Verbs => relay(bench, scene.tensors)?,
    };
    let ns = match scene.place {
        Topology::OneHost => None,
        Topology::Shm => Some(memcpy(bench, scene)?),
        Topology::Tcp => Some(len as f64 / tcp::bare(bench, 1, len, count)?),
        Topology::Verbs => {
            verbs::Port::of(&scene.sidecars[0])?.write_bandwidth(len, count.max(5)).ok().map(|rate| len as f64 / rate)
        }
    };
    Ok(Bare { latencies_us, ns })
}

/// Returns the times of one-byte messages through a process that relays them, in microseconds. The sockets are of the
/// same kind as a sidecar's doorbells: each process sleeps in poll or epoll, and takes its byte with one more call,
/// like workers and sidecars.
fn relay(bench: &Bench, count: u64) -> Result<Vec<f64>, BenchError> {
    let path = |what| bench.stage.new_path(what);
    let (from, to, turns) = (path("from"), path("to"), path("turns"));
    let (mut relay, mut sender, mut receiver) =
        (bench.stage.actor("relay")?, bench.stage.actor("sender")?, bench.stage.actor("receiver")?);
    relay.tell(BareTask::Relay { from: from.clone(), to: to.clone(), count })?;
    sender.tell(BareTask::Send { to: from, count, pace: Pace { interval_ns: 0, turns: Some(turns.clone()) } })?;
    receiver.tell(BareTask::Receive { from: to, count, turns: Some(turns) })?;
    let (received, sent) = (receiver.answer()?, sender.answer()?);
    relay.answer()?;
    Ok(latencies_us(&sent.times(), &received.times()))
}

/// Measures memcpy with one thread, and with one for each CPU; the better one counts.
fn memcpy(bench: &Bench, scene: &Scene<'_>) -> Result<f64, BenchError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // As many tensors take turns as in the system, so that both find equally little in the cache. A single long tensor
    // exceeds the cache anyway.
    let buffers = if scene.keys > 1 { 3 * scene.keys as usize } else { 1 };
    let mut copier = bench.stage.actor("copier")?;
    let mut best = f64::INFINITY;
    for threads in [1, cores] {
        let rounds = scene.batches.min(bench.pick(50, 5));
        let task = BareTask::Copy { len: scene.len as usize, buffers, rounds, threads };
        let Answer::Times { ns, .. } = copier.ask(task)? else { continue };
        let ns: Vec<f64> = ns.iter().map(|ns| *ns as f64 / buffers as f64).collect();
        best = best.min(Spread::of(&ns).map_or(f64::INFINITY, |spread| spread.median));
    }
    Ok(best)
}
