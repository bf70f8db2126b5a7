//! Passes finished transfers to the tracing thread.

use super::clock::Clock;
use crossbeam_channel::Sender;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transfer_core::protocol::{EndedTransfer, Node};

/// The receiver of finished transfers.
pub struct TraceSink {
    /// The channel, which carries each transfer with the clock of its times. Transfers that find it full are counted and dropped: the
    /// data plane never waits.
    pub to: Sender<(EndedTransfer, Clock)>,
    /// The number of dropped transfers.
    pub dropped: Arc<AtomicU64>,
    /// Returns whether transfers are wanted now. Called in each round of the loop.
    pub wanted: fn() -> bool,
}

impl TraceSink {
    /// Tells the node whether to record the transfers of the next round.
    pub(super) fn begin(&self, node: &mut Node) {
        node.trace((self.wanted)());
    }

    /// Passes on the transfers that have ended in this round.
    pub(super) fn end(&self, node: &mut Node, clock: Clock) {
        // Mostly nothing is traced.
        if !node.state().is_traced() {
            return;
        }
        for ended in node.take_ended() {
            if self.to.try_send((ended, clock)).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
