//! Many 4 KiB tensors with batch calls, under keys that are known by then: while one batch is fetched, the next one is pushed.

use super::{KIB, MIB, pair, worker};
use crate::bench::actor::batches::Batches;
use crate::bench::actor::worker::WorkerTask;
use crate::bench::figure::{Figure, Goal, Unit};
use crate::bench::stage::{Actor, Sidecar};
use crate::bench::{Bench, BenchError};

const LEN: u64 = 4 * KIB;
const KEYS: usize = 512;
/// Makes the keys known.
const WARM_UP: u64 = 4;

/// Measures.
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
    let name = format!("consumer-{what}");
    let mut producer = worker(&bench.stage, from, &format!("producer-{what}"), 64 * MIB)?;
    producer.ask(WorkerTask::Prefill { len: LEN, tensors: 8 * KEYS })?;
    let mut consumer = worker(&bench.stage, to, &name, 0)?;
    let rounds = bench.pick(400, 60);
    let mut version = 1;
    for run in 0..=bench.runs {
        bench.says(format!("{what}: run {run} of {}", bench.runs));
        let batches = Batches {
            prefix: what.to_owned(),
            keys: KEYS,
            len: LEN,
            versions: version..version + if run == 0 { WARM_UP } else { rounds },
            to: push.then(|| name.clone()),
            turns: bench.stage.path(&format!("turns-{what}-{run}")),
        };
        version = batches.versions.end;
        let rate = once(&mut producer, &mut consumer, batches)?;
        if run > 0 {
            figure.run(rate);
        }
    }
    Ok(())
}

fn once(producer: &mut Actor, consumer: &mut Actor, batches: Batches) -> Result<f64, BenchError> {
    let tensors = (batches.versions.end - batches.versions.start) * batches.keys as u64;
    producer.tell(WorkerTask::PushBatches(batches.clone()))?;
    consumer.tell(WorkerTask::FetchBatches(batches))?;
    let (started, ended) = (producer.answer()?.times(), consumer.answer()?.times());
    let (from, to) = (started.first().copied().unwrap_or(0), ended.first().copied().unwrap_or(0));
    Ok(tensors as f64 / (to.saturating_sub(from).max(1) as f64 / 1e9))
}
