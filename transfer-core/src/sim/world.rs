//! The clock, the memory, and the agenda.

use super::conditions::Conditions;
use super::connection::{Connection, Event, Late, SideNo};
use super::digest::{Digest, Seen};
use crate::fabric::{AtomicOp, DownReason, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, SegmentId};
use crate::time::Time;
use crate::wire::message::Message;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A piece of the world's memory. Simulated fabrics get a segment in this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub(super) usize);

/// The place of a fabric in its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(pub(super) usize);

/// A range that the world watches for writes. See [`World::guard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuardId(u64);

/// A simulated world: memory, endpoints, connections and one clock. All clones are the same world.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<WorldState>>);

#[derive(Debug)]
pub(super) struct WorldState {
    pub(super) now: Time,
    pub(super) rng: SmallRng,
    pub(super) conditions: Conditions,
    pub(super) memories: Vec<Vec<u8>>,
    pub(super) endpoints: Vec<EndpointState>,
    pub(super) connections: Vec<Connection>,
    pub(super) next_number: u64,
    pub(super) next_key: u32,
    pub(super) retired_keys: Vec<u32>,
    agenda: BTreeMap<(Time, u64), Happening>,
    /// The endpoints and links that delivered a false header, until the link is down.
    pub(super) lied: BTreeSet<(usize, LinkId)>,
    guards: BTreeMap<GuardId, (MemoryId, u64, u64)>,
    faults: Vec<String>,
    trace: Option<Vec<String>>,
    pub(super) digest: Digest,
    clock_runs_by_itself: bool,
}

#[derive(Debug, Default)]
pub(super) struct EndpointState {
    pub(super) segments: BTreeMap<SegmentId, MemoryId>,
    /// The keys of segments with one key for all grants.
    pub(super) keys: BTreeMap<SegmentId, RemoteKey>,
    pub(super) links: BTreeMap<LinkId, (usize, SideNo)>,
    pub(super) events: VecDeque<Event>,
}

#[derive(Debug)]
pub(super) enum Happening {
    Step { connection: usize, from: SideNo },
    Completed { connection: usize, side: SideNo },
    Granted { connection: usize, side: SideNo, tag: u64 },
    Revoked { connection: usize, side: SideNo, key: RemoteKey, tag: u64 },
    Connected { connection: usize, side: SideNo },
    Down { connection: usize, side: SideNo },
    Late(Late),
    LocalAtomic { endpoint: usize, work: WorkId, word: LocalSlice, op: AtomicOp },
}

