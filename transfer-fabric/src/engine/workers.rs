//! The workers' rings and doorbells.

use super::memory::Memory;
use super::meters::EngineMeters;
use super::wait::Ready;
use crate::epoll::Epoll;
use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use transfer_core::memory::SegmentId;
use transfer_core::op::{Answer, FetchedTensor, Reply, Request};
use transfer_core::protocol::SessionId;
use transfer_core::wire::Writer;
use transfer_core::wire::session::{read_request, write_reply};
use transfer_memory::ring::{Consumer, MAX_RECORD_BYTES, Producer, RingError};
use transfer_memory::segment::Segment;
use transfer_memory::session::{FromWorker, SessionError, SidecarSocket};
use transfer_memory::socket::SocketError;

/// The most records of one worker that [`Take::Some`] takes in a row, so that no other worker starves. What they cause is done
/// before the next ones are taken, so that workers and peers have something to do meanwhile.
const RECORDS_PER_TURN: usize = 64;

/// The most replies to one worker that may wait while its records are still taken.
const MAX_BACKLOG: usize = 4096;

/// Dropping it reports that the sidecar holds nothing of the session any longer.
type SessionGuard = Box<dyn Any + Send>;

type Notices = HashMap<SegmentId, (SegmentId, Arc<Segment>)>;

/// How far the rings are drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// Drains some records of each worker that reads its replies.
    Some,
    /// Drains each ring to the observed tail, ignoring reply backpressure up to a limit: for requests about announced
    /// versions.
    All,
    /// Drains everything that this worker has left.
    Rest(SessionId),
}

pub(super) struct Worker {
    socket: SidecarSocket,
    pidfd: Option<OwnedFd>,
    place: SessionGuard,
    submission: Consumer,
    completion: Producer,
    /// The segments that this worker can map.
    known: HashSet<SegmentId>,
    /// Replies that did not fit into the ring, or that wait for a segment to be passed. Until they are sent,
    /// [`Take::Some`] takes no records from the worker.
    backlog: VecDeque<Reply>,
    /// Whether replies were written since the last publication.
    unpublished: bool,
    /// Whether the worker has sent a request in this round.
    requested: bool,
    /// Whether its next records have to wait for its last one, a push with long tables.
    held: bool,
    /// The arena that the worker's notices describe.
    arena: SegmentId,
    /// Whether the last segment could not be passed, because the system is short of a resource.
    short: bool,
}

/// An evicted worker, or one that has left. It may still read until its socket or its process ends.
struct Evicted {
    socket: SidecarSocket,
    pidfd: Option<OwnedFd>,
    _place: SessionGuard,
}

/// The sidecar's ends of a session, from the handshake.
pub(super) struct Ends {
    pub(super) socket: SidecarSocket,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) place: SessionGuard,
    pub(super) submission: Consumer,
    pub(super) completion: Producer,
    pub(super) notices: Option<(SegmentId, Arc<Segment>)>,
}

#[derive(Default)]
pub(super) struct Workers {
    by_id: BTreeMap<SessionId, Worker>,
    evicted: BTreeMap<SessionId, Evicted>,
    /// The notices of workers, by the arenas that they describe.
    notices: Notices,
    /// Sessions with something to publish.
    touched: Vec<SessionId>,
    /// Sessions with a backlog.
    delayed: BTreeSet<SessionId>,
    scratch: Vec<u8>,
    /// Memory for the record that is being read.
    record: Option<Box<[u8; MAX_RECORD_BYTES]>>,
    /// The counts that concern workers.
    meters: EngineMeters,
}

