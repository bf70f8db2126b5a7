//! The sidecar whose costs are measured.

use super::report::Cell;
use crate::actor::crowd::{CrowdTask, Numbered};
use crate::bench::Bench;
use crate::error::BenchError;
use crate::resident::Resident;
use crate::stage::{Actor, Sidecar, pause};
use crate::usage::Usage;
use std::time::Duration;

/// The name of the data-plane thread.
const DATA_PLANE: &str = "transfer-data";
/// A thread that takes less than this in [`SAMPLE_INTERVAL`] has nothing left to do but to keep its links alive.
const QUIET: Duration = Duration::from_micros(200);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// The longest wait until a thread is quiet.
const MAX_SAMPLES: u32 = 500;

pub(super) struct Hub {
    pub(super) sidecar: Sidecar,
}

impl Hub {
    pub(super) fn start(bench: &Bench, flags: &[&str]) -> Result<Hub, BenchError> {
        let flags = [&["--pool-bytes", "1MiB"], flags].concat();
        Ok(Hub { sidecar: bench.stage.sidecar_that_polls("event", "hub", None, &flags)? })
    }

    /// Starts a process, and begins sessions with these names.
    pub(super) fn crowd(
        &self,
        bench: &Bench,
        names: impl IntoIterator<Item = String>,
        arena_bytes: u64,
    ) -> Result<Actor, BenchError> {
        let mut crowd = bench.stage.actor("crowd")?;
        for name in names {
            crowd.ask(CrowdTask::Join { socket: self.sidecar.socket.clone(), name, arena_bytes })?;
        }
        Ok(crowd)
    }

    /// The processor time of the data plane, once it has nothing left to do.
    pub(super) fn cpu(&self) -> Result<Duration, BenchError> {
        let now = || Usage::of_thread(self.sidecar.pid(), DATA_PLANE).cpu;
        let mut before = now();
        for _ in 0..MAX_SAMPLES {
            pause(SAMPLE_INTERVAL)?;
            let after = now();
            if after.saturating_sub(before) < QUIET {
                return Ok(after);
            }
            before = after;
        }
        Ok(before)
    }

    /// What the sidecar has, once it has nothing left to do.
    pub(super) fn resident(&self) -> Result<Resident, BenchError> {
        self.cpu()?;
        Ok(Resident::of(self.sidecar.pid()))
    }

    /// Measures `bench.runs` rounds of this many tensors, after one that does not count.
    pub(super) fn rounds(
        &self,
        bench: &Bench,
        cell: &mut Cell,
        tensors: u64,
        mut round: impl FnMut(u64, Step) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        for run in 0..=bench.runs {
            bench.says(format!("{}: run {run} of {}", cell.title(), bench.runs));
            // Version 1 may be there already.
            let version = u64::from(run) + 2;
            let at = [
                self.cpu()?,
                {
                    round(version, Step::Wait)?;
                    self.cpu()?
                },
                {
                    round(version, Step::Push)?;
                    round(version, Step::Take)?;
                    self.cpu()?
                },
            ];
            if run > 0 {
                let each = |from: usize| at[from + 1].saturating_sub(at[from]).as_nanos() as f64 / tensors as f64;
                cell.waits_ns.push(each(0));
                cell.pushes_ns.push(each(1));
            }
        }
        Ok(())
    }
}

/// A step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Begin the fetches.
    Wait,
    /// Push what they wait for.
    Push,
    /// Take and release it.
    Take,
}

/// The step's task for a crowd in which one session pushes and another one fetches.
pub(super) fn step((pusher, reader): (usize, usize), keys: Numbered, version: u64, step: Step) -> CrowdTask {
    match step {
        Step::Wait => CrowdTask::Wait { session: reader, keys, version },
        Step::Push => CrowdTask::Push { session: pusher, keys, version },
        Step::Take => CrowdTask::Take,
    }
}
