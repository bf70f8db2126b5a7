//! A worker's own view: its operations and its leases. Every reply is checked against it.

use super::content::{bytes_of, context_of, scribble};
use super::counting::Added;
use super::deltas::ArenaDeltas;
use super::directory::Said;
use super::into::{Into, Memory, Settled};
use super::notices::Notices;
use super::rosters::{Question, Rank};
use super::{Cluster, Happening};
use crate::alloc::{Allocation, Allocator};
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Answer, Command, Failure, FailureCode, FetchedTensor, LeaseId, OpId, Reply, Request};
use crate::protocol::{SessionId, Tenant};
use crate::sim::{GuardId, MemoryId};
use crate::tensor::{Key, Name, Select, Slice, TensorMeta, Version};
use crate::time::Time;
use crate::wire::Writer;
use crate::wire::session::write_reply;
use rand::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(super) struct Worker {
    pub(super) name: Name,
    pub(super) node: usize,
    pub(super) domain: Tenant,
    pub(super) session: Option<SessionId>,
    /// The session that has ended, until its node has said so, and that node.
    pub(super) closing: Option<(usize, SessionId)>,
    pub(super) arena: Option<Arena>,
    pub(super) ops: BTreeMap<OpId, Asked>,
    pub(super) leases: BTreeMap<u64, Lease>,
    /// The memory into which it has fetched.
    pub(super) settled: BTreeMap<u64, Settled>,
    pub(super) next_op: u64,
    /// Requests that the sidecar has not taken yet.
    pub(super) ring: VecDeque<Request>,
    pub(super) notices: Notices,
    /// The newest version of each key that the worker has had.
    pub(super) seen: BTreeMap<String, Version>,
    /// The number of times that its name was refused.
    pub(super) refused: u32,
    pub(super) acts_left: u32,
    /// The counters that it has opened: home and identity.
    pub(super) counters: BTreeMap<usize, (Name, u64)>,
    pub(super) rank: Rank,
}

pub(super) struct Arena {
    pub(super) segment: SegmentId,
    pub(super) memory: MemoryId,
    pub(super) alloc: Allocator,
    /// The ranges that are pushed and not returned, by their offset, and whether the push has ended.
    pub(super) lent: BTreeMap<u64, (Allocation, bool)>,
    /// The number of the push that was made last of a range, by the offset of the range.
    pub(super) numbers: BTreeMap<u64, usize>,
    pub(super) deltas: ArenaDeltas,
}

/// An operation that has not ended.
pub(super) struct Asked {
    pub(super) what: What,
    pub(super) deadline: Time,
}

pub(super) enum What {
    Push {
        number: usize,
        offset: u64,
        version: Option<Version>,
        remote: bool,
        is_announced: bool,
    },
    /// `floor` is the newest version that the worker had seen, or that any worker had found on a board, when the fetch
    /// began.
    Fetch {
        key: Key,
        select: Select,
        floor: Option<Version>,
        slice: Option<Slice>,
    },
    /// A version that is to land in the worker's memory.
    Into(Box<Into>),
    /// The first bytes of the newest versions of these keys.
    Gather {
        keys: Vec<Key>,
    },
    /// A base, which lies at this place.
    Lend {
        offset: u64,
    },
    Reserve,
    Delete,
    OpenCounter(usize),
    Count(Added),
    /// The barrier's number, its number of members, and `floor`, the first round that this arrival can be part of.
    Meet {
        barrier: u32,
        members: u32,
        floor: u64,
    },
    Roster(Box<Question>),
}

/// The claim by which a worker keeps a version that it reads.
#[derive(Clone, Copy)]
pub(super) enum Hold {
    Lease(LeaseId),
    /// A hazard pointer to this ticket, on the board of the worker's node.
    Mark(u64),
}

/// A tensor that is being read.
pub(super) struct Lease {
    hold: Hold,
    slice: LocalSlice,
    memory: MemoryId,
    guard: GuardId,
    bytes: Vec<u8>,
}

impl Lease {
    pub(super) fn guard(&self) -> GuardId {
        self.guard
    }
}

impl Worker {
    pub(super) fn check_gone(&self) -> Result<(), String> {
        match self.session {
            Some(session) => Err(format!("worker {} still has {session:?}", self.name)),
            None => Ok(()),
        }
    }
}

