//! The state of the engine, and what it does with commands and actions.

use super::boards::{BoardMeters, Boards, Kept};
use super::clock::Clock;
use super::copies::Copies;
use super::deltas::Deltas;
use super::digests::Digests;
use super::handle::{Answer, ControlRequest, ControlSink, EngineCommand, FabricDescription, NotRegistered};
use super::listing::SegmentRole;
use super::memory::Memory;
use super::meters::{EngineMeters, Measured};
use super::pings::Pings;
use super::readers::Readers;
use super::tables::Tables;
use super::trace::TraceSink;
use super::unmapping::Unmapper;
use super::wait::{Absence, Pace, PollStrategy, Ready};
use super::workers::{Ends, Take, Workers};
use super::{BoxedFabric, COUNTER_SEGMENT, EngineError};
use crate::disk::Disk;
use crate::epoll::Epoll;
use crossbeam_channel::Receiver;
use hashbrown::HashMap;
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use transfer_core::drive::Driver;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::op::{Command, Request};
use transfer_core::protocol::{
    Action, BufferAnswer, COUNTER_WORDS_BYTES, DirectoryNews, HostAction, Node, SessionId, Snapshot, Tenant,
    WorkerMemory,
};
use transfer_core::tensor::Name;
use transfer_core::time::Time;
use transfer_memory::segment::{Access, MemoryKind, Segment};
use transfer_memory::session::SidecarEnd;

/// The most commands that are taken in one round.
const COMMANDS_PER_ROUND: usize = 256;

pub(super) struct Run {
    pub(super) driver: Driver<Arc<Segment>>,
    pub(super) memory: Memory,
    pub(super) tables: Tables,
    pub(super) workers: Workers,
    pub(super) boards: Boards,
    pub(super) pace: Pace,
    pub(super) absence: Absence,
    pub(super) sleeper: Arc<Epoll<Ready>>,
    /// Whether workers and fabrics were told that the engine sleeps.
    pub(super) asleep: bool,
    /// The time at which the sleep ends in any case.
    pub(super) asleep_until: Option<Time>,
    /// The time at which the engine's own thread, if it sleeps, wakes up in any case.
    pub(super) keeper_until: Option<Time>,
    pub(super) inbox: Receiver<EngineCommand>,
    /// A command for the engine's own thread, which comes before those of the inbox.
    pub(super) put_off: Option<EngineCommand>,
    pub(super) bell: Arc<OwnedFd>,
    /// Memory for the actions that are carried out.
    actions: VecDeque<Action>,
    sink: ControlSink,
    pub(super) trace: Option<TraceSink>,
    pub(super) clock: Clock,
    pub(super) looked_up: Instant,
    /// The start of the last round, if it had work and its time is not counted yet.
    pub(super) worked_from: Option<Instant>,
    pub(super) meters: EngineMeters,
    pub(super) broken: Vec<(SessionId, String)>,
    /// The calls of peers for landing slots that are not answered yet.
    calls: HashMap<u64, Answer<Option<Vec<BufferAnswer>>>>,
    next_call: u64,
    pings: Pings,
    readers: Readers,
    pub(super) copies: Copies,
    pub(super) deltas: Deltas,
    pub(super) digests: Digests,
    pub(super) disk: Option<Disk>,
    unmapper: Unmapper,
    pub(super) stopping: bool,
}

