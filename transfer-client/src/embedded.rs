//! A sidecar inside of this process.

use crate::Error;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use transfer_core::tensor::Name;
use transfer_server::Sidecar;

/// The one that runs, if any: all embedded clients of a process share it, so that they can talk to each other.
static RUNNING: Mutex<Weak<Sidecar>> = Mutex::new(Weak::new());

/// The process's sidecar, started where there is none yet, and where to connect to it. It stops with the last holder.
pub(crate) fn sidecar() -> Result<(Arc<Sidecar>, PathBuf), Error> {
    let mut running = RUNNING.lock();
    let sidecar = match running.upgrade() {
        Some(sidecar) => sidecar,
        None => {
            let started = Sidecar::embedded(Name::new("embedded")?);
            let sidecar = Arc::new(started.map_err(|e| Error::NotStarted { reason: e.to_string() })?);
            *running = Arc::downgrade(&sidecar);
            sidecar
        }
    };
    let path = sidecar.addresses().socket.clone();
    Ok((sidecar, path))
}