impl Cluster {
    /// Asks the directory whether the worker's name is free. If it is, the worker connects.
    pub(super) fn ask_to_connect(&mut self, worker: usize) {
        if !self.ending {
            let (node, name) = (self.workers[worker].node, self.workers[worker].name.clone());
            // A sidecar reserves the name first, so the end of its last session is said before.
            if self.workers[worker].closing.is_some_and(|(at, _)| at == node) {
                return self.later(self.now + self.delay, Happening::Connect(worker));
            }
            self.tell_directory(node, Said::WorkerUp(name, worker));
        }
    }

    pub(super) fn admitted(&mut self, node: usize, worker: usize, yes: bool) {
        let name = self.workers[worker].name.clone();
        if yes && self.ending {
            return self.tell_directory(node, Said::WorkerDown(name));
        }
        if !yes {
            self.workers[worker].refused += 1;
            if self.workers[worker].refused > 20 {
                return;
            }
            let at = self.now + self.delay * 10;
            return self.later(at, Happening::Connect(worker));
        }
        let len = 1 << 16;
        let domain = self.workers[worker].domain;
        let (segment, memory) = self.add_segment(node, domain, len);
        self.next_session += 1;
        let session = SessionId(self.next_session);
        self.world.note(|| format!("{name} connects to {node} as {session:?}"));
        self.nodes[node].driver.node.session_opened(session, name, domain, segment, len);
        let w = &mut self.workers[worker];
        w.session = Some(session);
        (w.ring, w.notices) = (VecDeque::new(), Notices::default());
        let alloc = Allocator::new(len);
        let (lent, numbers, deltas) = Default::default();
        w.arena = Some(Arena { segment, memory, alloc, lent, numbers, deltas });
        if self.play.rosters {
            self.rank_is_new(worker);
        }
        let at = self.soon();
        self.later(at, Happening::Act(worker));
    }

    /// Kills a worker, with its operations and leases.
    pub(super) fn die(&mut self, worker: usize, why: &str) {
        self.rank_is_gone(worker);
        let w = &mut self.workers[worker];
        let (Some(session), node) = (w.session.take(), w.node) else { return };
        let ops = std::mem::take(&mut w.ops);
        w.ring.clear();
        w.arena = None;
        for settled in std::mem::take(&mut w.settled).into_values() {
            self.world.unguard(settled.guard());
        }
        for lease in std::mem::take(&mut w.leases).into_values() {
            self.world.unguard(lease.guard);
            if let Hold::Mark(ticket) = lease.hold {
                self.unmark(node, ticket);
            }
        }
        let now = self.clock(node);
        for asked in ops.values() {
            self.counting_failed(&asked.what, None);
        }
        self.world.note(|| format!("{} is gone", self.workers[worker].name));
        self.workers[worker].closing = Some((node, session));
        self.nodes[node].driver.node.session_closed(now, session, why);
        if !self.ending {
            // Sometimes the worker comes back at another node, unless another worker has its name. Two workers of one
            // name must not meet at a node, because the node would notice.
            let name = &self.workers[worker].name;
            let is_alone = self.workers.iter().filter(|w| w.name == *name).count() == 1;
            if self.rng.random_range(0..4) == 0 && is_alone {
                self.workers[worker].node = self.rng.random_range(0..self.nodes.len());
            }
            let at = self.soon() + self.delay * self.rng.random_range(0..10);
            self.later(at, Happening::Connect(worker));
        }
    }

    pub(super) fn close_everybody(&mut self) -> Result<(), String> {
        self.world.note(|| "everybody goes".into());
        for worker in 0..self.workers.len() {
            if let Some((op, _)) = self.workers[worker].ops.first_key_value() {
                return Err(format!("{} still waits for {op:?}", self.workers[worker].name));
            }
            let held: Vec<_> = self.workers[worker].leases.keys().copied().collect();
            for lease in held {
                self.check_lease(worker, lease)?;
            }
            self.die(worker, "the end");
        }
        self.poll_all()
    }

    pub(super) fn command(&mut self, worker: usize, op: OpId, command: Command) {
        self.request(worker, Request::Command { op, command });
    }

    pub(super) fn request(&mut self, worker: usize, request: Request) {
        let w = &self.workers[worker];
        let Some(session) = w.session else { return };
        let (now, node) = (self.clock(w.node), w.node);
        self.world.note(|| format!("{} asks {request:?}", self.workers[worker].name));
        if self.goes_by_ring(worker, &request) {
            return self.put_into_ring(worker, request);
        }
        self.nodes[node].driver.node.request(now, session, request);
    }

    pub(super) fn ask(&mut self, worker: usize, what: What, timeout: Duration) -> OpId {
        let w = &mut self.workers[worker];
        w.next_op += 1;
        let op = OpId(w.next_op);
        w.ops.insert(op, Asked { what, deadline: self.now + timeout });
        op
    }

