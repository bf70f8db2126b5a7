//! A running sidecar.
//!
//! Two threads: the data plane, which the engine owns, and one for everything else, with a runtime of its own; handshakes of workers take
//! a thread each for as long as they last.

mod error;
mod fabrics;
mod parts;
mod run;
mod shm;
mod tcp;
mod verbs;

pub use error::StartError;
pub(crate) use fabrics::check as check_required;

use crate::config::{Config, Loaded};
use crate::reload::{Live, ReloadError, Reloaded};
use parts::Parts;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use transfer_core::tensor::Name;

/// Where a sidecar is reached: what was bound, with real ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The node's name.
    pub node: Name,
    /// Another number at each start, higher than before.
    pub incarnation: u64,
    /// Where workers connect.
    pub socket: PathBuf,
    /// Where the gRPC services listen.
    pub grpc: Option<SocketAddr>,
    /// A Unix socket where they listen too.
    pub admin_socket: Option<PathBuf>,
    /// Where metrics and the status page are served.
    pub http: Option<SocketAddr>,
    /// The tcp fabric's address, as peers are told.
    pub data: Option<SocketAddr>,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node={} incarnation={} socket={}", self.node, self.incarnation, self.socket.display())?;
        if let Some(grpc) = self.grpc {
            write!(f, " grpc={grpc}")?;
        }
        if let Some(admin) = &self.admin_socket {
            write!(f, " admin={}", admin.display())?;
        }
        if let Some(http) = self.http {
            write!(f, " http={http}")?;
        }
        if let Some(data) = self.data {
            write!(f, " data={data}")?;
        }
        Ok(())
    }
}

/// A running sidecar. It stops when dropped; its sockets are removed then.
#[derive(Debug)]
pub struct Sidecar {
    addresses: Addresses,
    stop: Option<oneshot::Sender<()>>,
    ended: watch::Receiver<()>,
    drained: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    live: Live,
    /// Removed when everything else is gone.
    _directory: Option<TempDir>,
}

impl Sidecar {
    /// Starts a sidecar and waits until workers can connect. Where the directory is another node's, it waits for that node for up to
    /// two seconds; then the sidecar goes on trying in the background.
    ///
    /// It has its own threads and needs no runtime. It blocks the caller for some milliseconds, or as long as memory takes to be
    /// prepared.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Sidecar, StartError> {
        Sidecar::start_in(config, None)
    }

    /// Starts a sidecar for the workers of this process: its socket in a directory that nobody else can enter, no TCP.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn embedded(node: Name) -> Result<Sidecar, StartError> {
        let directory = tempfile::Builder::new()
            .prefix("transfer-")
            .tempdir()
            .map_err(|source| StartError::System { what: "making a temporary directory", source })?;
        let config = Config::single(node, &directory.path().join("worker.sock"));
        Sidecar::start_in(config, Some(directory))
    }

    fn start_in(config: Config, directory: Option<TempDir>) -> Result<Sidecar, StartError> {
        let parts = Parts::make(config)?;
        let addresses = parts.addresses.clone();
        let (stop, stopped) = oneshot::channel();
        let (alive, ended) = watch::channel(());
        let drained = Arc::new(AtomicBool::new(false));
        let tell_drained = drained.clone();
        let (report, started) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("transfer-ctrl".into())
            .spawn(move || {
                tell_drained.store(run::run(parts, stopped, report), Ordering::Release);
                drop(alive);
            })
            .map_err(|source| StartError::System { what: "starting the control thread", source })?;
        match started.recv() {
            Ok(Ok(live)) => {
                let (stop, thread) = (Some(stop), Some(thread));
                Ok(Sidecar { addresses, stop, ended, drained, thread, live, _directory: directory })
            }
            // It has nothing left to do but to end.
            Ok(Err(e)) => {
                let _ = thread.join();
                Err(e)
            }
            Err(_) => Err(StartError::Services("the control thread has ended".into())),
        }
    }

    /// Takes a new configuration as far as a running sidecar can; the answer says which keys need a restart.
    ///
    /// # Errors
    /// What is wrong with the new one; everything stays as it was then.
    pub fn reload(&self, before: &Loaded, new: &Loaded) -> Result<Reloaded, ReloadError> {
        self.live.apply(before, new, &new.config()?)
    }

    /// Where it is reached.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Waits until the sidecar has ended by itself: after a drain, or by a defect.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// Whether it has ended because an operator let it drain.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// Stops it: workers and peers are told, sockets removed. Blocks until that is done.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Where it has ended by itself there is nobody to tell.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread has panicked");
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.end();
    }
}