impl Run {
    pub(super) fn new(
        node: Node,
        fabrics: Vec<BoxedFabric>,
        poll: PollStrategy,
        inbox: Receiver<EngineCommand>,
        bell: Arc<OwnedFd>,
        (sink, trace): (ControlSink, Option<TraceSink>),
    ) -> Result<Run, EngineError> {
        let system = |why: rustix::io::Errno| EngineError::System { what: "epoll", why: why.into() };
        let sleeper = Epoll::new().map_err(system)?;
        sleeper.add(&bell, Ready::Bell).map_err(system)?;
        for (place, fabric) in (0..=u8::MAX).zip(&fabrics) {
            for fd in fabric.wait_fds() {
                sleeper.add(fd, Ready::Fabric(place)).map_err(system)?;
            }
        }
        let starting = |why| EngineError::System { what: "starting the thread that unmaps segments", why };
        let unmapper = Unmapper::start().map_err(starting)?;
        let deltas = Deltas::new(bell.clone());
        Ok(Run {
            driver: Driver::new(node, fabrics),
            memory: Memory::default(),
            tables: Tables::default(),
            workers: Workers::default(),
            boards: Boards::default(),
            pace: Pace::new(poll),
            absence: Absence::new(),
            sleeper: Arc::new(sleeper),
            asleep: false,
            asleep_until: None,
            keeper_until: None,
            inbox,
            put_off: None,
            bell,
            actions: VecDeque::new(),
            sink,
            trace,
            clock: Clock::begin(),
            looked_up: Instant::now(),
            worked_from: None,
            meters: EngineMeters::default(),
            broken: Vec::new(),
            calls: HashMap::new(),
            next_call: 0,
            pings: Pings::default(),
            readers: Readers::default(),
            copies: Copies::default(),
            deltas,
            digests: Digests::default(),
            disk: None,
            unmapper,
            stopping: false,
        })
    }

    pub(super) fn add_segment(
        &mut self,
        id: SegmentId,
        segment: Segment,
        role: SegmentRole,
    ) -> Result<(), EngineError> {
        let segment = Arc::new(segment);
        self.driver.register(id, &segment)?;
        self.memory.insert(id, segment, role);
        Ok(())
    }

    /// Whether it has to do something next that only its own thread may do.
    pub(super) fn needs_keeper(&self) -> bool {
        self.stopping || self.put_off.is_some()
    }

    /// Whether counters must lie in registered memory.
    pub(super) fn needs_words(&self) -> bool {
        self.driver.atomic_fabric().is_some()
    }

    /// Sets the memory of the counters, all zero.
    pub(super) fn add_words(&mut self, segment: Segment) -> Result<(), EngineError> {
        self.add_segment(COUNTER_SEGMENT, segment, SegmentRole::Counters)?;
        if let Some(kind) = self.driver.atomic_fabric() {
            let words = LocalSlice { segment: COUNTER_SEGMENT, offset: 0, len: COUNTER_WORDS_BYTES };
            self.driver.node.use_words(words, kind);
        }
        Ok(())
    }

    /// Takes requests of workers. Returns whether there were any.
    pub(super) fn take(&mut self, now: Time, how: Take) -> bool {
        let Run { workers, driver, broken, memory, tables, boards, .. } = self;
        let take = |session, request| match request {
            Request::Command { op, command: Command::Push(push) } if Tables::concern(&push) => {
                let is_read = tables.push(driver, now, session, (op, push), memory);
                if let (false, Take::Rest(_)) = (is_read, how) {
                    tables.forget(session);
                }
                is_read || matches!(how, Take::Rest(_))
            }
            Request::Unmarked { ticket } => {
                if boards.hazard_cleared(session, ticket) {
                    driver.node.withdrawn(ticket);
                }
                true
            }
            request => {
                driver.request(now, session, request, memory);
                true
            }
        };
        workers.take(how, take, broken)
    }

    /// Reads a piece of a push with long tables. Once all is read, more requests of its worker are taken.
    pub(super) fn read_tables(&mut self, now: Time) {
        if let Some(session) = self.tables.step(&mut self.driver, now, &self.memory) {
            self.workers.hold(session, false);
        }
    }

    /// Drains all rings, then answers the requests for announced keys that had arrived before. Returns whether there
    /// were any. The next call answers requests that arrive during the drain.
    pub(super) fn answer_asked(&mut self, now: Time) -> bool {
        let asked = self.driver.node.asked();
        if asked > 0 {
            self.take(now, Take::All);
            let Run { driver, workers, .. } = self;
            driver.node.answer_asked(now, asked, |session| workers.is_held(session));
        }
        asked > 0
    }

