//! The cost of an idle sidecar with eight sessions and two peers, and of each published tensor.
//!
//! CPU time is the scheduler's count for all threads of the sidecar, in nanoseconds. Memory beside the pools is
//! resident memory that is not shared memory: heap and stacks (RssAnon), program and libraries (RssFile). Pools,
//! arenas, rings and headers are shared memory (RssShmem), and bounded by the configuration.

use super::{KIB, MIB, worker};
use crate::actor::pace::Pace;
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit};
use crate::resident::Resident;
use crate::stage::{Actor, Sidecar, pause};
use crate::usage::Usage;
use std::time::{Duration, Instant};
use transfer_terminal::units;

const SESSIONS: usize = 8;
/// The time after which new processes have settled.
const SETTLE: Duration = Duration::from_secs(2);

/// The most bytes of a sidecar's memory for a published tensor. docs/performance.md shows both goals.
const AT_SIDECAR: Goal = Goal::AtMost(270.0);
/// The same, if the sidecar hosts the directory, too.
const AT_BOTH: Goal = Goal::AtMost(300.0);

/// Runs the suite: once, over a long time, because a median would add nothing.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut figures = idle(bench)?;
    figures.extend(published(bench)?);
    Ok(figures)
}

fn idle(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let stage = &bench.stage;
    let a = stage.sidecar("a", None, &["--pool-bytes", "64MiB"])?;
    let b = stage.sidecar("b", Some(&a.url), &["--pool-bytes", "64MiB"])?;
    let c = stage.sidecar("c", Some(&a.url), &["--pool-bytes", "64MiB"])?;
    let workers = (0..SESSIONS).map(|i| worker(stage, &a, &format!("worker-{i}"), 4 * MIB));
    let mut workers = workers.collect::<Result<Vec<Actor>, BenchError>>()?;
    let _others = (worker(stage, &b, "at-b", 0)?, worker(stage, &c, "at-c", 0)?);
    // These pushes make the links.
    for (node, to) in ["at-b", "at-c"].into_iter().enumerate() {
        let (key, to) = (format!("idle/{to}"), Some(to.to_owned()));
        let pace = Pace { interval_ns: 1_000_000, turns: None };
        workers[node].ask(WorkerTask::Push { key, len: 4 * KIB, versions: 1..50, pace, to })?;
    }
    let span = Duration::from_secs(bench.pick(60, 5));
    bench.says(format!("nothing to do for {span:?}"));
    pause(SETTLE)?;
    let (before, started) = (Usage::of(&[a.pid()]), Instant::now());
    pause(span)?;
    let share = Usage::of(&[a.pid()]).since(before).cpu.as_secs_f64() / started.elapsed().as_secs_f64();

    let memory = Resident::of(a.pid());
    let what = format!("idle for {span:?}, {SESSIONS} sessions, 2 peers: CPU");
    let mut cpu = Figure::alone(what, Unit::PercentOfCore, Goal::AtMost(0.5));
    cpu.run(share * 100.0);
    let mut beside = Figure::alone("  memory beside the pools", Unit::Mebibytes, Goal::AtMost(30.0));
    beside.run((memory.anonymous + memory.files) as f64 / MIB as f64);
    let mut anonymous = Figure::alone("    of it heap and stacks", Unit::Mebibytes, Goal::Open);
    anonymous.run(memory.anonymous as f64 / MIB as f64);
    let mut shared = Figure::alone("  pools, arenas, rings, headers", Unit::Mebibytes, Goal::Open);
    shared.run(memory.shared as f64 / MIB as f64);
    Ok(vec![cpu, beside, anonymous, shared])
}

/// Measures a sidecar that uses another host's directory, that directory's host, and a sidecar that is both.
fn published(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let count: u64 = bench.pick(1_000_000, 100_000);
    let flags = ["--pool-bytes", "1MiB"];
    let host = bench.stage.sidecar("host", None, &flags)?;
    let guest = bench.stage.sidecar("guest", Some(&host.url), &flags)?;
    let alone = bench.stage.sidecar("alone", None, &flags)?;
    let mut figures = Vec::new();
    let mut publish = |at: &Sidecar, looked_at: &[(&Sidecar, String, Goal)]| -> Result<(), BenchError> {
        bench.says(format!("{} tensors", units::count(count)));
        let mut publisher = worker(&bench.stage, at, "publisher", count * 64 + 16 * MIB)?;
        pause(SETTLE)?;
        let heap = |sidecar: &Sidecar| Resident::of(sidecar.pid()).anonymous;
        let before: Vec<u64> = looked_at.iter().map(|(sidecar, ..)| heap(sidecar)).collect();
        publisher.ask(WorkerTask::Publish { count })?;
        pause(SETTLE)?;
        for ((sidecar, what, goal), before) in looked_at.iter().zip(before) {
            let mut figure = Figure::alone(what, Unit::Bytes, *goal);
            figure.run(heap(sidecar).saturating_sub(before) as f64 / count as f64);
            figures.push(figure);
        }
        Ok(())
    };
    let name = units::count(count);
    let at_guest = format!("{name} tensors: memory for each, at their sidecar");
    let at_host = "  and at the directory's host, which is another one".to_owned();
    publish(&guest, &[(&guest, at_guest, AT_SIDECAR), (&host, at_host, Goal::Open)])?;
    let at_both = format!("{name} tensors: memory for each, at a sidecar that hosts the directory too");
    publish(&alone, &[(&alone, at_both, AT_BOTH)])?;
    Ok(figures)
}
