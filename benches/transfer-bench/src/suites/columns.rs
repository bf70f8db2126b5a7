//! A record batch of 40 columns and 64 MiB, and a dense tensor of 64 MiB: the same processes push and fetch them in
//! turns.
//!
//! On one host no byte moves, so the difference is the cost of the batch's metadata, of its table, and of their checks.

use super::{MIB, gigabytes_per_second, pair, worker};
use crate::actor::answer::Answer;
use crate::actor::columns::Columns;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::Actor;

const LEN: u64 = 64 * MIB;
const COLUMNS: u64 = 40;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let flags = ["--pool-bytes", "640MiB", "--max-arena-bytes", "1GiB", "--pinned-limit", "4GiB"];
    let (a, b) = pair(&bench.stage, &flags)?;
    let node = bench.stage.sidecar("node", None, &flags)?;
    let near = |what: &str| Figure::beside(what, Unit::Micros, Versus::Difference, Goal::Open);
    let far = |what: &str| Figure::beside(what, Unit::GigabytesPerSecond, Versus::Ratio, Goal::AtLeast(0.95));
    let mut fetched = far("two sidecars over TCP, fetched from the other one");
    let mut pushed = far("two sidecars over TCP, pushed to the other one");
    let mut local = near("two workers of one sidecar, fetched, p50");
    let mut copied = Figure::alone("copied by a CPU where it is published", Unit::Bytes, Goal::AtMost(0.0));
    let mut sender = worker(&bench.stage, &a, "sender", 5 * LEN)?;
    let mut receiver = worker(&bench.stage, &b, "receiver", 0)?;
    let mut owner = worker(&bench.stage, &node, "owner", 3 * LEN)?;
    let mut reader = worker(&bench.stage, &node, "reader", 0)?;
    for publisher in [&mut sender, &mut owner] {
        copied
            .run(publisher.ask(WorkerTask::Columns(Columns::Publish { len: LEN, columns: COLUMNS }))?.copied() as f64);
    }
    let (rounds, many) = (bench.pick(12, 4), bench.pick(500, 100));
    for run in 0..bench.runs {
        bench.says(format!("run {} of {}", run + 1, bench.runs));
        let push = Columns::Push { len: LEN, columns: COLUMNS, rounds, to: "receiver".to_owned() };
        let (batch, dense) = medians(&mut sender, push)?;
        pushed.run_beside(gigabytes_per_second(LEN, batch), gigabytes_per_second(LEN, dense));
        let (batch, dense) = medians(&mut reader, Columns::Fetch { rounds: many })?;
        local.run_beside(batch as f64 / 1e3, dense as f64 / 1e3);
        let (batch, dense) = medians(&mut receiver, Columns::Fetch { rounds })?;
        fetched.run_beside(gigabytes_per_second(LEN, batch), gigabytes_per_second(LEN, dense));
    }
    Ok(vec![fetched, pushed, local, copied])
}

/// The median durations of the batch and of the tensor, in nanoseconds.
fn medians(actor: &mut Actor, task: Columns) -> Result<(u64, u64), BenchError> {
    let Answer::Pairs(pairs) = actor.ask(WorkerTask::Columns(task))? else { return Ok((0, 0)) };
    let median = |each: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<f64> = pairs.iter().map(|pair| each(pair) as f64).collect();
        percentile(&mut all, 50.0) as u64
    };
    Ok((median(|pair| pair.0), median(|pair| pair.1)))
}
