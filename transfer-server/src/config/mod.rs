//! The configuration of a sidecar.

mod copying;
#[cfg(test)]
mod docs;
mod error;
mod etcd;
mod fabrics;
mod file;
mod flags;
mod in_process;
mod kubernetes;
mod limits;
mod security;
mod size;
mod source;
mod spill;
mod tenants;

pub use copying::{CopyConfig, CopyRole};
pub use error::ConfigError;
pub use etcd::{EtcdConfig, EtcdMembers};
pub use fabrics::*;
pub use file::FileError;
pub use flags::Flags;
pub(crate) use flags::address;
pub use in_process::SettingError;
pub(crate) use in_process::in_process;
pub use kubernetes::{KubernetesConfig, KubernetesLease};
pub use limits::{AllLimits, DirectoryLimits, Limit, LimitsConfig, NotALimit, SessionLimits};
pub use security::{NamePattern, NotAPattern, SecurityConfig};
pub use size::Size;
pub use source::{LoadError, Loaded, Origin, Setting, SourceFlags, load};
pub use spill::SpillConfig;
pub(crate) use tenants::Tenancy;
pub use tenants::{NotARule, PeerTenants, PrefixRule, TenantAdmin, TenantIds, TenantsConfig};
pub use transfer_terminal::units::NotASize;

use crate::observe::WatchConfig;
use clap::ValueEnum;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::memory::RailKeys;
use transfer_core::tensor::Name;
use transfer_memory::board::ENTRY_BYTES as BOARD_ENTRY_BYTES;
use transfer_memory::socket::MAX_PATH_BYTES;

/// The smallest memory size that works.
const MIN_SIZE: Size = Size(64 << 10);

/// The memory that the sidecar and the rings of one worker pin besides the worker's arena and the landing pool, rounded
/// up.
const PINNED_BESIDE: Size = Size(2 << 20);

/// The default of the limit of pinned memory, on a host that has it.
const DEFAULT_PINNED_LIMIT: Size = Size(8 << 30);

/// The default for the landing pool of a user id, where the limit of pinned memory has room for it.
const DEFAULT_POOL: Size = Size(256 << 20);

/// The default for the largest arena of one worker.
const DEFAULT_MAX_ARENA: Size = Size(4 << 30);

/// The advised room for the arenas of workers, which equals the default arena of one worker.
const ADVISED_ARENAS: Size = Size(64 << 20);

/// The default number of sockets of a link of the tcp fabric.
pub(crate) const DEFAULT_TCP_RAILS: u8 = 1;

/// The default of `--directory-takeover`.
pub(crate) const DEFAULT_TAKEOVER: Duration = Duration::from_secs(5);

/// What `--directory-takeover` may be.
pub(crate) const TAKEOVERS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);

/// The default number of keys on the board of a user.
pub(crate) const DEFAULT_BOARD_ENTRIES: u32 = 4096;

/// Whether to lock memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Locking {
    /// If the kernel allows it.
    Try,
    /// Fail if it is not possible.
    Require,
    /// Never.
    No,
}

/// How the data-plane thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Polls for a moment after an event, then sleeps.
    Adaptive,
    /// Sleeps as soon as there is nothing to do.
    Event,
    /// Never sleeps; takes a whole core.
    Busy,
}

/// The host of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryPlace {
    /// This node.
    Embedded,
    /// The node whose gRPC services are at this URL.
    At(String),
    /// That of these nodes which leads, with the addresses of their gRPC services.
    Among(Vec<(Name, String)>),
    /// That of the nodes with `--directory-host` which leads, as this etcd says.
    Etcd(EtcdMembers),
    /// The same, as a Lease object of Kubernetes says.
    Kubernetes(KubernetesLease),
}

/// A sidecar's configuration. [`Flags`] documents each field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This node's name.
    pub node: Name,
    /// Path of the workers' socket.
    pub socket: PathBuf,
    /// The permissions of the workers' socket.
    pub socket_mode: u32,
    /// The address of the gRPC services.
    pub listen: Option<SocketAddr>,
    /// The path of a Unix socket of the gRPC services.
    pub admin_socket: Option<PathBuf>,
    /// The address at which other nodes reach `listen`, as host:port.
    pub advertise: Option<String>,
    /// The address of the tcp fabric.
    pub data_listen: Option<SocketAddr>,
    /// The IP address at which other nodes reach `data_listen`.
    pub data_advertise: Option<IpAddr>,
    /// The number of sockets of a link of the tcp fabric.
    pub tcp_rails: u8,
    /// The host of the directory.
    pub directory: DirectoryPlace,
    /// With several hosts: the time after which another one leads if one has died.
    pub directory_takeover: Duration,
    /// With an etcd or Kubernetes: whether this node may lead.
    pub directory_host: bool,
    /// With an etcd: how it is reached.
    pub etcd: EtcdConfig,
    /// With Kubernetes: how it is reached.
    pub kubernetes: KubernetesConfig,
    /// Whether to take the name from another live sidecar.
    pub replace: bool,
    /// The size of each landing pool.
    pub pool_bytes: Size,
    /// The largest arena of one worker.
    pub max_arena_bytes: Size,
    /// The limit of all pinned memory together.
    pub pinned_limit: Size,
    /// The number of keys on each user's board; 0: there are no boards.
    pub board_entries: u32,
    /// Whether to lock memory.
    pub lock: Locking,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
    /// The fabric that must carry transfers between nodes.
    pub require: Option<FabricKind>,
    /// How the data plane waits.
    pub poll: Poll,
    /// The fabrics between nodes, besides tcp.
    pub fabrics: FabricsConfig,
    /// Metrics, status page and traces.
    pub watch: WatchConfig,
    /// Rows of exchanges on disk.
    pub spill: SpillConfig,
    /// Certificates and roles.
    pub security: SecurityConfig,
    /// Tenants.
    pub tenants: TenantsConfig,
    /// Files that other nodes copy here.
    pub copies: CopyConfig,
    /// The limits of keys and versions.
    pub limits: LimitsConfig,
}

