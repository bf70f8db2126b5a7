//! The boards of this sidecar: what the state machine wants shown is shown, and what it wants withdrawn is given back to it as soon as no
//! worker reads it. See [`transfer_memory::board`] for how that is known.

use super::looked_up::LookedUp;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use transfer_core::memory::SegmentId;
use transfer_core::protocol::{SessionId, Shown, Tenant};
use transfer_memory::board::{BoardWriter, Liveness, LivenessError, SessionMarks};
use transfer_memory::segment::{MapError, Segment};

/// What was looked up on boards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoardMeters {
    /// Fetches that found what they looked for, as the workers say, and as can be.
    pub hits: u64,
    /// Their length in bytes, all together.
    pub bytes: u64,
    /// Marks of what workers read.
    pub marks: u64,
    /// Versions that are shown.
    pub shown: u64,
    /// Versions that are shown no more and that workers still read.
    pub pending: u64,
}

struct Reader {
    marks: SessionMarks,
    looked_up: LookedUp,
}

#[derive(Default)]
struct Board {
    writer: Option<BoardWriter>,
    readers: BTreeMap<SessionId, Reader>,
    /// No tensor that was shown is longer, in bytes.
    longest: u64,
    shown: HashSet<u64>,
    /// Withdrawn, and marked by somebody.
    pending: HashSet<u64>,
}

impl Board {
    fn is_marked(&self, ticket: u64) -> bool {
        self.readers.values().any(|reader| reader.marks.is_marked(ticket))
    }
}

/// All boards of a sidecar, one for each user id.
#[derive(Default)]
pub(super) struct Boards {
    by_domain: BTreeMap<Tenant, Board>,
    domains: HashMap<SessionId, Tenant>,
    /// The segments of the sessions' notices.
    notices: HashMap<SessionId, SegmentId>,
    /// What workers have found, by the last look at what they say.
    hits: u64,
    bytes: u64,
}

impl Boards {
    /// Takes a board up: how many keys it can show, and what has to live as long as this thread runs.
    pub(super) fn add(&mut self, domain: Tenant, segment: &Segment) -> Result<(usize, Liveness), BoardError> {
        let writer = BoardWriter::new(segment.mapping().clone())?;
        let life = Liveness::begin(segment.mapping())?;
        let entries = writer.entries();
        self.by_domain.entry(domain).or_default().writer = Some(writer);
        Ok((entries, life))
    }

    /// From here on this session's marks are honoured.
    pub(super) fn open(&mut self, session: SessionId, domain: Tenant, marks: SessionMarks, notices: Option<SegmentId>) {
        marks.set_open(true);
        self.notices.extend(notices.map(|segment| (session, segment)));
        self.domains.insert(session, domain);
        let reader = Reader { marks, looked_up: LookedUp::new(Instant::now()) };
        self.by_domain.entry(domain).or_default().readers.insert(session, reader);
    }

    /// The session is over, and its worker may be reading still: nothing is looked up any more, and what is marked stays.
    pub(super) fn evict(&mut self, session: SessionId) {
        self.notices.remove(&session);
        let board = self.domains.get(&session).and_then(|domain| self.by_domain.get(domain));
        if let Some(reader) = board.and_then(|board| board.readers.get(&session)) {
            reader.marks.set_open(false);
        }
    }

    /// The session is over, and its marks with it. What nobody has marked now is to be handed to
    /// [`withdrawn`](transfer_core::protocol::Node::withdrawn).
    pub(super) fn close(&mut self, session: SessionId) -> Vec<u64> {
        self.notices.remove(&session);
        let board = self.domains.remove(&session).and_then(|domain| self.by_domain.get_mut(&domain));
        let Some(board) = board else { return Vec::new() };
        let Some(mut reader) = board.readers.remove(&session) else { return Vec::new() };
        reader.marks.set_open(false);
        let (hits, bytes) = reader.looked_up.take(Instant::now(), reader.marks.hits(), board.longest);
        (self.hits, self.bytes) = (self.hits.saturating_add(hits), self.bytes.saturating_add(bytes));
        // All that is waited for, and not only what it has marked: it may have died between clearing a mark and saying so.
        let free: Vec<u64> = board.pending.iter().copied().filter(|ticket| !board.is_marked(*ticket)).collect();
        for ticket in &free {
            board.pending.remove(ticket);
        }
        free
    }

    /// Shows a version. `false` where it does not fit. `reach_bytes`: the length of the segment that it and those that follow lie in.
    pub(super) fn show(&mut self, shown: &Shown, reach_bytes: u64) -> bool {
        let Some(board) = self.by_domain.get_mut(&shown.domain) else { return false };
        let Some(writer) = &mut board.writer else { return false };
        let Shown { key, ticket, version, meta, slice, notice, .. } = shown;
        let is_shown = match notice {
            None => writer.show(key, *ticket, *version, meta, *slice).is_ok(),
            Some(at) => self
                .notices
                .get(&at.session)
                .is_some_and(|notices| writer.show_notice(key, *ticket, (*notices, at.notice), slice.segment).is_ok()),
        };
        if is_shown {
            board.shown.insert(shown.ticket);
            board.longest = board.longest.max(reach_bytes);
        }
        is_shown
    }

    /// Shows it no more. Whether nobody has marked it.
    pub(super) fn withdraw(&mut self, domain: Tenant, ticket: u64) -> bool {
        let Some(board) = self.by_domain.get_mut(&domain) else { return true };
        board.shown.remove(&ticket);
        if let Some(writer) = &mut board.writer {
            writer.hide(ticket);
            writer.settle();
        }
        let is_marked = board.is_marked(ticket);
        if is_marked {
            board.pending.insert(ticket);
        }
        !is_marked
    }

    /// A worker says that it reads it no more. Whether nobody does now, and it waited for that.
    pub(super) fn unmarked(&mut self, session: SessionId, ticket: u64) -> bool {
        let Some(board) = self.domains.get(&session).and_then(|domain| self.by_domain.get_mut(domain)) else {
            return false;
        };
        board.pending.contains(&ticket) && !board.is_marked(ticket) && board.pending.remove(&ticket)
    }

    /// How many marks a session has set.
    pub(super) fn marks_of(&self, session: SessionId) -> u64 {
        let board = self.domains.get(&session).and_then(|domain| self.by_domain.get(domain));
        board.and_then(|board| board.readers.get(&session)).map_or(0, |reader| reader.marks.count())
    }

    /// Takes up what workers have counted.
    fn count(&mut self) {
        let now = Instant::now();
        for board in self.by_domain.values_mut() {
            for reader in board.readers.values_mut() {
                let (hits, bytes) = reader.looked_up.take(now, reader.marks.hits(), board.longest);
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
            sum.marks += board.readers.values().map(|reader| reader.marks.count()).sum::<u64>();
        }
        sum
    }
}

/// A board cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum BoardError {
    /// It is too small for one, or cannot be written.
    #[error("the board: {0}")]
    Map(#[from] MapError),
    /// Its readers could not see whether this sidecar lives.
    #[error(transparent)]
    Liveness(#[from] LivenessError),
}

/// What keeps a board going: the memory, and the life that is shown in it.
pub(super) struct Kept {
    _life: Liveness,
    _segment: Arc<Segment>,
}

impl Kept {
    pub(super) fn new(life: Liveness, segment: Arc<Segment>) -> Kept {
        Kept { _life: life, _segment: segment }
    }
}