impl Workers {
    /// Adds a worker. `arena` is the segment that the worker has mapped already.
    pub(super) fn add(
        &mut self,
        id: SessionId,
        ends: Ends,
        arena: SegmentId,
        sleeper: &Epoll<Ready>,
    ) -> Result<(), Errno> {
        let Ends { socket, pidfd, place, submission, completion, notices } = ends;
        sleeper.add(&socket, Ready::Socket(id.0))?;
        if let Some(pidfd) = &pidfd {
            sleeper.add(pidfd, Ready::Process(id.0))?;
        }
        let (known, backlog) = (HashSet::from([arena]), VecDeque::new());
        let (unpublished, requested, held, short) = (false, false, false, false);
        let worker = Worker {
            socket,
            pidfd,
            place,
            submission,
            completion,
            known,
            backlog,
            unpublished,
            requested,
            held,
            arena,
            short,
        };
        self.by_id.insert(id, worker);
        self.notices.extend(notices.map(|notices| (arena, notices)));
        Ok(())
    }

    /// Tells a worker, which waits for it, that its session is open: from now on others can push to it.
    pub(super) fn greet(&self, id: SessionId) {
        if let Some(worker) = self.by_id.get(&id) {
            // If the worker is gone, its socket reports that.
            let _ = worker.socket.ring();
        }
    }

    /// Removes a worker that no longer reads anything.
    pub(super) fn remove(&mut self, id: SessionId, sleeper: &Epoll<Ready>) {
        self.evict(id);
        if let Some(Evicted { socket, pidfd, .. }) = self.evicted.remove(&id) {
            sleeper.remove(socket);
            if let Some(pidfd) = &pidfd {
                sleeper.remove(pidfd);
            }
        }
    }

    /// Evicts a worker. Keeps its socket and its pidfd, to notice its end.
    pub(super) fn evict(&mut self, id: SessionId) {
        self.leave(id);
        self.hang_up(id);
    }

    /// Tells a worker that its session is over, and that its name is free if it has left.
    pub(super) fn hang_up(&mut self, id: SessionId) {
        if let Some(evicted) = self.evicted.get(&id) {
            evicted.socket.hang_up();
        }
    }

    /// Ends the session of a worker that waits until its name is free. Keeps its socket and its pidfd, to notice its end.
    pub(super) fn leave(&mut self, id: SessionId) {
        let Some(Worker { socket, pidfd, place, arena, .. }) = self.by_id.remove(&id) else { return };
        self.delayed.remove(&id);
        self.evicted.insert(id, Evicted { socket, pidfd, _place: place });
        if let Some((notices, _)) = self.notices.remove(&arena) {
            self.retire(notices);
        }
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.by_id.keys().copied().collect()
    }

    /// Returns the arena of a worker.
    pub(super) fn arena_of(&self, id: SessionId) -> Option<SegmentId> {
        self.by_id.get(&id).map(|worker| worker.arena)
    }

    pub(super) fn meters(&self) -> EngineMeters {
        self.meters
    }

    /// Returns the number of replies that wait for their workers to read.
    pub(super) fn backlog(&self) -> u64 {
        self.delayed.iter().filter_map(|id| self.by_id.get(id)).map(|w| w.backlog.len() as u64).sum()
    }

    /// Holds a worker, or no longer: nothing is taken from it meanwhile.
    pub(super) fn hold(&mut self, id: SessionId, held: bool) {
        if let Some(worker) = self.by_id.get_mut(&id) {
            worker.held = held;
        }
    }

    /// Returns whether nothing is taken from this worker for now.
    pub(super) fn is_held(&self, id: SessionId) -> bool {
        self.by_id.get(&id).is_some_and(|worker| worker.held)
    }

