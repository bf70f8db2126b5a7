//! The two clients, by which every request says how it is made.

use crate::session::{Connection, Session};
use std::fmt::Debug;
use std::sync::Arc;
use transfer_core::tensor::Name;

/// A session with the sidecar of this node, for a worker on tokio: calls are awaited. Cheap to clone; all clones share
/// the session, which ends with [`close`](Client::close), or with the last clone, call and fetched tensor.
#[derive(Debug, Clone)]
pub struct Client(Handle);

/// A session with the sidecar of this node, for a worker without a runtime: calls end with `call()`. Any number of
/// threads may share it.
#[derive(Debug, Clone)]
pub struct BlockingClient(Handle);

/// What both clients are made of: the connection, and the names of its ends, as others check them.
#[derive(Debug, Clone)]
pub struct Handle {
    connection: Arc<Connection>,
    names: Arc<Names>,
}

#[derive(Debug)]
struct Names {
    worker: Name,
    node: Name,
}

impl Handle {
    pub(crate) fn new(connection: Arc<Connection>, worker: Name, node: Name) -> Handle {
        Handle { connection, names: Arc::new(Names { worker, node }) }
    }

    /// The current session.
    pub(crate) fn session(&self) -> Arc<Session> {
        self.connection.session()
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The worker's name.
    pub(crate) fn worker(&self) -> &Name {
        &self.names.worker
    }

    /// The name of the sidecar's node.
    pub(crate) fn node(&self) -> &Name {
        &self.names.node
    }
}

mod sealed {
    use super::Handle;

    pub trait Sealed {
        /// Makes a client.
        fn of(handle: Handle) -> Self;

        fn handle(&self) -> &Handle;
    }
}

pub(crate) use sealed::Sealed as HasHandle;

/// [`Client`] or [`BlockingClient`]. What belongs to a client names it, as `Fetch<Client>` does, and is awaited or called
/// as that client is.
pub trait AnyClient: sealed::Sealed + Debug + Clone + Send + Sync + Unpin + 'static {}

impl AnyClient for Client {}
impl AnyClient for BlockingClient {}

impl sealed::Sealed for Client {
    fn of(handle: Handle) -> Client {
        Client(handle)
    }

    fn handle(&self) -> &Handle {
        &self.0
    }
}

impl sealed::Sealed for BlockingClient {
    fn of(handle: Handle) -> BlockingClient {
        BlockingClient(handle)
    }

    fn handle(&self) -> &Handle {
        &self.0
    }
}
