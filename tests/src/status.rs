//! What a sidecar shows of itself, as far as tests hold it against what it was before.

use tonic::transport::Channel;
use transfer_proto::v1::{self, Fabric, StatusResponse};

/// A connection to the gRPC services of a sidecar.
#[derive(Debug)]
pub struct Admin {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Admin {
    /// To the services at a Unix socket. Nobody needs to be there yet.
    ///
    /// # Panics
    /// Where no runtime can be made.
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

    /// Makes calls.
    pub fn call<F: Future>(&self, call: impl FnOnce(Channel) -> F) -> F::Output {
        self.runtime.block_on(call(self.channel.clone()))
    }

    /// The sidecar now.
    ///
    /// # Errors
    /// The sidecar's, or the connection's.
    pub fn status(&self) -> Result<Seen, tonic::Status> {
        let ask = || {
            self.call(|channel| async {
                let mut admin = v1::admin_client::AdminClient::new(channel);
                let status = admin.status(v1::StatusRequest {}).await?.into_inner();
                // Tests have no more of these than one page.
                let request = v1::SessionsRequest { page_size: 1000, ..Default::default() };
                let sessions = admin.sessions(request).await?.into_inner().sessions;
                let request = v1::LinksRequest { page_size: 1000, ..Default::default() };
                let links = admin.links(request).await?.into_inner().links;
                Ok(Seen { status, sessions, links })
            })
        };
        // Between calls nobody answers the sidecar's pings, so it may have given this connection up; the next one is new.
        ask().or_else(|_| ask())
    }

    /// Its tensors whose key starts so, in the order of their keys.
    ///
    /// # Errors
    /// The sidecar's, or the connection's.
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

/// What a sidecar shows of itself: its status, its workers and its links, one after the other.
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

/// Everything that is "now" in a [`StatusResponse`], and not "since the start": what must be as before when everybody has gone.
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
    /// Over all links: messages queued, requests made, requests served, and keys pushed either way.
    pub links: [u64; 5],
    /// In the directory, where it is hosted there.
    pub keys: u64,
    pub workers: u64,
    pub watches: u64,
}

impl Counts {
    /// Those of a status.
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
    /// Whether nobody is there and nothing is held, under way or waited for. Pinned memory may stay, and what the directory knows.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let Counts { tensors, blobs, leases, operations, slots, pool_used_bytes, pool_waiting, .. } = *self;
        let held = tensors + blobs + leases + operations + slots + pool_used_bytes + pool_waiting;
        (self.sessions, held, self.links) == (0, 0, [0; 5])
    }
}

/// What one carrier has finished since the start.
#[must_use]
pub fn finished(status: &StatusResponse, fabric: Fabric) -> v1::Path {
    let counters = status.counters.clone().unwrap_or_default();
    counters.finished.into_iter().find(|path| path.fabric() == fabric).unwrap_or_default()
}

/// The number of operations that a worker has under way; 0 for one that is not there.
#[must_use]
pub fn operations_of(status: &Seen, worker: &str) -> u64 {
    status.sessions.iter().find(|s| s.worker == worker).map_or(0, |s| s.operations)
}
