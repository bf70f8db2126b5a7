//! The status of a sidecar, and the counts that tests compare with earlier ones.

use tonic::transport::Channel;
use transfer_proto::v1::{self, Fabric, StatusResponse};

/// A connection to the gRPC services of a sidecar.
#[derive(Debug)]
pub struct Admin {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Admin {
    /// Connects to the services at a Unix socket, with the first call. The sidecar need not run yet.
    ///
    /// # Panics
    /// If no runtime can be made.
    #[must_use]
    pub fn at(socket: std::path::PathBuf) -> Admin {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connect = move |_| {
            let socket = socket.clone();
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        };
        let channel = {
            let _entered = runtime.enter();
            let endpoint = tonic::transport::Endpoint::from_static("http://admin");
            endpoint.connect_with_connector_lazy(tower::service_fn(connect))
        };
        Admin { runtime, channel }
    }

    /// Runs `call` with a channel to the services, and waits for its result.
    pub fn call<F: Future>(&self, call: impl FnOnce(Channel) -> F) -> F::Output {
        self.runtime.block_on(call(self.channel.clone()))
    }

    /// Asks for the sidecar's status, its workers and its links.
    ///
    /// # Errors
    /// The sidecar's error, or the connection's.
    pub fn status(&self) -> Result<Seen, tonic::Status> {
        let ask = || {
            self.call(|channel| async {
                let mut admin = v1::admin_client::AdminClient::new(channel);
                let status = admin.status(v1::StatusRequest {}).await?.into_inner();
                // Tests have at most one page of sessions and links.
                let request = v1::SessionsRequest { page_size: 1000, ..Default::default() };
                let sessions = admin.sessions(request).await?.into_inner().sessions;
                let request = v1::LinksRequest { page_size: 1000, ..Default::default() };
                let links = admin.links(request).await?.into_inner().links;
                Ok(Seen { status, sessions, links })
            })
        };
        // Between calls nothing answers the sidecar's pings, so it may have closed this connection. The next call opens
        // a new one.
        ask().or_else(|_| ask())
    }

    /// Returns the tensors whose key begins with `prefix`, in the order of their keys.
    ///
    /// # Errors
    /// The sidecar's error, or the connection's.
    pub fn tensors(&self, prefix: &str) -> Result<Vec<v1::Tensor>, tonic::Status> {
        self.call(|channel| async {
            let mut admin = v1::admin_client::AdminClient::new(channel);
            let request = v1::TensorsRequest { prefix: prefix.to_owned(), page_size: 1000, ..Default::default() };
            let mut tensors = admin.tensors(request).await?.into_inner().tensors;
            tensors.sort_by(|a, b| a.key.cmp(&b.key));
            Ok(tensors)
        })
    }
}

/// The status of a sidecar, its workers and its links, asked for one after the other.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Seen {
    pub status: StatusResponse,
    pub sessions: Vec<v1::Session>,
    pub links: Vec<v1::Link>,
}

impl std::ops::Deref for Seen {
    type Target = StatusResponse;

    fn deref(&self) -> &StatusResponse {
        &self.status
    }
}

/// All counts of a [`StatusResponse`] that describe the present, and not the time since the start. They must be as
/// before when all workers have gone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub sessions: u64,
    pub tensors: u64,
    pub blobs: u64,
    pub leases: u64,
    pub operations: u64,
    pub slots: u64,
    pub pool_used_bytes: u64,
    pub pool_waiting: u64,
    pub pinned_bytes: u64,
    /// Summed over all links: messages queued, requests made, requests served, and keys pushed in each direction.
    pub links: [u64; 5],
    /// In the directory, if this sidecar hosts it.
    pub keys: u64,
    pub workers: u64,
    pub watches: u64,
}

impl Counts {
    /// Returns the counts of a status.
    #[must_use]
    pub fn of(status: &StatusResponse) -> Counts {
        let counters = status.counters.clone().unwrap_or_default();
        let directory = status.directory.clone().unwrap_or_default();
        Counts {
            sessions: counters.sessions,
            tensors: counters.tensors,
            blobs: counters.blobs,
            leases: counters.leases,
            operations: counters.operations,
            slots: counters.slots,
            pool_used_bytes: status.pools.iter().map(|p| p.used_bytes).sum(),
            pool_waiting: status.pools.iter().map(|p| p.waiting).sum(),
            pinned_bytes: status.pinned_bytes,
            links: [counters.queued, counters.pulls, counters.serves, counters.flows_out, counters.flows_in],
            keys: directory.keys,
            workers: directory.workers,
            watches: directory.watches,
        }
    }
}

impl Counts {
    /// Returns whether no worker is connected and nothing is held, under way or waited for. Pinned memory and the
    /// entries of the directory may stay.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let Counts { tensors, blobs, leases, operations, slots, pool_used_bytes, pool_waiting, .. } = *self;
        let held = tensors + blobs + leases + operations + slots + pool_used_bytes + pool_waiting;
        (self.sessions, held, self.links) == (0, 0, [0; 5])
    }
}

/// Returns the transfers that one fabric has finished since the start.
#[must_use]
pub fn finished(status: &StatusResponse, fabric: Fabric) -> v1::Path {
    let counters = status.counters.clone().unwrap_or_default();
    counters.finished.into_iter().find(|path| path.fabric() == fabric).unwrap_or_default()
}

/// Returns the number of operations of a worker that are under way; 0 if the worker is not connected.
#[must_use]
pub fn operations_of(status: &Seen, worker: &str) -> u64 {
    status.sessions.iter().find(|s| s.worker == worker).map_or(0, |s| s.operations)
}
