//! The values that a node shows of itself, for the admin calls.

use super::control::PassedOver;
use super::exchanges::ExchangeTotals;
use super::ids::SessionId;
use super::limits::LimitsReached;
use super::meters::Operation;
use super::spill::SpillStatus;
use super::tenant::Tenant;
use crate::exchange::ExchangeId;
use crate::fabric::{FabricKind, LinkId};
use crate::memory::LocalSlice;
use crate::op::{FailureCode, Report};
use crate::tensor::{Key, Name, Retention, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use std::time::Duration;

/// An overview of a node. Taking it costs the same with a million tensors as with one: kinds of entries that may be
/// numerous are listed in pages, see [`Page`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connected workers.
    pub sessions: u64,
    /// Links.
    pub links: u64,
    /// The work on all links together.
    pub on_links: LinkWork,
    /// Links with several rails, some of them dead.
    pub impaired: u64,
    /// The landing pools.
    pub pools: Vec<PoolStatus>,
    /// Keys with a published version.
    pub tensors: u64,
    /// Ranges that are still in use: published, being read, or in flight.
    pub blobs: u64,
    /// Bytes of versions that are kept because deltas of them may follow.
    pub base_bytes: u64,
    /// Versions that lie on disk.
    pub spilled: SpillStatus,
    /// What exchanges have here.
    pub exchanges: ExchangeTotals,
    /// Leases that workers hold.
    pub leases: u64,
    /// Operations of workers that have not ended.
    pub operations: u64,
    /// Landing slots that peers may write to, or that wait until peers can no longer write to them.
    pub slots: u64,
    /// Counters, barriers and rosters that live here, until the sidecar ends.
    pub counters: u64,
    /// Rosters of sharded states among them.
    pub rosters: u64,
    /// Versions of these states that some ranks have committed and that are not whole, the oldest first: at most
    /// [`UnfinishedVersion::MAX_LISTED`].
    pub unfinished: Vec<UnfinishedVersion>,
    /// Finished transfers since the start, by the fabric that carried them.
    pub finished: Vec<PathStatus>,
    /// Finished pushes since the start that stay at this sidecar, so that no fabric carried them.
    pub published: PublishedStatus,
    /// Operations that ended in failure since the start.
    pub failed: u64,
    /// How often workers have fetched bytes that do not have the digest of their push.
    pub wrong_digests: u64,
    /// Whether the node takes no new work.
    pub draining: bool,
    /// The number of pushes that were refused at a limit.
    pub limits_reached: LimitsReached,
}

/// One page of a listing, in the order in which the entries lie in the node: by number, or by place. An entry that
/// exists during the whole listing is in exactly one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries that were looked at and match the filter. There may be few or none although more follow.
    pub entries: Vec<T>,
    /// The place at which the next page begins. `None`: this page is the last.
    pub next: Option<u64>,
}

impl<T> Page<T> {
    /// The most places that one call looks at. The thread that owns the node does nothing else meanwhile.
    pub const MAX_STEPS: usize = 512;

    /// The most entries of one page. Longer lists are assembled from several pages.
    pub const MAX_ENTRIES: usize = 128;
}

/// The work that waits or is in flight on a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkWork {
    /// Messages and writes that wait for credits.
    pub queued: u64,
    /// Requests of this node that the peer has not answered.
    pub pulls: u64,
    /// Requests of the peer that this node has not answered.
    pub serves: u64,
    /// Keys that this node pushes to the peer.
    pub flows_out: u64,
    /// Keys that the peer pushes here.
    pub flows_in: u64,
}

impl LinkWork {
    /// Returns the sum of all fields.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.queued + self.pulls + self.serves + self.flows_out + self.flows_in
    }
}

impl std::ops::AddAssign for LinkWork {
    fn add_assign(&mut self, other: LinkWork) {
        self.queued += other.queued;
        self.pulls += other.pulls;
        self.serves += other.serves;
        self.flows_out += other.flows_out;
        self.flows_in += other.flows_in;
    }
}

