//! How the cost of a tensor grows with what a sidecar has: workers, keys, links to other sidecars, and fetches that wait.
//!
//! Each axis has cells, from few things to many. In each cell the same number of tensors of 64 bytes is fetched and
//! pushed, in two steps: first the fetches, which wait, and then the pushes, which answer them; then the tensors are
//! released. The costs are the processor time of the sidecar's data-plane thread, because the other processes compete for
//! the processors, and tensors go in batches of equal size, because each wake-up costs as much as several tensors. The
//! sidecars sleep while they have nothing to do, whatever `--poll` says: a thread that polls counts as busy.
//!
//! - `workers`, `keys`, `links`, `waiters`: the axes. `hub`: the measured sidecar. `report`: the table, and JSON.
//!   `chart`: the curves.

mod chart;
mod hub;
mod keys;
mod links;
mod report;
mod waiters;
mod workers;

pub use report::Scale;

use super::chart_file::ChartFile;
use super::{KIB, MIB};
use crate::actor::crowd::Numbered;
use crate::bench::Bench;
use crate::error::BenchError;
use std::path::Path;

/// The length of a tensor, and what it takes of an arena.
const TENSOR: u64 = 64;

/// The tensors of a round.
fn tensors(bench: &Bench) -> u64 {
    bench.pick(4096, 1024)
}

/// The keys with these numbers.
fn numbered(first: u64, count: u64) -> Numbered {
    Numbered { first, count, stride: 1, repeat: 1 }
}

/// Runs the suite. `svg`: the file for a chart.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench, svg: Option<&Path>) -> Result<Scale, BenchError> {
    // Before the measurements, so that an error of the file is reported at once.
    let file = svg.map(ChartFile::begin).transpose()?;
    let mut axes = vec![workers::measure(bench)?, keys::measure(bench)?, links::measure(bench)?];
    axes.extend(waiters::measure(bench)?);
    let scale = Scale { axes };
    if let Some(file) = file {
        file.finish(chart::chart(&scale), bench.runs)?;
    }
    Ok(scale)
}