    /// Writes the bytes of a new push into the worker's arena. Returns `None` if the arena is full.
    pub(super) fn fill(&mut self, worker: usize, number: usize, meta: &TensorMeta) -> Option<u64> {
        let arena = self.workers[worker].arena.as_mut()?;
        let allocation = arena.alloc.allocate(meta.len_bytes()).ok()?;
        let offset = allocation.offset();
        assert!(self.world.write(arena.memory, offset, &bytes_of(number, meta.len_bytes())));
        arena.lent.insert(offset, (allocation, false));
        arena.numbers.insert(offset, number);
        Some(offset)
    }

    /// Handles the return of a range to the worker, which overwrites it at once.
    fn comes_back(&mut self, worker: usize, offset: u64) -> Result<(), String> {
        let w = &mut self.workers[worker];
        let arena = w.arena.as_mut().unwrap();
        let (range, ended) = arena.lent.remove(&offset).ok_or_else(|| format!("{offset} comes back twice"))?;
        if !ended {
            return Err(format!("{offset} of {} comes back before its push has ended", w.name));
        }
        scribble(&self.world, arena.memory, offset, range.len());
        for delta in arena.deltas.come_back(offset) {
            scribble(&self.world, arena.memory, delta.offset(), delta.len());
            arena.alloc.free(delta).map_err(|e| e.to_string())?;
        }
        arena.alloc.free(range).map_err(|e| e.to_string())
    }

    pub(super) fn arena_unused(&mut self, node: usize, segment: SegmentId) -> Result<(), String> {
        let (memory, _) = self.nodes[node].segments.remove(&segment).ok_or("an arena is unused twice")?;
        if self.nodes[node].kept.remove(&segment).is_some() {
            let read = |w: &Worker| w.node == node && w.leases.values().any(|lease| lease.slice.segment == segment);
            return match self.workers.iter().any(read) {
                true => Err(format!("{segment} of a peer is unused, and is being read")),
                false => Ok(()),
            };
        }
        let mine = |w: &Worker| w.node == node && w.arena.as_ref().is_some_and(|a| a.segment == segment);
        if self.workers.iter().any(mine) {
            return Err(format!("{segment} of a living worker is unused"));
        }
        scribble(&self.world, memory, 0, 1 << 16);
        Ok(())
    }

