//! The start of a session.

use crate::error::Error;
use crate::request::{AnyClient, BlockingClient, Client, Handle, HasHandle};
#[cfg(feature = "embedded")]
use crate::session::NodeConfig;
use crate::session::{Connection, Inside, Reconnect, Session, spawn_driver};
use std::future::{Future, IntoFuture};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};
use transfer_core::tensor::{InvalidName, Name};
use transfer_memory::session::{FromSidecar, SessionError, WorkerEnd, WorkerOptions};
use transfer_memory::socket::{Socket, SocketError};

/// The default size of an arena.
const DEFAULT_ARENA_BYTES: u64 = 64 << 20;

/// The default time-out of connecting, without the time for the arena.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The slowest rate at which a sidecar prefaults an arena: some GiB per second on a quiet machine, a tenth of one on a
/// busy one.
const SLOWEST_PREFAULT: u64 = 100 << 20;

/// The default upper bound of the time for which a blocking call polls for its answer before it sleeps, on machines
/// with enough CPUs.
const DEFAULT_SPIN: Duration = Duration::from_micros(10);

#[derive(Debug)]
enum Target {
    Path(PathBuf),
    Socket(Socket),
    #[cfg(feature = "embedded")]
    Embedded(Option<NodeConfig>),
}

/// A session that is about to begin. Set its options, then `.await` it, or `.call()` it for a
/// [`crate::BlockingClient`].
#[derive(Debug)]
#[must_use = "a session is begun by `.await`, or by `.call()`"]
pub struct Connect<C> {
    target: Target,
    name: Option<Result<Name, InvalidName>>,
    arena_bytes: u64,
    timeout: Option<Duration>,
    spin: Duration,
    reconnects: bool,
    client: PhantomData<C>,
}

impl<C: AnyClient> Connect<C> {
    pub(crate) fn to_path(path: &Path) -> Self {
        Connect::to(Target::Path(path.to_owned()))
    }

    pub(crate) fn to_socket(socket: Socket) -> Self {
        Connect::to(Target::Socket(socket))
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn embedded(config: Option<NodeConfig>) -> Self {
        Connect::to(Target::Embedded(config))
    }

    fn to(target: Target) -> Self {
        // With two CPUs, polling takes the CPU that the sidecar needs.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Connect {
            target,
            name: None,
            arena_bytes: DEFAULT_ARENA_BYTES,
            timeout: None,
            spin: if cpus >= 4 { DEFAULT_SPIN } else { Duration::ZERO },
            reconnects: true,
            client: PhantomData,
        }
    }

    /// The worker's name. Others push to the worker by this name, and it owns its keys under it. The default is
    /// `worker-`, the process id, and eight random digits, because other containers and nodes have processes of the
    /// same id.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.name = Some(Name::new(name.as_ref()));
        self
    }

    /// The size of the arena, the pinned memory in which this worker allocates its tensors. 64 MiB by default; 0 for a
    /// worker that only fetches.
    pub fn arena_bytes(mut self, bytes: u64) -> Self {
        self.arena_bytes = bytes;
        self
    }

    /// The time-out of connecting, which includes filling the arena's pages. 30 s plus 10 s per GiB of arena by
    /// default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The upper bound of the time for which a blocking call polls for its answer before it sleeps. It polls for less,
    /// or hardly at all, while polling does not pay. Polling saves the few microseconds of a wake-up, and costs a CPU.
    /// 10 µs by default, and 0 on machines with less than 4 CPUs.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Whether the client reconnects by itself when the sidecar was restarted, and publishes its versions again. The
    /// default is yes, if the sidecar was found by its path. Without it, the client ends with the sidecar.
    pub fn reconnect(mut self, reconnects: bool) -> Self {
        self.reconnects = reconnects;
        self
    }

    fn begin(self, runtime: Option<tokio::runtime::Handle>) -> Result<C, Error> {
        let name = match self.name {
            Some(name) => name?,
            None => name_by_chance()?,
        };
        let prefault = Duration::from_secs(self.arena_bytes / SLOWEST_PREFAULT);
        let timeout = self.timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT + prefault);
        let until = Instant::now() + timeout;
        let options = WorkerOptions { name: name.clone(), arena_bytes: self.arena_bytes, timeout };
        let mut reconnect = None;
        let (end, inside): (_, Option<Inside>) = match self.target {
            Target::Path(path) => {
                let end = WorkerEnd::connect(&path, &options);
                reconnect =
                    self.reconnects.then(|| Reconnect { path, name: name.clone(), timeout, spin: self.spin, runtime });
                (end, None)
            }
            Target::Socket(socket) => (WorkerEnd::join(socket, &options), None),
            #[cfg(feature = "embedded")]
            Target::Embedded(config) => {
                let (sidecar, path) = crate::session::embedded_sidecar(config.as_ref())?;
                (WorkerEnd::connect(&path, &options), Some(Inside(sidecar)))
            }
        };
        let end = end.map_err(Error::Connect)?;
        // The first doorbell says that the session is open: from now on every worker that learns of this one can push
        // to it.
        match end.socket.receive(until).map_err(Error::Connect)? {
            FromSidecar::Doorbell => {}
            _ => return Err(Error::Connect(SessionError::Unexpected { expected: "a doorbell", found: "a segment" })),
        }
        let (node, incarnation) = (end.node.clone(), end.incarnation);
        let session = Session::start(end, self.spin, inside, reconnect.is_some());
        let session = session.map_err(Error::Connect)?;
        let connection = Connection::new(session);
        if let Some(reconnect) = reconnect {
            connection.reconnect_by(reconnect).map_err(|e| {
                let source = transfer_memory::Errno::from_io_error(&e).unwrap_or(transfer_memory::Errno::AGAIN);
                Error::Connect(SessionError::Socket(SocketError::System {
                    step: "start the thread that reconnects",
                    source,
                }))
            })?;
        }
        tracing::debug!(%name, %node, incarnation, "session with the sidecar begun");
        Ok(C::of(Handle::new(connection, name, node)))
    }
}

/// A name that no other worker of the job has.
fn name_by_chance() -> Result<Name, InvalidName> {
    // The standard library's hashers have random seeds, a new one for each hasher.
    let chance = RandomState::new().hash_one(std::process::id());
    Name::new(&format!("worker-{}-{:08x}", std::process::id(), chance >> 32))
}

impl Connect<BlockingClient> {
    /// Connects to the sidecar.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Name`].
    pub fn call(self) -> Result<BlockingClient, Error> {
        self.begin(None)
    }
}

impl IntoFuture for Connect<Client> {
    type Output = Result<Client, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let runtime = tokio::runtime::Handle::current();
            let begun = tokio::task::spawn_blocking(move || self.begin(Some(runtime))).await;
            let client = match begun {
                Ok(client) => client?,
                Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
                // The runtime is shutting down.
                Err(_) => return Err(Error::Connect(SessionError::Socket(SocketError::Closed))),
            };
            spawn_driver(&client.handle().session())?;
            Ok(client)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_names_differ_for_one_process_id() {
        let names = [(); 100].map(|()| name_by_chance().unwrap());
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        let begins = format!("worker-{}-", std::process::id());
        assert!(names.iter().all(|name| name.as_str().starts_with(&begins)), "{names:?}");
    }
}