    /// Carries out the actions of the state machine.
    pub(super) fn work(&mut self, now: Time) {
        let mut actions = std::mem::take(&mut self.actions);
        loop {
            while self.driver.take_actions(now, &mut self.memory, &mut actions) {
                for action in &mut actions {
                    if let Some((segment, memory)) = self.driver.act(action, &mut self.memory) {
                        self.memory.insert(segment, memory, SegmentRole::Peer);
                    }
                    self.act(now, action);
                }
                actions.clear();
            }
            self.workers.publish(&self.memory, &mut self.broken);
            if self.broken.is_empty() {
                break;
            }
            for (session, why) in std::mem::take(&mut self.broken) {
                self.evict_session(now, session, &why);
            }
        }
        self.actions = actions;
    }

    /// Carries out an action, if it is one for the host. It stays where it is, because most are large to move.
    fn act(&mut self, now: Time, action: &mut Action) {
        match action {
            Action::Host(HostAction::Reply { session, reply }) => {
                if !self.readers.reply(*session, reply, &self.memory)
                    && let Err(why) = self.workers.reply(*session, reply, &self.memory)
                {
                    self.broken.push((*session, why));
                }
            }
            Action::Host(HostAction::Show(shown)) => {
                let reach = self.memory.get(shown.slice.segment).map_or(0, |segment| segment.len());
                if !self.boards.show(shown, reach) {
                    self.driver.node.not_shown(shown.ticket);
                }
            }
            Action::Host(HostAction::Withdraw { domain, ticket }) => {
                if self.boards.withdraw(*domain, *ticket) {
                    self.driver.node.withdrawn(*ticket);
                }
            }
            Action::Host(HostAction::CloseSession { session, why }) => {
                self.broken.push((*session, std::mem::take(why)));
            }
            Action::Host(HostAction::SegmentUnused { segment }) => {
                let memory = self.memory.remove(*segment);
                self.workers.retire(*segment);
                // Its owner frees registered memory.
                if let Some(memory) = memory.filter(|memory| memory.memory_kind() == MemoryKind::Host) {
                    self.unmapper.unmap(memory);
                }
            }
            Action::Host(HostAction::Copy { from, packing, to, tag }) => {
                self.copies.add(std::mem::take(from), (**packing).clone(), *to, *tag);
            }
            Action::Host(HostAction::Apply { base, delta, to, len, tag }) => {
                self.apply(base, (*delta, *to), *len, *tag);
            }
            Action::Host(HostAction::Digest { of, tag }) => self.digest(of, *tag),
            Action::Host(HostAction::SpillWrite { id, tenant, from, len }) => {
                self.write_to_disk(now, *id, *tenant, from, *len);
            }
            Action::Host(HostAction::SpillRead { id, packing, to, tag }) => {
                self.read_from_disk(now, *id, (**packing).clone(), *to, *tag);
            }
            Action::Host(HostAction::SpillFree { id }) => {
                if let Some(disk) = &self.disk {
                    disk.free(*id);
                }
            }
            Action::Host(HostAction::AskReaders { segment, mark }) => {
                // A segment that is gone has no readers.
                let read = self.memory.get(*segment).is_some_and(|memory| memory.is_referenced(*mark));
                self.driver.node.readers_answered(*segment, *mark, read);
            }
            Action::Host(HostAction::Prepared { token, answers }) => {
                if let Some(answer) = self.calls.remove(token) {
                    answer(Some(std::mem::take(answers)));
                }
            }
            Action::Host(HostAction::Ponged { token, lost }) => self.pings.end(*token, lost.take()),
            Action::Host(HostAction::Control(_)) => {
                if let Action::Host(HostAction::Control(control)) = action.take() {
                    self.control(control);
                }
            }
            Action::Post(_) | Action::Fabric(_) | Action::Taken => {}
        }
    }

    fn control(&mut self, control: ControlRequest) {
        match &control {
            ControlRequest::LinkUp { link, peer } => tracing::info!(%peer, %link, "link up"),
            ControlRequest::RailDown { link, peer, rail, left, why } => {
                tracing::warn!(%peer, %link, rail, left, why, "rail down");
            }
            ControlRequest::LinkDown { link, peer, why } => tracing::warn!(%peer, %link, why, "link down"),
            ControlRequest::SessionClosed { worker, why, .. } => tracing::info!(%worker, why, "session closed"),
            _ => {}
        }
        (self.sink)(control);
    }