    pub(super) fn reply(&mut self, node: usize, session: SessionId, reply: Reply) -> Result<(), String> {
        self.world.note(|| format!("{node} {session:?} hears {reply:?}"));
        let mut bytes = Writer::new();
        write_reply(&mut bytes, &reply);
        self.world.saw_reply(session.0, &bytes.into_vec());
        let Some(worker) = self.workers.iter().position(|w| w.session == Some(session)) else {
            // The worker died before it could read the reply.
            return Ok(());
        };
        match reply {
            Reply::Answer { op, answer: Answer::Pushed { version, report, .. } } => {
                let What::Push { number, offset, version: asked, remote, is_announced } = self.ended(worker, op)?
                else {
                    return Err(format!("{op:?} is pushed, but was no push"));
                };
                if asked.is_some_and(|v| v != version) {
                    return Err(format!("{op:?} was to push {asked:?}, pushed {version}"));
                }
                let push = &mut self.pushed[number];
                if *push.version.get_or_insert(version) != version {
                    return Err(format!("push {number} is {:?} and {version}", push.version));
                }
                let is_remote = report.fabric != crate::fabric::FabricKind::Local;
                self.push_answered(worker, number, is_announced, Some(version));
                *if remote && is_remote { &mut self.tally.remote_pushes } else { &mut self.tally.local_pushes } += 1;
                self.push_ended(worker, offset);
            }
            Reply::Answer {
                op,
                answer: Answer::Fetched { lease, tensor: FetchedTensor { version, meta, slice, is_part, report, .. } },
            } => {
                let (key, select, floor, part) = match self.ended(worker, op)? {
                    What::Fetch { key, select, floor, slice } => (key, select, floor, slice),
                    What::Into(into) => {
                        let wanted = (into.key.clone(), into.select, None, into.slice.clone());
                        self.settle(worker, *into, &Memory::Untouched)?;
                        wanted
                    }
                    What::Gather { keys } => {
                        self.identify_all((node, self.workers[worker].domain), &keys, &meta, slice)?;
                        if (version, report.origin) != (Version(0), None) {
                            return Err(format!("{op:?} is of several versions, and is {version}"));
                        }
                        self.tally.gathered += 1;
                        return self.hold(worker, Hold::Lease(lease), slice);
                    }
                    _ => return Err(format!("{op:?} is fetched, but was no fetch")),
                };
                if !select.takes(version) {
                    return Err(format!("{op:?} asked for {select}, got {version}"));
                }
                let domain = self.workers[worker].domain;
                let number = match part {
                    Some(part) if is_part => {
                        self.identify_slice((node, domain), &key, version, (&part, &meta), &[slice])?;
                        None
                    }
                    _ if is_part => return Err(format!("{op:?} asked for all of {key}, got a part")),
                    Some(part) => {
                        let found = part.of(&meta).map_err(|e| format!("{op:?} got all of {key}: {e}"))?;
                        if report.bytes != found.meta().len_bytes() {
                            return Err(format!("{op:?} counts {} bytes of {part} of {meta}", report.bytes));
                        }
                        self.identify((node, domain), &key, version, &meta, slice)?
                    }
                    None => self.identify((node, domain), &key, version, &meta, slice)?,
                };
                self.tally.sliced += u64::from(is_part);
                if let Some(number) = number.filter(|number| report.origin != context_of(*number)) {
                    return Err(format!("{op:?} got push {number} of {:?}", report.origin));
                }
                if self.play.calm && floor.is_some_and(|floor| version < floor) {
                    return Err(format!("{op:?} got {version} of {key} after {floor:?}"));
                }
                let newest = self.workers[worker].seen.entry(key.to_string()).or_insert(version);
                *newest = version.max(*newest);
                let local = report.fabric == crate::fabric::FabricKind::Local;
                *if local { &mut self.tally.local_fetches } else { &mut self.tally.remote_fetches } += 1;
                self.tally.by_reference += u64::from(self.nodes[node].kept.contains_key(&slice.segment));
                self.hold(worker, Hold::Lease(lease), slice)?;
            }
            Reply::Answer { op, answer: Answer::Landed { version, report } } => {
                self.landed(worker, op, version, &report)?;
            }
            Reply::Answer { op, answer: Answer::Torn { failure } } => {
                let what = self.ended(worker, op)?;
                self.check_failure(&what, &failure)?;
                let What::Into(into) = what else {
                    return Err(format!("{op:?} is torn, but was no fetch into memory"));
                };
                self.settle(worker, *into, &Memory::Torn)?;
            }
            Reply::Answer { op, answer: Answer::Reserved } => {
                let What::Reserve = self.ended(worker, op)? else {
                    return Err(format!("{op:?} is prepared, but was no preparation"));
                };
                self.tally.prepared += 1;
            }
            Reply::Answer { op, answer: Answer::Deleted } => {
                let What::Delete = self.ended(worker, op)? else {
                    return Err(format!("{op:?} is deleted, but was no deletion"));
                };
            }
            Reply::Answer { op, answer: Answer::Failed { failure, kept } } => {
                let what = self.ended(worker, op)?;
                self.check_failure(&what, &failure)?;
                self.counting_failed(&what, Some(&failure));
                self.roster_failed(worker, &what, Some(&failure));
                if let What::Push { number, offset, is_announced, .. } = what {
                    self.push_answered(worker, number, is_announced, None);
                    self.push_ended(worker, offset);
                    if !kept {
                        self.comes_back(worker, offset)?;
                    }
                } else if let What::Lend { offset } = what {
                    self.push_ended(worker, offset);
                    if !kept {
                        self.comes_back(worker, offset)?;
                    }
                } else if kept {
                    return Err(format!("{op:?} is no push and keeps a range"));
                } else if let What::Into(into) = what {
                    self.settle(worker, *into, &Memory::Untouched)?;
                }
            }
            Reply::Answer { op, answer: Answer::CounterOpened { home, identity } } => {
                self.counter_opened(worker, op, home, identity)?
            }
            Reply::Answer { op, answer: Answer::Counted { old, report } } => self.counted(worker, op, old, &report)?,
            Reply::Answer { op, answer: Answer::Released { round, leader, .. } } => {
                self.met(worker, op, round, leader)?
            }
            Reply::Returned { offset, .. } => self.comes_back(worker, offset)?,
            Reply::Watched { pushed } => self.watched(worker, pushed),
            // No worker here asks for it.
            Reply::Unfetched { number, .. } => return Err(format!("worker {worker} has not asked for {number}")),
            Reply::Answer { op, answer: Answer::Roster(answer) } => self.roster_answered(worker, op, answer)?,
            Reply::Answer { op, answer: Answer::TakenBack { .. } } => {
                return Err(format!("{op:?} is taken back, which nobody asked for"));
            }
        }
        Ok(())
    }