impl Config {
    /// Makes the configuration of a sidecar for this node alone: workers connect at `socket`, without TCP, and the
    /// directory is in memory.
    #[must_use]
    pub fn single(node: Name, socket: &Path) -> Config {
        let pinned_limit = default_pinned_limit(group_limit());
        Config {
            node,
            socket: socket.to_owned(),
            socket_mode: 0o600,
            listen: None,
            admin_socket: None,
            advertise: None,
            data_listen: None,
            data_advertise: None,
            tcp_rails: DEFAULT_TCP_RAILS,
            directory: DirectoryPlace::Embedded,
            directory_takeover: DEFAULT_TAKEOVER,
            directory_host: false,
            etcd: EtcdConfig::default(),
            kubernetes: KubernetesConfig::default(),
            replace: false,
            pool_bytes: Size(64 << 20).min(Size(pinned_limit.0 / 4)).max(MIN_SIZE),
            max_arena_bytes: DEFAULT_MAX_ARENA.min(pinned_limit),
            pinned_limit,
            board_entries: DEFAULT_BOARD_ENTRIES,
            lock: Locking::Try,
            huge_pages: false,
            require: None,
            poll: Poll::Adaptive,
            fabrics: FabricsConfig::default(),
            watch: WatchConfig::nobody(),
            spill: SpillConfig::default(),
            security: SecurityConfig::default(),
            tenants: TenantsConfig::default(),
            copies: CopyConfig::default(),
            limits: LimitsConfig::default(),
        }
    }

    /// Returns the address of the tcp fabric: the configured one, else the address of `listen` with a free port, else
    /// none.
    #[must_use]
    pub fn data_address(&self) -> Option<SocketAddr> {
        self.data_listen.or_else(|| self.listen.map(|a| SocketAddr::new(a.ip(), 0)))
    }

