//! Micro-benchmarks of single steps of the hot paths. `transfer-bench` measures the whole.
//!
//! `cargo bench -p transfer-benches` runs all of them. `cargo bench -p transfer-benches --bench node -- fetch` runs
//! those of one file whose names contain "fetch". Each line shows the median of many short rounds, with the fastest and
//! the slowest.
//!
//! - `ring`: a record through a ring in shared memory.
//! - `allocator`: the allocation of a range, and its return.
//! - `messages`: encoding and decoding the messages of sidecars and workers.
//! - `deltas`: making and applying deltas, beside copies of the same bytes.
//! - `partition`: rows that are copied into blocks of their partitions, beside Arrow's own kernels.
//! - `node`: the state machine's share of a push, a fetch and a release, without any I/O.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

/// The time of all rounds of one benchmark together.
const BUDGET: Duration = Duration::from_millis(1500);
/// The least time of one round, so that the time of reading the clock is negligible.
const ROUND: Duration = Duration::from_millis(10);

/// Runs benchmarks and prints a line for each.
#[derive(Debug)]
pub struct Runner {
    filter: Option<String>,
    quick: bool,
}

impl Runner {
    /// Reads the command line: a word that the names must contain. Without `--bench`, each benchmark runs once.
    #[must_use]
    pub fn from_arguments() -> Runner {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let filter = arguments.iter().find(|a| !a.starts_with("--")).cloned();
        // `cargo bench` passes --bench, `cargo test` does not.
        let quick = !arguments.iter().any(|a| a == "--bench");
        Runner { filter, quick }
    }

    /// Measures `step`, one call of which does `operations` operations.
    pub fn measure<T>(&self, name: &str, operations: u64, mut step: impl FnMut() -> T) {
        if self.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            return;
        }
        if self.quick {
            black_box(step());
            println!("{name}: runs");
            return;
        }
        let mut steps = 1u64;
        while time(&mut step, steps) < ROUND {
            steps *= 2;
        }
        let started = Instant::now();
        let mut rounds = Vec::new();
        while started.elapsed() < BUDGET || rounds.len() < 5 {
            rounds.push(time(&mut step, steps).as_nanos() as f64 / (steps * operations) as f64);
        }
        rounds.sort_by(f64::total_cmp);
        let (median, min, max) = (rounds[rounds.len() / 2], rounds[0], rounds[rounds.len() - 1]);
        println!("{name:<52} {median:>9.1} ns ({min:.1} to {max:.1})  {:>12.0} per second", 1e9 / median);
    }
}

fn time<T>(step: &mut impl FnMut() -> T, steps: u64) -> Duration {
    let started = Instant::now();
    for _ in 0..steps {
        black_box(step());
    }
    started.elapsed()
}
