//! Tensors of all lengths, on one host and between two sidecars over each fabric that this host has.
//!
//! For each length and place, a run measures tensors one at a time, which gives the latency, and tensors in batches,
//! with the producer two batches ahead, which gives the rate and the processor time. Then the baseline of the place
//! does the same without this project. Each length has its own sidecars, so that none uses the slots, or the pages, of
//! another.
//!
//! - `place`: the system. `baseline`: the machine. `report`: the figures as a table and as JSON. `chart`: the figures
//!   as a drawing.

mod baseline;
mod chart;
mod report;
mod topology;

pub use report::Sweep;
pub use topology::Topology;

use super::chart_file::ChartFile;
use super::{KIB, MIB};
use crate::bench::Bench;
use crate::error::BenchError;
use report::{Line, Point};
use std::path::PathBuf;
use topology::Measured;
use transfer_terminal::units;

/// The options of the sweep.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SweepOptions {
    /// For the suite sweep: the shortest tensor. Default: 4KiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub min: Option<u64>,
    /// For the suite sweep: the longest tensor. Default: 1GiB, or the longest that fits into memory; with --quick 4MiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub max: Option<u64>,
    /// For the suites sweep and scale: the file for a chart
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The factor between one length and the next.
const STEP: u64 = 4;
const MAX: u64 = 1 << 30;
const QUICK_MAX: u64 = 4 * MIB;
/// The memory of a sweep, as a multiple of its longest tensor: an arena for three, a pool for four, and two for the
/// baseline.
const MEMORY: u64 = 9;
/// The memory that does not depend on the length, for programs and small pools.
const MEMORY_BESIDE: u64 = 512 * MIB;

impl SweepOptions {
    /// Whether a length was given.
    #[must_use]
    pub fn have_lengths(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// The lengths: each is four times the previous one, up to the longest. `available` is the available memory, in
    /// bytes.
    ///
    /// # Errors
    /// [`BenchError::Sweep`].
    pub fn lengths(&self, quick: bool, available: u64) -> Result<Vec<u64>, BenchError> {
        let wrong = |why: String| Err(BenchError::Sweep { why });
        let fits = available.saturating_sub(MEMORY_BESIDE) / MEMORY;
        let min = self.min.unwrap_or(4 * KIB);
        let max = match self.max {
            Some(max) => max,
            // The largest power of two that fits into memory, but no less than the shortest length.
            None => {
                let most = if quick { QUICK_MAX } else { MAX };
                min.max(most.min(1 << fits.max(1).ilog2()))
            }
        };
        if min == 0 {
            return wrong("--min 0: a tensor of the sweep has at least one byte".to_owned());
        }
        if min > max {
            return wrong(format!("--min {} is above --max {}", units::bytes(min), units::bytes(max)));
        }
        if max > fits {
            return wrong(format!(
                "tensors of {} take {} of memory, and {} are available",
                units::bytes(max),
                units::bytes(max.saturating_mul(MEMORY).saturating_add(MEMORY_BESIDE)),
                units::bytes(available)
            ));
        }
        let powers = std::iter::successors(Some(min), |len| len.checked_mul(STEP));
        Ok(powers.take_while(|len| *len < max).chain([max]).collect())
    }
}

/// Runs the suite.
///
/// # Errors
/// Any [`BenchError`].
pub fn run(bench: &Bench, options: &SweepOptions) -> Result<Sweep, BenchError> {
    let lengths = options.lengths(bench.quick, available())?;
    // Before the measurements, so that an error of the file is reported at once.
    let file = options.svg.as_deref().map(ChartFile::begin).transpose()?;
    let mut lines = Vec::new();
    for place in Topology::all().into_iter().filter(|place| place.is_here()) {
        let mut points = Vec::new();
        for len in &lengths {
            points.push(measure(bench, place, *len)?);
        }
        lines.push(Line::new(place, points));
    }
    let sweep = Sweep { lines };
    if let Some(file) = file {
        file.finish(chart::chart(&sweep), bench.runs)?;
    }
    Ok(sweep)
}

fn measure(bench: &Bench, place: Topology, len: u64) -> Result<Point, BenchError> {
    let says = |what: &str| bench.says(format!("{}, {}: {what}", place.name(), units::bytes(len)));
    says("starting");
    let mut scene = topology::Scene::start(bench, place, len)?;
    let mut runs = Vec::new();
    for run in 0..bench.runs {
        says(&format!("run {} of {}", run + 1, bench.runs));
        let ours: Measured = scene.measure()?;
        says(&format!("baseline, run {} of {}", run + 1, bench.runs));
        runs.push((ours, baseline::measure(bench, &scene)?));
    }
    Ok(Point { len, under_way: scene.under_way(), runs })
}

/// The available memory, in bytes.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
    kib.unwrap_or(0) * KIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_terminal::exit::Exit;

    const GIB: u64 = 1 << 30;

    fn options(min: Option<u64>, max: Option<u64>) -> SweepOptions {
        SweepOptions { min, max, svg: None }
    }

    #[test]
    fn lengths_are_powers_of_four_and_the_longest() {
        let all = options(None, None).lengths(false, 64 * GIB).unwrap();
        assert_eq!((all.len(), all[0], all[9]), (10, 4 * KIB, GIB));
        assert!(all.windows(2).all(|pair| pair[1] == 4 * pair[0]));
        assert_eq!(options(Some(1000), Some(10_000)).lengths(false, 64 * GIB).unwrap(), [1000, 4000, 10_000]);
        assert_eq!(options(Some(5), Some(5)).lengths(false, 64 * GIB).unwrap(), [5]);
        assert_eq!(options(None, None).lengths(true, 64 * GIB).unwrap().last(), Some(&(4 * MIB)));
    }

    #[test]
    fn longest_tensor_fits_into_memory() {
        assert_eq!(options(None, None).lengths(false, 4 * GIB).unwrap().last(), Some(&(256 * MIB)));
        let error = options(None, Some(GIB)).lengths(false, 4 * GIB).unwrap_err().to_string();
        assert!(error.contains("1 GiB") && error.contains("9.5 GiB") && error.contains("4 GiB"), "{error}");
        assert!(options(None, Some(u64::MAX)).lengths(false, 4 * GIB).is_err(), "no overflow");
    }

    #[test]
    fn invalid_lengths_are_refused() {
        let error = options(Some(8 * KIB), Some(4 * KIB)).lengths(false, 64 * GIB).unwrap_err();
        assert_eq!(error.exit(), Exit::InvalidArguments);
        assert_eq!(error.to_string(), "--min 8 KiB is above --max 4 KiB");
        assert!(options(Some(0), None).lengths(false, 64 * GIB).unwrap_err().to_string().contains("--min 0"));
    }
}
