//! The sum of many transfers, made from the report of each.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use transfer_client::Report;

/// Transfers of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The fabrics that carried them. Several names mean that the path has changed meanwhile.
    pub fabrics: Vec<String>,
    /// The bytes of the tensors.
    pub bytes: u64,
    /// The bytes that CPUs copied, on both sides together; the kernel's copies in a socket count.
    pub copied: u64,
    /// The latency of each.
    pub latencies: Vec<Duration>,
}

impl Tally {
    /// Adds a transfer. `took` is the duration of the call, as its caller has measured it. The time in which a fetch
    /// waited for its version is subtracted.
    pub fn add(&mut self, report: &Report, took: Duration) {
        self.name_fabric(report.fabric.name());
        self.bytes += report.bytes;
        self.copied += report.copied;
        self.latencies.push(took.saturating_sub(report.waited));
    }

    /// Whether no byte was moved because the memory was handed over in place. A device moves bytes that no CPU copies.
    pub fn is_by_reference(&self) -> bool {
        self.copied == 0 && self.fabrics.iter().all(|fabric| fabric == "local" || fabric == "shm")
    }

    /// Adds the transfers of another tally.
    pub fn merge(&mut self, other: Tally) {
        other.fabrics.iter().for_each(|fabric| self.name_fabric(fabric));
        self.bytes += other.bytes;
        self.copied += other.copied;
        self.latencies.extend(other.latencies);
    }

    /// The number of transfers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.latencies.len()
    }

    /// The latency that `percent` of the transfers did not exceed.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        // The nearest rank: a measured latency, without interpolation.
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
        Report {
            fabric,
            bytes: 10,
            copied: 20,
            verified: 0,
            relayed: 0,
            delta: 0,
            queued: Duration::ZERO,
            waited,
            in_flight: Duration::ZERO,
            origin: None,
        }
    }

    #[test]
    fn latency_excludes_the_wait_for_the_version() {
        let mut tally = Tally::default();
        tally.add(&report(FabricKind::Tcp, 900), Duration::from_micros(1000));
        // The two processes have different clocks, so the difference may be negative.
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
