//! The thread that accepts workers' connections. It sleeps until a connection arrives, or sends something.
//!
//! A connection gets a handshake thread only when it has sent something. Silent connections wait here, and the thread
//! polls all of them. When there are too many, the oldest silent one is closed. One user's slow handshakes occupy only
//! a part of the threads.

use super::Sessions;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use transfer_core::silent::{Silent, Ticket};
use transfer_memory::socket::{Listener, Socket, SocketError};

/// The most handshakes at once. Each has a thread.
const MAX_HANDSHAKES: usize = 64;

/// The most handshakes at once with one user's processes.
const HANDSHAKES_OF_ONE: usize = 16;

/// The most connections that wait for a thread, most of them silent.
const MAX_WAITING: usize = 256;

/// The most waiting connections of one user.
const WAITING_OF_ONE: usize = 64;

/// The time-out of a connection's first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(1);

/// The pause after a failure that lasts, usually a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts workers until it is dropped. The drop also removes the socket's path.
#[derive(Debug)]
pub(crate) struct Acceptor {
    shared: Arc<AcceptorShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct AcceptorShared {
    /// Wakes the acceptor when it has to look at its state.
    bell: OwnedFd,
    stop: AtomicBool,
    /// The number of handshakes under way with each user's processes.
    handshakes: Mutex<HashMap<u32, usize>>,
}

impl AcceptorShared {
    fn new() -> std::io::Result<AcceptorShared> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(AcceptorShared { bell, stop: AtomicBool::new(false), handshakes: Mutex::default() })
    }

    fn ring(&self) {
        // The write fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Counts one more handshake. Returns `false` if this user, or all users together, have reached the limit.
    fn begin(&self, user: u32) -> bool {
        let mut handshakes = self.handshakes.lock();
        let (all, own) = (handshakes.values().sum::<usize>(), handshakes.get(&user).copied().unwrap_or(0));
        let may = all < MAX_HANDSHAKES && own < HANDSHAKES_OF_ONE;
        if may {
            handshakes.insert(user, own + 1);
        }
        may
    }

    fn end(&self, user: u32) {
        let mut handshakes = self.handshakes.lock();
        if let Some(own) = handshakes.get_mut(&user) {
            *own -= 1;
            if *own == 0 {
                handshakes.remove(&user);
            }
        }
        drop(handshakes);
        self.ring();
    }
}

/// A connection that waits for a thread.
#[derive(Debug)]
struct Waiting {
    socket: Socket,
    user: u32,
    since: Instant,
    has_spoken: bool,
}

/// The state of the thread.
struct Accepting<H> {
    shared: Arc<AcceptorShared>,
    runtime: Handle,
    /// Does the handshake with a connection that has sent something.
    handshake: H,
    /// Returns the user of a connection.
    user: fn(&Socket) -> Result<u32, SocketError>,
    first_message: Duration,
    silent: Silent<u32>,
    /// The waiting connections, in the order of arrival.
    waiting: BTreeMap<Ticket, Waiting>,
}

impl Acceptor {
    /// Starts the thread. Handshakes run on the blocking threads of `runtime`.
    pub(crate) fn start(listener: Listener, sessions: Sessions, runtime: Handle) -> std::io::Result<Acceptor> {
        let handshake = move |socket| sessions.handshake(socket);
        Acceptor::with(listener, handshake, |socket| Ok(socket.peer()?.uid), FIRST_MESSAGE, runtime)
    }