    /// Takes requests out of the rings, and adds each worker that violates the protocol to `broken`, with the reason.
    /// A worker is held from a request on for which `each` returns `false`. Returns whether there were any requests.
    pub(super) fn take(
        &mut self,
        how: Take,
        mut each: impl FnMut(SessionId, Request) -> bool,
        broken: &mut Vec<(SessionId, String)>,
    ) -> bool {
        let mut active = false;
        let Workers { by_id, meters, record, .. } = self;
        let record = record.get_or_insert_with(|| Box::new([0; MAX_RECORD_BYTES]));
        for (id, worker) in by_id {
            let backlog = match how {
                Take::Some => 0,
                Take::All => MAX_BACKLOG,
                Take::Rest(of) if of == *id => MAX_BACKLOG,
                Take::Rest(_) => continue,
            };
            worker.requested &= how != Take::Some;
            // Nothing more is taken from a worker that has violated the protocol.
            if worker.held || worker.backlog.len() > backlog || broken.iter().any(|(session, _)| session == id) {
                continue;
            }
            match worker.take(how, meters, record, |request| each(*id, request)) {
                // Only records that were popped make room for a worker that waits for it.
                Ok(false) => continue,
                Ok(true) => active = true,
                Err(why) => broken.push((*id, why)),
            }
            if worker.submission.should_wake() {
                meters.doorbells_rung += 1;
                // If the worker is gone, its socket reports that.
                let _ = worker.socket.ring();
            }
        }
        active
    }

    /// Takes a worker's message. Doorbells only wake this thread. Returns whether the worker leaves.
    pub(super) fn take_message(&mut self, id: SessionId) -> Result<bool, SessionError> {
        if let Some(evicted) = self.evicted.get(&id) {
            return evicted.take_what_comes().map(|()| false);
        }
        self.meters.doorbells_taken += 1;
        match self.by_id.get(&id) {
            Some(worker) => Ok(worker.socket.try_receive()? == Some(FromWorker::Leave)),
            None => Ok(false),
        }
    }

    /// Writes a reply. A reply that does not fit waits.
    pub(super) fn reply(&mut self, id: SessionId, reply: &Reply, memory: &Memory) -> Result<(), String> {
        let Some(worker) = self.by_id.get_mut(&id) else { return Ok(()) };
        self.meters.replies += 1;
        if !worker.unpublished {
            worker.unpublished = true;
            self.touched.push(id);
        }
        if !worker.backlog.is_empty() || !worker.write(reply, memory, &self.notices, &mut self.scratch)? {
            self.meters.replies_delayed += 1;
            worker.backlog.push_back(reply.clone());
            self.delayed.insert(id);
        }
        Ok(())
    }

    /// Tells the workers that have mapped a segment that it is gone, so that its memory returns to the system.
    pub(super) fn retire(&mut self, segment: SegmentId) {
        for worker in self.by_id.values_mut() {
            if worker.known.remove(&segment) {
                // A worker whose socket is full keeps it mapped until its session ends, which only costs memory.
                let _ = worker.socket.retire_segment(segment);
            }
        }
    }

    /// Returns whether a reply waits for its worker to read.
    pub(super) fn has_backlog(&self) -> bool {
        !self.delayed.is_empty()
    }

    /// Publishes the written replies, and wakes the sleeping workers.
    pub(super) fn publish(&mut self, memory: &Memory, broken: &mut Vec<(SessionId, String)>) {
        // Waiting workers are woken first. Workers that have just sent requests are awake anyway.
        for requested in [false, true] {
            for id in &self.touched {
                let Some(worker) = self.by_id.get_mut(id).filter(|w| w.unpublished && w.requested == requested) else {
                    continue;
                };
                worker.unpublished = false;
                worker.completion.publish();
                if worker.completion.should_wake() {
                    self.meters.doorbells_rung += 1;
                    // If the worker is gone, its socket reports that.
                    let _ = worker.socket.ring();
                }
            }
        }
        self.touched.clear();
        if self.delayed.is_empty() {
            return;
        }
        let Workers { by_id, delayed, notices, scratch, meters, .. } = self;
        delayed.retain(|id| {
            let Some(worker) = by_id.get_mut(id) else { return false };
            while let Some(reply) = worker.backlog.pop_front() {
                match worker.write(&reply, memory, notices, scratch) {
                    Ok(true) => {}
                    Ok(false) => {
                        worker.backlog.push_front(reply);
                        break;
                    }
                    Err(why) => {
                        broken.push((*id, why));
                        break;
                    }
                }
            }
            worker.completion.publish();
            if worker.completion.should_wake() {
                meters.doorbells_rung += 1;
                let _ = worker.socket.ring();
            }
            !worker.backlog.is_empty()
        });
    }

