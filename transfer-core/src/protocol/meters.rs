//! What a node counts and times: plain numbers that its one thread owns, in places that are made when a link comes up. Nothing here
//! allocates, locks or looks anything up while a transfer ends.
//!
//! Transfers are counted by what carried them, by peer and by operation. There may be any number of peers over the years, so the first
//! [`MAX_PATHS`] are told apart and all later ones are counted together.

use crate::fabric::FabricKind;
use crate::op::{CounterPath, FailureCode, Report};
use crate::tensor::Name;
use std::time::Duration;

/// How many pairs of a peer and a fabric are told apart.
pub const MAX_PATHS: usize = 128;

/// What is counted of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Operation {
    /// A worker's push: published here, or landed at the peer.
    Push = 0,
    /// A worker's fetch: handed over here, or brought from the peer.
    Fetch = 1,
    /// A fetch of the peer's, answered from here.
    Serve = 2,
    /// A push of the peer's that has landed here.
    Land = 3,
}

impl Operation {
    /// All that there are.
    pub const ALL: [Operation; 4] = [Operation::Push, Operation::Fetch, Operation::Serve, Operation::Land];

    /// The name, as metrics write it.
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

/// Durations, counted by their size: a bucket for each power of two, from about a microsecond to about 17 seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// How many were in each bucket. The last one is for what is longer than all bounds.
    pub buckets: [u64; Histogram::BOUNDS + 1],
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// How many bounds there are.
    pub const BOUNDS: usize = 25;

    /// The longest duration of a bucket, in nanoseconds: 1,024 for the first, and twice as much for each that follows.
    #[must_use]
    pub const fn bound_ns(bucket: usize) -> u64 {
        1024 << bucket
    }

    /// How many durations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Counts one: a shift, a bit scan and two additions.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let units = ns.saturating_sub(1) >> 10;
        let bucket = (u64::BITS - units.leading_zeros()) as usize;
        self.buckets[bucket.min(Histogram::BOUNDS)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; Histogram::BOUNDS + 1], sum_ns: 0 }
    }
}

/// Transfers of one operation on one path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationMeter {
    /// How many.
    pub transfers: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bytes copied by a CPU on either side.
    pub copied: u64,
    /// From the time that they were on their way until they were there. Within a node nothing is on its way. Not known for [`Operation::Land`], which begins elsewhere; for
    /// [`Operation::Serve`] from the time that the version was there.
    pub flew: Histogram,
}

/// Transfers between this node and one peer over one fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMeter {
    /// The peer. `None` with [`FabricKind::Local`]: within this node; with another fabric: all peers beyond [`MAX_PATHS`].
    pub peer: Option<Name>,
    /// What carried them.
    pub fabric: FabricKind,
    /// By operation, in the order of [`Operation::ALL`].
    pub operations: [OperationMeter; 4],
}

/// How long transfers that one fabric carried had to wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitMeter {
    /// Pushes: for the directory, a link, credits, room or a slot.
    pub push_queued: Histogram,
    /// Fetches: for the same.
    pub fetch_queued: Histogram,
    /// Fetches: until the version was published.
    pub waited: Histogram,
}

/// How many fabrics there can be, by their numbers.
const FABRICS: usize = 8;

/// How many codes of failures there can be, by their numbers; 0 is for those from the future.
const CODES: usize = FailureCode::ALL.len() + 1;

/// Where a link's transfers are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathId(usize);

impl PathId {
    /// Within this node.
    pub(super) const HERE: PathId = PathId(0);
}

/// All that is counted since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meters {
    /// Whether durations are taken too.
    timed: bool,
    paths: Vec<PathMeter>,
    waits: [WaitMeter; FABRICS],
    failed: [u64; CODES],
    counted: [u64; CounterPath::ALL.len()],
    barriers: u64,
}

impl Meters {
    pub(super) fn new(timed: bool) -> Meters {
        let here = PathMeter { peer: None, fabric: FabricKind::Local, operations: Default::default() };
        let waits = std::array::from_fn(|_| WaitMeter::default());
        let counted = [0; CounterPath::ALL.len()];
        Meters { timed, paths: vec![here], waits, failed: [0; CODES], counted, barriers: 0 }
    }

    /// Transfers by path.
    #[must_use]
    pub fn paths(&self) -> &[PathMeter] {
        &self.paths
    }

