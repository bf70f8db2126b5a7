//! A sidecar inside of this process.

use crate::Error;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use transfer_core::tensor::Name;
use transfer_memory::forked::ForkGuard;
use transfer_server::Sidecar;

/// The one that runs, if any: all embedded clients of a process share it, so that they can talk to each other.
static RUNNING: Mutex<Running> = Mutex::new(Running { sidecar: Weak::new(), guard: None });

struct Running {
    sidecar: Weak<Sidecar>,
    /// Whose it is: a forked child has none of its threads.
    guard: Option<ForkGuard>,
}

/// Where other processes of this user connect to the sidecar of this process. `None` where none runs, or in a forked child.
#[must_use]
pub fn embedded_socket() -> Option<PathBuf> {
    let running = RUNNING.lock();
    let is_ours = running.guard.as_ref().is_some_and(|guard| !guard.is_forked());
    running.sidecar.upgrade().filter(|_| is_ours).map(|sidecar| sidecar.addresses().socket.clone())
}

/// The process's sidecar, started where there is none yet, and where to connect to it. It stops with the last holder.
pub(crate) fn sidecar() -> Result<(Arc<Sidecar>, PathBuf), Error> {
    let mut running = RUNNING.lock();
    let is_ours = running.guard.as_ref().is_some_and(|guard| !guard.is_forked());
    let sidecar = match running.sidecar.upgrade().filter(|_| is_ours) {
        Some(sidecar) => sidecar,
        None => {
            let failed = |e: transfer_memory::Errno| Error::NotStarted {
                reason: format!("no memory to guard it against forks: {e}"),
            };
            let guard = ForkGuard::new().map_err(failed)?;
            let started = Sidecar::embedded(Name::new("embedded")?);
            let sidecar = Arc::new(started.map_err(|e| Error::NotStarted { reason: e.to_string() })?);
            *running = Running { sidecar: Arc::downgrade(&sidecar), guard: Some(guard) };
            sidecar
        }
    };
    let path = sidecar.addresses().socket.clone();
    Ok((sidecar, path))
}
