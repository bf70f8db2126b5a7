//! Many 4 KiB tensors with batch calls, under keys that are known in advance. While one batch is fetched, the next one
//! is pushed.

use super::{KIB, MIB, pair, worker};
use crate::actor::batches::Batches;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit};
use crate::stage::{Actor, Sidecar};

const LEN: u64 = 4 * KIB;
const KEYS: usize = 512;
/// The batches that make the keys known, and do not count.
const WARM_UP: u64 = 4;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let unit = Unit::TensorsPerSecond;
    let mut local = Figure::alone("two workers of one sidecar", unit, Goal::AtLeast(300_000.0));
    let mut pushed = Figure::alone("two sidecars over TCP, pushed to the other one", unit, Goal::AtLeast(100_000.0));
    let mut pulled = Figure::alone("two sidecars over TCP, fetched from the other one", unit, Goal::AtLeast(100_000.0));
    {
        let node = bench.stage.sidecar("node", None, &[])?;
        measure(bench, "local", &node, &node, false, &mut local)?;
    }
    let (a, b) = pair(&bench.stage, &["--pool-bytes", "256MiB"])?;
    measure(bench, "pushed", &a, &b, true, &mut pushed)?;
    measure(bench, "pulled", &a, &b, false, &mut pulled)?;
    Ok(vec![local, pushed, pulled])
}

fn measure(
    bench: &Bench,
    what: &str,
    from: &Sidecar,
    to: &Sidecar,
    push: bool,
    figure: &mut Figure,
) -> Result<(), BenchError> {
    let mut pair = Pair::start(bench, what, from, to, push)?;
    for run in 1..=bench.runs {
        bench.says(format!("{what}: run {run} of {}", bench.runs));
        figure.run(pair.rate(bench)?);
    }
    Ok(())
}

/// Two workers: one pushes batches, and the other fetches them.
pub(super) struct Pair {
    producer: Actor,
    consumer: Actor,
    what: String,
    /// The target worker of the pushes; `None` if the tensors stay in place.
    to: Option<String>,
    /// The next version.
    version: u64,
}

impl Pair {
    /// Starts both workers, and makes their keys known.
    pub(super) fn start(
        bench: &Bench,
        what: &str,
        from: &Sidecar,
        to: &Sidecar,
        push: bool,
    ) -> Result<Pair, BenchError> {
        let name = format!("consumer-{what}");
        let mut producer = worker(&bench.stage, from, &format!("producer-{what}"), 64 * MIB)?;
        producer.ask(WorkerTask::Prefill { len: LEN, tensors: 8 * KEYS })?;
        let consumer = worker(&bench.stage, to, &name, 0)?;
        let mut pair = Pair { producer, consumer, what: what.to_owned(), to: push.then_some(name), version: 1 };
        pair.batches(bench, WARM_UP)?;
        Ok(pair)
    }

    /// Measures the rate, in tensors per second.
    pub(super) fn rate(&mut self, bench: &Bench) -> Result<f64, BenchError> {
        self.batches(bench, bench.pick(400, 60))
    }

    fn batches(&mut self, bench: &Bench, count: u64) -> Result<f64, BenchError> {
        let batches = Batches {
            prefix: self.what.clone(),
            keys: KEYS,
            len: LEN,
            versions: self.version..self.version + count,
            to: self.to.clone(),
            turns: bench.stage.path(&format!("turns-{}-{}", self.what, self.version)),
        };
        self.version += count;
        let tensors = count * KEYS as u64;
        self.producer.tell(WorkerTask::PushBatches(batches.clone()))?;
        self.consumer.tell(WorkerTask::FetchBatches(batches))?;
        let (started, ended) = (self.producer.answer()?.times(), self.consumer.answer()?.times());
        let (from, to) = (started.first().copied().unwrap_or(0), ended.first().copied().unwrap_or(0));
        Ok(tensors as f64 / (to.saturating_sub(from).max(1) as f64 / 1e9))
    }
}
