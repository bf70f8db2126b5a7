//! Transfers between two sidecars of one host through shared memory: 64 MiB tensors from a worker's arena to the
//! landing pool of the other sidecar, like those of the suite [`tcp`], and 4 KiB tensors, like those of [`latency`].
//!
//! The baseline is memcpy between two buffers of one process, whose pages exist: with one thread, and with one for each
//! CPU; the better one counts.

use super::{MIB, gigabytes_per_second, latency, pair_over, reference, tcp, worker};
use crate::actor::answer::Answer;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Spread, Unit, Versus, percentile};
use crate::stage::Actor;

/// The counted messages of each run: usually, and with --quick.
const MESSAGES: (u64, u64) = (5000, 500);

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let (a, b) = pair_over(&bench.stage, "shm", &["--pool-bytes", "640MiB"])?;
    let mut sender = worker(&bench.stage, &a, "sender", 2 * tcp::LEN)?;
    let mut copier = worker(&bench.stage, &a, "copier", tcp::LEN + 8 * MIB)?;
    let mut receiver = worker(&bench.stage, &b, "receiver", 0)?;
    copier.ask(WorkerTask::Prefill { len: tcp::LEN, tensors: 1 })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut best =
        Figure::beside("64 MiB, best of 1 to 4 streams", Unit::GigabytesPerSecond, Versus::Ratio, Goal::AtLeast(0.9));
    let mut each: Vec<Figure> = tcp::STREAMS
        .map(|n| Figure::beside(format!("  with {n}"), Unit::GigabytesPerSecond, Versus::Ratio, Goal::Open))
        .collect();
    let mut copied = Figure::alone("copied by a CPU, per byte", Unit::Bytes, Goal::Open);
    let mut p50 = Figure::alone("4 KiB, one in flight: p50", Unit::Micros, Goal::Open);
    let mut p99 = Figure::alone("4 KiB, one in flight: p99", Unit::Micros, Goal::Open);
    let count = bench.pick(24u64, 8);
    for run in 0..bench.runs {
        let mut reached = 0f64;
        let mut rates = Vec::new();
        for streams in tcp::STREAMS {
            bench.says(format!("{streams} streams, run {} of {}", run + 1, bench.runs));
            let pushes = count / streams as u64;
            let above = u64::from(run) * 1000 + streams as u64 * 100;
            let (rate, bytes) = tcp::ours(&mut sender, streams, pushes, above)?;
            copied.run(bytes as f64 / (tcp::LEN * pushes * streams as u64) as f64);
            reached = reached.max(rate);
            rates.push(rate);
        }
        bench.says(format!("memcpy, run {} of {}", run + 1, bench.runs));
        let bare = memcpy(bench, &mut copier, 1)?.max(memcpy(bench, &mut copier, cores)?);
        rates.into_iter().zip(&mut each).for_each(|(rate, figure)| figure.run_beside(rate, bare));
        best.run_beside(reached, bare);
        let count = bench.pick(MESSAGES.0, MESSAGES.1) + latency::WARM_UP as u64;
        let first = u64::from(run) * count + 1;
        let mut ours = latency::push_to(bench, &mut sender, &mut receiver, first..first + count)?;
        p50.run(percentile(&mut ours, 50.0));
        p99.run(percentile(&mut ours, 99.0));
    }
    let referred = reference::run(bench, &a, &b)?;
    Ok(std::iter::once(best).chain(each).chain([copied, p50, p99]).chain(referred).collect())
}

/// Returns the rate of memcpy with that many threads.
fn memcpy(bench: &Bench, copier: &mut Actor, threads: usize) -> Result<f64, BenchError> {
    let task = WorkerTask::CopyIn { len: tcp::LEN as usize, rounds: bench.pick(7, 3), threads };
    let Answer::Pairs(pairs) = copier.ask(task)? else { return Ok(0.0) };
    let bare: Vec<f64> = pairs.iter().map(|pair| pair.1 as f64).collect();
    Ok(gigabytes_per_second(tcp::LEN, Spread::of(&bare).map_or(0, |spread| spread.median as u64)))
}
