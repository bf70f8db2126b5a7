//! The parts of a sidecar that are made before its control thread runs. Everything that can fail because of the user's
//! settings is here.

use super::fabrics::{self, Fabrics, Start};
use super::{Addresses, StartError};
use crate::config::{AllLimits, Config, ConfigError, CopyConfig, DirectoryPlace, Locking, Size, group_limit};
use crate::copying::Folder;
use crate::engine::ControlRequest;
use crate::events::unix_nanos;
use crate::observe::{self, Records};
use crate::peering::Identity;
use crate::poll;
use crate::security::{Prepared, Security};
use crate::unix::{self, SocketPath};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::NodeConfig;
use transfer_fabric::engine::{Engine, EngineConfig, PollStrategy};
use transfer_fabric::verbs::datagrams::Datagrams;
use transfer_memory::segment::{Lock, Pages, PinnedBudget, SegmentOptions};
use transfer_memory::session::SidecarPolicy;
use transfer_memory::socket::Listener;

/// The time-out of a worker's handshake, which includes prefaulting its arena at some GiB/s.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(15);

/// The size of each ring, in bytes: some thousand records.
const RING_BYTES: u32 = 256 << 10;

/// The suffix of the socket for other sidecars.
const SIBLINGS_SUFFIX: &str = ".peers";

/// The parts of a sidecar before its control thread runs.
pub(super) struct Parts {
    pub(super) addresses: Addresses,
    pub(super) identity: Identity,
    /// The address at which other nodes reach the gRPC services; empty: none.
    pub(super) advertised: Arc<str>,
    pub(super) directory: DirectoryPlace,
    pub(super) replace: bool,
    pub(super) limits: AllLimits,
    pub(super) policy: SidecarPolicy,
    pub(super) pool: SegmentOptions,
    pub(super) board_entries: u32,
    pub(super) workers: Listener,
    pub(super) grpc: Option<TcpListener>,
    pub(super) admin: Option<(UnixListener, SocketPath)>,
    /// The socket at which other sidecars of this host prove their user.
    pub(super) siblings: Option<(UnixListener, SocketPath)>,
    pub(super) http: Option<TcpListener>,
    pub(super) engine: Engine,
    /// The queue pair for datagrams, or the reason why there is none.
    pub(super) datagrams: Result<Datagrams, String>,
    pub(super) records: Records,
    pub(super) poll: PollStrategy,
    pub(super) security: Security,
    /// The folder for files that are copied here, and its limits.
    pub(super) copies: (Option<Folder>, CopyConfig),
    pub(super) requests: mpsc::UnboundedReceiver<ControlRequest>,
}

impl Parts {
    /// Checks, binds and allocates, and starts the data plane.
    pub(super) fn make(config: Config) -> Result<Parts, StartError> {
        config.check()?;
        // The certificates are read before anything is bound, because that often fails.
        let security = Security::new(config.node.clone(), Prepared::of(&config)?);
        let folder = folder_for_copies(&config)?;
        let budget = budget(config.pinned_limit, group_limit())?;
        let lock = match config.lock {
            Locking::Try => Lock::Try,
            Locking::Require => Lock::Require,
            Locking::No => Lock::No,
        };
        let pages = if config.huge_pages { Pages::Huge } else { Pages::Base };
        let pool = SegmentOptions { len: config.pool_bytes.0, pages, lock };

        make_directory_of(&config.socket)?;
        let workers = Listener::bind(&config.socket, config.socket_mode)?;
        let grpc = config.listen.map(|address| listen("--listen", address)).transpose()?;
        let admin = config.admin_socket.as_deref().map(|path| {
            make_directory_of(path)?;
            unix::listen(path, config.socket_mode).map_err(|source| StartError::Listen {
                flag: "--admin-socket",
                address: path.display().to_string(),
                source,
            })
        });
        let admin = admin.transpose()?;
        let siblings = siblings(&config, &security);
        let http = config.watch.http_listen.map(|address| listen("--http-listen", address)).transpose()?;

        let incarnation = incarnation();
        let fabrics = Fabrics::make(&Start { config: &config, security: &security, incarnation })?;
        let addresses = Addresses {
            node: config.node.clone(),
            incarnation,
            socket: config.socket.clone(),
            grpc: grpc.as_ref().map(|(_, bound)| *bound),
            admin_socket: config.admin_socket.clone(),
            http: http.as_ref().map(|(_, bound)| *bound),
            data: fabrics.data,
        };
        let kinds = fabrics.kinds();
        let Fabrics { fabrics, lacking, .. } = fabrics;
        let (node, require) = (config.node.clone(), config.require);
        let identity = Identity { node, incarnation, fabrics: kinds, lacking, require };
        let datagrams = datagrams(&config, &identity);
        let policy = SidecarPolicy {
            node: config.node.clone(),
            incarnation,
            max_arena_bytes: config.max_arena_bytes.0,
            submission_capacity: RING_BYTES,
            completion_capacity: RING_BYTES,
            pages,
            lock,
            budget: budget.clone(),
            timeout: HANDSHAKE_DEADLINE,
        };

        let mut node = NodeConfig::new(config.node.clone(), incarnation);
        node.require = config.require;
        node.tenants = security.tenancy().tenants().clone();
        node.limits = config.limits.all().node;
        node.timed = !config.watch.no_timings;
        node.spill = config.spill.node();
        let disk = config.spill.folder.clone();
        let poll = poll::configured(config.poll);
        // The channel is unbounded, because the engine must not wait. The engine's waiting workers bound its requests.
        let (tell, requests) = mpsc::unbounded_channel();
        // A control plane that has ended needs no news.
        let sink = Box::new(move |request| drop(tell.send(request)));
        let (trace, records) = observe::start_spans(&config.watch.otlp, &config.node, incarnation)
            .map_err(|source| StartError::System { what: "starting what writes spans down, and sends them", source })?;
        let engine =
            Engine::start(EngineConfig { node, fabrics, poll, disk, trace: Some(trace), budget, segment: pool }, sink)?;

        let advertised = match (&config.advertise, addresses.grpc) {
            (Some(told), _) => told.as_str().into(),
            (None, Some(bound)) => bound.to_string().into(),
            (None, None) => "".into(),
        };
        Ok(Parts {
            addresses,
            identity,
            advertised,
            directory: config.directory,
            replace: config.replace,
            limits: config.limits.all(),
            policy,
            pool,
            board_entries: config.board_entries,
            workers,
            grpc: grpc.map(|(listener, _)| listener),
            admin,
            siblings,
            http: http.map(|(listener, _)| listener),
            engine,
            datagrams,
            records,
            poll,
            security,
            copies: (folder, config.copies),
            requests,
        })
    }
}