/// A connected worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionId,
    /// The worker's name.
    pub name: Name,
    /// Its tenant.
    pub domain: Tenant,
    /// The name of the tenant.
    pub tenant: Name,
    /// The size of its arena in bytes.
    pub arena_bytes: u64,
    /// The number of leases that it holds.
    pub leases: u64,
    /// The number of its waiting operations.
    pub operations: u64,
}

/// A link to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The link.
    pub link: LinkId,
    /// The peer's name.
    pub peer: Name,
    /// The peer's incarnation.
    pub incarnation: u64,
    /// The fabric that carries the link.
    pub fabric: FabricKind,
    /// The fabrics that would have been better, and why they do not carry the link.
    pub passed_over: Vec<PassedOver>,
    /// The number of rails with which the link was made.
    pub rails: usize,
    /// The number of rails that are alive.
    pub rails_live: usize,
    /// The number of messages and immediates that may be sent now.
    pub credits: u32,
    /// The work that waits or is in flight on the link.
    pub work: LinkWork,
    /// The transfers carried to the peer since the link came up.
    pub outward: Carried,
    /// The transfers carried here since the link came up.
    pub inward: Carried,
}

/// The transfers that a link has carried in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// The number of tensors.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Carried {
    pub(super) fn add(&mut self, bytes: u64) {
        self.transfers += 1;
        self.bytes += bytes;
    }
}

/// A landing pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// The tenant whose pool it is.
    pub domain: Tenant,
    /// The name of the tenant.
    pub tenant: Name,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of bytes in use.
    pub used: u64,
    /// The number of waiters for room in the pool.
    pub waiting: u64,
    /// The time for which the pool has had waiters without a break. `None`: it has no waiter.
    pub full_for: Option<Duration>,
}

impl Snapshot {
    /// Adds fetches that workers have answered from boards, which the node itself does not notice: their number, their
    /// bytes, and the number of versions that are still read.
    pub fn add_looked_up(&mut self, fetches: u64, bytes: u64, held: u64) {
        self.leases += held;
        if fetches > 0 {
            let is_local = |path: &&mut PathStatus| path.fabric == FabricKind::Local;
            match self.finished.iter_mut().find(is_local) {
                Some(path) => {
                    path.transfers = path.transfers.wrapping_add(fetches);
                    path.bytes = path.bytes.wrapping_add(bytes);
                }
                None => self
                    .finished
                    .insert(0, PathStatus { fabric: FabricKind::Local, transfers: fetches, bytes, copied: 0 }),
            }
        }
    }
}

/// Pushes that stay at the sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishedStatus {
    /// The number of pushes.
    pub pushes: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bytes that were copied into arenas for them.
    pub copied: u64,
}

/// The transfers that one fabric carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStatus {
    /// The fabric.
    pub fabric: FabricKind,
    /// The number of transfers.
    pub transfers: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bytes copied by a CPU on either side.
    pub copied: u64,
}

/// A published tensor, as the admin call lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorStatus {
    /// The key.
    pub key: Key,
    /// The owner's worker name.
    pub owner: Name,
    /// The name of the tenant that it belongs to.
    pub tenant: Name,
    /// The newest version.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// The memory in which it lies.
    pub slice: LocalSlice,
    /// The number of leases on that version.
    pub readers: u32,
    /// The retention of that version.
    pub retention: Retention,
    /// The number of older versions that are kept beside it.
    pub older: u32,
    /// When that version was published at this node, rounded down to a tenth of a second.
    pub published_at: Time,
}

/// An operation of a worker that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferStatus {
    /// The kind: `fetch`, `push`, `reserve`, `take back`, `counter` or `barrier`.
    pub operation: &'static str,
    /// The key, or the name of the counter or barrier.
    pub key: String,
    /// The worker.
    pub worker: Name,
    /// The name of the worker's tenant.
    pub tenant: Name,
    /// Its session.
    pub session: SessionId,
    /// The other node, if one takes part by now.
    pub peer: Option<Name>,
    /// The length in bytes, if it is known: of the version, also where a delta comes in its place.
    pub len_bytes: Option<u64>,
    /// The time since the operation began.
    pub age: Duration,
    /// The time until its deadline.
    pub left: Duration,
    /// What the operation waits for, in words.
    pub waits_for: String,
}

