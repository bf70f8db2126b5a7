//! The doorbell of a session, for programs that wait on descriptors.
//!
//! Such a program does the work of an async client's driver: it watches [`Doorbell::socket`], and calls
//! [`Doorbell::serve`] when that descriptor is readable. `serve` runs the wakers of its calls.

use crate::request::{BlockingClient, HasHandle};
use crate::session::Session;
use rustix::fd::OwnedFd;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The doorbell of one session, for a program that waits on descriptors. It takes the place of an async client's
/// driver.
pub struct Doorbell {
    session: Arc<Session>,
}

impl Doorbell {
    /// A descriptor that is readable when [`Doorbell::serve`] must be called. It is a duplicate, and belongs to the
    /// caller.
    ///
    /// # Errors
    /// The system's, if the process has no descriptor left.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.session.socket().try_clone_to_owned()
    }

    /// Handles all answers that have arrived, wakes their calls, and asks the sidecar to ring for the next one. `false`
    /// if the session is over; the descriptor then stays readable.
    #[must_use]
    pub fn serve(&self) -> bool {
        self.session.serve().is_ok()
    }

    /// The incarnation of the sidecar that this doorbell belongs to. When [`Client::incarnation`](crate::Client::incarnation) returns another
    /// number, the program needs a new doorbell.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.session.incarnation()
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.session.driver().detach();
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").field("incarnation", &self.incarnation()).finish_non_exhaustive()
    }
}

impl BlockingClient {
    /// Handles the sidecar's answers so far, without waiting, so that returned memory of the arena is free. Every call
    /// that waits does the same.
    pub fn take_answers(&self) {
        // If the session is over, the next call reports it.
        let _ = self.handle().session().serve();
    }

    /// Takes the place of a driver: from now on the caller calls [`Doorbell::serve`] when the doorbell's descriptor is
    /// readable, or when `waker` is woken. A session has at most one doorbell in its life.
    pub fn doorbell(&self, waker: Waker) -> Doorbell {
        let session = self.handle().session();
        session.attach_driver(waker);
        Doorbell { session }
    }
}
