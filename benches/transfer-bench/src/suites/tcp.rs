//! 64 MiB tensors from a worker's arena to the landing pool of another node's sidecar, over loopback TCP.
//!
//! Each of 1 to 4 threads repeatedly pushes the same frozen tensor to the other node, under its own key, and each push
//! waits until the tensor has landed. The baseline sends one 64 MiB buffer as often over 1 to 4 sockets, which share
//! it, to one buffer in another process. For each, the best number of streams counts.

use super::{MIB, gigabytes_per_second, pair, worker};
use crate::actor::answer::Answer;
use crate::actor::bare::BareTask;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus};
use crate::stage::Actor;

pub(super) const LEN: u64 = 64 * MIB;
pub(super) const STREAMS: std::ops::RangeInclusive<usize> = 1..=4;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    // The pool has room for two landing slots of each key.
    let (a, b) = pair(&bench.stage, &["--pool-bytes", "640MiB"])?;
    let mut sender = worker(&bench.stage, &a, "sender", 2 * LEN)?;
    let _receiver = worker(&bench.stage, &b, "receiver", 0)?;
    let count = bench.pick(24u64, 8);
    let mut best =
        Figure::beside("64 MiB, best of 1 to 4 streams", Unit::GigabytesPerSecond, Versus::Ratio, Goal::AtLeast(0.95));
    let mut each: Vec<Figure> = STREAMS
        .map(|n| Figure::beside(format!("  with {n}"), Unit::GigabytesPerSecond, Versus::Ratio, Goal::Open))
        .collect();
    let mut copied = Figure::alone("copied by a CPU, per byte", Unit::Bytes, Goal::Open);
    for run in 0..bench.runs {
        let mut reached = (0f64, 0f64);
        for (streams, figure) in STREAMS.zip(&mut each) {
            bench.says(format!("{streams} streams, run {} of {}", run + 1, bench.runs));
            // The sum of all pushes is the same for each number of streams.
            let pushes = count / streams as u64;
            let (rate, bytes) = ours(&mut sender, streams, pushes, u64::from(run) * 1000 + streams as u64 * 100)?;
            let bare = bare(bench, streams, LEN, count)?;
            figure.run_beside(rate, bare);
            copied.run(bytes as f64 / (LEN * pushes * streams as u64) as f64);
            reached = (reached.0.max(rate), reached.1.max(bare));
        }
        best.run_beside(reached.0, reached.1);
    }
    Ok(std::iter::once(best).chain(each).chain([copied]).collect())
}

/// Streams tensors of [`LEN`] from this sender to the worker "receiver". Returns the rate, and the bytes that a CPU
/// copied.
pub(super) fn ours(sender: &mut Actor, streams: usize, pushes: u64, above: u64) -> Result<(f64, u64), BenchError> {
    let answer = sender.ask(WorkerTask::Stream {
        prefix: "stream".to_owned(),
        len: LEN,
        in_flight: streams,
        count: pushes,
        above,
        to: "receiver".to_owned(),
    })?;
    let copied = answer.copied();
    let rate = match answer.times()[..] {
        [from, to] => gigabytes_per_second(LEN * pushes * streams as u64, to - from),
        _ => 0.0,
    };
    Ok((rate, copied))
}

/// Returns the rate of a buffer of `len` bytes that is sent `count` times over bare sockets.
pub(super) fn bare(bench: &Bench, streams: usize, len: u64, count: u64) -> Result<f64, BenchError> {
    let (mut source, mut sink) = (bench.stage.actor("source")?, bench.stage.actor("sink")?);
    let Answer::Port(port) = sink.ask(BareTask::Listen)? else { return Ok(0.0) };
    sink.tell(BareTask::StreamIn { streams, len: len as usize, count })?;
    let sent = source.ask(BareTask::StreamOut { port, streams, len: len as usize, count })?.times();
    let received = sink.answer()?.times();
    let (from, to) = (sent.first().copied().unwrap_or(0), received.first().copied().unwrap_or(0));
    Ok(gigabytes_per_second(len * count, to.saturating_sub(from)))
}