/// Opens the folder for files that are copied here, if there is one.
pub(crate) fn folder_for_copies(config: &Config) -> Result<Option<Folder>, StartError> {
    let open =
        |path: &PathBuf| Folder::open(path).map_err(|source| StartError::CopyFolder { path: path.clone(), source });
    config.copies.folder.as_ref().map(open).transpose()
}

/// Makes the queue pair for datagrams if there is RDMA. Nothing but `transferctl ping --ud` needs it, so a failure is
/// logged, and the start continues.
fn datagrams(config: &Config, me: &Identity) -> Result<Datagrams, String> {
    if !me.fabrics.contains(&FabricKind::Verbs) {
        return Err(me.lacks(FabricKind::Verbs));
    }
    fabrics::datagrams(config).map_err(|why| {
        tracing::warn!(why, "datagrams are not answered here");
        format!("node {} has no queue pair for datagrams: {why}", me.node)
    })
}

/// Makes the socket at which other sidecars of this host prove their user. Without it they may speak for no tenant, so
/// a failure is logged, and the start continues.
fn siblings(config: &Config, security: &Security) -> Option<(UnixListener, SocketPath)> {
    if config.listen.is_none() || !security.proves_by_socket() {
        return None;
    }
    let name = fabrics::socket_name(config.node.as_str(), SIBLINGS_SUFFIX);
    let directory = config.socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let path = directory.unwrap_or(Path::new(".")).join(name);
    // Any process may connect, because the connection proves only the caller's user.
    match unix::listen(&path, 0o666) {
        Ok(made) => Some(made),
        Err(error) => {
            tracing::warn!(
                path = %path.display(), %error,
                "other sidecars of this host cannot prove here whose they are, so nothing goes between their workers and those of this one"
            );
            None
        }
    }
}

/// Returns the nanoseconds since 1970, which are higher at each start.
fn incarnation() -> u64 {
    unix_nanos(SystemTime::now())
}

fn make_directory_of(path: &Path) -> Result<(), StartError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => make_directory(parent),
        _ => Ok(()),
    }
}

pub(super) fn make_directory(path: &Path) -> Result<(), StartError> {
    std::fs::create_dir_all(path).map_err(|source| StartError::MakeDirectory { path: path.to_owned(), source })
}

fn listen(flag: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { flag, address: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Returns the budget of pinned memory in a process whose control group allows this much.
fn budget(limit: Size, group_limit: Option<u64>) -> Result<PinnedBudget, ConfigError> {
    match group_limit {
        Some(group_limit) if limit.0 > group_limit => Err(ConfigError::OverGroup { limit, group_limit }),
        _ => Ok(PinnedBudget::within(limit.0, group_limit)),
    }
}
