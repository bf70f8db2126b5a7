//! The command line of `transferd`, and the environment.

use super::{
    Config, ConfigError, CopyConfig, DEFAULT_BOARD_ENTRIES, DEFAULT_MAX_ARENA, DEFAULT_POOL, DEFAULT_TCP_RAILS,
    DirectoryPlace, EtcdConfig, EtcdMembers, FabricsConfig, KubernetesConfig, KubernetesLease, LimitsConfig, Locking,
    MIN_SIZE, Poll, SecurityConfig, Size, SourceFlags, SpillConfig, TenantsConfig, default_pinned_limit, group_limit,
};
use crate::observe::WatchConfig;
use crate::observe::logging::LogFlags;
use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::tensor::Name;

/// The sidecar: moves tensors between the workers of this node, and between nodes.
#[derive(Debug, Clone, Parser)]
#[command(name = "transferd", version, max_term_width = 120)]
pub struct Flags {
    /// This node's name, unique in the cluster. Default: the host's name
    #[arg(long, env = "TRANSFER_NODE", value_name = "NAME")]
    pub node: Option<String>,

    /// The socket to which workers connect: a path in a directory that they can access
    #[arg(long, env = "TRANSFER_SOCKET", value_name = "PATH", default_value = "/run/transfer/worker.sock")]
    pub socket: PathBuf,

    /// The permissions of that socket, octal: 600, 660, 666
    #[arg(long, env = "TRANSFER_SOCKET_MODE", value_name = "MODE", default_value = "660", value_parser = octal)]
    pub socket_mode: u32,

    /// The address of the gRPC services for other nodes and tools. Port 0 takes a free one. Default: no TCP at all
    #[arg(long, env = "TRANSFER_LISTEN", value_name = "IP:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// The gRPC services for tools, on a Unix socket
    #[arg(long, env = "TRANSFER_ADMIN_SOCKET", value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,

    /// The address at which other nodes reach --listen; needed if that is a wildcard, like 0.0.0.0
    #[arg(long, env = "TRANSFER_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<String>,

    /// The address of the tcp fabric. Default: the address of --listen, with a free port
    #[arg(long, env = "TRANSFER_DATA_LISTEN", value_name = "IP:PORT", value_parser = address)]
    pub data_listen: Option<SocketAddr>,

    /// The IP address at which other nodes reach --data-listen; needed if that is a wildcard, like 0.0.0.0
    #[arg(long, env = "TRANSFER_DATA_ADVERTISE", value_name = "IP")]
    pub data_advertise: Option<std::net::IpAddr>,

    /// The number of sockets of the tcp fabric between two nodes, 1 to 4: large tensors are spread over them, and one
    /// may die. The lower number of the two nodes is used
    #[arg(long, env = "TRANSFER_TCP_RAILS", value_name = "N", default_value_t = DEFAULT_TCP_RAILS)]
    pub tcp_rails: u8,

