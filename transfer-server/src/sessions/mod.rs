//! Workers that connect: their handshakes run neither on the data plane's thread nor on the runtime's thread.

mod acceptor;
mod places;
mod registering;

pub(crate) use acceptor::Acceptor;
pub use registering::{RegisterError, RegisteredMemory, Registration};

use crate::admin::uid_of;
use crate::config::{SessionLimits, Tenancy};
use crate::copying::CopyError;
use crate::directory::{DirectoryClient, DirectoryCommand};
use crate::drain::Drain;
use crate::engine::{EngineClient, EngineCommand, ReaderSink};
use crate::events::Events;
use crate::shares::Share;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::{Condvar, Mutex};
use places::Places;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use transfer_core::memory::SegmentId;
use transfer_core::protocol::{SessionId, Tenant};
use transfer_core::tensor::Name;
use transfer_memory::board::board_bytes;
use transfer_memory::segment::{Pages, PinnedBudget, Segment, SegmentError, SegmentOptions};
use transfer_memory::session::{Admission, Applicant, Refusal, RefusalCode, SessionError, SidecarEnd, SidecarPolicy};
use transfer_memory::socket::Socket;
use transfer_proto::v1;
use v1::event::What;

/// The time-out for the directory to enter a worker. After it the worker is admitted without an answer.
const DIRECTORY_DEADLINE: Duration = Duration::from_secs(3);

/// The time for which an applicant waits until another applicant of the same name is admitted or refused.
const APPLICANT_PATIENCE: Duration = Duration::from_secs(2);

/// The time for which an applicant waits for the name of a connected worker, which may just have ended.
const WORKER_PATIENCE: Duration = Duration::from_millis(250);

/// The time for which an applicant waits for the name of a worker whose process has ended. It is long enough for a busy
/// engine to notice the end.
const DEAD_PATIENCE: Duration = Duration::from_secs(10);

/// The resources that a node gives to its tenants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    /// The landing pool of each tenant.
    pub(crate) pool: SegmentOptions,
    /// The number of keys on each board; 0: there are no boards.
    pub(crate) board_entries: u32,
    /// The limits of sessions.
    pub(crate) sessions: SessionLimits,
}

/// Gives workers their sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Sessions(Arc<SessionsShared>);

#[derive(Debug)]
struct SessionsShared {
    policy: SidecarPolicy,
    /// The options of landing pools.
    pool: SegmentOptions,
    budget: PinnedBudget,
    engine: EngineClient,
    directory: DirectoryClient,
    events: Events,
    drain: Drain,
    /// The names in use on this node.
    workers: Mutex<HashMap<Name, Held>>,
    /// Notified when a name is free, or an applicant was admitted.
    changed: Condvar,
    places: Places,
    /// The rules of tenants.
    tenancy: Arc<Tenancy>,
    /// The tenants with a landing pool, and their boards. The lock is held while one is made, because two workers may
    /// connect at once.
    pools: Mutex<HashMap<Tenant, Option<Arc<Segment>>>>,
    /// The number of keys on a board; 0: there are no boards.
    board_entries: u32,
    next_session: AtomicU64,
    next_segment: AtomicU32,
}

/// A name in use.
#[derive(Debug)]
struct Held {
    session: u64,
    /// Whether the handshake is over.
    open: bool,
    /// The node whose worker has received the name from the directory in the meantime.
    lost_to: Option<Name>,
    /// Readable once the holder's process has ended. `None` before the handshake is over, and if the kernel has no such
    /// descriptor.
    process: Option<OwnedFd>,
}

impl Held {
    /// Returns whether the holder's process has ended. The engine is then about to notice.
    fn is_dead(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let found = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        matches!(found, Ok(n) if n > 0)
    }

    fn patience(&self) -> Duration {
        match (self.open, self.is_dead()) {
            (true, false) => WORKER_PATIENCE,
            (true, true) => DEAD_PATIENCE,
            (false, _) => APPLICANT_PATIENCE,
        }
    }
}

/// A reserved worker name. Dropping it frees the name, unless it was kept.
struct Reserved<'a> {
    shared: &'a SessionsShared,
    worker: Name,
    session: u64,
    kept: bool,
}

impl Reserved<'_> {
    /// Keeps the name for an open session. `process` is readable once the worker's process has ended.
    fn keep(mut self, process: Option<OwnedFd>) {
        self.kept = true;
        if let Some(held) = self.shared.workers.lock().get_mut(&self.worker).filter(|h| h.session == self.session) {
            held.open = true;
            held.process = process;
            if let Some(node) = held.lost_to.take() {
                self.shared.tell_name_lost(self.session, node);
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.release(&self.worker, self.session);
        }
    }
}

