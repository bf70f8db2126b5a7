//! The boards of this sidecar. They publish and withdraw versions as the state machine asks, and tell it when no worker
//! reads a withdrawn version any longer. [`transfer_memory::board`] explains how that is known.

use super::looked_up::LookedUp;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use transfer_core::memory::SegmentId;
use transfer_core::protocol::{SessionId, Shown, Tenant};
use transfer_memory::board::{BoardWriter, Liveness, LivenessError, SessionHazards};
use transfer_memory::segment::{MapError, Segment};

/// The counts of look-ups on boards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoardMeters {
    /// Fetches that found their version on a board. The workers report them, and implausible reports are ignored.
    pub hits: u64,
    /// The sum of their lengths, in bytes.
    pub bytes: u64,
    /// Hazard pointers that workers have set.
    pub hazards: u64,
    /// Versions that are published on boards.
    pub shown: u64,
    /// Withdrawn versions that workers still read.
    pub pending: u64,
}

struct Reader {
    hazards: SessionHazards,
    looked_up: LookedUp,
}

#[derive(Default)]
struct Board {
    writer: Option<BoardWriter>,
    readers: BTreeMap<SessionId, Reader>,
    /// An upper bound of the length of every published tensor, in bytes.
    longest: u64,
    shown: HashSet<u64>,
    /// Withdrawn tickets that a hazard pointer still names.
    pending: HashSet<u64>,
}

impl Board {
    fn is_protected(&self, ticket: u64) -> bool {
        self.readers.values().any(|reader| reader.hazards.is_protected(ticket))
    }
}

/// All boards of a sidecar, one for each user id.
#[derive(Default)]
pub(super) struct Boards {
    by_domain: BTreeMap<Tenant, Board>,
    domains: HashMap<SessionId, Tenant>,
    /// The segments of the sessions' notices.
    notices: HashMap<SessionId, SegmentId>,
    /// The fetches that workers have reported so far, and their bytes.
    hits: u64,
    bytes: u64,
}

impl Boards {
    /// Adds a board. Returns its number of entries and its liveness word, which the calling thread has to keep as long
    /// as it runs.
    pub(super) fn add(&mut self, domain: Tenant, segment: &Segment) -> Result<(usize, Liveness), BoardError> {
        let writer = BoardWriter::new(segment.mapping().clone())?;
        let life = Liveness::begin(segment.mapping())?;
        let entries = writer.entries();
        self.by_domain.entry(domain).or_default().writer = Some(writer);
        Ok((entries, life))
    }

    /// Adds a session. The versions that its hazard pointers name count as read from now on.
    pub(super) fn open(
        &mut self,
        session: SessionId,
        domain: Tenant,
        hazards: SessionHazards,
        notices: Option<SegmentId>,
    ) {
        hazards.set_open(true);
        self.notices.extend(notices.map(|segment| (session, segment)));
        self.domains.insert(session, domain);
        let reader = Reader { hazards, looked_up: LookedUp::new(Instant::now()) };
        self.by_domain.entry(domain).or_default().readers.insert(session, reader);
    }

    /// Handles the end of a session whose worker may still read. The worker can look nothing up any longer, but its
    /// hazard pointers still count.
    pub(super) fn evict(&mut self, session: SessionId) {
        self.notices.remove(&session);
        let board = self.domains.get(&session).and_then(|domain| self.by_domain.get(domain));
        if let Some(reader) = board.and_then(|board| board.readers.get(&session)) {
            reader.hazards.set_open(false);
        }
    }

    /// Handles the end of a session whose worker no longer reads. Its hazard pointers no longer count. Returns the
    /// withdrawn tickets that are free now, for [`withdrawn`](transfer_core::protocol::Node::withdrawn).
    pub(super) fn close(&mut self, session: SessionId) -> Vec<u64> {
        self.notices.remove(&session);
        let board = self.domains.remove(&session).and_then(|domain| self.by_domain.get_mut(&domain));
        let Some(board) = board else { return Vec::new() };
        let Some(mut reader) = board.readers.remove(&session) else { return Vec::new() };
        reader.hazards.set_open(false);
        let (hits, bytes) = reader.looked_up.take(Instant::now(), reader.hazards.hits(), board.longest);
        (self.hits, self.bytes) = (self.hits.saturating_add(hits), self.bytes.saturating_add(bytes));
        // Check all pending tickets, not only those that this session protects: its worker may have died after it
        // cleared a hazard pointer and before it reported that.
        let free: Vec<u64> = board.pending.iter().copied().filter(|ticket| !board.is_protected(*ticket)).collect();
        for ticket in &free {
            board.pending.remove(ticket);
        }
        free
    }