impl World {
    /// Creates a world. The same seed and calls give the same run.
    #[must_use]
    pub fn new(seed: u64, conditions: Conditions) -> World {
        World(Arc::new(Mutex::new(WorldState {
            now: Time(0),
            rng: SmallRng::seed_from_u64(seed),
            conditions,
            memories: Vec::new(),
            endpoints: Vec::new(),
            connections: Vec::new(),
            next_number: 0,
            next_key: 1,
            retired_keys: Vec::new(),
            agenda: BTreeMap::new(),
            lied: BTreeSet::new(),
            guards: BTreeMap::new(),
            faults: Vec::new(),
            trace: None,
            digest: Digest::default(),
            clock_runs_by_itself: false,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WorldState> {
        // The trace of a schedule that panicked is still needed, so a poisoned lock is used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an endpoint for one fabric.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        let mut w = self.lock();
        w.endpoints.push(EndpointState::default());
        Endpoint(w.endpoints.len() - 1)
    }

    /// Creates memory that is all zero.
    #[must_use]
    pub fn memory(&self, len_bytes: usize) -> MemoryId {
        let mut w = self.lock();
        w.memories.push(vec![0; len_bytes]);
        MemoryId(w.memories.len() - 1)
    }

    /// Returns a copy of a range; empty if the range is outside of the memory.
    #[must_use]
    pub fn read(&self, memory: MemoryId, offset: u64, len: u64) -> Vec<u8> {
        self.lock().bytes(memory, offset, len).map_or_else(Vec::new, <[u8]>::to_vec)
    }

    /// Writes as the memory's own process does. Returns `false` if the range is outside of the memory.
    pub fn write(&self, memory: MemoryId, offset: u64, bytes: &[u8]) -> bool {
        self.lock().store(memory, offset, bytes)
    }

    /// Makes every later write of a peer into this range a fault.
    pub fn guard(&self, memory: MemoryId, offset: u64, len: u64) -> GuardId {
        let mut w = self.lock();
        w.next_number += 1;
        let id = GuardId(w.next_number);
        w.guards.insert(id, (memory, offset, len));
        id
    }

    /// Ends a guard.
    pub fn unguard(&self, guard: GuardId) {
        self.lock().guards.remove(&guard);
    }

    /// Returns the violations so far: writes into guarded ranges, sources that changed under a write, memory that went
    /// away.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.lock().faults.clone()
    }

    /// Begins to record a trace.
    pub fn record(&self) {
        self.lock().trace.get_or_insert_default();
    }

    /// Returns the recorded trace.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.clone().unwrap_or_default()
    }

    /// Adds a line to the trace, if one is recorded.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.lock().note(line);
    }

    /// Adds a reply to a worker's session to the digest.
    #[cfg(test)]
    pub(crate) fn saw_reply(&self, session: u64, reply: &[u8]) {
        self.lock().digest.add(Seen::Reply, session, reply);
    }

    /// Returns the digest of the externally visible behaviour so far.
    #[cfg(test)]
    pub(crate) fn digest(&self) -> Digest {
        self.lock().digest
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.lock().now
    }

    /// Returns the time of the next event of the agenda.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.lock().agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves the clock to `at`. The events that are due until then happen first.
    pub fn advance(&self, at: Time) {
        let mut w = self.lock();
        while w.next_happening(at) {}
        w.now = w.now.max(at);
    }

    /// Lets the next event happen. Returns `false` if the agenda is empty.
    pub fn step(&self) -> bool {
        self.lock().next_happening(Time::NEVER)
    }

    /// Sets whether polling a fabric that has nothing to report moves the clock. It is for tests that do not move a
    /// virtual clock.
    pub fn let_the_clock_run(&self, yes: bool) {
        self.lock().clock_runs_by_itself = yes;
    }

    /// Returns the number of connections that were begun, including dead ones.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.lock().connections.len()
    }

    /// Kills the process at an endpoint: all its connections break.
    pub fn kill(&self, endpoint: Endpoint) {
        let mut w = self.lock();
        for connection in 0..w.connections.len() {
            let c = &w.connections[connection];
            if !c.lost && c.sides.iter().flatten().any(|side| side.endpoint == endpoint.0) {
                w.lose(connection, [0, 1].map(|_| DownReason::Lost("the process died".into())));
            }
        }
        w.lied.retain(|(at, _)| *at != endpoint.0);
    }

    /// Returns the links that delivered a false header and did not go down.
    #[must_use]
    pub fn lies_believed(&self) -> Vec<LinkId> {
        self.lock().lied.iter().map(|(_, link)| *link).collect()
    }

    /// Breaks a connection. Connections are numbered in the order in which they were begun.
    pub fn break_connection(&self, connection: usize, why: &str) {
        let mut w = self.lock();
        if w.connections.get(connection).is_some_and(|c| !c.lost) {
            w.lose(connection, [DownReason::Lost(why.to_owned()), DownReason::Lost(why.to_owned())]);
        }
    }
}

impl WorldState {
    fn next_happening(&mut self, until: Time) -> bool {
        let Some(entry) = self.agenda.first_entry() else { return false };
        if entry.key().0 > until {
            return false;
        }
        let ((at, _), happening) = entry.remove_entry();
        self.now = self.now.max(at);
        match happening {
            Happening::Step { connection, from } => self.step(connection, from),
            Happening::Completed { connection, side } => self.completed(connection, side),
            Happening::Granted { connection, side, tag } => self.granted(connection, side, tag),
            Happening::Revoked { connection, side, key, tag } => self.revoked(connection, side, key, tag),
            Happening::Connected { connection, side } => self.connected(connection, side),
            Happening::Down { connection, side } => self.down(connection, side),
            Happening::Late(late) => self.late(&late),
            Happening::LocalAtomic { endpoint, work, word, op } => {
                let old = self.operate(endpoint, word, op).ok_or_else(|| "the word is gone".to_owned());
                self.endpoints[endpoint].events.push_back(Event::LocalAtomicDone(work, old));
            }
        }
        true
    }