    /// Takes the rest of the requests of a worker that is over. Its pushes with long tables are dropped: nobody waits for their
    /// answers.
    fn take_rest(&mut self, now: Time, session: SessionId) {
        self.tables.forget(session);
        self.workers.hold(session, false);
        self.take(now, Take::Rest(session));
    }

    /// Handles the end of a worker. Takes the rest of its requests first: other workers may have found versions that
    /// it has announced, so these are published, if only for a moment.
    pub(super) fn worker_gone(&mut self, now: Time, session: SessionId, why: &str) {
        self.take_rest(now, session);
        self.close_session(now, session, why);
    }

    /// Handles a worker that has closed its client, and may still read what it has fetched. Takes the rest of its requests first, as
    /// for a worker that is gone. It waits for [`EngineCommand::NameFree`].
    pub(super) fn worker_left(&mut self, now: Time, session: SessionId) {
        self.take_rest(now, session);
        self.boards.evict(session);
        self.workers.leave(session);
        self.driver.node.session_evicted(now, session, "the worker has closed its client");
    }

    /// Evicts a worker. Its process may still run and read. The versions that it reads do not change until it releases
    /// them or ends.
    fn evict_session(&mut self, now: Time, session: SessionId, why: &str) {
        if self.readers.close(session) {
            return self.driver.node.session_closed(now, session, why);
        }
        self.tables.forget(session);
        self.boards.evict(session);
        self.workers.evict(session);
        self.driver.node.session_evicted(now, session, why);
    }

    fn close_session(&mut self, now: Time, session: SessionId, why: &str) {
        // The board is closed before the socket, so that a worker that learns of the end can look nothing up.
        self.tables.forget(session);
        self.boards.close(session);
        self.workers.remove(session, &self.sleeper);
        self.driver.node.session_closed(now, session, why);
    }

    /// Takes commands of the control plane. Returns whether there were any.
    pub(super) fn commands(&mut self, now: Time, mut kept: Option<&mut Vec<Kept>>) -> bool {
        // Looking costs less than trying to take one.
        if self.put_off.is_none() && self.inbox.is_empty() {
            return false;
        }
        let mut active = false;
        for _ in 0..COMMANDS_PER_ROUND {
            let Some(command) = self.put_off.take().or_else(|| self.inbox.try_recv().ok()) else { break };
            if let (EngineCommand::AddPool { board: Some(_), .. }, None) = (&command, &kept) {
                self.put_off = Some(command);
                break;
            }
            active = true;
            self.meters.commands += 1;
            self.command(now, command, kept.as_deref_mut());
        }
        active
    }