impl Sessions {
    /// Makes an empty set of sessions. Segments are numbered from 1, because 0 is the engine's own segment.
    pub(crate) fn new(
        policy: SidecarPolicy,
        granted: Granted,
        tenancy: Arc<Tenancy>,
        engine: EngineClient,
        directory: DirectoryClient,
        events: Events,
        drain: Drain,
    ) -> Sessions {
        let Granted { pool, board_entries, sessions } = granted;
        Sessions(Arc::new(SessionsShared {
            budget: policy.budget.clone(),
            policy,
            pool,
            engine,
            directory,
            events,
            drain,
            workers: Mutex::default(),
            changed: Condvar::new(),
            places: Places::new(sessions),
            tenancy,
            pools: Mutex::default(),
            board_entries,
            next_session: AtomicU64::new(1),
            next_segment: AtomicU32::new(transfer_fabric::engine::HEADER_SEGMENT.0 + 1),
        }))
    }

    /// Does the handshake with a worker that has just connected. Blocks as long as the worker takes, at most until its
    /// deadline.
    pub(crate) fn handshake(&self, socket: Socket) {
        let shared = &*self.0;
        let mut admitted = None;
        let accepted = SidecarEnd::accept(socket, &shared.policy, |applicant| {
            let (admission, reserved, place) = shared.admit(applicant)?;
            admitted = Some((reserved, place));
            Ok(admission)
        });
        match accepted {
            Ok(end) => {
                let Some((reserved, place)) = admitted else { return };
                let end = Box::new(end);
                let domain = shared.tenancy.of(end.peer.uid, end.peer.gid);
                // Without a descriptor, later applicants wait for the name as for the name of a live worker.
                let process = end.pidfd.as_ref().and_then(|fd| fd.try_clone().ok());
                let opened = v1::SessionOpened {
                    session: end.session,
                    worker: end.name.to_string(),
                    uid: end.peer.uid,
                    tenant: shared.tenancy.tenants().name(domain).to_string(),
                };
                // The event is sent before the engine has the session, so that the session's end is not reported first.
                let text = format!("worker {} has connected, as session {}", opened.worker, opened.session);
                shared.events.tell(text, What::SessionOpened(opened));
                if shared.engine.send(EngineCommand::OpenSession { end, domain, place: Box::new(place) }).is_ok() {
                    reserved.keep(process);
                }
            }
            Err(e @ SessionError::TurnedAway(_)) => tracing::warn!("{e}"),
            Err(e) => tracing::warn!("a worker's handshake failed: {e}"),
        }
    }

    /// Handles that the directory has given a worker's name to a worker of `node`. Both workers were admitted while the
    /// directory was out of reach, or that one proved that it had the name before the directory restarted.
    pub(crate) fn name_lost(&self, worker: &Name, node: Name) {
        tracing::error!(
            %worker, other_node = %node,
            "a worker of the same name connected at another node while the directory could not be asked, or had the name before the directory \
             restarted, and the directory has entered that one: what this worker published has ended, and its pushes fail; end one of the two"
        );
        if let Some(held) = self.0.workers.lock().get_mut(worker) {
            match held.open {
                true => self.0.tell_name_lost(held.session, node),
                false => held.lost_to = Some(node),
            }
        }
    }

    /// Opens a session of the sidecar itself, for a tenant. Blocks while the tenant's landing pool is made.
    ///
    /// # Errors
    /// [`CopyError::Stopping`], [`CopyError::NoPool`].
    pub(crate) fn open_reader(&self, name: &Name, tenant: Tenant, sink: ReaderSink) -> Result<SessionId, CopyError> {
        let shared = &*self.0;
        if shared.drain.is_under_way() {
            return Err(CopyError::Stopping);
        }
        shared.pool_for(tenant).map_err(|e| CopyError::NoPool(e.to_string()))?;
        let session = SessionId(shared.next_session.fetch_add(1, Ordering::Relaxed));
        let (name, arena) = (name.clone(), shared.next_segment());
        let opened = v1::SessionOpened {
            session: session.0,
            worker: name.to_string(),
            uid: uid_of(tenant),
            tenant: shared.tenancy.tenants().name(tenant).to_string(),
        };
        let text = format!("session {} of the sidecar itself is open, as {name}", session.0);
        shared.events.tell(text, What::SessionOpened(opened));
        let opened = shared.engine.send(EngineCommand::OpenReader { session, name, domain: tenant, arena, sink });
        opened.map(|()| session).map_err(|_| CopyError::Stopping)
    }

    /// Returns the number of sessions that were refused at a limit.
    pub(crate) fn refused_for_number(&self) -> u64 {
        self.0.places.refused()
    }

    /// Frees the name of a worker that is gone, or has left.
    pub(crate) fn closed(&self, session: SessionId, worker: &Name) {
        self.0.release(worker, session.0);
        // An engine that has ended has no sessions.
        let _ = self.0.engine.send(EngineCommand::NameFree { session });
    }
}

impl SessionsShared {
    fn tell_name_lost(&self, session: u64, node: Name) {
        // An engine that has ended has no sessions.
        let _ = self.engine.send(EngineCommand::NameLost { session: SessionId(session), node });
    }