    /// Checks the configuration for contradictions.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.socket_mode & !0o777 != 0 || self.socket_mode & 0o600 != 0o600 {
            return Err(ConfigError::SocketMode { value: self.socket_mode });
        }
        if self.tcp_rails == 0 || usize::from(self.tcp_rails) > RailKeys::MAX_RAILS {
            return Err(ConfigError::TcpRails { value: self.tcp_rails });
        }
        self.check_paths()?;
        self.security.check()?;
        self.copies.check(&self.tenants.tenancy()?)?;
        self.check_addresses()?;
        self.watch.check(self.security.insecure)?;
        self.check_directory()?;
        self.fabrics.check()?;
        self.spill.check()?;
        self.check_memory()
    }

    fn check_paths(&self) -> Result<(), ConfigError> {
        let sockets = [("--socket", Some(&self.socket)), ("--admin-socket", self.admin_socket.as_ref())];
        for (flag, path) in sockets.into_iter().filter_map(|(flag, path)| Some((flag, path?))) {
            let len = path.as_os_str().len();
            if len > MAX_PATH_BYTES {
                return Err(ConfigError::SocketPath { flag, value: path.clone(), len, most: MAX_PATH_BYTES });
            }
        }
        match &self.admin_socket {
            Some(admin) if *admin == self.socket => Err(ConfigError::Value {
                flag: "--admin-socket",
                value: admin.display().to_string(),
                wrong: "is the path of --socket too",
                right: "give it one of its own",
            }),
            _ => Ok(()),
        }
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        let listeners = [("--listen", self.listen), ("--data-listen", self.data_listen)];
        let listeners = listeners.into_iter().chain(self.fabrics.listeners());
        for (flag, value) in listeners.filter_map(|(flag, value)| Some((flag, value?))) {
            // An IPv4 address in IPv6 form counts as IPv4.
            let protected = self.security.insecure || self.security.has_tls();
            if !protected && !value.ip().to_canonical().is_loopback() {
                return Err(ConfigError::BeyondLoopback { flag, value, port: value.port() });
            }
        }
        let needs = |flag, value, needs| Err(ConfigError::Needs { flag, value, needs });
        match (&self.advertise, self.listen) {
            (Some(value), None) => return needs("--advertise", value.clone(), "--listen"),
            (Some(value), Some(_)) if !is_host_and_port(value) => {
                return Err(ConfigError::Advertise { value: value.clone() });
            }
            (None, Some(value)) if value.ip().is_unspecified() => {
                return Err(ConfigError::Unspecified {
                    flag: "--advertise",
                    because: "--listen",
                    value,
                    form: "HOST:PORT",
                });
            }
            _ => {}
        }
        if let (Some(value), None) = (self.data_listen, self.listen) {
            return needs("--data-listen", value.to_string(), "--listen");
        }
        self.fabrics.check_listener(self.listen.is_some())?;
        match (self.data_advertise, self.data_address()) {
            (Some(value), None) => needs("--data-advertise", value.to_string(), "--data-listen"),
            (None, Some(value)) if value.ip().is_unspecified() => {
                Err(ConfigError::Unspecified { flag: "--data-advertise", because: "--data-listen", value, form: "IP" })
            }
            _ => Ok(()),
        }
    }

    fn check_directory(&self) -> Result<(), ConfigError> {
        if !TAKEOVERS.contains(&self.directory_takeover) {
            return Err(ConfigError::Takeover { value: self.directory_takeover });
        }
        let (members, lease) = match &self.directory {
            DirectoryPlace::Etcd(members) => (Some(members), None),
            DirectoryPlace::Kubernetes(lease) => (None, Some(lease)),
            _ => (None, None),
        };
        self.etcd.check(members)?;
        self.kubernetes.check(lease)?;
        if self.directory_host && members.is_none() && lease.is_none() {
            return Err(ConfigError::NoCoordinator);
        }
        let url = match &self.directory {
            DirectoryPlace::Embedded => return Ok(()),
            DirectoryPlace::Among(hosts) => {
                let listed = hosts.iter().map(|(node, address)| format!("{node}={address}")).collect::<Vec<_>>();
                return match self.listen {
                    None => Err(ConfigError::NoListener { value: format!("static:{}", listed.join(",")) }),
                    Some(_) => Ok(()),
                };
            }
            DirectoryPlace::Etcd(members) => {
                return match self.listen {
                    None => Err(ConfigError::NoListener { value: members.to_string() }),
                    Some(_) => Ok(()),
                };
            }
            DirectoryPlace::Kubernetes(lease) => {
                return match self.listen {
                    None => Err(ConfigError::NoListener { value: lease.to_string() }),
                    Some(_) => Ok(()),
                };
            }
            DirectoryPlace::At(url) => url,
        };
        let uri: Result<tonic::transport::Uri, _> = url.parse();
        match uri {
            Ok(uri) if uri.host().is_some_and(|h| !h.is_empty()) => match (uri.scheme_str(), self.security.has_tls()) {
                (Some("https"), true) | (Some("http"), false) => {}
                (Some("http"), true) => return Err(ConfigError::DirectoryInTheClear { value: url.clone() }),
                (Some("https"), false) => return Err(ConfigError::DirectoryNeedsTls { value: url.clone() }),
                _ => return Err(ConfigError::Directory { value: url.clone() }),
            },
            _ => return Err(ConfigError::Directory { value: url.clone() }),
        }
        match self.listen {
            None => Err(ConfigError::NoListener { value: url.clone() }),
            Some(_) => Ok(()),
        }
    }

    fn check_memory(&self) -> Result<(), ConfigError> {
        let limit = self.pinned_limit;
        for (flag, value) in [("--pool-bytes", self.pool_bytes), ("--max-arena-bytes", self.max_arena_bytes)] {
            if value < MIN_SIZE {
                return Err(ConfigError::TooSmall { flag, value, least: MIN_SIZE });
            }
        }
        // An arena may be as large as the limit, but most are smaller. Only the size of the pool is certain.
        let pool = self.pool_bytes;
        if limit.0 >= pool.0.saturating_add(PINNED_BESIDE.0) {
            return Ok(());
        }
        let board = u64::from(self.board_entries.next_power_of_two()) * BOARD_ENTRY_BYTES;
        let advised = [PINNED_BESIDE.0, board, ADVISED_ARENAS.0].into_iter().fold(pool.0, u64::saturating_add);
        let advised = Size(advised.checked_next_multiple_of(1 << 20).unwrap_or(advised));
        Err(ConfigError::LimitTooSmall { limit, pool, beside: PINNED_BESIDE, advised })
    }
}

/// Returns the memory that the control group of this process allows, in bytes.
pub(crate) fn group_limit() -> Option<u64> {
    transfer_memory::cgroup::memory_limit(Path::new("/proc/self"))
}

/// Returns the default of the limit of pinned memory in a control group that allows this much. The kernel ends a process that
/// goes beyond, so a quarter is left for everything that is not pinned.
fn default_pinned_limit(group_limit: Option<u64>) -> Size {
    // Whole pages, so that the limit is shown as it is.
    group_limit.map_or(DEFAULT_PINNED_LIMIT, |limit| DEFAULT_PINNED_LIMIT.min(Size((limit / 4 * 3) & !0xffff)))
}

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let ok = !bare.is_empty() && !bare.contains(['/', ' ', '[', ']', '@']) && (bare == host) != bare.contains(':');
        ok && port.parse::<u16>().is_ok_and(|p| p != 0)
    })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
