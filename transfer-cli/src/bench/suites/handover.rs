//! Two workers of one sidecar hand over a tensor each millisecond; everybody sleeps in between.
//!
//! The moments are taken in the two workers, before the call of `push_tensor` and after `fetch` has returned, and stay there until the run is
//! over. The baseline is a relay process that passes on one byte over the same kind of socket: each process sleeps in poll or epoll, and
//! takes its byte with one more call, as workers and sidecar do.

use super::{GIB, KIB, latencies_us, worker};
use crate::bench::actor::bare::{BareTask, Pace};
use crate::bench::actor::worker::WorkerTask;
use crate::bench::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::bench::stage::{Actor, Sidecar};
use crate::bench::{Bench, BenchError};
use crate::units;
use std::path::Path;

const PACE_NS: u64 = 1_000_000;
/// Of each run, these many messages are not counted: both sides have to get going.
pub(super) const WARM_UP: usize = 20;
/// One that is published, one that is being read, one that is being written.
pub(super) const TENSORS: u64 = 3;

/// Measures.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for len in [4 * KIB, GIB] {
        figures.extend(of_size(bench, len)?);
    }
    Ok(figures)
}

fn of_size(bench: &Bench, len: u64) -> Result<Vec<Figure>, BenchError> {
    let size = units::bytes(len);
    let count = bench.pick(1000u64, 200) + WARM_UP as u64;
    let sidecar = bench.stage.sidecar("node", None, &["--max-arena-bytes", "4GiB", "--pinned-limit", "8GiB"])?;
    let arena = (TENSORS * len).max(16 << 20);
    let mut producer = worker(&bench.stage, &sidecar, "producer", arena)?;
    bench.says(format!("{size}: filling the arena"));
    producer.ask(WorkerTask::Prefill { len, tensors: TENSORS as usize })?;

    let mut p50 = Figure::beside(format!("{size}: p50"), Unit::Micros, Versus::Difference, Goal::AtMost(5.0));
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
        let bare = relay(bench, PACE_NS, count)?;
        let mut bare: Vec<f64> = bare.into_iter().skip(WARM_UP).collect();
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

/// With a consumer of this name, which has never seen the producer's memory before.
pub(super) fn hand_over(
    bench: &Bench,
    (sidecar, name): (&Sidecar, &str),
    producer: &mut Actor,
    len: u64,
    versions: std::ops::Range<u64>,
    read: &mut Figure,
) -> Result<(Vec<f64>, u64), BenchError> {
    let key = "handover".to_owned();
    let mut consumer = worker(&bench.stage, sidecar, name, 0)?;
    let last = versions.end - 1;
    let turns = bench.stage.new_path("turns");
    producer.tell(WorkerTask::Push {
        key: key.clone(),
        len,
        versions: versions.clone(),
        pace: pace(PACE_NS, &turns),
        to: None,
    })?;
    consumer.tell(WorkerTask::Fetch { key: key.clone(), versions, turns: Some(turns) })?;
    let (fetched, pushed) = (consumer.answer(), producer.answer());
    // Where both fail, the consumer does because the producer did.
    let (pushed, fetched) = (pushed?, fetched?);
    let copied = fetched.copied() + pushed.copied();
    if len >= GIB {
        let mut reader = worker(&bench.stage, sidecar, "reader", 0)?;
        let times = reader.ask(WorkerTask::ReadTwice { key, version: last })?.times();
        if let [first, second] = times[..] {
            read.run_beside(super::gigabytes_per_second(len, first), super::gigabytes_per_second(len, second));
        }
    }
    let latencies = latencies_us(&pushed.times(), &fetched.times());
    Ok((latencies.into_iter().skip(WARM_UP).collect(), copied))
}

/// One in each interval; later where the one before has not arrived by then, so that none is replaced before it is fetched.
fn pace(interval_ns: u64, turns: &Path) -> Pace {
    Pace { interval_ns, turns: Some(turns.to_owned()) }
}

/// The times of one-byte messages through a process that passes them on, in microseconds.
pub(super) fn relay(bench: &Bench, interval_ns: u64, count: u64) -> Result<Vec<f64>, BenchError> {
    let path = |what| bench.stage.new_path(what);
    let (from, to, turns) = (path("from"), path("to"), path("turns"));
    let (mut relay, mut sender, mut receiver) =
        (bench.stage.actor("relay")?, bench.stage.actor("sender")?, bench.stage.actor("receiver")?);
    relay.tell(BareTask::Relay { from: from.clone(), to: to.clone(), count })?;
    sender.tell(BareTask::Send { to: from, count, pace: pace(interval_ns, &turns) })?;
    receiver.tell(BareTask::Receive { from: to, count, turns: Some(turns) })?;
    let (received, sent) = (receiver.answer()?, sender.answer()?);
    relay.answer()?;
    Ok(latencies_us(&sent.times(), &received.times()))
}
