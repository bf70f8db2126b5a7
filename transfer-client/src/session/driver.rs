//! The driver: the task that reads for an async client.

use crate::error::Error;
use crate::session::Session;
use std::io::ErrorKind;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use transfer_memory::Errno;
use transfer_memory::session::SessionError;
use transfer_memory::socket::SocketError;

/// The interval of the search for operations that a stuck sidecar has not answered.
const STUCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Wakes the driver.
#[derive(Debug, Default)]
struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Marks that the session has a driver, for as long as it lives.
#[derive(Debug)]
struct Seat(Weak<Session>);

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(session) = self.0.upgrade() {
            session.driver().detach();
        }
    }
}

/// Starts the driver on the current runtime. It ends with the session.
pub(crate) fn spawn(session: &Arc<Session>) -> Result<(), Error> {
    let failed = |e: std::io::Error| {
        let source = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        Error::Connect(SessionError::Socket(SocketError::System { step: "watch", source }))
    };
    // The driver has its own descriptor, because the session keeps the socket for threads that block on it. A socket of
    // packets is no stream, but only its readiness is used here.
    let fd = session.socket().try_clone_to_owned().map_err(failed)?;
    let fd = UnixStream::from_std(fd.into()).map_err(failed)?;
    let bell = Arc::new(Bell::default());
    session.attach_driver(Waker::from(bell.clone()));
    tokio::spawn(drive(Seat(Arc::downgrade(session)), fd, bell));
    Ok(())
}

async fn drive(seat: Seat, fd: UnixStream, bell: Arc<Bell>) {
    let serve = || seat.0.upgrade().is_some_and(|session| session.serve().is_ok());
    let mut tick = tokio::time::interval(STUCK_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut go_on = serve();
    while go_on {
        tokio::select! {
            ready = fd.readable() => {
                if ready.is_err() {
                    return;
                }
                // Everything was read, here or by a thread that wakes this task when it leaves something. So wait for
                // more.
                let read_all = || {
                    go_on = serve();
                    Err::<(), _>(ErrorKind::WouldBlock.into())
                };
                let _ = fd.try_io(Interest::READABLE, read_all);
            }
            () = bell.0.notified() => go_on = serve(),
            _ = tick.tick() => match seat.0.upgrade() {
                Some(session) => session.wake_overdue(),
                None => return,
            },
        }
    }
}
