//! The counts and times of a node. They are plain numbers that its one thread owns, in places that are allocated when a
//! link comes up. When a transfer ends, nothing here allocates, locks or searches.
//!
//! Transfers are counted by peer, by fabric and by operation. A node may see any number of peers over time, so the
//! first [`MAX_PATHS`] paths are counted separately, and the transfers of all later peers together, by fabric.

use crate::fabric::FabricKind;
use crate::op::{CounterPath, FailureCode, Report};
use crate::tensor::Name;
use std::time::Duration;

/// The most paths that are counted separately: the path within this node, and one for each pair of a peer and a fabric.
pub const MAX_PATHS: usize = 128;

/// The kinds of transfers that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Operation {
    /// A push of a worker of this node: published here, or landed at the peer.
    Push = 0,
    /// A fetch of a worker of this node: handed over here, or brought from the peer.
    Fetch = 1,
    /// A fetch of the peer, answered by this node.
    Serve = 2,
    /// A push of the peer that has landed here.
    Land = 3,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 4] = [Operation::Push, Operation::Fetch, Operation::Serve, Operation::Land];

    /// Returns the name that metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Push => "push",
            Operation::Fetch => "fetch",
            Operation::Serve => "serve",
            Operation::Land => "land",
        }
    }
}

/// A histogram of durations, with a bucket for each power of two from about 1 microsecond to about 17 seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// The number of durations in each bucket. The last bucket is for durations longer than all bounds.
    pub buckets: [u64; Histogram::BOUND_COUNT + 1],
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// The number of bounds.
    pub const BOUND_COUNT: usize = 25;

    /// Returns the longest duration of a bucket, in nanoseconds: 1,024 for the first bucket, and twice as much for each
    /// next one.
    #[must_use]
    pub const fn bound_ns(bucket: usize) -> u64 {
        1024 << bucket
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Counts a duration, at the cost of a shift, a bit scan and two additions.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let units = ns.saturating_sub(1) >> 10;
        let bucket = (u64::BITS - units.leading_zeros()) as usize;
        self.buckets[bucket.min(Histogram::BOUND_COUNT)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; Histogram::BOUND_COUNT + 1], sum_ns: 0 }
    }
}

/// Transfers of one operation on one path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationMeter {
    /// The number of transfers.
    pub transfers: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bytes copied by a CPU on either side.
    pub copied: u64,
    /// The time in flight. Empty within a node, where nothing is in flight, and for [`Operation::Land`], which begins
    /// at the peer. For [`Operation::Serve`], the time since the version was published.
    pub in_flight: Histogram,
}

/// Transfers between this node and one peer over one fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMeter {
    /// The peer. `None` with [`FabricKind::Local`]: this node itself. `None` with another fabric: all peers beyond
    /// [`MAX_PATHS`].
    pub peer: Option<Name>,
    /// The fabric that carried the transfers.
    pub fabric: FabricKind,
    /// The counts by operation, in the order of [`Operation::ALL`].
    pub operations: [OperationMeter; 4],
}

/// The waiting times of the transfers that one fabric carried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitMeter {
    /// Time that pushes waited for the directory, a link, credits, room or a slot.
    pub push_queued: Histogram,
    /// Time that fetches waited for the directory, a link, credits, room or a slot.
    pub fetch_queued: Histogram,
    /// Time that fetches waited until the version was published.
    pub waited: Histogram,
}

/// The upper bound of the fabrics' numbers. Place 0 is not used.
const FABRIC_PLACES: usize = FabricKind::ALL.len() + 1;

/// The upper bound of the failure codes. Place 0 counts codes that this release does not know.
const CODE_PLACES: usize = FailureCode::ALL.len() + 1;

/// The place in which the transfers of a link are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathId(usize);

impl PathId {
    /// The path within this node.
    pub(super) const HERE: PathId = PathId(0);
}

/// All counts since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meters {
    /// Whether durations are recorded too.
    timed: bool,
    paths: Vec<PathMeter>,
    waits: [WaitMeter; FABRIC_PLACES],
    failed: [u64; CODE_PLACES],
    counted: [u64; CounterPath::ALL.len()],
    barriers: u64,
    shared: SharedFetches,
    deltas: DeltaMeter,
    spreading: SpreadMeter,
}

