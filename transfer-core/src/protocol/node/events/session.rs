//! Sessions of workers: how they begin and end, and their commands.

use crate::exchange::{ExchangeKey, Label, Part};
use crate::fabric::FabricKind;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Answer, Command, Failure, FailureCode, FetchInto, OpId, Push, Reply, Request};
use crate::protocol::action::HostAction;
use crate::protocol::ids::SessionId;
use crate::protocol::keys::Owner;
use crate::protocol::node::Node;
use crate::protocol::node::ownership::{Ending, Leaving};
use crate::protocol::sessions::{Closed, Session};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use crate::wire::bundle::InvalidBundle;
use crate::wire::ranges::{ArenaRange, table_bytes};

/// What the caller has copied out of the arena for a push.
#[derive(Debug, Default)]
pub struct PushRead<'a> {
    /// The ranges of its table; see [`Node::table_of`].
    pub ranges: &'a [ArenaRange],
    /// The error of its metadata; see [`Node::metadata_of`].
    pub error: Option<InvalidBundle>,
    /// Its label; see [`Node::label_of`]. `None`: it has none, or what lies there is no label.
    pub label: Option<Label>,
}

/// What has become of memory that a worker has allocated by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerMemory {
    /// It is registered with the fabrics.
    Registered {
        /// The worker.
        session: SessionId,
        /// Its length in bytes.
        len: u64,
    },
    /// The worker has nothing published there, as far as it knows, and nothing lands there.
    Released,
}

impl Node {
    /// Opens the session of a worker that has connected. Its arena is mapped and registered. The caller must have
    /// refused a name that is taken.
    pub fn session_opened(&mut self, session: SessionId, name: Name, domain: Tenant, arena: SegmentId, arena_len: u64) {
        self.keys.session_opened(session, domain);
        self.sessions.open(session, name, domain, arena, arena_len);
    }

    /// Notes that the arena of a worker is mapped read-only, because the worker has brought it along from the sidecar that was
    /// here before. Nothing lands in it.
    pub fn arena_is_returned(&mut self, arena: SegmentId) {
        self.sessions.arena_is_returned(arena);
    }

    /// Notes that a fabric cannot read the arena of a worker. What lies there is copied into the landing pool before that fabric
    /// sends it.
    pub fn arena_is_unreadable(&mut self, arena: SegmentId, by: FabricKind) {
        self.sessions.arena_is_unreadable(arena, by);
    }

    /// Handles memory of its own that a worker of this process registers, or needs no longer. Returns the place by which the worker names
    /// what it has registered, behind its arena: in pushes, and for fetches that land there. `None` if the session is over.
    pub fn memory_of_worker(&mut self, segment: SegmentId, what: WorkerMemory) -> Option<u64> {
        match what {
            WorkerMemory::Registered { session, len } => self.sessions.add_region(session, segment, len),
            WorkerMemory::Released => {
                if self.sessions.release_region(segment) {
                    self.actions.push(HostAction::SegmentUnused { segment });
                }
                None
            }
        }
    }

    /// Handles the end of a worker that no longer reads anything. Its leases and operations end, and so do the versions
    /// that it published, except for their readers. If it was [evicted](Node::session_evicted) before, only its leases
    /// are left to end. What a worker with many keys or leases has ends in later rounds, by [`Node::timeout`].
    pub fn session_closed(&mut self, now: Time, session: SessionId, why: &str) {
        self.session_evicted(now, session, why);
        ownership!(self).end(now, Ending::Leases(session));
    }

    /// Evicts a worker whose process may still run. Its session ends except for its leases, because it may still be
    /// reading. [`Node::session_closed`] follows once the worker says that it reads nothing, or its process has ended.
    pub fn session_evicted(&mut self, now: Time, session: SessionId, why: &str) {
        self.common.latest = now;
        let Some(Closed { name, tenant, arena, ops }) = self.sessions.evict(session) else { return };
        for id in ops {
            answering!(self).drop_op(id);
        }
        self.counters.worker_gone(&name, tenant);
        if self.sessions.all().values().all(|s| s.is_leaving() || s.tenant() != tenant) {
            let bases = self.bases.give_up_all(|_, of| of == tenant);
            ownership!(self).end(now, Ending::Read(bases.into_iter()));
            let passing = self.relays.passing.give_up_all(tenant);
            ownership!(self).end(now, Ending::Read(passing.into_iter()));
        }
        pushing!(self).flows_out_abandoned(session);
        room!(self).flows_in_target_gone(session);
        let why = why.to_owned();
        ownership!(self)
            .end(now, Ending::Session(Leaving { session, name, tenant, arena, why, from: Some(0), version: 0 }));
    }

    /// Returns where the table of a push lies, if its body is made of several ranges. The caller copies the table out
    /// of the arena and hands the push to [`Node::push_read`].
    #[must_use]
    pub fn table_of(&self, session: SessionId, push: &Push) -> Option<LocalSlice> {
        let s = self.sessions.get(session).filter(|_| push.ranges > 0)?;
        let offset = push.offset.checked_add(push.meta.body_offset())?;
        // Where there is no such range, reading the arena there fails, and the push is refused.
        let (len, segment) = (table_bytes(push.ranges), s.arena().0);
        Some(s.locate(offset, len).unwrap_or(LocalSlice { segment, offset, len }))
    }