    /// Announces that this thread will sleep. Returns `false` if requests have arrived.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        let mut empty = true;
        for worker in self.by_id.values_mut() {
            // No records are taken from a worker with a backlog, so its requests must not keep this thread awake.
            empty &= worker.submission.prepare_sleep() || !worker.backlog.is_empty();
        }
        empty
    }

    pub(super) fn awake(&mut self) {
        for worker in self.by_id.values_mut() {
            worker.submission.awake();
        }
    }
}

impl Evicted {
    /// Discards its messages, but notices its end.
    fn take_what_comes(&self) -> Result<(), SessionError> {
        match self.socket.try_receive() {
            Err(e @ SessionError::Socket(SocketError::Closed)) => Err(e),
            _ => Ok(()),
        }
    }
}

impl Worker {
    /// Takes requests. Returns whether there were any.
    fn take(
        &mut self,
        how: Take,
        meters: &mut EngineMeters,
        buffer: &mut [u8; MAX_RECORD_BYTES],
        mut each: impl FnMut(Request) -> bool,
    ) -> Result<bool, String> {
        let broken = |e: RingError| format!("its submission ring is broken: {e}");
        let end = if how == Take::Some { u64::MAX } else { self.submission.published().map_err(broken)? };
        let mut taken = 0;
        while !self.held && self.submission.consumed() < end && (how != Take::Some || taken < RECORDS_PER_TURN) {
            let Some(record) = self.submission.try_pop(buffer).map_err(broken)? else { break };
            taken += 1;
            self.requested = true;
            meters.submissions += 1;
            self.held =
                !each(read_request(record).map_err(|e| format!("its submission ring holds a bad record: {e}"))?);
        }
        Ok(taken > 0)
    }

    /// Writes a reply into the completion ring, after passing the segments that the worker needs for it. Returns
    /// `false` if the reply has to wait.
    fn write(
        &mut self,
        reply: &Reply,
        memory: &Memory,
        notices: &Notices,
        scratch: &mut Vec<u8>,
    ) -> Result<bool, String> {
        if let Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { slice, .. }, .. }, .. } = reply {
            if !self.known.contains(&slice.segment) {
                let Some(segment) = memory.get(slice.segment) else {
                    return Err(format!("{} is not mapped any more", slice.segment));
                };
                if !self.pass(slice.segment, segment)? {
                    return Ok(false);
                }
            }
            // A worker that reads an arena may find the next version in the notices of the arena's owner.
            if let Some((id, segment)) = notices.get(&slice.segment)
                && !self.known.contains(id)
                && !self.pass(*id, segment)?
            {
                return Ok(false);
            }
        }
        let mut w = Writer::reusing(std::mem::take(scratch));
        write_reply(&mut w, reply);
        let pushed = self.completion.try_push(w.as_slice());
        *scratch = w.into_vec();
        pushed.map_err(|e| format!("its completion ring is broken: {e}"))
    }

    /// Passes a segment to the worker. Returns `false` if that has to wait.
    fn pass(&mut self, id: SegmentId, segment: &Segment) -> Result<bool, String> {
        // The deadline is now, so the call never waits.
        match self.socket.pass_segment(id, segment, Instant::now()) {
            Ok(()) => {
                self.short = false;
                Ok(self.known.insert(id))
            }
            Err(SessionError::Socket(SocketError::TimedOut { .. })) => Ok(false),
            // The worker has not caused the shortage, so its session stays open.
            Err(e) if e.is_shortage() => {
                if !std::mem::replace(&mut self.short, true) {
                    tracing::warn!(
                        segment = id.0,
                        error = %e,
                        "a segment cannot be passed to a worker now, which waits for its reply: the sidecar is short of descriptors or \
                         memory; raise its limit of open files (LimitNOFILE= in its unit, ulimit -n)"
                    );
                }
                Ok(false)
            }
            Err(e) => Err(format!("{id} cannot be passed to it: {e}")),
        }
    }
}
