//! The boards of this sidecar. They publish and withdraw versions as the state machine asks, and tell it when no worker
//! reads a withdrawn version any longer. [`transfer_memory::board`] explains how that is known.

use super::looked_up::LookedUp;
use hashbrown::{HashMap, HashSet, hash_set};
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

/// The most hazard pointers' buckets that are looked at in one round for the sessions that have ended.
const LOOKS_PER_ROUND: usize = 1024;

struct Reader {
    hazards: SessionHazards,
    looked_up: LookedUp,
    /// The withdrawn tickets that wait for this session: a hazard pointer of it named them when they were last looked at.
    keeps: HashSet<u64>,
}

#[derive(Default)]
struct Board {
    writer: Option<BoardWriter>,
    readers: BTreeMap<SessionId, Reader>,
    /// An upper bound of the length of every published tensor, in bytes.
    longest: u64,
    shown: HashSet<u64>,
    /// Withdrawn tickets that a hazard pointer still names, each with the session that keeps it.
    pending: HashMap<u64, SessionId>,
    /// The tickets that waited for sessions that have ended.
    orphans: Vec<hash_set::IntoIter<u64>>,
}

impl Board {
    /// Looks for a session that keeps a withdrawn ticket. Returns whether there is none. If there is one, it clears its
    /// hazard pointer and reports that, or it ends; so the ticket waits for that session alone.
    fn is_free(&mut self, ticket: u64) -> bool {
        let keeper = self.readers.iter().find(|(_, reader)| reader.hazards.is_protected(ticket)).map(|(id, _)| *id);
        let before = match keeper {
            Some(keeper) => self.pending.insert(ticket, keeper),
            None => self.pending.remove(&ticket),
        };
        if let Some(reader) = before.filter(|b| keeper != Some(*b)).and_then(|b| self.readers.get_mut(&b)) {
            reader.keeps.remove(&ticket);
        }
        if let Some(reader) = keeper.and_then(|keeper| self.readers.get_mut(&keeper)) {
            reader.keeps.insert(ticket);
        }
        keeper.is_none()
    }

