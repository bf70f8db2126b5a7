//! A sharded state of 64 matrices of 16 MiB: eight ranks at one sidecar have an eighth of the rows of each, and two readers at the
//! other take half of the rows or of the columns, over TCP. Beside it are the same bytes as they lie: each reader fetches bundles
//! of four ranks.
//!
//! The suite fails if a byte moves twice.

use super::{GIB, MIB, bytes_in, gigabytes_per_second, pair, worker};
use crate::actor::answer::Answer;
use crate::actor::reshard::{Matrices, Reshard};
use crate::actor::worker::WorkerTask;
use crate::bench::Bench;
use crate::error::BenchError;
use crate::figure::{Figure, Goal, Unit, Versus, percentile};
use crate::stage::{Actor, Sidecar};

const RANKS: u32 = 8;

/// The most that may move beside the elements, in bytes of each fetch: manifests, layouts and tables.
const BESIDE: u64 = MIB / 2;

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let of = Matrices { count: 64, side: bench.pick(2048, 512), ranks: RANKS };
    let (pool, arenas) = ((of.len_bytes() * 2).to_string(), (4 * GIB).to_string());
    let flags = ["--pool-bytes", &pool, "--max-arena-bytes", "1GiB", "--pinned-limit", &arenas];
    let (a, b) = pair(&bench.stage, &flags)?;
    let mut ranks = Vec::new();
    for n in 0..RANKS {
        let mut rank = worker(&bench.stage, &a, &format!("rank-{n}"), of.len_bytes() / u64::from(RANKS) + 4 * MIB)?;
        rank.ask(WorkerTask::Reshard(Reshard::Push { of, rank: n }))?;
        ranks.push(rank);
    }
    let arena = of.len_bytes() / 2 + 32 * MIB;
    let mut readers = [worker(&bench.stage, &b, "reader-0", arena)?, worker(&bench.stage, &b, "reader-1", arena)?];
    let rate = |what: &str, goal| Figure::beside(what, Unit::GigabytesPerSecond, Versus::Ratio, Goal::AtLeast(goal));
    let mut rows = rate("rows of 8 ranks to halves of the rows, into the readers' tensors", 0.9);
    let mut columns = rate("  to halves of the columns, into the readers' tensors", 0.6);
    let beside = |what: &str| Figure::beside(what, Unit::GigabytesPerSecond, Versus::Ratio, Goal::Open);
    let mut copied_rows = beside("  to halves of the rows, into memory of the client");
    let mut copied_columns = beside("  to halves of the columns, into memory of the client");
    let each = |what: &str| Figure::alone(what, Unit::Each, Goal::Open);
    let mut moved = each("  bytes that moved, per byte");
    let mut copied = each("  copied by a CPU, per byte");
    for run in 0..bench.runs {
        bench.says(format!("run {} of {}", run + 1, bench.runs));
        let (mut of_bundles, mut of_rows, mut of_columns) = (Vec::new(), Vec::new(), Vec::new());
        let (mut of_copied_rows, mut of_copied_columns) = (Vec::new(), Vec::new());
        // The first round makes names and memory known, and is not measured.
        for round in 0..=bench.pick(3, 1) {
            let bundles = fetch(of, &b, &mut readers, |second| Reshard::FetchBundles { of, second })?;
            let mut half =
                |columns, into| fetch(of, &b, &mut readers, |second| Reshard::Fetch { of, second, columns, into });
            let (halves, across) = (half(false, true)?, half(true, true)?);
            let (beside_rows, beside_columns) = (half(false, false)?, half(true, false)?);
            if round > 0 {
                of_bundles.push(bundles.rate);
                of_rows.push(halves.rate);
                of_columns.push(across.rate);
                of_copied_rows.push(beside_rows.rate);
                of_copied_columns.push(beside_columns.rate);
                moved.run((halves.moved + across.moved) as f64 / (2 * of.len_bytes()) as f64);
                copied.run((halves.copied + across.copied) as f64 / (2 * of.len_bytes()) as f64);
            }
        }
        let contiguous = percentile(&mut of_bundles, 50.0);
        rows.run_beside(percentile(&mut of_rows, 50.0), contiguous);
        columns.run_beside(percentile(&mut of_columns, 50.0), contiguous);
        copied_rows.run_beside(percentile(&mut of_copied_rows, 50.0), contiguous);
        copied_columns.run_beside(percentile(&mut of_copied_columns, 50.0), contiguous);
    }
    Ok(vec![rows, columns, copied_rows, copied_columns, moved, copied])
}

/// A fetch of both readers at once.
struct Fetched {
    /// In GB/s.
    rate: f64,
    moved: u64,
    copied: u64,
}

fn fetch(
    of: Matrices,
    sidecar: &Sidecar,
    readers: &mut [Actor; 2],
    task: impl Fn(bool) -> Reshard,
) -> Result<Fetched, BenchError> {
    let before = bytes_in(sidecar)?;
    for (reader, second) in readers.iter_mut().zip([false, true]) {
        reader.tell(WorkerTask::Reshard(task(second)))?;
    }
    let (mut started, mut ended, mut copied) = (u64::MAX, 0, 0);
    for reader in readers {
        if let Answer::Times { ns, copied: by_it } = reader.answer()? {
            started = ns.iter().copied().fold(started, u64::min);
            ended = ns.iter().copied().fold(ended, u64::max);
            copied += by_it;
        }
    }
    let (moved, bytes) = (bytes_in(sidecar)? - before, of.len_bytes());
    if !(bytes..=bytes + 2 * BESIDE).contains(&moved) {
        let why = format!("{moved} bytes moved for {bytes} bytes of matrices");
        return Err(BenchError::Task { name: "reshard".into(), why });
    }
    Ok(Fetched { rate: gigabytes_per_second(bytes, ended.saturating_sub(started)), moved, copied })
}