    fn command(&mut self, now: Time, command: EngineCommand, kept: Option<&mut Vec<Kept>>) {
        let driver = &mut self.driver;
        match command {
            EngineCommand::AddPool { domain, id, segment, board } => {
                let len = segment.len();
                match self.add_segment(id, segment, SegmentRole::Pool(domain)) {
                    Ok(()) => self.driver.node.add_pool(domain, id, len),
                    Err(e) => {
                        tracing::error!(tenant = %self.driver.node.state().tenant_name(domain), error = %e, "the landing pool cannot be used")
                    }
                }
                if let Some(board) = board {
                    self.add_board(domain, board, kept);
                }
            }
            EngineCommand::OpenSession { end, domain, place } => self.open_session(*end, domain, place),
            EngineCommand::OpenReader { session, name, domain, arena, sink } => {
                tracing::info!(reader = %name, session = session.0, "session open");
                self.readers.open(session, sink);
                driver.node.session_opened(session, name, domain, arena, 0);
            }
            EngineCommand::RegisterMemory { session, id, segment, answer } => {
                answer(self.register_memory(session, id, segment));
            }
            EngineCommand::ReleaseMemory { id } => _ = driver.node.memory_of_worker(id, WorkerMemory::Released),
            EngineCommand::Reader { session, request } => {
                if self.readers.has(session) {
                    driver.request(now, session, request, &self.memory);
                }
            }
            EngineCommand::CloseReader { session, why } => {
                if self.readers.close(session) {
                    driver.node.session_closed(now, session, &why);
                }
            }
            EngineCommand::Directory(news) => {
                if let DirectoryNews::KeyLost { key, owner } = &news {
                    tracing::info!(key = key.as_str(), %owner, "the directory has entered another owner of a key");
                }
                driver.node.directory_news(now, news);
            }
            EngineCommand::NameFree { session } => self.workers.hang_up(session),
            EngineCommand::NameLost { session, node } => driver.node.name_lost(now, session, &node),
            EngineCommand::BeginLink { peer, fabric, answer } => answer(driver.begin_link(&peer, fabric)),
            EngineCommand::AcceptLink { peer, fabric, offer, answer } => {
                answer(driver.accept_link(peer, fabric, &offer));
            }
            EngineCommand::FinishLink { link, peer, offer, answer } => answer(driver.finish_link(link, peer, &offer)),
            EngineCommand::ConnectFailed { peer, link, why } => {
                if let Some(link) = link {
                    driver.abandon_link(link, &why);
                }
                driver.node.connect_failed(now, &peer, &why);
            }
            EngineCommand::AbandonLink { link, why } => driver.abandon_link(link, &why),
            EngineCommand::PrepareBuffers { link, peer, incarnation, asks, answer } => {
                match driver.node.state().peer_of(link) {
                    Some(p) if p.name == peer && p.incarnation == incarnation => {
                        self.next_call += 1;
                        self.calls.insert(self.next_call, answer);
                        driver.node.prepare_buffers(link, self.next_call, asks);
                    }
                    _ => answer(None),
                }
            }
            EngineCommand::BuffersPrepared { link, answers } => driver.node.buffers_prepared(now, link, answers),
            EngineCommand::PrepareFailed { link, asks, why } => driver.node.prepare_failed(link, &asks, &why),
            EngineCommand::Snapshot(answer) => answer(self.snapshot(now)),
            EngineCommand::Measure(answer) => answer(self.measure(now)),
            EngineCommand::Describe(answer) => answer(self.describe()),
            EngineCommand::List { from, listing } => self.list(now, from, listing),
            EngineCommand::Operate(operate) => operate(now, &mut driver.node),
            EngineCommand::Ping { link, answer } => self.pings.begin(&mut driver.node, link, answer),
            EngineCommand::SetPoll(strategy) => self.pace.strategy = strategy,
            EngineCommand::Stop => self.stopping = true,
        }
    }

    fn add_board(&mut self, domain: Tenant, board: Arc<Segment>, kept: Option<&mut Vec<Kept>>) {
        match self.boards.add(domain, &board) {
            Ok((places, life)) => {
                if let Some(kept) = kept {
                    kept.push(Kept::new(life, board));
                }
                self.driver.node.add_board(domain, places);
            }
            // The board stays empty, so every fetch goes to the sidecar.
            Err(e) => {
                tracing::warn!(tenant = %self.driver.node.state().tenant_name(domain), error = %e, "every fetch goes to the sidecar")
            }
        }
    }

    fn describe(&mut self) -> Vec<FabricDescription> {
        let shown = self.driver.fabrics().iter().map(|fabric| FabricDescription {
            kind: fabric.kind(),
            settings: fabric.describe(),
            counts: fabric.counters(),
        });
        shown.collect()
    }

    /// The overview of the node, including its workers' look-ups.
    fn snapshot(&mut self, now: Time) -> Snapshot {
        let mut snapshot = self.driver.snapshot(now);
        let BoardMeters { hits, bytes, hazards, .. } = self.boards.meters();
        snapshot.add_looked_up(hits, bytes, hazards);
        snapshot
    }