    /// Returns where the metadata of a push lies, if it has any. The caller may copy it out of the arena and check it.
    #[must_use]
    pub fn metadata_of(&self, session: SessionId, push: &Push) -> Option<LocalSlice> {
        let s = self.sessions.get(session).filter(|_| push.meta.metadata_bytes() > 0)?;
        let (offset, len, segment) = (push.offset, push.meta.metadata_bytes().into(), s.arena().0);
        Some(s.locate(offset, len).unwrap_or(LocalSlice { segment, offset, len }))
    }

    /// Returns where the label of a push lies, if its key is that of an anchor or a mark of an exchange. The caller
    /// copies it out of the arena.
    #[must_use]
    pub fn label_of(&self, session: SessionId, push: &Push) -> Option<LocalSlice> {
        let s = self.sessions.get(session).filter(|_| push.ranges == 0 && push.meta.metadata_bytes() == 0)?;
        let len = push.meta.len_bytes();
        let key = ExchangeKey::parse(push.key.as_str()).filter(|_| len <= Label::MAX_BYTES as u64)?;
        let has_label = matches!(key.part, Part::Anchor | Part::Mark(..));
        if has_label { s.locate(push.offset, len) } else { None }
    }

    /// Handles a push of which the caller has read a part: the body is made of these ranges of the worker's arena, in
    /// order. With an `error` of the metadata the push is refused.
    pub fn push_read(&mut self, now: Time, session: SessionId, op: OpId, push: Push, read: PushRead<'_>) {
        self.common.latest = now;
        match access!(self).is_under_way(session, op) {
            Some(failure) => replies!(self).refuse(session, op, failure),
            None => {
                let failure = |error| Failure::new(FailureCode::Invalid, format!("key {:?}: {error}", push.key));
                let error = read.error.map(failure);
                pushing!(self).push(now, session, op, push, (read.ranges, read.label), error);
            }
        }
    }

    /// Handles a worker's request.
    pub fn request(&mut self, now: Time, session: SessionId, request: Request) {
        self.common.latest = now;
        if self.sessions.get(session).is_some_and(Session::is_leaving) {
            return;
        }
        match request {
            Request::Command { op, command } => self.command(now, session, op, command),
            Request::Release { lease } => memory!(self).release_lease(session, lease),
            Request::Cancel { op } => {
                if let Some(id) = self.sessions.get(session).and_then(|s| s.op(op)) {
                    let text = "given up by its caller";
                    answering!(self).give_up(now, id, Failure::new(FailureCode::Cancelled, text));
                }
            }
            // The host handles this: its boards tell whether it can call `withdrawn` now.
            Request::Unmarked { .. } => {}
            Request::CountUnfetched { number, key } => match self.keys.count_unfetched(&key, session, number) {
                Some(record) => replies!(self).tell_unfetched(record),
                None => {
                    self.actions.push(HostAction::Reply { session, reply: Reply::Unfetched { number, left: None } });
                }
            },
            Request::WrongDigest { text } => {
                replies!(self).failed(session, &Failure::new(FailureCode::WrongDigest, text));
            }
            Request::Unannounce { key } => self.keys.unannounce(&key, session, &mut self.actions),
        }
    }

    fn command(&mut self, now: Time, session: SessionId, op: OpId, command: Command) {
        if self.common.draining && command.is_new_work() {
            let failure = access!(self).is_draining();
            return replies!(self).refuse(session, op, failure);
        }
        if let Some(failure) = access!(self).is_under_way(session, op) {
            return replies!(self).refuse(session, op, failure);
        }
        match command {
            Command::Push(push) => pushing!(self).push(now, session, op, push, (&[], None), None),
            Command::Fetch(fetch) => fetching!(self).fetch(now, session, op, fetch, None),
            Command::FetchInto(FetchInto { fetch, to }) => fetching!(self).fetch(now, session, op, fetch, Some(to)),
            Command::Gather(gather) => fetching!(self).gather(now, session, op, gather),
            Command::Reserve(reserve) => pushing!(self).reserve(now, session, op, reserve),
            Command::TakeBack(command) => taking_back!(self).take_back(now, session, op, command),
            Command::Delete { key } => self.delete(now, session, op, &key),
            Command::Counter(command) => counting!(self).counter(now, session, op, command),
        }
    }

    pub(in crate::protocol::node) fn delete(&mut self, now: Time, session: SessionId, op: OpId, key: &Key) {
        let record = self.keys.find(key);
        let mine = record.and_then(|id| self.keys.record(id)).is_some_and(|r| match r.owner() {
            Owner::Session(s) => *s == session,
            Owner::Outlived(outlived) => access!(self).is_heir(session, outlived),
            Owner::Nobody | Owner::Claiming(_) | Owner::Landed(_) => false,
        });
        match record {
            Some(id) if mine => {
                ownership!(self).end_key(now, id);
                self.actions.answer(session, op, Answer::Deleted);
            }
            record => {
                if let Some(failure) = record.and_then(|id| access!(self).is_others(session, id, key)) {
                    return replies!(self).refuse(session, op, failure);
                }
                let text = format!("key {key:?} is not owned by this worker at this sidecar");
                replies!(self).refuse(session, op, Failure::new(FailureCode::NotOwner, text));
            }
        }
    }
}
