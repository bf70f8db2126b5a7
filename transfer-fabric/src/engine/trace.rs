//! Handing transfers that have ended to whoever traces them, on another thread.

use crossbeam_channel::Sender;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use transfer_core::protocol::{EndedTransfer, Node};

/// Where ended transfers go.
pub struct TraceSink {
    /// Takes them, each with when it ended. Those that find it full are counted and forgotten: the data plane waits for nobody.
    pub to: Sender<(EndedTransfer, Instant)>,
    /// How many were.
    pub dropped: Arc<AtomicU64>,
    /// Whether somebody wants them now. Asked in each round of the loop.
    pub wanted: fn() -> bool,
}

impl TraceSink {
    /// Says whether to note what ends in the round to come.
    pub(super) fn begin(&self, node: &mut Node) {
        node.trace((self.wanted)());
    }

    /// Hands over what has ended in this round.
    pub(super) fn end(&self, node: &mut Node, started: Instant) {
        for ended in node.take_ended() {
            let at = started + Duration::from_nanos(ended.at.0);
            if self.to.try_send((ended, at)).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