    /// Takes the next ticket that waited for a session that has ended, if it still waits.
    fn next_orphan(&mut self) -> Option<u64> {
        while let Some(tickets) = self.orphans.last_mut() {
            match tickets.next() {
                Some(ticket) => return Some(ticket),
                None => drop(self.orphans.pop()),
            }
        }
        None
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
        let reader = Reader { hazards, looked_up: LookedUp::new(Instant::now()), keeps: HashSet::new() };
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

    /// Handles the end of a session whose worker no longer reads. Its hazard pointers no longer count. The withdrawn tickets
    /// that it kept are free in one of the next rounds; see [`Boards::take_free`].
    pub(super) fn close(&mut self, session: SessionId) {
        self.notices.remove(&session);
        let board = self.domains.remove(&session).and_then(|domain| self.by_domain.get_mut(&domain));
        let Some(board) = board else { return };
        let Some(mut reader) = board.readers.remove(&session) else { return };
        reader.hazards.set_open(false);
        let (hits, bytes) = reader.looked_up.take(Instant::now(), reader.hazards.hits(), board.longest);
        (self.hits, self.bytes) = (self.hits.saturating_add(hits), self.bytes.saturating_add(bytes));
        // Not only those that it protects now: its worker may have died after it cleared a hazard pointer and before it
        // reported that.
        board.orphans.push(reader.keeps.into_iter());
    }

    /// Looks again at tickets that waited for sessions that have ended, as many as one round may. Returns those that are
    /// free now, for [`withdrawn`](transfer_core::protocol::Node::withdrawn), or `None` if there were none to look at.
    pub(super) fn take_free(&mut self) -> Option<Vec<u64>> {
        // Called in each round, and a session has ended in few of them.
        if self.by_domain.values().all(|board| board.orphans.is_empty()) {
            return None;
        }
        let (mut looks, mut free) = (0, Vec::new());
        for board in self.by_domain.values_mut() {
            while looks < LOOKS_PER_ROUND
                && let Some(ticket) = board.next_orphan()
            {
                looks += 1 + board.readers.len();
                if board.pending.contains_key(&ticket) && board.is_free(ticket) {
                    free.push(ticket);
                }
            }
        }
        (looks > 0).then_some(free)
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
        board.is_free(ticket)
    }

    /// Handles a worker's report that it has cleared a hazard pointer. Returns whether the version was pending, and is
    /// free now.
    pub(super) fn hazard_cleared(&mut self, session: SessionId, ticket: u64) -> bool {
        let Some(board) = self.domains.get(&session).and_then(|domain| self.by_domain.get_mut(domain)) else {
            return false;
        };
        board.pending.contains_key(&ticket) && board.is_free(ticket)
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

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_memory::board::{BUCKET_HAZARDS, BUCKETS, HAZARDS_BYTES, HAZARDS_HEADER_BYTES, board_bytes};
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, SegmentOptions};

    const US: Tenant = Tenant::User(7);

    fn segment(len: u64) -> Segment {
        let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
        Segment::create("boards", &options, &PinnedBudget::new(1 << 24)).unwrap()
    }

    /// The hazard pointers of a session, as its worker writes them.
    struct Worker(Segment);

    impl Worker {
        fn open(boards: &mut Boards, session: u64) -> Worker {
            let own = segment(HAZARDS_BYTES);
            let hazards = SessionHazards::new(own.mapping().clone(), 0).unwrap();
            boards.open(SessionId(session), US, hazards, None);
            Worker(own)
        }

        /// Sets or clears the first hazard pointer of the ticket's bucket, or a later one.
        fn set(&self, ticket: u64, at: usize, word: u64) {
            let place = (ticket as usize % BUCKETS * BUCKET_HAZARDS + at) * 8;
            self.0.mapping().copy_in(HAZARDS_HEADER_BYTES + place as u64, &word.to_ne_bytes()).unwrap();
        }

        fn hold(&self, tickets: impl Iterator<Item = u64>) {
            tickets.for_each(|ticket| self.set(ticket, ticket as usize / BUCKETS % BUCKET_HAZARDS, ticket));
        }
    }

    fn boards() -> (Boards, Segment) {
        let (mut boards, board) = (Boards::default(), segment(board_bytes(64)));
        boards.by_domain.entry(US).or_default().writer = Some(BoardWriter::new(board.mapping().clone()).unwrap());
        (boards, board)
    }

    fn rounds(boards: &mut Boards) -> Vec<Vec<u64>> {
        std::iter::from_fn(|| boards.take_free()).collect()
    }

    /// Many sessions hold the same withdrawn versions and end together. A round looks at some hazard pointers, however
    /// many versions there are.
    // Promise: cost-of-events
    #[test]
    fn sessions_that_end_free_their_tickets_over_many_rounds() {
        let (mut boards, _board) = boards();
        let tickets = 1..=(BUCKETS * BUCKET_HAZARDS) as u64;
        let workers: Vec<_> = (1..=20).map(|session| Worker::open(&mut boards, session)).collect();
        for worker in &workers {
            worker.hold(tickets.clone());
        }
        assert!(tickets.clone().all(|ticket| !boards.withdraw(US, ticket)));
        let (last, others) = (20, 1..=19);
        for session in others {
            boards.close(SessionId(session));
        }
        // The tickets waited for one of the sessions, and now they wait for the last one.
        let moved = rounds(&mut boards);
        assert!(moved.iter().all(Vec::is_empty) && moved.len() >= tickets.clone().count() * 2 / LOOKS_PER_ROUND);
        assert_eq!(boards.meters().pending, tickets.clone().count() as u64);
        boards.close(SessionId(last));
        let freed = rounds(&mut boards);
        assert!(freed.iter().all(|free| free.len() <= LOOKS_PER_ROUND) && freed.len() >= 2);
        let mut freed = freed.concat();
        freed.sort_unstable();
        assert_eq!((freed, boards.meters().pending), (tickets.collect(), 0));
        assert_eq!(boards.take_free(), None);
    }

    /// A ticket waits for another session once the one for which it waited has cleared its hazard pointer. That one may
    /// clear its own and die before it reports that.
    // Promise: cost-of-events
    #[test]
    fn a_ticket_is_free_when_its_last_reader_ends_in_any_way() {
        let (mut boards, _board) = boards();
        let [a, b] = [1, 2].map(|session| Worker::open(&mut boards, session));
        for worker in [&a, &b] {
            worker.set(5, 0, 5);
        }
        assert!(!boards.withdraw(US, 5));
        a.set(5, 0, 0);
        assert!(!boards.hazard_cleared(SessionId(1), 5));
        b.set(5, 0, 0);
        boards.close(SessionId(2));
        assert_eq!(rounds(&mut boards), [[5]]);
        // One that was reported after its session had ended is free once.
        let c = Worker::open(&mut boards, 3);
        c.set(6, 0, 6);
        assert!(!boards.withdraw(US, 6));
        boards.close(SessionId(3));
        assert!(boards.hazard_cleared(SessionId(1), 6));
        assert_eq!(rounds(&mut boards).concat(), [0u64; 0]);
    }
}
