//! Two workers of one sidecar hand over a tensor each millisecond, and all processes sleep in between. A second part
//! measures workers that poll.
//!
//! The two workers take the moments, before the call of `push_tensor` and after `fetch` has returned, and keep them
//! until the run is over. The baseline is the kernel's cheapest hand-over between two processes: a word that both map.
//! One process stores it and wakes the other, which sleeps in `FUTEX_WAIT`.
//!
//! In the second part, the workers' calls poll for their answers, and the baseline's receiver polls the word. The
//! producer still sleeps between two messages, in the system and in the baseline, and the sidecar waits as `--poll`
//! says (default: `adaptive`). If the sidecar polled as well, the figures on two cores would show how the kernel shares
//! them out among three threads.

use super::{GIB, KIB, latencies_us, worker, worker_that_spins};
use crate::actor::bare::BareTask;
use crate::actor::pace::Pace;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::{Actor, Sidecar};
use std::path::Path;
use std::time::Duration;
use transfer_terminal::units;

const PACE_NS: u64 = 1_000_000;
/// The first messages of each run, which do not count, because both sides have to start.
pub(super) const WARM_UP: usize = 20;
/// One tensor is published, one is being read, and one is being written.
pub(super) const TENSORS: u64 = 3;
const KEY: &str = "handover";
/// The polling time of calls in the second part. If polling does not pay, the client reduces it to a sixteenth, which
/// is still more than [`PACE_NS`].
const SPIN: Duration = Duration::from_millis(100);

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for len in [4 * KIB, GIB] {
        figures.extend(of_size(bench, len)?);
    }
    figures.extend(polling(bench, 4 * KIB)?);
    Ok(figures)
}

fn of_size(bench: &Bench, len: u64) -> Result<Vec<Figure>, BenchError> {
    let size = units::bytes(len);
    let count = messages(bench);
    let sidecar = bench.stage.sidecar("node", None, &["--max-arena-bytes", "4GiB", "--pinned-limit", "8GiB"])?;
    let arena = (TENSORS * len).max(16 << 20);
    let mut producer = worker(&bench.stage, &sidecar, "producer", arena)?;
    bench.says(format!("{size}: filling the arena"));
    producer.ask(WorkerTask::Prefill { len, tensors: TENSORS as usize })?;

    let mut p50 = Figure::beside(format!("{size}: p50"), Unit::Micros, Versus::Difference, Goal::AtMost(3.0));
    let mut p99 = Figure::beside(format!("{size}: p99"), Unit::Micros, Versus::Difference, Goal::Open);
    let mut copied = Figure::alone(format!("{size}: copied by a CPU, per tensor"), Unit::Bytes, Goal::AtMost(0.0));
    let mut read = Figure::beside(
        format!("{size}: first full read, against the second"),
        Unit::GigabytesPerSecond,
        Versus::Ratio,
        Goal::AtLeast(0.9),
    );
    for run in 0..bench.runs {
        bench.says(format!("{size}: run {} of {}", run + 1, bench.runs));
        let first = u64::from(run) * count + 1;
        let (mut ours, bytes) =
            hand_over(bench, (&sidecar, "consumer"), &mut producer, len, first..first + count, &mut read)?;
        let mut bare = word(bench, count, false)?;
        p50.run_beside(percentile(&mut ours, 50.0), percentile(&mut bare, 50.0));
        p99.run_beside(percentile(&mut ours, 99.0), percentile(&mut bare, 99.0));
        copied.run(bytes as f64 / count as f64);
    }
    let mut figures = vec![p50, p99, copied];
    if len >= GIB {
        figures.push(read);
    }
    Ok(figures)
}

