//! The sessions of clients: how they begin, what they are, and their end.

use super::both_clients;
use super::connect::Connect;
use crate::error::SessionEnd;
use crate::request::{BlockingClient, Client, HasHandle};
#[cfg(feature = "embedded")]
use crate::session::NodeConfig;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use transfer_memory::socket::Socket;

impl Client {
    /// Connects to the sidecar that listens at `path`. Await it on a tokio runtime with I/O and time enabled; a task on
    /// that runtime serves the client from then on.
    pub fn connect(path: impl AsRef<Path>) -> Connect<Client> {
        Connect::to_path(path.as_ref())
    }

    /// Connects to a sidecar inside this process. The sidecar is started if needed, and ends with its last client. All
    /// embedded clients of a process share it; give each its own name.
    #[cfg(feature = "embedded")]
    pub fn embedded() -> Connect<Client> {
        Connect::embedded(None)
    }

    /// Connects to a sidecar inside this process that is a node of a cluster: it has a listener, a place in the directory,
    /// peers and all fabrics, and other nodes may have a sidecar inside or beside their workers. It is started if needed,
    /// and ends with its last client. All embedded clients of a process share it; who asks for another configuration than
    /// it has gets [`Error::NotStarted`](crate::Error::NotStarted), which names the difference.
    ///
    /// Other processes of this user connect at [`crate::embedded_socket`].
    #[cfg(feature = "embedded")]
    pub fn embedded_with(config: NodeConfig) -> Connect<Client> {
        Connect::embedded(Some(config))
    }

    /// Begins a session over a connected socket.
    pub fn from_socket(socket: Socket) -> Connect<Client> {
        Connect::to_socket(socket)
    }

    /// Closes the client and all its clones, as [`BlockingClient::close`] does.
    pub async fn close(&self) {
        let connection = self.handle().connection().clone();
        // If the runtime is shutting down, the session ends with it.
        let _ = tokio::task::spawn_blocking(move || connection.close()).await;
    }

    /// Returns the session's client for threads that block. Any thread may use it, except those of the runtime.
    #[must_use]
    pub fn blocking(&self) -> BlockingClient {
        BlockingClient::of(self.handle().clone())
    }
}

impl BlockingClient {
    /// Connects to the sidecar that listens at `path`.
    pub fn connect(path: impl AsRef<Path>) -> Connect<BlockingClient> {
        Connect::to_path(path.as_ref())
    }

    /// Connects to a sidecar inside this process; see [`Client::embedded`].
    #[cfg(feature = "embedded")]
    pub fn embedded() -> Connect<BlockingClient> {
        Connect::embedded(None)
    }

    /// Connects to a sidecar inside this process that is a node of a cluster; see [`Client::embedded_with`].
    #[cfg(feature = "embedded")]
    pub fn embedded_with(config: NodeConfig) -> Connect<BlockingClient> {
        Connect::embedded(Some(config))
    }

    /// Begins a session over a connected socket.
    pub fn from_socket(socket: Socket) -> Connect<BlockingClient> {
        Connect::to_socket(socket)
    }

    /// Closes the client and all its clones: every call that waits, and every later one, fails at once with
    /// [`Error::ClientClosed`](crate::Error::ClientClosed). The versions that it has published end as those of a worker
    /// that ends. What was fetched stays readable; its memory is returned with the last fetched tensor.
    ///
    /// When this returns, another worker can have the name. A sidecar that does not answer within 5 s frees it once it does.
    pub fn close(&self) {
        self.handle().connection().close();
    }
}

both_clients! {
    /// This worker's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle().worker().as_str()
    }

    /// The name of the sidecar's node.
    #[must_use]
    pub fn node(&self) -> &str {
        self.handle().node().as_str()
    }

    /// The incarnation of the sidecar: another number after a restart.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.handle().session().incarnation()
    }

    /// The reason why the session is over; `None` while the sidecar is there. After [`SessionEnd::Away`] the client
    /// reconnects by itself, with the versions that it has published.
    #[must_use]
    pub fn gone(&self) -> Option<SessionEnd> {
        self.handle().session().gone()
    }

    /// What a library on the client keeps for it: one `T` for all clones of the client and all its sessions. The first
    /// call makes it.
    #[must_use]
    pub fn extension<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        self.handle().connection().extension()
    }

    /// The size of the arena, in bytes.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        self.handle().session().arena().mapping().len()
    }

    /// The free length of the arena, in all pieces together, in bytes.
    #[must_use]
    pub fn arena_free_bytes(&self) -> u64 {
        let session = self.handle().session();
        session.home().sweep();
        session.arena().free_bytes()
    }
}
