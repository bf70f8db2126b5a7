//! The thread that accepts workers' connections. It sleeps until one comes.

use super::Sessions;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use transfer_memory::socket::{Listener, SocketError};

/// Handshakes at once. Each has a thread; more workers wait in the socket's queue.
const HANDSHAKES: usize = 16;

/// The pause after a failure that will not pass at once: no more descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts workers until dropped, which also removes the socket's path.
#[derive(Debug)]
pub(crate) struct Acceptor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Rings when the acceptor has to look at the others.
    bell: OwnedFd,
    stop: AtomicBool,
    handshakes: AtomicUsize,
}

impl Shared {
    fn ring(&self) {
        // It fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl Acceptor {
    /// Starts the thread. Handshakes run on the blocking threads of `runtime`.
    pub(crate) fn start(listener: Listener, sessions: Sessions, runtime: Handle) -> std::io::Result<Acceptor> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { bell, stop: AtomicBool::new(false), handshakes: AtomicUsize::new(0) });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("transfer-accept".into()).spawn(move || {
            while !of_thread.stop.load(Ordering::Relaxed) {
                if let Err(e) = wait_and_accept(&listener, &of_thread, &sessions, &runtime) {
                    tracing::error!("no worker can connect now: {e}");
                    std::thread::sleep(PAUSE);
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

fn wait_and_accept(
    listener: &Listener,
    shared: &Arc<Shared>,
    sessions: &Sessions,
    runtime: &Handle,
) -> Result<(), SocketError> {
    let room = shared.handshakes.load(Ordering::Relaxed) < HANDSHAKES;
    let mut fds = [PollFd::new(&shared.bell, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
    let watched = if room { &mut fds[..] } else { &mut fds[..1] };
    match poll(watched, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(source) => return Err(SocketError::System { step: "wait for a connection", source }),
    }
    // Empties the bell, or finds it empty.
    let _ = rustix::io::read(&shared.bell, &mut [0; 8]);
    if !room || shared.stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    // One that is in the past: what has not come yet is waited for above.
    match listener.accept(Instant::now()) {
        Ok(socket) => {
            shared.handshakes.fetch_add(1, Ordering::Relaxed);
            let (shared, sessions) = (shared.clone(), sessions.clone());
            runtime.spawn_blocking(move || {
                sessions.handshake(socket);
                shared.handshakes.fetch_sub(1, Ordering::Relaxed);
                shared.ring();
            });
            Ok(())
        }
        Err(SocketError::TimedOut { .. }) => Ok(()),
        Err(e) => Err(e),
    }
}
