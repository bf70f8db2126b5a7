//! A running sidecar.
//!
//! A sidecar has two threads: the data plane, which the engine owns, and the control thread for everything else, which
//! has its own runtime. Each handshake of a worker takes one more thread while it lasts.
//!
//! # Layout
//! - this file: starting and stopping a sidecar. `folder`: the folder of one inside a process.
//! - `parts`: what is made before the control thread runs: `sockets`, `memory`, `member`, `data_plane`, and the fabrics (`fabrics`,
//!   with `shm`, `tcp` and `verbs`).
//! - `run`: the control thread: `services`, what answers workers, peers and tools; `servers`, the listeners for gRPC.

mod data_plane;
mod error;
mod fabrics;
mod folder;
mod member;
mod memory;
mod parts;
mod run;
mod servers;
mod services;
mod sockets;

pub use error::StartError;
pub(crate) use fabrics::check as check_required;
pub(crate) use parts::folder_for_copies;

use crate::config::{self, Config, Loaded};
use crate::reload::{Live, ReloadError, Reloaded};
use crate::sessions::{RegisterError, RegisteredMemory};
use folder::PrivateFolder;
use parts::Parts;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};
use transfer_core::tensor::Name;
use transfer_fabric::engine::Turns;
use transfer_memory::segment::OwnedMemory;

/// The addresses of a sidecar as they were bound, with the actual ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The node's name.
    pub node: Name,
    /// The number of this start. It is higher than the number of every earlier start.
    pub incarnation: u64,
    /// The socket for workers.
    pub socket: PathBuf,
    /// The address of the gRPC services.
    pub grpc: Option<SocketAddr>,
    /// The Unix socket of the gRPC services.
    pub admin_socket: Option<PathBuf>,
    /// The address of the metrics and the status page.
    pub http: Option<SocketAddr>,
    /// The tcp fabric's address, as peers know it.
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

/// A running sidecar. Dropping it stops it and removes its sockets.
#[derive(Debug)]
pub struct Sidecar {
    addresses: Addresses,
    stop: Option<oneshot::Sender<()>>,
    ended: watch::Receiver<()>,
    drained: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    live: Live,
    turns: Turns,
    /// Dropped last, which removes the folder.
    _folder: Option<PrivateFolder>,
}

impl Sidecar {
    /// Starts a sidecar, and waits until workers can connect. If another node hosts the directory, it waits for that
    /// node for up to two seconds; after that the sidecar continues to try in the background.
    ///
    /// The sidecar has its own threads and needs no runtime. The call blocks for some milliseconds, or as long as the
    /// preparation of memory takes.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Sidecar, StartError> {
        Sidecar::start_in(config, None)
    }

    /// Starts a sidecar for the workers of this process. Its socket is in a folder that only this user can enter,
    /// and it has no TCP. The folders that killed processes of this user have left are removed.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn embedded(node: Name) -> Result<Sidecar, StartError> {
        let folder = PrivateFolder::make()?;
        Sidecar::start_in(Config::single(node, &folder.socket()), Some(folder))
    }

    /// Starts a sidecar inside a worker's process, with the settings of a node: pairs of a key of `transferd`'s file
    /// and a value. It has its listener, its place in the directory, its peers and all fabrics. Its workers'
    /// socket is in such a folder as that of [`Sidecar::embedded`].
    ///
    /// # Errors
    /// [`StartError::Setting`] for settings that are not valid, and the errors of [`Sidecar::start`].
    pub fn in_process(settings: &[(String, String)]) -> Result<Sidecar, StartError> {
        let folder = PrivateFolder::make()?;
        let mut config = config::in_process(settings, &folder.socket())?;
        // By default that is the directory of the workers' socket, where nobody could be met.
        if config.fabrics.shm.directory.is_none() {
            config.fabrics.shm.directory = meeting_place();
        }
        Sidecar::start_in(config, Some(folder))
    }

    fn start_in(config: Config, folder: Option<PrivateFolder>) -> Result<Sidecar, StartError> {
        let parts = Parts::make(config)?;
        let (addresses, turns) = (parts.addresses.clone(), parts.data_plane.engine.turns().clone());
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
                Ok(Sidecar { addresses, stop, ended, drained, thread, live, turns, _folder: folder })
            }
            // The thread has nothing left to do.
            Ok(Err(e)) => {
                let _ = thread.join();
                Err(e)
            }
            Err(_) => Err(StartError::Services("the control thread has ended".into())),
        }
    }

    /// Its engine, for threads of this process that wait for it.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Registers memory of a worker of this process, which is sent and lands there without a copy. Blocks until all fabrics know it.
    ///
    /// # Errors
    /// [`RegisterError`], with the memory if no device may have it.
    pub fn register(
        &self,
        session: u64,
        worker: &Name,
        owner: Box<dyn OwnedMemory>,
    ) -> Result<RegisteredMemory, (RegisterError, Option<Box<dyn OwnedMemory>>)> {
        self.live.sessions.register(session, worker, owner)
    }

    /// Applies a new configuration as far as a running sidecar can. Returns the changed keys that are in effect, and
    /// the changed keys that need a restart.
    ///
    /// # Errors
    /// The new configuration is invalid. Nothing has changed then.
    pub fn reload(&self, before: &Loaded, new: &Loaded) -> Result<Reloaded, ReloadError> {
        self.live.apply(before, new, &new.config()?)
    }

    /// Returns the addresses of the sidecar.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Waits until the sidecar has ended by itself: after a drain, or because of a defect.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// Returns whether the sidecar has ended because of a drain.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// Stops the sidecar: informs workers and peers, and removes the sockets. Blocks until that is done.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // There is no receiver if the sidecar has ended by itself.
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

/// Makes the directory in which a user's processes meet, and returns it: in that of the user's session, or in the one for
/// temporary files. `None` if it belongs to somebody else, or others may enter it.
fn meeting_place() -> Option<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let place = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(session) if !session.is_empty() => PathBuf::from(session).join("transfer"),
        _ => std::env::temp_dir().join(format!("transfer-{user}")),
    };
    // It may be there; what counts is what is there.
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&place);
    match std::fs::symlink_metadata(&place) {
        Ok(found) if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 => Some(place),
        found => {
            tracing::warn!(
                ?place,
                ?found,
                "no directory for this user alone: shared memory is used where shm_dir names one"
            );
            None
        }
    }
}
