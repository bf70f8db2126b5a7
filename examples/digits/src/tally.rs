//! What many transfers came to. Every single one of them comes with a report of its own; this is their sum.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use transfer_client::Report;

/// Transfers of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// What carried them. More than one name would mean that the way has changed meanwhile; nothing hides that.
    pub fabrics: Vec<String>,
    /// The tensors' bytes.
    pub bytes: u64,
    /// Bytes that a CPU copied, on both sides together; what a socket copies in the kernel counts.
    pub copied: u64,
    /// How long each took.
    pub latencies: Vec<Duration>,
}

impl Tally {
    /// Adds a transfer. `took` is what its caller has measured around the call; the time in which there was nothing to transfer yet,
    /// because a fetch came before its push, is taken off.
    pub fn add(&mut self, report: &Report, took: Duration) {
        self.name_fabric(report.fabric.name());
        self.bytes += report.bytes;
        self.copied += report.copied;
        self.latencies.push(took.saturating_sub(report.waited));
    }

    /// Whether nothing was moved: the memory was handed over where it lies. A device moves bytes that no CPU copies.
    pub fn is_by_reference(&self) -> bool {
        self.copied == 0 && self.fabrics.iter().all(|fabric| fabric == "local" || fabric == "shm")
    }

    /// Adds all of another tally.
    pub fn merge(&mut self, other: Tally) {
        other.fabrics.iter().for_each(|fabric| self.name_fabric(fabric));
        self.bytes += other.bytes;
        self.copied += other.copied;
        self.latencies.extend(other.latencies);
    }

    /// How many transfers there were.
    #[must_use]
    pub fn count(&self) -> usize {
        self.latencies.len()
    }

    /// The latency that `percent` of the transfers did not exceed.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        // The nearest rank: a latency that was really there, with no interpolation.
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn name_fabric(&mut self, name: &str) {
        if !self.fabrics.iter().any(|known| known == name) {
            self.fabrics.push(name.to_owned());
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, fabrics, bytes, copied) = (self.count(), self.fabrics.join("+"), self.bytes, self.copied);
        let [p50, p99] = [50, 99].map(|percent| self.percentile(percent));
        write!(f, "{count} tensors, {bytes} bytes by {fabrics}, {copied} bytes copied, p50 {p50:.1?}, p99 {p99:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_client::FabricKind;

    fn report(fabric: FabricKind, waited_us: u64) -> Report {
        let waited = Duration::from_micros(waited_us);
        Report { fabric, bytes: 10, copied: 20, queued: Duration::ZERO, waited, flew: Duration::ZERO, origin: None }
    }

    #[test]
    fn latency_excludes_the_wait_for_the_version() {
        let mut tally = Tally::default();
        tally.add(&report(FabricKind::Tcp, 900), Duration::from_micros(1000));
        // Two processes, two clocks: the difference may come out below zero.
        tally.add(&report(FabricKind::Tcp, 1001), Duration::from_micros(1000));
        assert_eq!(tally.latencies, [Duration::from_micros(100), Duration::ZERO]);
        assert_eq!((tally.count(), tally.bytes, tally.copied), (2, 20, 40));
    }

    #[test]
    fn merged_tally_lists_both_fabrics() {
        let [mut sum, mut other] = [Tally::default(), Tally::default()];
        sum.add(&report(FabricKind::Tcp, 0), Duration::ZERO);
        other.add(&report(FabricKind::Shm, 0), Duration::ZERO);
        sum.merge(other);
        assert_eq!(sum.fabrics, ["tcp", "shm"]);
        assert_eq!((sum.count(), sum.bytes), (2, 20));
    }

    #[test]
    fn percentiles_are_measured_latencies() {
        let latencies = (1..=200).rev().map(Duration::from_micros).collect();
        let tally = Tally { latencies, ..Tally::default() };
        let percentiles = [50, 99, 100].map(|percent| tally.percentile(percent).as_micros());
        assert_eq!(percentiles, [100, 198, 200]);
        assert_eq!(Tally::default().percentile(99), Duration::ZERO);
    }
}