/// Versions that spread through their readers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpreadMeter {
    /// Requests of other nodes that were sent to others for a version of this node.
    pub redirects: u64,
    /// Versions of other nodes whose last chunk was sent on from here.
    pub relayed: u64,
    /// Their bytes.
    pub relayed_bytes: u64,
    /// Versions that came from other nodes than their owner, and were not those of their owner.
    pub refused: u64,
    /// Fetches for which no other node had the version, so that its owner was asked again.
    pub asked_again: u64,
    /// Requests of other nodes that were sent to others, and for which the version is held here until it has come to them.
    pub held: u64,
}

/// Fetches from other nodes that were answered with what another worker's fetch had brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedFetches {
    /// The number of fetches.
    pub fetches: u64,
    /// Their bytes, which did not come again.
    pub bytes: u64,
}

/// Versions that have come as deltas, and those that were asked for as a whole after one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeltaMeter {
    /// The number of versions.
    pub versions: u64,
    /// The bytes of the deltas.
    pub bytes: u64,
    /// The bytes by which the versions are longer, which did not come.
    pub saved: u64,
    /// Versions that were asked for as a whole, in the order of [`WhyWhole::ALL`].
    pub given_up: [u64; WhyWhole::ALL.len()],
}

/// Why a version is asked for as a whole after its owner has begun to send a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum WhyWhole {
    /// The base was given up meanwhile, because others needed the room.
    BaseGone = 0,
    /// There is no room for base, delta and version.
    NoRoom = 1,
    /// The delta is malformed.
    Malformed = 2,
    /// It makes other bytes than those of the version.
    OtherBytes = 3,
    /// This process was wrong.
    Internal,
}

impl WhyWhole {
    /// All reasons.
    pub const ALL: [WhyWhole; 5] =
        [WhyWhole::BaseGone, WhyWhole::NoRoom, WhyWhole::Malformed, WhyWhole::OtherBytes, WhyWhole::Internal];

    /// Returns the name that metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WhyWhole::BaseGone => "base_gone",
            WhyWhole::NoRoom => "no_room",
            WhyWhole::Malformed => "malformed",
            WhyWhole::OtherBytes => "other_bytes",
            WhyWhole::Internal => "internal",
        }
    }
}

impl Meters {
    pub(super) fn new(timed: bool) -> Meters {
        let here = PathMeter { peer: None, fabric: FabricKind::Local, operations: Default::default() };
        let waits = std::array::from_fn(|_| WaitMeter::default());
        let counted = [0; CounterPath::ALL.len()];
        Meters {
            timed,
            paths: vec![here],
            waits,
            failed: [0; CODE_PLACES],
            counted,
            barriers: 0,
            shared: SharedFetches::default(),
            deltas: DeltaMeter::default(),
            spreading: SpreadMeter::default(),
        }
    }

    /// Returns the transfers by path.
    #[must_use]
    pub fn paths(&self) -> &[PathMeter] {
        &self.paths
    }

    /// Returns the waiting times by the fabric that carried the transfers, for all known fabrics.
    pub fn waits(&self) -> impl Iterator<Item = (FabricKind, &WaitMeter)> {
        let known = |(n, wait)| Some((FabricKind::from_wire(u8::try_from(n).ok()?)?, wait));
        self.waits.iter().enumerate().filter_map(known)
    }

    /// Returns the number of operations of workers that failed, by code.
    pub fn failures(&self) -> impl Iterator<Item = (FailureCode, u64)> {
        let code = |n| FailureCode::from_wire(u16::try_from(n).unwrap_or(0));
        self.failed.iter().enumerate().map(move |(n, count)| (code(n), *count))
    }

    /// Returns the number of operations on counters, by the path that carried them out.
    pub fn counted(&self) -> impl Iterator<Item = (CounterPath, u64)> {
        CounterPath::ALL.into_iter().zip(self.counted)
    }

    /// Returns the number of arrivals at barriers that were released.
    #[must_use]
    pub fn barriers(&self) -> u64 {
        self.barriers
    }

