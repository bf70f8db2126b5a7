//! A push of memory that lies outside the arena, compared with memcpy into memory whose pages exist, by as many
//! threads.

use super::{MIB, gigabytes_per_second, worker};
use crate::actor::answer::Answer;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Spread, Unit, Versus};
use transfer_terminal::units;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let sidecar = bench.stage.sidecar("node", None, &[])?;
    let mut worker = worker(&bench.stage, &sidecar, "worker", 520 * MIB)?;
    // This writes every page of the arena once.
    worker.ask(WorkerTask::Prefill { len: 512 * MIB, tensors: 1 })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut figures = Vec::new();
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        for len in [64 * MIB, 256 * MIB] {
            let what = format!("{}, {threads} {}", units::bytes(len), if threads == 1 { "thread" } else { "threads" });
            let mut figure = Figure::beside(what.clone(), Unit::GigabytesPerSecond, Versus::Ratio, Goal::AtLeast(0.9));
            for run in 0..bench.runs {
                bench.says(format!("{what}: run {} of {}", run + 1, bench.runs));
                let answer = worker.ask(WorkerTask::CopyIn { len: len as usize, rounds: bench.pick(7, 3), threads })?;
                let Answer::Pairs(pairs) = answer else { continue };
                let median = |of: fn(&(u64, u64)) -> u64| {
                    let ns: Vec<f64> = pairs.iter().map(|pair| of(pair) as f64).collect();
                    Spread::of(&ns).map_or(0, |spread| spread.median as u64)
                };
                figure.run_beside(
                    gigabytes_per_second(len, median(|pair| pair.0)),
                    gigabytes_per_second(len, median(|pair| pair.1)),
                );
            }
            figures.push(figure);
        }
    }
    Ok(figures)
}
