//! Versions that are written to disk, so that their memory goes back to their worker.
//!
//! Only versions that say so are written: see [`Spill`](crate::tensor::Spill). When those of one arena take more of it
//! than the high mark allows, the oldest of them that nobody reads are written, until they take less than the low mark.
//! A version that says *now* has everything of its arena written. Arenas take turns, so that a worker that publishes much
//! keeps no other one waiting. A few versions are written at the same time, and the host writes one behind the other.
//!
//! If a write fails, the version stays where it is, and nothing is written for a while.

#[cfg(test)]
mod tests;

use super::ids::BlobId;
use super::tenant::Tenant;
use crate::memory::SegmentId;
use crate::tensor::Key;
use crate::time::Time;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many versions are written at the same time. The second one keeps the disk busy while the node handles the end of
/// the first.
const AT_ONCE: usize = 2;

/// The time after a failed write in which nothing is written.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The number of a version on disk. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillId(pub u64);

/// When versions are written to disk, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillConfig {
    /// The share of an arena, in percent, above which its versions are written.
    pub high_percent: u64,
    /// The share of an arena, in percent, down to which they are written then.
    pub low_percent: u64,
    /// The most bytes on disk for each tenant.
    pub tenant_bytes: u64,
    /// The most bytes on disk for all tenants.
    pub total_bytes: u64,
}

/// What a node has written to disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpillStatus {
    /// The number of versions that lie on disk.
    pub versions: u64,
    /// Their length, in bytes.
    pub bytes: u64,
    /// The bytes that were written.
    pub written: u64,
    /// The bytes that were read.
    pub read: u64,
    /// The number of writes that have failed.
    pub failed_writes: u64,
    /// The number of reads that have failed. The versions are lost.
    pub failed_reads: u64,
}

/// The versions of a node that may be written to disk, as a state machine.
///
/// It knows versions and arenas only by their ids. The node that holds it
/// - hands it **events**: a version that may be written was published ([`came`](Spills::came)), a version's memory is
///   free ([`went`](Spills::went)), the host has written a version ([`written`](Spills::written)), a version on disk has
///   ended ([`ended`](Spills::ended)), time has passed ([`timeout`](Spills::timeout));
/// - writes what [`next`](Spills::next) returns, until it returns nothing.
pub(super) struct Spills {
    config: Option<SpillConfig>,
    arenas: BTreeMap<SegmentId, OfArena>,
    /// The versions that may be written.
    versions: HashMap<BlobId, Member>,
    writing: BTreeMap<SpillId, Writing>,
    /// The versions that lie on disk: their tenants, and their lengths.
    stored: HashMap<SpillId, (Tenant, u64)>,
    /// The bytes on disk, and those that are being written.
    bytes: BTreeMap<Tenant, u64>,
    last: u64,
    /// The number of versions that have come.
    came: u64,
    /// The arena whose turn was last.
    turn: SegmentId,
    paused_until: Option<Time>,
    /// Something has changed since [`Spills::next`] found nothing to write.
    look: bool,
    status: SpillStatus,
}

struct OfArena {
    tenant: Tenant,
    len: u64,
    /// The length of its versions that may be written.
    bytes: u64,
    /// The length of those that are being written.
    writing: u64,
    /// The versions that may be written and are not being written, by the order in which they came, with their lengths.
    waiting: BTreeMap<u64, (BlobId, Key, u64)>,
    /// The bytes down to which they are written, if they are.
    down_to: Option<u64>,
}

/// A version that may be written.
struct Member {
    arena: SegmentId,
    len: u64,
    /// Its place in the order in which they came.
    order: u64,
}

/// A version that is being written. The node holds a reference to it.
pub(super) struct Writing {
    pub(super) id: SpillId,
    pub(super) blob: BlobId,
    pub(super) key: Key,
    pub(super) tenant: Tenant,
    pub(super) len: u64,
}

impl Spills {
    pub(super) fn new(config: Option<SpillConfig>) -> Spills {
        Spills {
            config,
            arenas: BTreeMap::new(),
            versions: HashMap::new(),
            writing: BTreeMap::new(),
            stored: HashMap::new(),
            bytes: BTreeMap::new(),
            last: 0,
            came: 0,
            turn: SegmentId(0),
            paused_until: None,
            look: false,
            status: SpillStatus::default(),
        }
    }

    /// Adds a version of this length that may be written. `now`: its worker needs memory.
    pub(super) fn came(
        &mut self,
        (arena, arena_len): (SegmentId, u64),
        tenant: Tenant,
        (key, blob): (Key, BlobId),
        len: u64,
        now: bool,
    ) {
        let Some(config) = self.config else { return };
        let a = self.arenas.entry(arena).or_insert_with(|| OfArena {
            tenant,
            len: arena_len,
            bytes: 0,
            writing: 0,
            waiting: BTreeMap::new(),
            down_to: None,
        });
        self.look = true;
        a.bytes += len;
        self.came += 1;
        a.waiting.insert(self.came, (blob, key, len));
        self.versions.insert(blob, Member { arena, len, order: self.came });
        let share = |percent: u64| a.len / 100 * percent;
        if now {
            a.down_to = Some(0);
        } else if a.bytes > share(config.high_percent) {
            a.down_to.get_or_insert(share(config.low_percent));
        }
    }

