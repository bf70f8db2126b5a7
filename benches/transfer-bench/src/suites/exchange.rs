//! An exchange of 2 GB of records of 100 bytes, on one host: four workers at two sidecars, each of which partitions its
//! records by the hash of their key, commits them, and reads every byte of a quarter of the partitions.
//!
//! The baseline is the partitioning alone, by the same four workers at the same time. Over TCP half of the records move
//! to the other sidecar, so a bare socket is a baseline as well, and the slower one counts.

use super::{MIB, gigabytes_per_second, pair_over, tcp, worker};
use crate::actor::answer::Answer;
use crate::actor::shuffle::{RECORD, Shuffle};
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus};
use crate::stage::Actor;

const WORKERS: u32 = 4;
/// The partitions that each worker reads.
const EACH: u32 = 16;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let mut all = over(bench, "shm", 0.7)?;
    all.extend(over(bench, "tcp", 0.6)?);
    Ok(all)
}

fn over(bench: &Bench, fabric: &str, goal: f64) -> Result<Vec<Figure>, BenchError> {
    let records = bench.pick(5_000_000_u64, 250_000);
    let bytes = records * RECORD * u64::from(WORKERS);
    let flags = ["--pool-bytes", "1GiB", "--max-arena-bytes", "1GiB", "--pinned-limit", "8GiB"];
    let (a, b) = pair_over(&bench.stage, fabric, &flags)?;
    let rate =
        |what: &str, goal| Figure::beside(format!("{fabric}: {what}"), Unit::GigabytesPerSecond, Versus::Ratio, goal);
    let mut whole = rate("partitioned, committed and read", Goal::AtLeast(goal));
    let mut read = rate("  read, after the last commit", Goal::Open);
    let mut copied = Figure::alone("  copied by a CPU after that, per byte", Unit::Each, Goal::Open);
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        let sidecar = if n < WORKERS / 2 { &a } else { &b };
        // The blocks have a number of 4 bytes for each row, and the last ones are not full.
        let mut worker = worker(&bench.stage, sidecar, &format!("worker-{n}"), records * (RECORD + 4) + 128 * MIB)?;
        worker.tell(WorkerTask::Shuffle(Shuffle::Records { records, seed: u64::from(n) }))?;
        workers.push(worker);
    }
    workers.iter_mut().try_for_each(|worker| worker.answer().map(drop))?;
    for run in 0..=bench.runs {
        bench.says(format!("{fabric}, run {run} of {}", bench.runs));
        let name = format!("x-{run}");
        let open = Shuffle::Open { name: name.clone(), partitions: WORKERS * EACH, tasks: WORKERS };
        workers[0].ask(WorkerTask::Shuffle(open))?;
        for worker in &mut workers[1..] {
            worker.ask(WorkerTask::Shuffle(Shuffle::Join { name: name.clone() }))?;
        }
        let alone = together(&mut workers, |task| Shuffle::Partition { task, attempt: 0 })?;
        let alone = times(alone).fold((u64::MAX, 0), |(from, to), (start, end)| (from.min(start), to.max(end)));
        let partition = |task| Shuffle::Whole { task, attempt: 1, partitions: task * EACH..(task + 1) * EACH };
        let done = Done::of(&together(&mut workers, partition)?);
        together(&mut workers, |_| Shuffle::End)?;
        if done.rows != records * u64::from(WORKERS) {
            let said = format!("{} rows were read, and {} written", done.rows, records * u64::from(WORKERS));
            return Err(BenchError::Unexpected { name, said });
        }
        // The first run is the first use of the arenas' pages.
        if run == 0 {
            continue;
        }
        let alone = gigabytes_per_second(bytes, alone.1 - alone.0);
        let least = match fabric {
            "tcp" => alone.min(tcp::bare(bench, 1, tcp::LEN, bytes.div_ceil(2 * tcp::LEN))?),
            _ => alone,
        };
        whole.run_beside(gigabytes_per_second(bytes, done.ended - done.started), least);
        read.run_beside(gigabytes_per_second(bytes, done.ended - done.committed), alone);
        copied.run(done.copied as f64 / bytes as f64);
    }
    Ok(vec![whole, read, copied])
}

/// Gives every worker a task at the same time.
fn together(workers: &mut [Actor], task: impl Fn(u32) -> Shuffle) -> Result<Vec<Answer>, BenchError> {
    for (n, worker) in (0..).zip(&mut *workers) {
        worker.tell(WorkerTask::Shuffle(task(n)))?;
    }
    workers.iter_mut().map(Actor::answer).collect()
}

fn times(answers: Vec<Answer>) -> impl Iterator<Item = (u64, u64)> {
    answers.into_iter().filter_map(|answer| match answer.times()[..] {
        [start, end] => Some((start, end)),
        _ => None,
    })
}

/// What all workers together have done.
#[derive(Debug, Default)]
struct Done {
    started: u64,
    /// When the last task was committed.
    committed: u64,
    ended: u64,
    rows: u64,
    copied: u64,
}

impl Done {
    fn of(answers: &[Answer]) -> Done {
        let mut all = Done { started: u64::MAX, ..Done::default() };
        for answer in answers {
            if let Answer::Shuffled { started, committed, ended, rows, copied } = *answer {
                all.started = all.started.min(started);
                all.committed = all.committed.max(committed);
                all.ended = all.ended.max(ended);
                all.rows += rows;
                all.copied += copied;
            }
        }
        all
    }
}
