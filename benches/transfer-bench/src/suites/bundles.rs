//! A bundle of 100,000 tensors of 1 KiB, beside one tensor of as many bytes: pushed from memory outside of the arena, then
//! fetched on the same host and over TCP, with a look at an element of each tensor.
//!
//! Then come states that are fetched into memory of the reader.
//!
//! The bytes are the same, so the difference is the cost of the bundle's table, of its checks, and of a view for each tensor.

use super::{KIB, MIB, pair, states, worker};
use crate::actor::answer::Answer;
use crate::actor::bundles::Bundles;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::Actor;

const TENSORS: u64 = 100_000;
const LEN: u64 = KIB;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let flags = ["--pool-bytes", "640MiB", "--max-arena-bytes", "1GiB", "--pinned-limit", "4GiB"];
    let (a, b) = pair(&bench.stage, &flags)?;
    // Two versions of each are there while the next one is pushed.
    let mut sender = worker(&bench.stage, &a, "sender", 5 * (TENSORS * LEN + 16 * MIB))?;
    let mut near = worker(&bench.stage, &a, "near", 0)?;
    let mut far = worker(&bench.stage, &b, "far", 0)?;
    let figure = |what: &str| Figure::beside(what, Unit::Micros, Versus::Ratio, Goal::AtMost(3.0));
    let mut local = figure("pushed and fetched on one host, p50");
    let mut remote = figure("pushed and fetched over TCP, p50");
    let rounds = bench.pick(20, 3);
    let mut version = 0;
    for run in 0..bench.runs {
        bench.says(format!("run {} of {}", run + 1, bench.runs));
        let (mut of_local, mut of_remote) = (Pairs::default(), Pairs::default());
        // The first round makes names and memory known, and is not measured.
        for round in 0..=rounds {
            version += 1;
            let both = Bundles { count: TENSORS, elements: LEN / 4, version };
            let pushed = pair_of(&mut sender, WorkerTask::PushBundles(both.clone()))?;
            let here = pair_of(&mut near, WorkerTask::FetchBundles(both.clone()))?;
            let there = pair_of(&mut far, WorkerTask::FetchBundles(both))?;
            if round > 0 {
                of_local.add(pushed, here);
                of_remote.add(pushed, there);
            }
        }
        of_local.measure(&mut local);
        of_remote.measure(&mut remote);
    }
    // The next ones have the same names.
    drop((sender, near, far, a, b));
    let into = states::run(bench)?;
    Ok([local, remote].into_iter().chain(into).collect())
}

/// The times of the bundle and of the tensor, in microseconds.
#[derive(Default)]
struct Pairs {
    bundle: Vec<f64>,
    dense: Vec<f64>,
}

impl Pairs {
    fn add(&mut self, pushed: (u64, u64), fetched: (u64, u64)) {
        self.bundle.push((pushed.0 + fetched.0) as f64 / 1e3);
        self.dense.push((pushed.1 + fetched.1) as f64 / 1e3);
    }

    fn measure(mut self, figure: &mut Figure) {
        figure.run_beside(percentile(&mut self.bundle, 50.0), percentile(&mut self.dense, 50.0));
    }
}

fn pair_of(actor: &mut Actor, task: WorkerTask) -> Result<(u64, u64), BenchError> {
    match actor.ask(task)? {
        Answer::Pairs(pairs) if let [pair] = pairs[..] => Ok(pair),
        _ => Err(BenchError::Task { name: "bundles".into(), why: "it answered with no pair of times".into() }),
    }
}
