//! What both ends do around a measurement.

use super::error::{PerfError, PlanError};
use super::memory::pattern;
use super::message::Endpoint;
use super::rig::Rig;
use super::terms::{Measure, Run, Setup, Verb};

/// Checks that a peer has told of as many queue pairs as the test has.
pub(super) fn check_ends(setup: &Setup, ends: &[Endpoint]) -> Result<(), PerfError> {
    let (value, wanted) = (ends.len() as u64, u64::from(setup.queue_pairs));
    if value == wanted {
        return Ok(());
    }
    let why = ": the other end must have as many";
    Err(PlanError::Range { flag: "--qp", value, least: wanted, most: wanted, why }.into())
}

impl Rig {
    /// Writes the bytes of a run to the sources and clears the targets.
    pub(super) fn prepare(&mut self, run: &Run) -> Result<(), PerfError> {
        self.memory.prepare(self.pairs(), run)?;
        let is_inline = run.size <= self.setup.inline_bytes.into();
        self.set_inline(if is_inline { pattern(run.seed, run.size as usize) } else { Vec::new() });
        Ok(())
    }

    /// Whether the bytes of the run are at all targets. The last byte of a WRITE that is answered is its mark, which
    /// was seen.
    pub(super) fn has_arrived(&self, run: &Run) -> Result<bool, PerfError> {
        let is_marked = self.setup.verb == Verb::Write && self.setup.measure == Measure::Lat;
        // A shared queue's receives are all at the first target.
        let targets = if self.setup.shared_receives { 1 } else { self.pairs() };
        self.memory.has_arrived(targets, run, usize::from(is_marked))
    }
}