    /// Returns the fetches that were answered with what another worker's fetch had brought.
    #[must_use]
    pub fn shared(&self) -> SharedFetches {
        self.shared
    }

    /// Returns the peer of a path, unless the path is that of this node or is shared by several peers.
    pub(super) fn peer_of(&self, path: PathId) -> Option<&Name> {
        self.paths.get(path.0)?.peer.as_ref()
    }

    /// Returns the place for the transfers of a peer over one fabric. Adds it if it is missing.
    pub(super) fn path(&mut self, peer: &Name, fabric: FabricKind) -> PathId {
        let same = |p: &PathMeter| p.fabric == fabric && p.peer.as_ref() == Some(peer);
        if let Some(found) = self.paths.iter().position(same) {
            return PathId(found);
        }
        let peer = (self.paths.len() < MAX_PATHS).then(|| peer.clone());
        if peer.is_none()
            && let Some(others) = self.paths.iter().position(|p| p.fabric == fabric && p.peer.is_none())
        {
            return PathId(others);
        }
        self.paths.push(PathMeter { peer, fabric, operations: Default::default() });
        PathId(self.paths.len() - 1)
    }

    /// Adds fetches that workers have answered from a board. The node itself does not notice these.
    pub fn add_looked_up(&mut self, fetches: u64, bytes: u64) {
        let here = self.paths.get_mut(PathId::HERE.0);
        if let Some(meter) = here.and_then(|path| path.operations.get_mut(Operation::Fetch as usize)) {
            meter.transfers = meter.transfers.wrapping_add(fetches);
            meter.bytes = meter.bytes.wrapping_add(bytes);
        }
    }

    /// Counts a transfer of a worker of this node that has succeeded.
    pub(super) fn finished(&mut self, operation: Operation, path: PathId, report: &Report) {
        let timed = self.timed;
        let in_flight = self.carried(operation, path, report.bytes, report.copied).filter(|_| timed);
        let Some(in_flight) = in_flight else { return };
        // A tensor that is handed over within the node is not in flight.
        if path != PathId::HERE {
            in_flight.record(report.in_flight);
        }
        let Some(waits) = self.waits.get_mut(report.fabric as usize) else { return };
        match operation {
            Operation::Push => waits.push_queued.record(report.queued),
            Operation::Fetch | Operation::Serve | Operation::Land => {
                waits.fetch_queued.record(report.queued);
                waits.waited.record(report.waited);
            }
        }
    }

    /// Counts a fetch of a peer that this node has answered.
    pub(super) fn served(&mut self, path: PathId, bytes: u64, copied: u64, took: Duration) {
        let timed = self.timed;
        if let Some(in_flight) = self.carried(Operation::Serve, path, bytes, copied).filter(|_| timed) {
            in_flight.record(took);
        }
    }

    /// Counts the bytes of a chunk of a version that this node has sent to a peer.
    pub(super) fn served_chunk(&mut self, path: PathId, bytes: u64, copied: u64) {
        self.carried(Operation::Serve, path, bytes, copied);
    }

    /// Counts a push of a peer that has landed.
    pub(super) fn landed(&mut self, path: PathId, bytes: u64, copied: u64) {
        self.carried(Operation::Land, path, bytes, copied);
    }

    fn carried(&mut self, operation: Operation, path: PathId, bytes: u64, copied: u64) -> Option<&mut Histogram> {
        let meter = self.paths.get_mut(path.0)?.operations.get_mut(operation as usize)?;
        meter.transfers += 1;
        meter.bytes += bytes;
        meter.copied += copied;
        Some(&mut meter.in_flight)
    }

    pub(super) fn failed(&mut self, code: FailureCode) {
        let place = usize::from(code as u16);
        self.failed[if place < CODE_PLACES { place } else { 0 }] += 1;
    }

    pub(super) fn failed_with(&self, code: FailureCode) -> u64 {
        self.failures().find(|(found, _)| *found == code).map_or(0, |(_, count)| count)
    }