    fn admit(&self, applicant: &Applicant) -> Result<(Admission, Reserved<'_>, Share<Tenant>), Refusal> {
        let worker = &applicant.name;
        if self.drain.is_under_way() {
            let text = "the sidecar is draining: it takes no new workers, for it is about to leave".to_owned();
            return Err(Refusal { code: RefusalCode::Draining, text });
        }
        let tenant = self.tenancy.of(applicant.peer.uid, applicant.peer.gid);
        // The place is taken first, so that a worker that is refused here causes no other work.
        let place = self.places.take(tenant, &self.tenancy.tenants().name(tenant))?;
        let session = self.next_session.fetch_add(1, Ordering::Relaxed);
        let reserved = self.reserve(worker, session)?;
        Handle::current()
            .block_on(self.directory.worker_up(worker, self.tenancy.tenants().name(tenant), DIRECTORY_DEADLINE))
            .map_err(|e| Refusal { code: RefusalCode::NameTaken, text: e.to_string() })?;
        let board = self.pool_for(tenant).map_err(|e| {
            let code = match e {
                SegmentError::Budget(_) | SegmentError::NotLocked { .. } => RefusalCode::NoMemory,
                _ => RefusalCode::Internal,
            };
            Refusal {
                code,
                text: format!("the landing pool of tenant {} cannot be made: {e}", self.tenancy.tenants().name(tenant)),
            }
        })?;
        let (arena, notices) = (self.next_segment(), self.next_segment());
        Ok((Admission { session, arena, arena_bytes: applicant.wanted_arena_bytes, board, notices }, reserved, place))
    }

    /// Reserves a name. Waits for a holder that may be about to lose it: a refused applicant may return at once, and so
    /// may a worker whose end the engine is about to notice.
    fn reserve(&self, worker: &Name, session: u64) -> Result<Reserved<'_>, Refusal> {
        let now = Instant::now();
        let mut workers = self.workers.lock();
        while let Some(held) = workers.get(worker) {
            let until = now + held.patience();
            if self.changed.wait_until(&mut workers, until).timed_out()
                // The holder may have died in the meantime.
                && workers.get(worker).is_none_or(|held| now + held.patience() <= Instant::now())
            {
                break;
            }
        }
        match workers.entry(worker.clone()) {
            Entry::Vacant(free) => {
                free.insert(Held { session, open: false, lost_to: None, process: None });
                Ok(Reserved { shared: self, worker: worker.clone(), session, kept: false })
            }
            Entry::Occupied(taken) => {
                let text = format!(
                    "a worker named {worker} has session {} on this node already; end it, or choose another name",
                    taken.get().session
                );
                Err(Refusal { code: RefusalCode::NameTaken, text })
            }
        }
    }

    fn next_segment(&self) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes the landing pool and the board of a tenant, if they do not exist. Returns the board.
    fn pool_for(&self, tenant: Tenant) -> Result<Option<Arc<Segment>>, SegmentError> {
        let mut pools = self.pools.lock();
        if let Some(board) = pools.get(&tenant) {
            return Ok(board.clone());
        }
        let name = self.tenancy.tenants().name(tenant);
        let segment = Segment::create(&format!("transfer-pool:{name}"), &self.pool, &self.budget)?;
        // The seal allows workers to map the segment only read-only.
        segment.seal_writers()?;
        let made = segment.achieved();
        tracing::info!(
            tenant = %name,
            bytes = segment.len(),
            locked = made.locked,
            pages = ?made.pages,
            "landing pool made"
        );
        let (id, board) = (self.next_segment(), self.make_board(&name));
        if self.engine.send(EngineCommand::AddPool { domain: tenant, id, segment, board: board.clone() }).is_ok() {
            pools.insert(tenant, board.clone());
        }
        Ok(board)
    }

    /// Makes the board of a tenant. Without memory for a board, every fetch of the tenant's workers asks the sidecar.
    fn make_board(&self, tenant: &Name) -> Option<Arc<Segment>> {
        if self.board_entries == 0 {
            return None;
        }
        let options = SegmentOptions { len: board_bytes(self.board_entries), pages: Pages::Base, lock: self.pool.lock };
        let made = Segment::create(&format!("transfer-board:{tenant}"), &options, &self.budget);
        // The seal allows workers to map the segment only read-only.
        match made.and_then(|segment| segment.seal_writers().map(|()| segment)) {
            Ok(segment) => Some(Arc::new(segment)),
            Err(e) => {
                tracing::warn!(%tenant, error = %e, "no board: every fetch of this tenant's workers goes to the sidecar");
                None
            }
        }
    }

    fn release(&self, worker: &Name, session: u64) {
        let mut workers = self.workers.lock();
        if workers.get(worker).is_some_and(|held| held.session == session) {
            workers.remove(worker);
            self.changed.notify_all();
            // The request is sent under the lock, so that the name's next WorkerUp cannot overtake it.
            self.directory.ask(DirectoryCommand::WorkerDown { worker: worker.clone() });
        }
    }
}