    /// Publishes a version. Returns `false` if it does not fit. `reach_bytes` is the length of the segment that
    /// contains this version and the following ones.
    pub(super) fn show(&mut self, shown: &Shown, reach_bytes: u64) -> bool {
        let Some(board) = self.by_domain.get_mut(&shown.domain) else { return false };
        let Some(writer) = &mut board.writer else { return false };
        let Shown { key, ticket, version, meta, slice, notice, .. } = shown;
        let is_shown = match notice {
            None => writer.publish(key, *ticket, *version, meta, *slice).is_ok(),
            Some(at) => self.notices.get(&at.session).is_some_and(|notices| {
                writer.publish_notice(key, *ticket, (*notices, at.notice), slice.segment).is_ok()
            }),
        };
        if is_shown {
            board.shown.insert(shown.ticket);
            board.longest = board.longest.max(reach_bytes);
        }
        is_shown
    }

    /// Withdraws a version. Returns whether no hazard pointer names it.
    pub(super) fn withdraw(&mut self, domain: Tenant, ticket: u64) -> bool {
        let Some(board) = self.by_domain.get_mut(&domain) else { return true };
        board.shown.remove(&ticket);
        if let Some(writer) = &mut board.writer {
            writer.unlink(ticket);
            writer.fence_before_scan();
        }
        let is_protected = board.is_protected(ticket);
        if is_protected {
            board.pending.insert(ticket);
        }
        !is_protected
    }

    /// Handles a worker's report that it has cleared a hazard pointer. Returns whether the version was pending, and is
    /// free now.
    pub(super) fn hazard_cleared(&mut self, session: SessionId, ticket: u64) -> bool {
        let Some(board) = self.domains.get(&session).and_then(|domain| self.by_domain.get_mut(domain)) else {
            return false;
        };
        board.pending.contains(&ticket) && !board.is_protected(ticket) && board.pending.remove(&ticket)
    }

    /// Returns the number of hazard pointers that a session has set.
    pub(super) fn hazards_of(&self, session: SessionId) -> u64 {
        let board = self.domains.get(&session).and_then(|domain| self.by_domain.get(domain));
        board.and_then(|board| board.readers.get(&session)).map_or(0, |reader| reader.hazards.count())
    }

    /// Reads the workers' counts.
    fn count(&mut self) {
        let now = Instant::now();
        for board in self.by_domain.values_mut() {
            for reader in board.readers.values_mut() {
                let (hits, bytes) = reader.looked_up.take(now, reader.hazards.hits(), board.longest);
                (self.hits, self.bytes) = (self.hits.saturating_add(hits), self.bytes.saturating_add(bytes));
            }
        }
    }

    pub(super) fn meters(&mut self) -> BoardMeters {
        self.count();
        let mut sum = BoardMeters { hits: self.hits, bytes: self.bytes, ..BoardMeters::default() };
        for board in self.by_domain.values() {
            sum.shown += board.shown.len() as u64;
            sum.pending += board.pending.len() as u64;
            sum.hazards += board.readers.values().map(|reader| reader.hazards.count()).sum::<u64>();
        }
        sum
    }
}

/// The reason why a board cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum BoardError {
    /// The segment is too small for a board, or not writable.
    #[error("the board: {0}")]
    Map(#[from] MapError),
    /// The liveness word cannot be set up.
    #[error(transparent)]
    Liveness(#[from] LivenessError),
}

/// Keeps a board in use: its memory and its liveness word.
pub(super) struct Kept {
    _life: Liveness,
    _segment: Arc<Segment>,
}

impl Kept {
    pub(super) fn new(life: Liveness, segment: Arc<Segment>) -> Kept {
        Kept { _life: life, _segment: segment }
    }
}