    /// Handles the end of a version in an arena: its memory is the worker's again.
    pub(super) fn went(&mut self, blob: BlobId) {
        let Some(Member { arena, len, order }) = self.versions.remove(&blob) else { return };
        let Some(a) = self.arenas.get_mut(&arena) else { return };
        self.look = true;
        a.bytes = a.bytes.saturating_sub(len);
        a.waiting.remove(&order);
        if a.down_to.is_some_and(|down_to| a.bytes <= down_to) {
            a.down_to = None;
        }
        if a.bytes == 0 {
            self.arenas.remove(&arena);
        }
    }

    /// Whether there may be something to write.
    pub(super) fn is_due(&self) -> bool {
        self.look
            && self.paused_until.is_none()
            && self.writing.len() < AT_ONCE
            && self.arenas.values().any(|a| a.down_to.is_some() && !a.waiting.is_empty())
    }

    /// Returns the next version to write. `is_cold` says whether nobody reads a version.
    pub(super) fn next(&mut self, is_cold: impl Fn(BlobId) -> bool) -> Option<Writing> {
        let config = self.config.filter(|_| self.is_due())?;
        let total: u64 = self.bytes.values().sum();
        let turns: Vec<_> = self.arenas.keys().copied().collect();
        let after = turns.partition_point(|arena| *arena <= self.turn);
        for arena in turns[after..].iter().chain(&turns[..after]) {
            let Some(a) = self.arenas.get_mut(arena) else { continue };
            if a.down_to.is_none_or(|down_to| a.bytes - a.writing <= down_to) {
                continue;
            }
            let of_tenant = self.bytes.get(&a.tenant).copied().unwrap_or(0);
            let fits = |len: u64| {
                of_tenant.saturating_add(len) <= config.tenant_bytes && total.saturating_add(len) <= config.total_bytes
            };
            let due =
                a.waiting.iter().find(|(_, (blob, _, len))| fits(*len) && is_cold(*blob)).map(|(order, _)| *order);
            let Some((blob, key, len)) = due.and_then(|order| a.waiting.remove(&order)) else { continue };
            a.writing += len;
            self.turn = *arena;
            self.last += 1;
            let (id, tenant) = (SpillId(self.last), a.tenant);
            *self.bytes.entry(tenant).or_default() += len;
            self.writing.insert(id, Writing { id, blob, key: key.clone(), tenant, len });
            return Some(Writing { id, blob, key, tenant, len });
        }
        self.look = false;
        None
    }

    /// Handles a version that has lost a reader: it may be written now.
    pub(super) fn lost_reader(&mut self, blob: BlobId) {
        self.look |= self.versions.contains_key(&blob);
    }

    /// Handles the end of a write. If it went `well`, the version lies on disk until it has
    /// [ended](Spills::ended) there.
    pub(super) fn written(&mut self, now: Time, id: SpillId, well: bool) -> Option<Writing> {
        let writing = self.writing.remove(&id)?;
        self.look = true;
        let Writing { blob, tenant, len, .. } = writing;
        self.stored.insert(id, (tenant, len));
        if let Some(Member { arena, order, .. }) = self.versions.get(&blob)
            && let Some(a) = self.arenas.get_mut(arena)
        {
            a.writing = a.writing.saturating_sub(len);
            if !well {
                a.waiting.insert(*order, (blob, writing.key.clone(), len));
            }
        }
        if well {
            self.status.written += len;
        } else {
            self.status.failed_writes += 1;
            self.paused_until = Some(now + PAUSE_AFTER_FAILURE);
            self.ended(id);
        }
        Some(writing)
    }

    /// Handles the end of a read.
    pub(super) fn was_read(&mut self, len: u64, well: bool) {
        match well {
            true => self.status.read += len,
            false => self.status.failed_reads += 1,
        }
    }

    /// Handles the end of a version on disk.
    pub(super) fn ended(&mut self, id: SpillId) {
        let Some((tenant, len)) = self.stored.remove(&id) else { return };
        self.look = true;
        if let Some(bytes) = self.bytes.get_mut(&tenant) {
            *bytes = bytes.saturating_sub(len);
            if *bytes == 0 {
                self.bytes.remove(&tenant);
            }
        }
    }

    /// Returns when the pause after a failed write ends.
    pub(super) fn paused_until(&self) -> Option<Time> {
        self.paused_until
    }

    /// Handles the passing of time.
    pub(super) fn timeout(&mut self, now: Time) {
        if self.paused_until.is_some_and(|until| until <= now) {
            (self.paused_until, self.look) = (None, true);
        }
    }

    pub(super) fn status(&self) -> SpillStatus {
        let bytes = self.stored.values().map(|(_, len)| len).sum();
        SpillStatus { versions: self.stored.len() as u64, bytes, ..self.status }
    }
}
