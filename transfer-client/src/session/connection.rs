//! The sessions of a client, one after the other: when the sidecar was restarted, a new session follows.
//!
//! A thread sleeps on the session's socket, and wakes up only when the session ends. It reconnects with the same arena,
//! publishes the versions again, and gives the new session to later calls. Calls that were under way have failed by
//! then.

use super::{Answered, Calls, Former, Held, Loan, Session, deadline, spawn_driver};
use crate::error::SessionEnd;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use transfer_core::op::{Answer, Command};
use transfer_core::tensor::Name;
use transfer_memory::Errno;
use transfer_memory::session::{FromSidecar, RefusalCode, Returning, SessionError, WorkerEnd};

/// The first and the longest pause between two attempts to reconnect.
const RECONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// The longest wait of [`Connection::close`] for a sidecar that does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time-out of publishing again.
const REPUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// The parameters of reconnecting.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(crate) path: PathBuf,
    pub(crate) name: Name,
    pub(crate) timeout: Duration,
    pub(crate) spin: Duration,
    /// The runtime on which the driver of an async client runs.
    pub(crate) runtime: Option<Handle>,
}

/// The current session of a client, and what outlasts it.
#[derive(Debug)]
pub(crate) struct Connection {
    session: Mutex<Arc<Session>>,
    /// No session follows.
    closed: AtomicBool,
    /// Held by the thread that reconnects while the next session is not in `session`.
    reconnecting: Mutex<()>,
    /// What libraries keep for this client, by its type.
    extensions: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Connection {
    pub(crate) fn new(session: Arc<Session>) -> Arc<Connection> {
        Arc::new(Connection {
            session: Mutex::new(session),
            closed: AtomicBool::new(false),
            reconnecting: Mutex::default(),
            extensions: Mutex::default(),
        })
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.session.lock().clone()
    }

    /// Ends the client: its session, and all that would follow. All waits end at once. Returns when the worker's name is free.
    pub(crate) fn close(&self) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        self.closed.store(true, Ordering::SeqCst);
        self.session().close(deadline);
        // A session that follows may have been under way.
        let _attempt = self.reconnecting.try_lock_until(deadline);
        self.session().close(deadline);
    }

    /// What a library keeps for this client. The first call makes it.
    pub(crate) fn extension<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut extensions = self.extensions.lock();
        let found = extensions.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry of a type is of that type.
        found.clone().downcast().unwrap_or_default()
    }

    /// Starts the thread that reconnects. It ends with the connection.
    pub(crate) fn reconnect_by(self: &Arc<Self>, options: Reconnect) -> std::io::Result<()> {
        let connection = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("transfer-return".into()).stack_size(256 << 10);
        thread.spawn(move || while stays(&connection, &options).is_some() {}).map(drop)
    }
}

/// Waits for the end of one session and begins the next one. `None` if none follows.
fn stays(connection: &Weak<Connection>, options: &Reconnect) -> Option<()> {
    wait_for_hangup(connection)?;
    let over = connection.upgrade()?.session();
    if over.wait_for_end() != SessionEnd::Away {
        return None;
    }
    let (mut published, held) = over.take_loans();
    let former = Arc::new(Former::new(over.incarnation(), &over));
    published.iter_mut().for_each(|loan| loan.formers.push(former.clone()));
    let mut pause = RECONNECT_BACKOFF.0;
    let next = loop {
        let here = connection.upgrade()?;
        let attempt = here.reconnecting.lock();
        if here.closed.load(Ordering::SeqCst) {
            return None;
        }
        match reconnect(&over, options, &mut published) {
            Ok(next) => {
                if here.closed.load(Ordering::SeqCst) {
                    next.close(Instant::now() + CLOSE_TIMEOUT);
                    return None;
                }
                *here.session.lock() = next.clone();
                break next;
            }
            Err(SessionError::Refused(refusal)) if is_final(refusal.code) => {
                tracing::error!(worker = %options.name, %refusal, "the sidecar does not take this worker back after its restart");
                over.never_back(&refusal.text);
                return None;
            }
            Err(e) => tracing::debug!(worker = %options.name, "not back yet: {e}"),
        }
        drop(attempt);
        drop(here);
        std::thread::sleep(pause);
        pause = (pause * 2).min(RECONNECT_BACKOFF.1);
    };
    tracing::info!(worker = %options.name, incarnation = next.incarnation(), "back after a restart of the sidecar");
    for mut loan in held {
        loan.formers.push(former.clone());
        next.give_back(loan);
    }
    // The sidecar that let peers write there has ended, and its links with it.
    over.take_destinations().into_iter().for_each(|lent| next.free_destination(lent));
    // `close` waits only for a time, so the client may have been closed meanwhile.
    if connection.upgrade()?.closed.load(Ordering::SeqCst) {
        next.close(Instant::now() + CLOSE_TIMEOUT);
        return None;
    }
    if let Some(runtime) = &options.runtime {
        let _inside = runtime.enter();
        if let Err(e) = spawn_driver(&next) {
            tracing::error!(worker = %options.name, "nothing drives the session after the restart: {e}");
        }
    }
    Some(())
}

