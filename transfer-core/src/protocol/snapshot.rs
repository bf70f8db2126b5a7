//! What a node shows of itself: the values behind the admin calls.

use super::control::PassedOver;
use super::ids::SessionId;
use super::limits::LimitsReached;
use super::meters::Operation;
use super::tenant::Tenant;
use crate::fabric::{FabricKind, LinkId};
use crate::memory::LocalSlice;
use crate::op::{FailureCode, Report};
use crate::tensor::{Key, Name, Retention, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use std::time::Duration;

/// The node at a glance. It takes as long with a million tensors as with one: what there may be many of is listed in pages, see
/// [`Page`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connected workers.
    pub sessions: u64,
    /// Links.
    pub links: u64,
    /// What waits or is under way on them, all together.
    pub on_links: LinkWork,
    /// Links of several rails of which some are dead.
    pub impaired: u64,
    /// One for each landing pool.
    pub pools: Vec<PoolStatus>,
    /// Keys with a published version.
    pub tensors: u64,
    /// Ranges that somebody can still reach: published, being read, or under way.
    pub blobs: u64,
    /// Leases that workers hold.
    pub leases: u64,
    /// Operations of workers that have not ended.
    pub operations: u64,
    /// Landing slots that peers may write to, or that wait until they surely do not any more.
    pub slots: u64,
    /// Counters and barriers that live here, until the sidecar ends.
    pub counters: u64,
    /// Finished transfers since the start, per carrier.
    pub finished: Vec<PathStatus>,
    /// Finished pushes since the start that stay at this sidecar: nothing carried them.
    pub published: PublishedStatus,
    /// Operations that ended in failure since the start.
    pub failed: u64,
    /// Whether the node takes nothing new.
    pub draining: bool,
    /// How often pushes were refused at a limit.
    pub limits_reached: LimitsReached,
}

/// A part of a listing, in the order in which the entries lie in the node: by number, or by place. An entry that is there all the while
/// is in exactly one of the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries that were looked at and fit the filter; few or none, where few of those looked at fit.
    pub entries: Vec<T>,
    /// Where the next page begins. `None`: this was the last.
    pub next: Option<u64>,
}

impl<T> Page<T> {
    /// How many places one call looks at: the thread that owns the node does nothing else meanwhile.
    pub const MOST_STEPS: usize = 512;

    /// The most entries of one page; longer ones are put together from several.
    pub const MOST_ENTRIES: usize = 128;
}

/// What waits or is under way on a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkWork {
    /// What waits for credits.
    pub queued: u64,
    /// Requests of ours that the peer has not answered.
    pub pulls: u64,
    /// Requests of the peer that we have not answered.
    pub serves: u64,
    /// Keys that we push there.
    pub flows_out: u64,
    /// Keys that the peer pushes here.
    pub flows_in: u64,
}

impl LinkWork {
    /// All of it in one number.
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
    /// What that is called.
    pub tenant: Name,
    /// Size of its arena in bytes.
    pub arena_bytes: u64,
    /// Leases it holds.
    pub leases: u64,
    /// Operations under way.
    pub operations: u64,
}

/// A link to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The link.
    pub link: LinkId,
    /// The peer's name.
    pub peer: Name,
    /// In which incarnation.
    pub incarnation: u64,
    /// What carries it.
    pub fabric: FabricKind,
    /// Which fabrics would have been better, and why they are not what carries it.
    pub passed_over: Vec<PassedOver>,
    /// With how many rails it was made.
    pub rails: usize,
    /// How many of them live.
    pub rails_live: usize,
    /// Messages and immediates that may be sent now.
    pub credits: u32,
    /// What waits or is under way.
    pub work: LinkWork,
    /// What it has carried to the peer since it came up.
    pub outward: Carried,
    /// What it has carried here.
    pub inward: Carried,
}

/// What a link has carried in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Tensors.
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
    /// Whose.
    pub domain: Tenant,
    /// What that tenant is called.
    pub tenant: Name,
    /// Its size in bytes.
    pub bytes: u64,
    /// How much of it is in use.
    pub used: u64,
    /// Who waits for room in it.
    pub waiting: u64,
    /// For how long somebody has been waiting, whoever that was.
    pub full_for: Option<Duration>,
}

impl Snapshot {
    /// Adds what workers have found on boards, of which the node itself hears nothing: how many fetches that were, their bytes, and what
    /// is read still.
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
    /// How many.
    pub pushes: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bytes that were copied into arenas for them.
    pub copied: u64,
}

/// Transfers by what carried them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStatus {
    /// What carried them.
    pub fabric: FabricKind,
    /// How many.
    pub transfers: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Bytes copied by a CPU on either side.
    pub copied: u64,
}

/// One published tensor, as the admin call lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorStatus {
    /// The key.
    pub key: Key,
    /// The owner's worker name.
    pub owner: Name,
    /// Whose tenant's it is.
    pub tenant: Name,
    /// The newest version.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// Where it lies.
    pub slice: LocalSlice,
    /// How many leases there are on that version.
    pub readers: u32,
    /// How long that version stays.
    pub retention: Retention,
    /// How many older versions stay beside it.
    pub older: u32,
}

/// An operation of a worker that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferStatus {
    /// `fetch`, `push`, `prepare`, `take back`, `counter`, `barrier`.
    pub operation: &'static str,
    /// The key; of a counter or a barrier its name.
    pub key: String,
    /// The worker.
    pub worker: Name,
    /// Whose tenant's that is.
    pub tenant: Name,
    /// Its session.
    pub session: SessionId,
    /// The other node, where one takes part by now.
    pub peer: Option<Name>,
    /// The length in bytes, where it is known.
    pub len_bytes: Option<u64>,
    /// How long ago it began.
    pub age: Duration,
    /// How long it may still take.
    pub left: Duration,
    /// What it waits for, in words.
    pub waits_for: String,
}

/// A landing slot that is of no use to anybody, and not free: its peer might still write there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineStatus {
    /// The link over which the write would come.
    pub link: LinkId,
    /// The peer.
    pub peer: Name,
    /// Whose pool it lies in.
    pub domain: Tenant,
    /// What that tenant is called.
    pub tenant: Name,
    /// The key that it was for, where that is still known.
    pub key: Option<Key>,
    /// Its length in bytes.
    pub bytes: u64,
    /// How long it has been waiting.
    pub age: Duration,
    /// For what, in words.
    pub waits_for: String,
}

/// A push or a fetch of a worker of this node that has ended; or one of a peer's that this node had a part in, where its worker traces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTransfer {
    /// What this node did.
    pub operation: Operation,
    /// The key.
    pub key: Key,
    /// The worker: of a peer's push the one that pushed it. `None` where a peer fetched, which does not say for whom.
    pub worker: Option<Name>,
    /// The version, where it came to one.
    pub version: Option<Version>,
    /// The other node, where one took part.
    pub peer: Option<Name>,
    /// How it went, where it went well; else why not.
    pub outcome: Result<Report, FailureCode>,
    /// When it ended.
    pub at: Time,
    /// How long it took.
    pub took: Duration,
    /// What its worker calls the span that it belongs to, where it traces.
    pub trace: Option<TraceContext>,
}

impl EndedTransfer {
    /// What carried it, where it went well.
    #[must_use]
    pub fn fabric(&self) -> Option<FabricKind> {
        self.outcome.as_ref().ok().map(|report| report.fabric)
    }
}