    fn measure(&mut self, now: Time) -> Measured {
        let (workers, boards) = (self.workers.meters(), self.boards.meters());
        let mut meters = self.driver.node.state().meters().clone();
        meters.add_looked_up(boards.hits, boards.bytes);
        Measured {
            snapshot: self.snapshot(now),
            meters,
            engine: EngineMeters {
                submissions: workers.submissions,
                replies: workers.replies,
                replies_delayed: workers.replies_delayed,
                doorbells_rung: workers.doorbells_rung,
                doorbells_taken: workers.doorbells_taken,
                ..self.meters
            },
            fabrics: self.describe(),
            boards,
            posts: self.driver.posts().to_vec(),
            commands_waiting: self.inbox.len() as u64,
            replies_waiting: self.workers.backlog(),
        }
    }

    fn open_session(&mut self, end: SidecarEnd, domain: Tenant, place: Box<dyn Any + Send>) {
        let SidecarEnd {
            socket, pidfd, name, session, submission, completion, hazards, arena_id, arena, notices, ..
        } = end;
        let (session, len, arena) = (SessionId(session), arena.len(), Arc::new(arena));
        let notices = notices.map(|(id, segment)| (id, Arc::new(segment)));
        let noticed = notices.as_ref().map(|(id, _)| *id);
        let ends = Ends { socket, pidfd, place, submission, completion, notices };
        if let Err(e) = self.workers.add(session, ends, arena_id, &self.sleeper) {
            tracing::error!(worker = %name, error = %e, "the session cannot be waited for and is closed");
            return self.never_opened(session, name, &e.to_string());
        }
        let unreadable = match self.driver.register(arena_id, &arena) {
            Ok(unreadable) => unreadable,
            Err(e) => {
                tracing::error!(worker = %name, error = %e, "the worker's arena cannot be registered; its session is closed");
                self.workers.remove(session, &self.sleeper);
                return self.never_opened(session, name, &e.to_string());
            }
        };
        let is_returned = arena.mapping().access() == Access::ReadOnly;
        self.memory.insert(arena_id, arena, SegmentRole::Arena(domain, name.clone()));
        tracing::info!(worker = %name, session = session.0, arena_bytes = len, "session open");
        self.driver.node.session_opened(session, name.clone(), domain, arena_id, len);
        if is_returned {
            self.driver.node.arena_is_returned(arena_id);
        }
        for (fabric, error) in unreadable {
            tracing::warn!(worker = %name, %fabric, %error, "what the worker sends by this fabric is copied first, until the worker restarts");
            self.driver.node.arena_is_unreadable(arena_id, fabric);
        }
        self.boards.open(session, domain, hazards, noticed);
        self.workers.greet(session);
    }

    /// Registers memory of a worker of this process with the fabrics.
    fn register_memory(
        &mut self,
        session: SessionId,
        id: SegmentId,
        segment: Arc<Segment>,
    ) -> Result<u64, NotRegistered> {
        let role = self.workers.arena_of(session).and_then(|arena| self.memory.roles().get(&arena)).cloned();
        let role = role.ok_or(NotRegistered::SessionOver)?;
        let unreadable = self.driver.register(id, &segment)?;
        self.memory.insert(id, segment.clone(), role);
        let Some(place) =
            self.driver.node.memory_of_worker(id, WorkerMemory::Registered { session, len: segment.len() })
        else {
            self.driver.deregister(id);
            self.memory.remove(id);
            return Err(NotRegistered::SessionOver);
        };
        unreadable.iter().for_each(|(fabric, _)| self.driver.node.arena_is_unreadable(id, *fabric));
        Ok(place)
    }

    fn never_opened(&mut self, session: SessionId, worker: Name, why: &str) {
        self.control(ControlRequest::SessionClosed { session, worker, why: why.to_owned() });
    }

    /// Ends the links and sessions at the end of the thread. Peers and workers notice it by their sockets.
    pub(super) fn end(mut self) {
        let now = self.clock.time(Instant::now());
        for link in self.driver.node.state().link_ids() {
            self.driver.abandon_link(link, "the sidecar is shutting down");
        }
        // The fabrics send their last messages.
        self.driver.poll_fabrics(now, &self.memory);
        for session in self.workers.ids() {
            self.close_session(now, session, "the sidecar is shutting down");
        }
        self.work(now);
        while self.driver.node.is_ending() {
            self.driver.timeout(now);
            self.work(now);
        }
    }
}