/// Sleeps until either side closes the session's socket.
fn wait_for_hangup(connection: &Weak<Connection>) -> Option<()> {
    let fd = connection.upgrade()?.session().socket().try_clone_to_owned().ok()?;
    loop {
        // Only the end of the socket; others read the doorbells.
        match poll(&mut [PollFd::new(&fd, PollFlags::RDHUP)], None) {
            Ok(_) => return Some(()),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Whether another attempt is useless.
fn is_final(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::Version | RefusalCode::NotAllowed | RefusalCode::BadArena | RefusalCode::ArenaTooLarge)
}

fn reconnect(
    over: &Arc<Session>,
    options: &Reconnect,
    published: &mut Vec<Loan>,
) -> Result<Arc<Session>, SessionError> {
    let home = over.home();
    let system = |e: std::io::Error| {
        let source = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        SessionError::Socket(transfer_memory::socket::SocketError::System { step: "duplicate a descriptor", source })
    };
    let with = Returning {
        incarnation: over.incarnation(),
        arena: home.arena.mapping().clone(),
        arena_fd: home.fd.try_clone().map_err(system)?,
    };
    let end = WorkerEnd::reconnect(&options.path, &options.name, options.timeout, with)?;
    match end.socket.receive(Instant::now() + options.timeout)? {
        FromSidecar::Doorbell => {}
        _ => return Err(SessionError::Unexpected { expected: "a doorbell", found: "a segment" }),
    }
    let next = over.follow(end, options.spin)?;
    publish_again(&next, published);
    match next.gone() {
        None => Ok(next),
        Some(gone) => {
            // Others may already have fetched from it.
            let former = Arc::new(Former::new(next.incarnation(), &next));
            let (again, held) = next.take_loans();
            published.extend(again.into_iter().chain(held));
            published.iter_mut().for_each(|loan| loan.formers.push(former.clone()));
            tracing::debug!("lost again while publishing: {gone}");
            Err(SessionError::Socket(transfer_memory::socket::SocketError::Closed))
        }
    }
}

/// Publishes the versions of the earlier session again. A version that cannot be published, because another worker owns
/// its key now, returns to the arena. Leaves the unsent versions in `published`.
fn publish_again(session: &Arc<Session>, published: &mut Vec<Loan>) {
    let started = Instant::now();
    let mut calls = Calls::new(session.clone(), started, deadline(started, REPUBLISH_TIMEOUT));
    // They are in the order of publication, so the last one of a key is its newest.
    let last: HashMap<_, _> = published.iter().enumerate().map(|(at, loan)| (&loan.push.key, at)).collect();
    for (at, loan) in published.iter().enumerate() {
        let mut push = loan.push.clone();
        push.more_follow = last.get(&push.key).is_some_and(|last| *last != at);
        // The version lies at this sidecar, even if its push had a target.
        (push.to, push.timeout, push.takeover, push.require) = (None, REPUBLISH_TIMEOUT, false, None);
        calls.add(Command::Push(push), Some(Held::Again(loan.lent, loan.along.clone(), loan.formers.clone())));
    }
    let _: () = session.block_on(|waker| match calls.step(waker) {
        ControlFlow::Break(()) => ControlFlow::Break(()),
        ControlFlow::Continue(at) => ControlFlow::Continue(at),
    });
    let unsent = published.drain(..).zip(calls.take()).filter_map(|(loan, (item, ended))| match ended {
        _ if item.op.is_none() => Some(loan),
        Ok(Answered { answer: Answer::Failed { failure, .. }, loan: failed, .. }) => {
            if let Some(failed) = failed {
                tracing::warn!(key = %loan.push.key, "not published again after the sidecar's restart: {failure}");
                session.give_back(*failed);
            }
            None
        }
        _ => None,
    });
    let unsent: Vec<Loan> = unsent.collect();
    *published = unsent;
}