    fn check_failure(&mut self, what: &What, failure: &Failure) -> Result<(), String> {
        self.tally.failures[usize::from(failure.code as u16).min(21)] += 1;
        let is_sliced = matches!(what, What::Fetch { slice: Some(_), .. } | What::Into(_));
        if self.can_roster_fail(what, failure.code) {
            return Ok(());
        }
        if self.play.calm && !(is_sliced && failure.code == FailureCode::Invalid) {
            return Err(format!("in calm weather: {failure}"));
        }
        let possible = match failure.code {
            FailureCode::Invalid => is_sliced || matches!(what, What::Meet { .. } | What::Gather { .. }),
            FailureCode::OutcomeUnknown => matches!(what, What::Count(_) | What::Meet { .. }),
            FailureCode::CounterLost | FailureCode::RequireUnmet | FailureCode::ShuttingDown | FailureCode::Unknown => {
                false
            }
            FailureCode::VersionGone => matches!(what, What::Fetch { select, .. } if select.is_exact()),
            FailureCode::VersionNotRising | FailureCode::KeyOwned => matches!(what, What::Push { .. } | What::Reserve),
            FailureCode::UnknownWorker => matches!(what, What::Push { remote: true, .. } | What::Reserve),
            FailureCode::NotOwner => matches!(what, What::Delete | What::Gather { .. }),
            _ => true,
        };
        if possible { Ok(()) } else { Err(format!("it cannot be that {failure} ({:?})", failure.code)) }
    }

    pub(super) fn ended(&mut self, worker: usize, op: OpId) -> Result<What, String> {
        let w = &mut self.workers[worker];
        w.ops.remove(&op).map(|a| a.what).ok_or_else(|| format!("{op:?} of {} ends twice", w.name))
    }

    fn push_ended(&mut self, worker: usize, offset: u64) {
        if let Some(lent) = self.workers[worker].arena.as_mut().and_then(|a| a.lent.get_mut(&offset)) {
            lent.1 = true;
        }
    }

    pub(super) fn hold(&mut self, worker: usize, hold: Hold, slice: LocalSlice) -> Result<(), String> {
        let (node, domain) = (self.workers[worker].node, self.workers[worker].domain);
        let (memory, whose) = self.nodes[node].segments[&slice.segment];
        if whose != domain {
            return Err(format!("a worker of {domain:?} gets memory of {whose:?}"));
        }
        let guard = self.world.guard(memory, slice.offset, slice.len);
        let bytes = self.world.read(memory, slice.offset, slice.len);
        self.next_number += 1;
        let number = self.next_number;
        self.workers[worker].leases.insert(number, Lease { hold, slice, memory, guard, bytes });
        let long = if self.play.calm { 3 } else { [1, 3, 100][self.rng.random_range(0..3)] };
        let at = self.soon() + self.delay * self.rng.random_range(0..long);
        self.later(at, Happening::Release(worker, number));
        Ok(())
    }

    fn check_lease(&self, worker: usize, number: u64) -> Result<(), String> {
        let Some(lease) = self.workers[worker].leases.get(&number) else { return Ok(()) };
        if self.world.read(lease.memory, lease.slice.offset, lease.slice.len) != lease.bytes {
            return Err(format!("{} changed while it was lent to {}", lease.slice, self.workers[worker].name));
        }
        Ok(())
    }

    pub(super) fn release(&mut self, worker: usize, number: u64) -> Result<(), String> {
        self.check_lease(worker, number)?;
        if let Some(lease) = self.workers[worker].leases.remove(&number) {
            self.world.unguard(lease.guard);
            match lease.hold {
                Hold::Lease(lease) => self.request(worker, Request::Release { lease }),
                Hold::Mark(ticket) => self.unmark(self.workers[worker].node, ticket),
            }
        }
        Ok(())
    }

    /// Checks that no operation has exceeded its deadline, with a tolerance for the sleep of its node and the jumps of
    /// its clock.
    pub(super) fn check_deadlines(&self) -> Result<(), String> {
        for w in &self.workers {
            for (op, asked) in &w.ops {
                let jumps = if self.play.restarts { self.delay * super::faults::LONGEST_JUMP } else { Duration::ZERO };
                if asked.deadline + self.delay * 10 + jumps + Cluster::grace_of(&asked.what) < self.now {
                    return Err(format!("{op:?} of {} did not end at its deadline {:?}", w.name, asked.deadline));
                }
            }
        }
        Ok(())
    }
}
