//! The history of the last minutes, which the status page shows immediately: samples of the counters, in a ring.

use super::observer::{Observation, Observer};
use crate::events::unix_nanos;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::Operation;

/// The interval of samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// The number of kept samples: 15 minutes.
const KEPT_SAMPLES: usize = 450;

/// The most paths that are counted separately. Further paths count only in the sums.
const MAX_PATHS_SHOWN: usize = 32;

/// The counters at one moment. All but the last two only grow.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    /// The time in milliseconds since 1970.
    at_ms: u64,
    /// Bytes handed over within the node.
    local: u64,
    /// Bytes received from peers.
    received: u64,
    /// Bytes sent to peers.
    sent: u64,
    /// Bytes that a CPU copied.
    copied: u64,
    /// Transfers of all kinds.
    transfers: u64,
    /// Failed operations of workers.
    failed: u64,
    /// Bytes received and sent on each path, indexed as in the status.
    paths: Vec<[u64; 2]>,
    /// Pinned memory.
    pinned: u64,
    /// Used bytes of all landing pools.
    pool_used: u64,
}

/// The history.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<VecDeque<Sample>>);

impl History {
    /// Returns the samples after `at_ms`, in milliseconds since 1970.
    pub(super) fn since(&self, at_ms: u64) -> Vec<Sample> {
        self.0.lock().iter().filter(|sample| sample.at_ms > at_ms).cloned().collect()
    }

    fn add(&self, sample: Sample) {
        let mut samples = self.0.lock();
        // After the clock was set back, later samples would come before earlier ones.
        while samples.back().is_some_and(|last| last.at_ms >= sample.at_ms) {
            samples.pop_back();
        }
        samples.push_back(sample);
        while samples.len() > KEPT_SAMPLES {
            samples.pop_front();
        }
    }

    /// Takes samples without end.
    pub(super) async fn sample(self: Arc<Self>, watched: Observer) {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // If the engine does not answer, the history has a gap, which the page shows.
            if let Ok(look) = watched.look().await {
                self.add(Sample::of(&look));
            }
        }
    }
}

impl Sample {
    fn of(look: &Observation) -> Sample {
        let mut sample = Sample {
            at_ms: milliseconds(look.at),
            local: 0,
            received: 0,
            sent: 0,
            copied: 0,
            transfers: 0,
            failed: look.measured.snapshot.failed,
            paths: Vec::new(),
            pinned: look.pinned,
            pool_used: look.measured.snapshot.pools.iter().map(|p| p.used).sum(),
        };
        for (number, path) in look.measured.meters.paths().iter().enumerate() {
            let of = |operation: Operation| &path.operations[operation as usize];
            sample.copied += path.operations.iter().map(|o| o.copied).sum::<u64>();
            sample.transfers += path.operations.iter().map(|o| o.transfers).sum::<u64>();
            let (received, sent) = if path.fabric == FabricKind::Local {
                sample.local += of(Operation::Fetch).bytes;
                (0, 0)
            } else {
                let received = of(Operation::Fetch).bytes + of(Operation::Land).bytes;
                (received, of(Operation::Push).bytes + of(Operation::Serve).bytes)
            };
            sample.received += received;
            sample.sent += sent;
            if number < MAX_PATHS_SHOWN {
                sample.paths.push([received, sent]);
            }
        }
        sample
    }
}

/// Returns a time in milliseconds since 1970.
pub(super) fn milliseconds(at: SystemTime) -> u64 {
    unix_nanos(at) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64) -> Sample {
        let (local, received, sent, copied, transfers, failed) = (0, 0, 0, 0, 0, 0);
        Sample { at_ms, local, received, sent, copied, transfers, failed, paths: Vec::new(), pinned: 0, pool_used: 0 }
    }

    #[test]
    fn samples_are_kept_in_order_of_time() {
        let history = History::default();
        for at in 1..=1000 {
            history.add(sample(at));
        }
        let kept = history.since(0);
        assert_eq!(
            (kept.len(), kept[0].at_ms, kept[KEPT_SAMPLES - 1].at_ms),
            (KEPT_SAMPLES, 1000 - KEPT_SAMPLES as u64 + 1, 1000)
        );
        assert_eq!(history.since(998).len(), 2);
        // The clock was set back.
        history.add(sample(900));
        let last = history.since(0).last().map(|s| s.at_ms);
        assert_eq!(last, Some(900));
    }
}