/// Measures with both workers polling.
fn polling(bench: &Bench, len: u64) -> Result<Vec<Figure>, BenchError> {
    let what = format!("{}, both polling", units::bytes(len));
    let count = messages(bench);
    let sidecar = bench.stage.sidecar("node", None, &[])?;
    let mut producer = worker_that_spins(&bench.stage, &sidecar, "producer", 16 << 20, Some(SPIN))?;
    producer.ask(WorkerTask::Prefill { len, tensors: TENSORS as usize })?;
    let mut consumer = worker_that_spins(&bench.stage, &sidecar, "consumer", 0, Some(SPIN))?;

    let mut p50 = Figure::alone(format!("{what}: p50"), Unit::Micros, Goal::AtMost(1.0));
    let mut against = Figure::beside("  against a bare word", Unit::Micros, Versus::Difference, Goal::Open);
    let mut p99 = Figure::beside(format!("{what}: p99"), Unit::Micros, Versus::Difference, Goal::Open);
    for run in 0..bench.runs {
        bench.says(format!("{what}: run {} of {}", run + 1, bench.runs));
        let first = u64::from(run) * count + 1;
        let (mut ours, _) = pass(bench, &mut producer, &mut consumer, len, first..first + count)?;
        let mut bare = word(bench, count, true)?;
        let middle = percentile(&mut ours, 50.0);
        p50.run(middle);
        against.run_beside(middle, percentile(&mut bare, 50.0));
        p99.run_beside(percentile(&mut ours, 99.0), percentile(&mut bare, 99.0));
    }
    Ok(vec![p50, against, p99])
}

/// The number of messages of a run.
fn messages(bench: &Bench) -> u64 {
    bench.pick(1000, 200) + WARM_UP as u64
}

/// Measures with a new consumer of this name, which has not mapped the producer's memory before.
pub(super) fn hand_over(
    bench: &Bench,
    (sidecar, name): (&Sidecar, &str),
    producer: &mut Actor,
    len: u64,
    versions: std::ops::Range<u64>,
    read: &mut Figure,
) -> Result<(Vec<f64>, u64), BenchError> {
    let mut consumer = worker(&bench.stage, sidecar, name, 0)?;
    let version = versions.end - 1;
    let found = pass(bench, producer, &mut consumer, len, versions)?;
    if len >= GIB {
        let mut reader = worker(&bench.stage, sidecar, "reader", 0)?;
        let times = reader.ask(WorkerTask::ReadTwice { key: KEY.to_owned(), version })?.times();
        if let [first, second] = times[..] {
            read.run_beside(super::gigabytes_per_second(len, first), super::gigabytes_per_second(len, second));
        }
    }
    Ok(found)
}

/// Returns the times from push to fetch, in microseconds, and the copied bytes.
fn pass(
    bench: &Bench,
    producer: &mut Actor,
    consumer: &mut Actor,
    len: u64,
    versions: std::ops::Range<u64>,
) -> Result<(Vec<f64>, u64), BenchError> {
    let (key, turns) = (KEY.to_owned(), bench.stage.new_path("turns"));
    producer.tell(WorkerTask::Push {
        key: key.clone(),
        len,
        versions: versions.clone(),
        pace: pace(&turns),
        to: None,
    })?;
    consumer.tell(WorkerTask::Fetch { key, versions, turns: Some(turns) })?;
    let (fetched, pushed) = (consumer.answer(), producer.answer());
    // If both fail, the producer's failure is the cause.
    let (pushed, fetched) = (pushed?, fetched?);
    let copied = fetched.copied() + pushed.copied();
    let latencies = latencies_us(&pushed.times(), &fetched.times());
    Ok((latencies.into_iter().skip(WARM_UP).collect(), copied))
}

/// One message in each interval, but not before the previous one has arrived, so that no version is replaced before it
/// is fetched.
fn pace(turns: &Path) -> Pace {
    Pace { interval_ns: PACE_NS, turns: Some(turns.to_owned()) }
}

/// Returns the times from the store of a shared word until the other process sees it, in microseconds. That process
/// polls or sleeps.
fn word(bench: &Bench, count: u64, polling: bool) -> Result<Vec<f64>, BenchError> {
    let (at, turns) = (bench.stage.new_path("word"), bench.stage.new_path("turns"));
    let (mut sender, mut receiver) = (bench.stage.actor("sender")?, bench.stage.actor("receiver")?);
    sender.tell(BareTask::Store { at: at.clone(), count, pace: pace(&turns), polling })?;
    receiver.tell(BareTask::Await { at, count, turns: Some(turns), polling })?;
    let (received, sent) = (receiver.answer()?, sender.answer()?);
    Ok(latencies_us(&sent.times(), &received.times()).into_iter().skip(WARM_UP).collect())
}
