//! The descriptors on which asyncio waits: the session's, and one that the wakers of calls ring.

use crate::client::Client;
use crate::errors;
use parking_lot::Mutex;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use transfer_client::Doorbell;

/// The calls that can continue. Wakers run on any thread, without the interpreter's lock.
#[derive(Debug)]
struct Woken {
    numbers: Mutex<Vec<u64>>,
    event: OwnedFd,
}

impl Woken {
    fn ring(&self) {
        // The counter is full only after 2^64 rings without a read.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// Wakes one call.
struct One {
    number: u64,
    woken: Arc<Woken>,
}

impl Wake for One {
    fn wake(self: Arc<Self>) {
        self.woken.numbers.lock().push(self.number);
        self.woken.ring();
    }
}

/// Wakes the event loop, so that it serves the session.
struct Serve(Arc<Woken>);

impl Wake for Serve {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

/// The descriptors that an event loop watches for one session of a client.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Bell {
    woken: Arc<Woken>,
    socket: OwnedFd,
    doorbell: Doorbell,
}

impl Bell {
    pub(crate) fn waker(&self, number: u64) -> Waker {
        Waker::from(Arc::new(One { number, woken: self.woken.clone() }))
    }
}

#[pymethods]
impl Bell {
    /// Makes a bell for the current session of the client.
    #[new]
    fn new(py: Python<'_>, client: &Client) -> PyResult<Bell> {
        let handle = client.handle(py)?;
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let woken = Arc::new(Woken { numbers: Mutex::default(), event });
        let doorbell = handle.doorbell(Waker::from(Arc::new(Serve(woken.clone()))));
        let socket = doorbell.socket().map_err(|e| PyOSError::new_err(e.to_string()))?;
        Ok(Bell { woken, socket, doorbell })
    }

    /// The descriptors to watch. When one is readable, call `serve()`.
    fn descriptors(&self) -> (i32, i32) {
        (self.socket.as_raw_fd(), self.woken.event.as_raw_fd())
    }

    /// The incarnation of the sidecar that the bell belongs to.
    #[getter]
    fn incarnation(&self) -> u64 {
        self.doorbell.incarnation()
    }

    /// Handles the answers that have arrived. Returns the numbers of the calls that can continue, and whether the
    /// session is still open.
    fn serve(&self, py: Python<'_>) -> PyResult<(Vec<u64>, bool)> {
        let mut count = [0; 8];
        match rustix::io::read(&self.woken.event, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(e) => return Err(errors::own(py, "invalid", &format!("the bell cannot be read: {e}"))),
        }
        let lives = py.detach(|| self.doorbell.serve());
        Ok((std::mem::take(&mut *self.woken.numbers.lock()), lives))
    }
}