    fn with(
        listener: Listener,
        handshake: impl Fn(Socket) + Clone + Send + 'static,
        user: fn(&Socket) -> Result<u32, SocketError>,
        first_message: Duration,
        runtime: Handle,
    ) -> std::io::Result<Acceptor> {
        let shared = Arc::new(AcceptorShared::new()?);
        let silent = Silent::new(MAX_WAITING, WAITING_OF_ONE);
        let waiting = BTreeMap::new();
        let mut accepting =
            Accepting { shared: shared.clone(), runtime, handshake, user, first_message, silent, waiting };
        let thread = std::thread::Builder::new().name("transfer-accept".into()).spawn(move || {
            while !accepting.shared.stop.load(Ordering::Relaxed) {
                if let Err(e) = accepting.round(&listener) {
                    tracing::error!("no worker can connect now: {e}");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        })?;
        Ok(Acceptor { shared, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the acceptor's thread has panicked");
        }
    }
}

impl<H: Fn(Socket) + Clone + Send + 'static> Accepting<H> {
    /// Sleeps until an event, and handles it.
    fn round(&mut self, listener: &Listener) -> Result<(), SocketError> {
        let silent: Vec<Ticket> = self.waiting.iter().filter(|(_, w)| !w.has_spoken).map(|(t, _)| *t).collect();
        let until = silent.first().and_then(|oldest| Some(self.waiting.get(oldest)?.since + self.first_message));
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up, or it would wake too early.
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut fds = vec![PollFd::new(&self.shared.bell, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        fds.extend(silent.iter().filter_map(|t| Some(PollFd::new(&self.waiting.get(t)?.socket, PollFlags::IN))));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(source) => return Err(SocketError::System { step: "wait for a connection", source }),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        // The bell is empty afterwards, whether it rang or not.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        if self.shared.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let spoken = silent.iter().zip(ready.iter().skip(2)).filter(|(_, ready)| **ready);
        for (ticket, _) in spoken {
            if let Some(waiting) = self.waiting.get_mut(ticket) {
                waiting.has_spoken = true;
            }
        }
        self.begin_handshakes();
        self.end_silent();
        if ready.get(1).is_some_and(|ready| *ready) {
            self.accept(listener)?;
        }
        Ok(())
    }

    /// Gives threads to connections that have sent something or were closed, in the order of arrival.
    fn begin_handshakes(&mut self) {
        let spoken = self.waiting.iter().filter(|(_, w)| w.has_spoken).map(|(ticket, _)| *ticket);
        for ticket in spoken.collect::<Vec<_>>() {
            let Some(user) = self.waiting.get(&ticket).map(|w| w.user).filter(|user| self.shared.begin(*user)) else {
                continue;
            };
            let Some(waiting) = self.forget(ticket) else { continue };
            let (shared, handshake) = (self.shared.clone(), self.handshake.clone());
            self.runtime.spawn_blocking(move || {
                handshake(waiting.socket);
                shared.end(user);
            });
        }
    }

    /// Closes connections that have been silent for too long.
    fn end_silent(&mut self) {
        let now = Instant::now();
        let late = self.waiting.iter().filter(|(_, w)| !w.has_spoken && w.since + self.first_message <= now);
        for ticket in late.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            if let Some(waiting) = self.forget(ticket) {
                let (user, long) = (waiting.user, self.first_message);
                tracing::warn!("a connection of user id {user} was closed: it said nothing within {long:?}");
            }
        }
    }

    fn forget(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        self.silent.leave(waiting.user, ticket);
        Some(waiting)
    }

    fn accept(&mut self, listener: &Listener) -> Result<(), SocketError> {
        // The deadline has passed already, so that the call does not wait. The next round accepts later connections.
        let socket = match listener.accept(Instant::now()) {
            Ok(socket) => socket,
            Err(SocketError::TimedOut { .. }) => return Ok(()),
            Err(e) => return Err(e),
        };
        let Ok(user) = (self.user)(&socket) else { return Ok(()) };
        let (ticket, gone) = self.silent.enter(user);
        if let Some(gone) = gone.and_then(|gone| self.waiting.remove(&gone)) {
            tracing::warn!(
                "a connection of user id {} was closed for another one: {WAITING_OF_ONE} of one user and {MAX_WAITING} of all wait for \
                 their handshake at most",
                gone.user
            );
        }
        self.waiting.insert(ticket, Waiting { socket, user, since: Instant::now(), has_spoken: false });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use transfer_memory::socket::Message;

    /// Longer than the test waits, so that no connection is closed because of its time.
    const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);

    /// Longer than a loaded machine needs for any step here.
    const STEP_TIMEOUT: Duration = Duration::from_secs(60);

    fn soon() -> Instant {
        Instant::now() + STEP_TIMEOUT
    }

    struct Scene {
        path: std::path::PathBuf,
        _directory: tempfile::TempDir,
        _acceptor: Acceptor,
        /// The messages that were received in handshakes.
        said: mpsc::Receiver<Vec<u8>>,
        runtime: tokio::runtime::Runtime,
    }

    /// Starts an acceptor whose handshake is one message. A handshake with the message `hang` never ends.
    fn scene(user: fn(&Socket) -> Result<u32, SocketError>) -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = Listener::bind(&path, 0o600).expect("a socket");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let (tell, said) = mpsc::channel();
        let handshake = move |socket: Socket| {
            if let Ok(Message::Bytes { bytes, .. }) = socket.receive(0, Instant::now() + CONNECTION_TIMEOUT) {
                let hangs = bytes == b"hang";
                let _ = tell.send(bytes);
                if hangs {
                    let _ = socket.receive(0, Instant::now() + CONNECTION_TIMEOUT);
                }
            }
        };
        let acceptor = Acceptor::with(listener, handshake, user, CONNECTION_TIMEOUT, runtime.handle().clone());
        let acceptor = acceptor.expect("a thread");
        Scene { path, _directory: directory, _acceptor: acceptor, said, runtime }
    }

    impl Scene {
        fn connect(&self) -> Socket {
            Socket::connect(&self.path, soon()).expect("somebody accepts")
        }

        fn say(&self, socket: &Socket, what: &[u8]) {
            socket.send(what, &[], soon()).expect("it is taken");
        }

        fn hears(&self, what: &[u8]) {
            assert_eq!(self.said.recv_timeout(STEP_TIMEOUT).as_deref(), Ok(what));
        }
    }

    // Promise: silent-connections, seen to fail
    #[test]
    fn silent_connections_keep_no_worker_out() {
        let scene = scene(|_| Ok(1000));
        let silent: Vec<_> = (0..2 * WAITING_OF_ONE).map(|_| scene.connect()).collect();
        let worker = scene.connect();
        scene.say(&worker, b"hello");
        scene.hears(b"hello");
        // Only the oldest connections were closed.
        let closed = silent[0].receive(0, soon());
        assert!(matches!(closed, Err(SocketError::Closed)), "{closed:?}");
        let last = silent.last().expect("some");
        scene.say(last, b"late");
        scene.hears(b"late");
        drop(silent);
        scene.runtime.shutdown_background();
    }

    // Promise: silent-connections, seen to fail
    #[test]
    fn endless_handshakes_of_one_user_do_not_block_other_users() {
        use std::sync::atomic::AtomicU32;
        static CONNECTED: AtomicU32 = AtomicU32::new(0);
        // Two users take their whole shares. Then a third user connects.
        let user = |_: &Socket| {
            let before = CONNECTED.fetch_add(1, Ordering::Relaxed);
            Ok(1000 + before / WAITING_OF_ONE as u32)
        };
        let scene = scene(user);
        let mut hanging = Vec::new();
        for _ in 0..2 {
            for n in 0..WAITING_OF_ONE {
                let socket = scene.connect();
                scene.say(&socket, b"hang");
                if n < HANDSHAKES_OF_ONE {
                    scene.hears(b"hang");
                }
                hanging.push(socket);
            }
        }
        let worker = scene.connect();
        scene.say(&worker, b"hello");
        scene.hears(b"hello");
        // A free thread serves the next connection.
        drop(hanging.remove(0));
        scene.hears(b"hang");
        drop(hanging);
        scene.runtime.shutdown_background();
    }
}