    /// "embedded" hosts the directory here; otherwise the URL of the node that hosts it: https://HOST:PORT with
    /// certificates, http://HOST:PORT without; or static:NODE=HOST:PORT,..., 3 or 5 nodes of which one leads, and another
    /// takes over if it dies, and all are given the same list; or etcd:https://HOST:PORT,...[/PREFIX], the members of an etcd
    /// that says which of the nodes with --directory-host leads, under keys that begin with PREFIX, /transfer by default; or
    /// kubernetes:NAMESPACE/NAME, where Lease objects of Kubernetes say it, and in a pod kubernetes:NAME
    #[arg(
        long,
        env = "TRANSFER_DIRECTORY",
        value_name = "embedded|URL|static:NODE=HOST:PORT,...|etcd:URL,...|kubernetes:NAMESPACE/NAME",
        default_value = "embedded"
    )]
    pub directory: String,

    /// With several hosts of the directory, the time after which another one leads if one has died; they and all their
    /// nodes are given the same. 1s to 5m. With etcd at least four times its election timeout
    #[arg(long, env = "TRANSFER_DIRECTORY_TAKEOVER", value_name = "TIME", default_value = "5s",
        value_parser = transfer_terminal::units::duration)]
    pub directory_takeover: Duration,

    /// With --directory etcd: or kubernetes:, this node may lead the directory. Two or three nodes of a cluster do it; one of
    /// them leads
    #[arg(long, env = "TRANSFER_DIRECTORY_HOST")]
    pub directory_host: bool,

    /// Take this node's name from another living sidecar, once, at the start. With certificates, this one's certificate
    /// must have that name, as always. Without this flag the other sidecar keeps the name as long as it answers
    #[arg(long, env = "TRANSFER_REPLACE")]
    pub replace: bool,

    /// The size of the landing pool of each user id: memory for tensors from other nodes. Default: 256MiB, or a quarter
    /// of the default of --pinned-limit if that is less
    #[arg(long, env = "TRANSFER_POOL_BYTES", value_name = "SIZE")]
    pub pool_bytes: Option<Size>,

    /// The largest arena of one worker. Default: 4GiB, or --pinned-limit if that is less
    #[arg(long, env = "TRANSFER_MAX_ARENA_BYTES", value_name = "SIZE")]
    pub max_arena_bytes: Option<Size>,

    /// The limit of all pinned memory together: arenas, pools and rings. Default: 8GiB, or three quarters of what the
    /// memory cgroup allows if that is less
    #[arg(long, env = "TRANSFER_PINNED_LIMIT", value_name = "SIZE")]
    pub pinned_limit: Option<Size>,

    /// The number of keys on the board of each user id, rounded up to a power of two; 512 bytes each. There workers
    /// look up what is published on this host, without asking the sidecar. 0: every fetch asks
    #[arg(long, env = "TRANSFER_BOARD_ENTRIES", value_name = "N", default_value_t = DEFAULT_BOARD_ENTRIES,
        value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub board_entries: u32,

    /// Whether to lock pinned memory: try where the kernel allows it, require or fail to start, no
    #[arg(long, env = "TRANSFER_LOCK", value_enum, default_value_t = Locking::Try)]
    pub lock: Locking,

    /// Use huge pages if the host has them
    #[arg(long, env = "TRANSFER_HUGE_PAGES")]
    pub huge_pages: bool,

    /// The fabric that must carry transfers between nodes; a transfer that cannot use it fails and says why
    #[arg(long, env = "TRANSFER_REQUIRE", value_name = "FABRIC", value_parser = fabric)]
    pub require: Option<FabricKind>,

    /// How the data plane waits: adaptive polls for a moment and then sleeps, event sleeps at once, busy never sleeps
    #[arg(long, env = "TRANSFER_POLL", value_enum, default_value_t = Poll::Adaptive)]
    pub poll: Poll,

    /// Also write the line that says "ready" to this file
    #[arg(long, env = "TRANSFER_READY_FILE", value_name = "PATH")]
    pub ready_file: Option<PathBuf>,

    /// The limits of keys and versions.
    #[command(flatten)]
    pub limits: LimitsConfig,

    /// The log.
    #[command(flatten)]
    pub log: LogFlags,

    /// Metrics, status page and traces.
    #[command(flatten)]
    pub watch: WatchConfig,

    /// Certificates and roles.
    #[command(flatten)]
    pub security: SecurityConfig,

    /// Tenants.
    #[command(flatten)]
    pub tenants: TenantsConfig,

    /// The directory by etcd.
    #[command(flatten)]
    pub etcd: EtcdConfig,

    /// The directory by Kubernetes.
    #[command(flatten)]
    pub kubernetes: KubernetesConfig,

    /// Files that other nodes copy here.
    #[command(flatten)]
    pub copies: CopyConfig,

    /// The fabrics between nodes, besides tcp.
    #[command(flatten)]
    pub fabrics: FabricsConfig,

    /// Rows of exchanges on disk.
    #[command(flatten)]
    pub spill: SpillConfig,

    /// The configuration itself.
    #[command(flatten)]
    pub source: SourceFlags,
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| "permissions are octal digits, like 660".to_owned())
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    const FORMS: &str = "an address is IP:PORT, like 127.0.0.1:7471 or [::1]:0";
    text.parse().map_err(|_| match text.rsplit_once(':') {
        Some((host, port)) if host.contains(|c: char| c.is_ascii_alphabetic()) && port.parse::<u16>().is_ok() => format!(
            "{FORMS}: a name may have several addresses, and the host's own is often one that other nodes do not reach. Give the address \
             of an interface, 127.0.0.1 for localhost; --advertise takes a name"
        ),
        _ => FORMS.to_owned(),
    })
}

