//! A sidecar inside this process.

use crate::Error;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use transfer_core::tensor::Name;
use transfer_memory::forked::ForkGuard;
use transfer_server::Sidecar;

/// The running sidecar, if any. All embedded clients of a process share it, so that they can talk to each other.
static RUNNING: Mutex<Running> = Mutex::new(Running { sidecar: Weak::new(), guard: None });

struct Running {
    sidecar: Weak<Sidecar>,
    /// The process that started it: a forked child has none of its threads.
    guard: Option<ForkGuard>,
}

/// The socket at which other processes of this user connect to this process's sidecar. `None` if no sidecar runs, and
/// in a forked child.
#[must_use]
pub fn embedded_socket() -> Option<PathBuf> {
    let running = RUNNING.lock();
    let is_ours = running.guard.as_ref().is_some_and(|guard| !guard.is_forked());
    running.sidecar.upgrade().filter(|_| is_ours).map(|sidecar| sidecar.addresses().socket.clone())
}

/// Returns the process's sidecar and its socket, and starts the sidecar if needed. It stops with its last holder.
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