    pub(super) fn all_failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    pub(super) fn counted_by(&mut self, path: CounterPath) {
        if let Some(place) = CounterPath::ALL.iter().position(|p| *p == path) {
            self.counted[place] += 1;
        }
    }

    /// Counts a fetch that was answered with what another worker's fetch had brought.
    pub(super) fn shares(&mut self, bytes: u64) {
        self.shared.fetches += 1;
        self.shared.bytes += bytes;
    }

    /// Returns the versions that have come as deltas.
    #[must_use]
    pub fn deltas(&self) -> DeltaMeter {
        self.deltas
    }

    /// Returns how versions have spread.
    #[must_use]
    pub fn spreading(&self) -> SpreadMeter {
        self.spreading
    }

    /// Counts a request that was sent to another node.
    pub(super) fn redirected(&mut self) {
        self.spreading.redirects += 1;
        self.spreading.held += 1;
    }

    /// Counts the end of one, or that it takes the version from here.
    pub(super) fn redirect_ended(&mut self) {
        self.spreading.held -= 1;
    }

    /// Counts a chunk of a version of another node that was sent on, and a version if it is its last one.
    pub(super) fn relayed(&mut self, bytes: u64, is_last: bool) {
        self.spreading.relayed += u64::from(is_last);
        self.spreading.relayed_bytes += bytes;
    }

    /// Counts a version that was not that of its owner.
    pub(super) fn relay_refused(&mut self) {
        self.spreading.refused += 1;
    }

    /// Counts a fetch that asks the owner again.
    pub(super) fn asked_again(&mut self) {
        self.spreading.asked_again += 1;
    }

    /// Counts a version of this length that was made of a delta.
    pub(super) fn delta(&mut self, len: u64, delta: u64) {
        self.deltas.versions += 1;
        self.deltas.bytes += delta;
        self.deltas.saved += len.saturating_sub(delta);
    }

    /// Counts a version that is asked for as a whole after all.
    pub(super) fn delta_given_up(&mut self, why: WhyWhole) {
        self.deltas.given_up[why as usize] += 1;
    }

    pub(super) fn released(&mut self) {
        self.barriers += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_the_first_bucket_that_it_fits() {
        let bucket_of = |ns| {
            let mut h = Histogram::default();
            h.record(Duration::from_nanos(ns));
            assert_eq!((h.count(), h.sum_ns), (1, ns));
            h.buckets.iter().position(|n| *n == 1).unwrap()
        };
        assert_eq!((bucket_of(0), bucket_of(1), bucket_of(1024)), (0, 0, 0));
        for bucket in 0..Histogram::BOUND_COUNT {
            let bound = Histogram::bound_ns(bucket);
            assert_eq!((bucket_of(bound), bucket_of(bound + 1)), (bucket, bucket + 1), "{bound} ns");
        }
        assert_eq!(bucket_of(u64::MAX), Histogram::BOUND_COUNT, "longer than all bounds");
    }

    #[test]
    fn peers_beyond_the_limit_are_counted_together_and_by_fabric() {
        let mut meters = Meters::new(true);
        let name = |n: usize| Name::new(&format!("node-{n}")).unwrap();
        let ids: Vec<_> = (0..2 * MAX_PATHS).map(|n| meters.path(&name(n), FabricKind::Tcp)).collect();
        assert_eq!(meters.path(&name(0), FabricKind::Tcp), ids[0], "a peer that comes back is the same one");
        assert_eq!(ids[MAX_PATHS], ids[2 * MAX_PATHS - 1]);
        assert_ne!(meters.path(&name(9999), FabricKind::Verbs), ids[MAX_PATHS]);
        assert_eq!(meters.paths().len(), MAX_PATHS + 2);
        meters.landed(ids[3], 10, 5);
        meters.landed(ids[MAX_PATHS], 1, 0);
        meters.landed(ids[MAX_PATHS + 1], 1, 0);
        let landed = |at: usize| meters.paths()[at].operations[Operation::Land as usize].clone();
        assert_eq!((landed(4).bytes, landed(4).copied), (10, 5));
        assert_eq!((landed(MAX_PATHS).transfers, landed(MAX_PATHS).bytes), (2, 2));
    }
}
