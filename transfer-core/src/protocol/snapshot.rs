//! What a node shows of itself: the values behind the admin calls.

use super::PassedOver;
use crate::fabric::{FabricKind, LinkId};
use crate::memory::LocalSlice;
use crate::tensor::{Key, Name, Retention, TensorMeta, Version};

/// A worker's connection, as the state machine numbers it. Never reused within one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A trust domain on one host: workers of one user id may read each other's tensors, others may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

/// Everything that is counted. After all sessions are gone, what is "now" is zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// One for each connected worker.
    pub sessions: Vec<SessionStatus>,
    /// One for each link.
    pub links: Vec<LinkStatus>,
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
    /// Operations that ended in failure since the start.
    pub failed: u64,
}

/// A connected worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionId,
    /// The worker's name.
    pub name: Name,
    /// Its trust domain.
    pub domain: Domain,
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

/// A landing pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// Whose.
    pub domain: Domain,
    /// Its size in bytes.
    pub bytes: u64,
    /// How much of it is in use.
    pub used: u64,
    /// Who waits for room in it.
    pub waiting: u64,
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