fn fabric(text: &str) -> Result<FabricKind, String> {
    let known = FabricKind::BEST_FIRST;
    known.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
        let names = known.map(FabricKind::name).join(", ");
        format!("the fabrics between nodes are {names}")
    })
}

impl Flags {
    /// Returns the configuration that the flags describe, checked.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid flag.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let value = self.node.unwrap_or_else(host_name);
        let node = Name::new(&value).map_err(|source| ConfigError::Node { value, source })?;
        let directory = match self.directory.as_str() {
            "embedded" => DirectoryPlace::Embedded,
            text => match text.split_once(':') {
                Some(("static", hosts)) => DirectoryPlace::Among(directory_hosts(text, hosts)?),
                Some(("etcd", members)) => DirectoryPlace::Etcd(EtcdMembers::parse(text, members)?),
                Some(("kubernetes", lease)) => DirectoryPlace::Kubernetes(KubernetesLease::parse(text, lease)?),
                _ => DirectoryPlace::At(text.to_owned()),
            },
        };
        let default_limit = default_pinned_limit(group_limit());
        let limit = self.pinned_limit.unwrap_or(default_limit);
        let max_arena_bytes = match self.max_arena_bytes {
            Some(value) if value > limit => {
                return Err(ConfigError::OverLimit { flag: "--max-arena-bytes", value, limit });
            }
            Some(value) => value,
            // A limit that is too small is reported as a separate error.
            None => DEFAULT_MAX_ARENA.min(limit).max(MIN_SIZE),
        };
        let config = Config {
            node,
            socket: self.socket,
            socket_mode: self.socket_mode,
            listen: self.listen,
            admin_socket: self.admin_socket,
            advertise: self.advertise,
            data_listen: self.data_listen,
            data_advertise: self.data_advertise,
            tcp_rails: self.tcp_rails,
            directory,
            directory_takeover: self.directory_takeover,
            directory_host: self.directory_host,
            etcd: self.etcd,
            kubernetes: self.kubernetes,
            replace: self.replace,
            pool_bytes: self.pool_bytes.unwrap_or(DEFAULT_POOL.min(Size(default_limit.0 / 4)).max(MIN_SIZE)),
            max_arena_bytes,
            pinned_limit: limit,
            board_entries: self.board_entries,
            lock: self.lock,
            huge_pages: self.huge_pages,
            require: self.require,
            poll: self.poll,
            fabrics: self.fabrics,
            watch: self.watch,
            spill: self.spill,
            security: self.security,
            tenants: self.tenants,
            copies: self.copies,
            limits: self.limits,
        };
        config.check()?;
        Ok(config)
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Reads a list of hosts of the directory, which stands behind `static:` in `value`.
fn directory_hosts(value: &str, hosts: &str) -> Result<Vec<(Name, String)>, ConfigError> {
    let wrong = |wrong: String| ConfigError::DirectoryHosts { value: value.to_owned(), wrong };
    let mut found: Vec<(Name, String)> = Vec::new();
    for host in hosts.split(',') {
        let (node, address) = host.split_once('=').ok_or_else(|| wrong(format!("{host:?} is no NODE=HOST:PORT")))?;
        let node = Name::new(node.trim()).map_err(|e| wrong(e.to_string()))?;
        let address = address.trim();
        let port =
            address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse().ok());
        if port.is_none_or(|port: u16| port == 0) || address.contains('/') {
            return Err(wrong(format!("{address:?} is no HOST:PORT")));
        }
        if found.iter().any(|(other, at)| *other == node || at == address) {
            return Err(wrong(format!("node {node:?} or its address is there twice")));
        }
        found.push((node, address.to_owned()));
    }
    match found.len() {
        3 | 5 => Ok(found),
        count => Err(wrong(format!("it names {}", crate::text::counted(count as u64, "node")))),
    }
}
