//! A worker repeatedly fetches a tensor that another worker has published at the same sidecar. It finds the tensor on
//! the board, without asking the sidecar.
//!
//! Each fetch is timed by itself, from the call until the tensor is there; dropping the tensor is not included. The two
//! readings of the clock are.

use super::{GIB, KIB, MIB, worker};
use crate::actor::pace::Pace;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, percentile};
use transfer_terminal::units;

/// The first fetches of each run, which do not count.
const WARM_UP: usize = 100;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let sizes = bench.pick(&[4 * KIB, 64 * KIB, MIB, 64 * MIB, GIB][..], &[4 * KIB, GIB][..]);
    let count = bench.pick(20_000, 2000) + WARM_UP as u64;
    let mut figures = Vec::new();
    for len in sizes.iter().copied() {
        let size = units::bytes(len);
        let sidecar = bench.stage.sidecar("node", None, &["--max-arena-bytes", "4GiB", "--pinned-limit", "8GiB"])?;
        let mut producer = worker(&bench.stage, &sidecar, "producer", len.max(MIB) * 2)?;
        let mut consumer = worker(&bench.stage, &sidecar, "consumer", 0)?;
        let mut p50 = Figure::alone(format!("{size}: p50"), Unit::Micros, Goal::AtMost(2.0));
        let mut p99 = Figure::alone(format!("{size}: p99"), Unit::Micros, Goal::Open);
        let mut copied = Figure::alone(format!("{size}: copied by a CPU, per tensor"), Unit::Bytes, Goal::AtMost(0.0));
        let key = "lookup".to_owned();
        let pace = Pace { interval_ns: 0, turns: None };
        producer.ask(WorkerTask::Push { key: key.clone(), len, versions: 1..2, pace, to: None })?;
        for run in 0..bench.runs {
            bench.says(format!("{size}: run {} of {}", run + 1, bench.runs));
            let fetched = consumer.ask(WorkerTask::FetchAgain { key: key.clone(), count })?;
            copied.run(fetched.copied() as f64 / count as f64);
            let mut took: Vec<f64> = fetched.times().into_iter().skip(WARM_UP).map(|ns| ns as f64 / 1e3).collect();
            p50.run(percentile(&mut took, 50.0));
            p99.run(percentile(&mut took, 99.0));
        }
        figures.extend([p50, p99, copied]);
    }
    Ok(figures)
}
