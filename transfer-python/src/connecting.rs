//! Connections to sidecars, also to the one in this process.

use crate::errors::{self, About};
use crate::pending::look_up;
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, Connect, NodeConfig};

/// The socket at which processes of this user connect to the sidecar in this process; None if none runs.
#[pyfunction]
#[pyo3(name = "_embedded_socket")]
pub(crate) fn embedded_socket() -> Option<PathBuf> {
    transfer_client::embedded_socket()
}

/// The address, as host and port, at which other nodes reach this process's sidecar.
#[pyfunction]
#[pyo3(name = "_embedded_address")]
pub(crate) fn embedded_address() -> Option<String> {
    transfer_client::embedded_addresses()?.grpc.map(|address| address.to_string())
}

/// The name of the process in a cluster, if it has one, and pairs of a key and a value of a sidecar's settings.
pub(crate) type Settings = (Option<String>, Vec<(String, String)>);

/// Begins to connect to the sidecar at a path, or to that of this process, which has these settings.
pub(crate) fn begin(path: Option<PathBuf>, sidecar: Option<Settings>) -> Connect<BlockingClient> {
    match (path, sidecar) {
        (Some(path), _) => BlockingClient::connect(path),
        (None, None) => BlockingClient::embedded(),
        (None, Some((node, settings))) => {
            let config = node.map_or_else(NodeConfig::default, NodeConfig::new);
            let config = settings.into_iter().fold(config, |config, (key, value)| config.set(key, value));
            BlockingClient::embedded_with(config)
        }
    }
}

/// Connects on a separate thread, so that signals are handled meanwhile.
pub(crate) fn connect(py: Python<'_>, connect: Connect<BlockingClient>) -> PyResult<BlockingClient> {
    let started = Instant::now();
    let (done, receiver) = channel::<Infallible>();
    let thread = std::thread::Builder::new().name("transfer-connect".into());
    let thread = thread.spawn(move || {
        let connected = connect.call();
        drop(done);
        connected
    })?;
    let receiver = Mutex::new(receiver);
    // The channel says only that the thread has ended.
    while let Err(RecvTimeoutError::Timeout) = py.detach(|| receiver.lock().recv_timeout(Duration::from_millis(40))) {
        look_up(py)?;
    }
    match py.detach(|| thread.join()) {
        Ok(connected) => {
            connected.map_err(|e| errors::raise(py, &e, &About { key: None, waited: Some(started.elapsed()) }))
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