    /// Advances the clock during a poll if [`World::let_the_clock_run`] is set.
    pub(super) fn run_by_itself(&mut self) {
        if self.clock_runs_by_itself {
            self.next_happening(Time::NEVER);
        }
    }

    pub(super) fn schedule(&mut self, at: Time, happening: Happening) {
        self.next_number += 1;
        self.agenda.insert((at, self.next_number), happening);
    }

    /// Returns a random time from now.
    pub(super) fn soon(&mut self) -> Time {
        let longest = u64::try_from(self.conditions.delay.as_nanos()).unwrap_or(u64::MAX).max(1);
        let delay = self.rng.random_range(0..longest);
        let slow = self.rng.random_range(0..100) == 0;
        Time(self.now.0 + if slow { delay * 20 } else { delay })
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    pub(super) fn bytes(&self, memory: MemoryId, offset: u64, len: u64) -> Option<&[u8]> {
        let (start, end) = (usize::try_from(offset).ok()?, usize::try_from(offset.checked_add(len)?).ok()?);
        self.memories.get(memory.0)?.get(start..end)
    }

    pub(super) fn store(&mut self, memory: MemoryId, offset: u64, bytes: &[u8]) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        let place = self.memories.get_mut(memory.0).and_then(|m| m.get_mut(start..start.checked_add(bytes.len())?));
        let Some(place) = place else { return false };
        place.copy_from_slice(bytes);
        true
    }

    /// Returns bytes of a registered segment.
    pub(super) fn slice(&self, endpoint: usize, slice: LocalSlice) -> Option<&[u8]> {
        let memory = *self.endpoints.get(endpoint)?.segments.get(&slice.segment)?;
        self.bytes(memory, slice.offset, slice.len)
    }

    /// Stores a peer's bytes. A write into a guarded range or outside of registered memory is a fault.
    pub(super) fn land(&mut self, endpoint: usize, slice: LocalSlice, bytes: &[u8]) {
        let memory = self.endpoints.get(endpoint).and_then(|e| e.segments.get(&slice.segment)).copied();
        let Some(memory) = memory else {
            return self.fault(|| format!("a write lands in {slice}, which is deregistered"));
        };
        self.digest.add(Seen::Landed, endpoint as u64, bytes);
        let end = slice.offset + slice.len;
        let hit =
            self.guards.values().find(|(m, offset, len)| *m == memory && *offset < end && slice.offset < offset + len);
        if hit.is_some() && slice.len > 0 {
            self.fault(|| format!("a write lands in {slice} of endpoint {endpoint}, which is being read"));
        }
        if !self.store(memory, slice.offset, bytes) {
            self.fault(|| format!("a write lands in {slice}, outside of its memory"));
        }
    }

    pub(super) fn fault(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>12} FAULT {}", self.now.0, line());
        if let Some(trace) = &mut self.trace {
            trace.push(line.clone());
        }
        self.faults.push(line);
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12} {}", self.now.0, line()));
        }
    }

    pub(super) fn note_message(&mut self, what: &str, endpoint: usize, link: LinkId, bytes: &[u8]) {
        self.note(|| {
            let decoded = Message::decode(bytes).map_err(|e| format!("unreadable: {e}"));
            let decoded = decoded.or_else(|e| match crate::rails::spoken(bytes) {
                Some(Ok(message)) => Message::decode(message).map_err(|e| format!("unreadable: {e}")),
                Some(Err(word)) => Err(word),
                None => Err(e),
            });
            match decoded {
                Ok(m) => {
                    let text = format!("{:?}", m.body);
                    let short: String = text.chars().take(150).collect();
                    let (name, index, credits) = (m.body.name(), m.index, m.credits);
                    format!("{endpoint} {what} {link} {name} index={index:#x} credits={credits} {short}")
                }
                Err(word) => format!("{endpoint} {what} {link} {word}"),
            }
        });
    }
}