/// What an exchange of record batches has at this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeStatus {
    /// The name.
    pub name: String,
    /// The identity: another one for the next exchange of this name.
    pub id: ExchangeId,
    /// The name of its tenant.
    pub tenant: Name,
    /// Whether a worker of this node has opened it.
    pub is_opener: bool,
    /// The number of its partitions. 0: it is not known here.
    pub partitions: u32,
    /// The number of its tasks. 0: it is not known here.
    pub tasks: u32,
    /// The number of tasks that have committed here.
    pub committed: u64,
    /// The rows that they have written.
    pub rows: u64,
    /// The length of these rows, in bytes.
    pub bytes: u64,
    /// The length of the rows of each partition, in bytes. Empty: no task has committed here, or one has not said it.
    pub lengths: Vec<u64>,
    /// The length of what lies in memory, in bytes, also of attempts that have not committed.
    pub memory: u64,
    /// The length of what lies on disk, in bytes.
    pub spilled: u64,
    /// The number of attempts that have found no room in their arena, and whose rows wait to be written to disk.
    pub writers_waiting: u64,
    /// The first of them.
    pub writers: Vec<ExchangeWriter>,
}

impl ExchangeStatus {
    /// The most attempts that wait for room and are listed.
    pub const MAX_WRITERS: usize = 16;

    /// The most exchanges of one page: each may have thousands of partitions.
    pub const MAX_ENTRIES: usize = 16;
}

/// An attempt of a task that has found no room in its worker's arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeWriter {
    /// The worker.
    pub worker: Name,
    /// The task.
    pub task: u32,
    /// The attempt.
    pub attempt: u32,
    /// The length of its rows that wait to be written to disk, in bytes.
    pub bytes: u64,
    /// The time since the first of them came.
    pub age: Duration,
}

/// A landing slot in quarantine. It has no user, but its peer may still write to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineStatus {
    /// The link over which the write would come.
    pub link: LinkId,
    /// The peer.
    pub peer: Name,
    /// The tenant whose pool the slot lies in.
    pub domain: Tenant,
    /// The name of the tenant.
    pub tenant: Name,
    /// The key that the slot was for, if it is still known.
    pub key: Option<Key>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The time that the slot has been waiting.
    pub age: Duration,
    /// What the slot waits for, in words.
    pub waits_for: String,
}

/// A push or a fetch of a worker of this node that has ended, or a traced transfer of a peer in which this node took
/// part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTransfer {
    /// The part of this node in the transfer.
    pub operation: Operation,
    /// The key.
    pub key: Key,
    /// The worker. For a peer's push, the worker that pushed it. `None` for a peer's fetch, which does not name its
    /// worker.
    pub worker: Option<Name>,
    /// The version, if the transfer reached one.
    pub version: Option<Version>,
    /// The other node, if one took part.
    pub peer: Option<Name>,
    /// The report of a successful transfer, or the code of the failure.
    pub outcome: Result<Report, FailureCode>,
    /// The time at which the transfer ended.
    pub at: Time,
    /// The duration of the transfer.
    pub took: Duration,
    /// The trace context of the span that the transfer belongs to, if the worker traces it.
    pub trace: Option<TraceContext>,
}

impl EndedTransfer {
    /// Returns the fabric that carried the transfer, if it succeeded.
    #[must_use]
    pub fn fabric(&self) -> Option<FabricKind> {
        self.outcome.as_ref().ok().map(|report| report.fabric)
    }
}

/// A version of a sharded state that is not whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedVersion {
    /// The key of the state.
    pub state: String,
    /// The version.
    pub version: Version,
    /// The number of its ranks.
    pub world_size: u32,
    /// How many have committed.
    pub committed: u32,
    /// The first of the others, at most [`UnfinishedVersion::MAX_MISSING`]. None: all have, and the manifest is not published.
    pub missing: Vec<u32>,
    /// When the first rank committed.
    pub since: Time,
}

impl UnfinishedVersion {
    /// The most versions in a snapshot.
    pub const MAX_LISTED: usize = 64;

    /// The most missing ranks of one.
    pub const MAX_MISSING: usize = 8;
}