    /// Waits by what carried the transfer, where there were any.
    pub fn waits(&self) -> impl Iterator<Item = (FabricKind, &WaitMeter)> {
        let known = |(n, wait)| Some((FabricKind::from_wire(u8::try_from(n).ok()?)?, wait));
        self.waits.iter().enumerate().filter_map(known)
    }

    /// Operations of workers that ended in failure, by code.
    pub fn failures(&self) -> impl Iterator<Item = (FailureCode, u64)> {
        let code = |n| FailureCode::from_wire(u16::try_from(n).unwrap_or(0));
        self.failed.iter().enumerate().map(move |(n, count)| (code(n), *count))
    }

    /// Operations on counters, by who did them.
    pub fn counted(&self) -> impl Iterator<Item = (CounterPath, u64)> {
        CounterPath::ALL.into_iter().zip(self.counted)
    }

    /// Arrivals at barriers that were released.
    #[must_use]
    pub fn barriers(&self) -> u64 {
        self.barriers
    }

    /// The peer of a path, where it has one of its own.
    pub(super) fn peer_of(&self, path: PathId) -> Option<&Name> {
        self.paths.get(path.0)?.peer.as_ref()
    }

    /// The place for a peer's transfers over one fabric.
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

    /// Adds fetches that workers have answered by looking at a board, of which the node itself hears nothing.
    pub fn add_looked_up(&mut self, fetches: u64, bytes: u64) {
        let here = self.paths.get_mut(PathId::HERE.0);
        if let Some(meter) = here.and_then(|path| path.operations.get_mut(Operation::Fetch as usize)) {
            meter.transfers = meter.transfers.wrapping_add(fetches);
            meter.bytes = meter.bytes.wrapping_add(bytes);
        }
    }

    /// A transfer of a worker of this node has ended well.
    pub(super) fn finished(&mut self, operation: Operation, path: PathId, report: &Report) {
        let timed = self.timed;
        let flew = self.carried(operation, path, report.bytes, report.copied).filter(|_| timed);
        let Some(flew) = flew else { return };
        // What is handed over does not fly.
        if path != PathId::HERE {
            flew.record(report.flew);
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

    /// A fetch of a peer's was answered.
    pub(super) fn served(&mut self, path: PathId, bytes: u64, copied: u64, took: Duration) {
        let timed = self.timed;
        if let Some(flew) = self.carried(Operation::Serve, path, bytes, copied).filter(|_| timed) {
            flew.record(took);
        }
    }

    /// A push of a peer's has landed.
    pub(super) fn landed(&mut self, path: PathId, bytes: u64, copied: u64) {
        self.carried(Operation::Land, path, bytes, copied);
    }

    fn carried(&mut self, operation: Operation, path: PathId, bytes: u64, copied: u64) -> Option<&mut Histogram> {
        let meter = self.paths.get_mut(path.0)?.operations.get_mut(operation as usize)?;
        meter.transfers += 1;
        meter.bytes += bytes;
        meter.copied += copied;
        Some(&mut meter.flew)
    }

    pub(super) fn failed(&mut self, code: FailureCode) {
        let place = usize::from(code as u16);
        self.failed[if place < CODES { place } else { 0 }] += 1;
    }

    pub(super) fn all_failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    pub(super) fn counted_by(&mut self, path: CounterPath) {
        if let Some(place) = CounterPath::ALL.iter().position(|p| *p == path) {
            self.counted[place] += 1;
        }
    }

    pub(super) fn released(&mut self) {
        self.barriers += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_it_fits() {
        let bucket_of = |ns| {
            let mut h = Histogram::default();
            h.record(Duration::from_nanos(ns));
            assert_eq!((h.count(), h.sum_ns), (1, ns));
            h.buckets.iter().position(|n| *n == 1).unwrap()
        };
        assert_eq!((bucket_of(0), bucket_of(1), bucket_of(1024)), (0, 0, 0));
        for bucket in 0..Histogram::BOUNDS {
            let bound = Histogram::bound_ns(bucket);
            assert_eq!((bucket_of(bound), bucket_of(bound + 1)), (bucket, bucket + 1), "{bound} ns");
        }
        assert_eq!(bucket_of(u64::MAX), Histogram::BOUNDS, "longer than all bounds");
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
