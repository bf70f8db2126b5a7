//! What an attempt has written, and the right to write more.

use crate::block::Block;
use crate::error::{Error, ExchangeError};
use crate::ledger::Holding;
use crate::manifest::Bundles;
use crate::scatter::{Chosen, Placement, Scatter};
use crate::state::ExchangeState;
use parking_lot::Mutex;
use std::sync::Arc;
use transfer_client::{BatchError, TensorMut};

/// The rows of an attempt.
#[derive(Default)]
pub(super) struct Written {
    /// Begun by the first batch, whose schema it has.
    pub(super) scatter: Option<Scatter>,
    /// Whether a call is under way.
    busy: bool,
    /// What was published so far.
    pub(super) holding: Option<Holding>,
    /// The bundles that were published so far, the length of their blocks for each partition, and the last number that was
    /// used.
    pub(super) bundles: Bundles,
    pub(super) lengths: Vec<u64>,
    pub(super) last_bundle: u32,
    /// Room for the table of the next bundle.
    pub(super) reserve: Option<TensorMut>,
}

/// The right to write.
pub(super) struct Writing(pub(super) Arc<Mutex<Written>>);

impl Writing {
    pub(super) fn begin(written: &Arc<Mutex<Written>>, shared: &ExchangeState, task: u32) -> Result<Writing, Error> {
        if std::mem::replace(&mut written.lock().busy, true) {
            let (name, what) = (shared.name.clone(), format!("task {task}"));
            return Err(ExchangeError::Busy { name, what }.into());
        }
        Ok(Writing(written.clone()))
    }

    pub(super) fn place(&self, placement: Placement, blocks: Vec<TensorMut>) {
        if let Some(scatter) = &mut self.0.lock().scatter {
            scatter.place(placement, blocks);
        }
    }

    /// Takes all blocks that are not published, in the order of their partitions.
    pub(super) fn take(&self) -> Vec<(usize, Block)> {
        self.0.lock().scatter.as_mut().map(Scatter::take).unwrap_or_default()
    }

    /// The bytes of the blocks that are not published.
    pub(super) fn block_bytes(&self) -> u64 {
        self.0.lock().scatter.as_ref().map_or(0, |scatter| scatter.block_bytes())
    }

    /// Says which blocks these rows need.
    pub(super) fn plan(&self, chosen: Chosen) -> Result<Placement, BatchError> {
        let written = self.0.lock();
        // It was begun when the partitions were chosen.
        let Some(scatter) = &written.scatter else { unreachable!("rows of a task that has not begun") };
        scatter.plan(chosen)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.lock().busy = false;
    }
}
