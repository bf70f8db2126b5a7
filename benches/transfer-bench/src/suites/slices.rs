//! A block [4096, 64] of a matrix [8192, 8192] of 32-bit floats, fetched over TCP: 1 MiB in 4,096 runs of 256 bytes, each
//! in a page of its own. Beside it are 32 whole rows, which are a MiB in one run.
//!
//! The suite fails if other bytes than those of the slices move.

use super::{MIB, bytes_in, pair, worker};
use crate::actor::answer::Answer;
use crate::actor::slices::Slices;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};

const SIDE: u64 = 8192;
const ROWS: u64 = 4096;
const COLUMNS: u64 = 64;
const WHOLE_ROWS: u64 = 32;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let flags = ["--pool-bytes", "64MiB", "--max-arena-bytes", "1GiB", "--pinned-limit", "2GiB"];
    let (a, b) = pair(&bench.stage, &flags)?;
    let mut owner = worker(&bench.stage, &a, "owner", SIDE * SIDE * 4 + MIB)?;
    let mut reader = worker(&bench.stage, &b, "reader", 0)?;
    owner.ask(WorkerTask::Slices(Slices::Publish { side: SIDE }))?;
    let what = "[4096, 64] of [8192, 8192] f32 over TCP, p50";
    // The goal is three times as long.
    let mut time = Figure::beside(what, Unit::Micros, Versus::Ratio, Goal::AtMost(3.0));
    let mut moved = Figure::alone("  bytes that moved for each", Unit::Bytes, Goal::AtMost(MIB as f64));
    let rounds: u64 = bench.pick(200, 20);
    for run in 0..bench.runs {
        bench.says(format!("run {} of {}", run + 1, bench.runs));
        let before = bytes_in(&b)?;
        let fetch = Slices::Fetch { rows: ROWS, columns: COLUMNS, whole_rows: WHOLE_ROWS, rounds };
        let Answer::Pairs(pairs) = reader.ask(WorkerTask::Slices(fetch))? else { continue };
        let each = |which: fn(&(u64, u64)) -> u64| {
            let mut all: Vec<f64> = pairs.iter().map(|pair| which(pair) as f64 / 1e3).collect();
            percentile(&mut all, 50.0)
        };
        time.run_beside(each(|pair| pair.0), each(|pair| pair.1));
        let (bytes, slices) = (bytes_in(&b)? - before, 2 * (rounds + 1));
        if bytes != slices * MIB {
            let why = format!("{bytes} bytes moved for {slices} slices of {MIB} bytes");
            return Err(BenchError::Task { name: "slices".into(), why });
        }
        moved.run(bytes as f64 / slices as f64);
    }
    Ok(vec![time, moved])
}
