//! Errors of a configuration. Each names the flag, its value, and the requirement.

use super::{Size, TAKEOVERS};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::tensor::InvalidName;

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The node name is not valid.
    #[error("--node {value:?}: {source}; give a name that no other node of the cluster has")]
    Node {
        /// The value.
        value: String,
        /// The error.
        source: InvalidName,
    },
    /// An address can be reached from other hosts, without TLS and without `--insecure`.
    #[error(
        "{flag} {value} can be reached from other hosts, and without certificates nothing here is encrypted or authenticated. Give \
         --tls-cert, --tls-key and --tls-ca, or listen on loopback (127.0.0.1:{port}), or say --insecure if everybody who can reach \
         that address may read and write all tensors"
    )]
    BeyondLoopback {
        /// The flag.
        flag: &'static str,
        /// The value.
        value: SocketAddr,
        /// Its port.
        port: u16,
    },
    /// The status page can be reached from other hosts.
    #[error(
        "--http-listen {value} can be reached from other hosts, and it is plain HTTP without a password, also with certificates. Listen on \
         loopback (127.0.0.1:{port}), or say --http-plaintext if everybody who can reach that address may read it"
    )]
    HttpBeyondLoopback {
        /// The value.
        value: SocketAddr,
        /// Its port.
        port: u16,
    },
    /// The marks between which rows are written to disk.
    #[error(
        "--spill-high-percent {high} and --spill-low-percent {low}: rows are written to disk from the high mark down to the low one, so the \
         high mark has to be above the low one, and at most 100"
    )]
    SpillMarks {
        /// The high mark.
        high: u32,
        /// The low mark.
        low: u32,
    },
    /// One tenant may have more on disk than all together.
    #[error(
        "--spill-bytes-per-tenant {tenant} is more than --spill-bytes {all}, which all tenants may have on disk together"
    )]
    SpillLimits {
        /// The limit of a tenant.
        tenant: Size,
        /// The limit of all.
        all: Size,
    },
    /// A rule about tenants is not valid.
    #[error("{flag} {rule:?}: {why}")]
    Tenants {
        /// The flag.
        flag: &'static str,
        /// The rule.
        rule: String,
        /// The error.
        why: String,
    },
    /// Other nodes cannot connect to an address.
    #[error(
        "{flag} is missing: {because} {value} is no address that other nodes can connect to. Give {flag} {form}, as they shall call it"
    )]
    Unspecified {
        /// The flag that is missing.
        flag: &'static str,
        /// The flag whose value is such an address.
        because: &'static str,
        /// The value of that flag.
        value: SocketAddr,
        /// The form of the missing flag's value.
        form: &'static str,
    },
    /// The advertised address is not valid.
    #[error("--advertise {value:?} is no HOST:PORT, like node-a:7471 or 10.0.0.7:7471")]
    Advertise {
        /// The value.
        value: String,
    },
    /// `--directory` is neither `embedded` nor a URL.
    #[error(
        "--directory {value:?} is neither \"embedded\" nor the URL of the node that hosts it, like https://node-a:7471 or \
         http://10.0.0.7:7471"
    )]
    Directory {
        /// The value.
        value: String,
    },
    /// The time is too short for an election, or longer than anybody waits.
    #[error("--directory-takeover {value:?} is not between {:?} and {:?}", TAKEOVERS.start(), TAKEOVERS.end())]
    Takeover {
        /// The time.
        value: Duration,
    },
    /// `--directory` names hosts, and not as it should.
    #[error(
        "--directory {value:?}: {wrong}; a directory with several hosts is static:NODE=HOST:PORT,..., with the names and gRPC addresses of 3 or \
         5 nodes, because more than half of them have to agree"
    )]
    DirectoryHosts {
        /// The value.
        value: String,
        /// What is wrong.
        wrong: String,
    },
    /// `--directory` names an etcd, and not as it should.
    #[error(
        "--directory {value:?}: {wrong}; a directory whose hosts are in etcd is etcd:https://HOST:PORT,...[/PREFIX], with the URLs of etcd's \
         members, and http:// where they have no certificates"
    )]
    DirectoryEtcd {
        /// The value.
        value: String,
        /// What is wrong.
        wrong: String,
    },
    /// `--directory` names a Lease object of Kubernetes, and not as it should.
    #[error(
        "--directory {value:?}: {wrong}; a directory whose hosts are in Kubernetes is kubernetes:NAMESPACE/NAME, or kubernetes:NAME in a pod"
    )]
    DirectoryKubernetes {
        /// The value.
        value: String,
        /// What is wrong.
        wrong: String,
    },
    /// A setting of Kubernetes without it.
    #[error("{flag} is about the API server of --directory kubernetes:NAMESPACE/NAME, and --directory names none")]
    NoKubernetes {
        /// The flag.
        flag: &'static str,
    },
    /// `--directory-host` where nothing outside of the hosts says which leads.
    #[error(
        "--directory-host needs --directory etcd:https://HOST:PORT,... or kubernetes:NAMESPACE/NAME; \"embedded\" is a host by itself, and static: lists them"
    )]
    NoCoordinator,
    /// A setting of etcd without one.
    #[error("{flag} is about the etcd of --directory etcd:https://HOST:PORT,..., and --directory names none")]
    NoEtcd {
        /// The flag.
        flag: &'static str,
    },
    /// The directory is without TLS, but this node has certificates.
    #[error("--directory {value}: with --tls-cert the directory is asked over TLS: write https:// in place of http://")]
    DirectoryInTheClear {
        /// The value.
        value: String,
    },
    /// The directory is over TLS, but this node has no certificates.
    #[error(
        "--directory {value} is asked over TLS, which needs --tls-cert, --tls-key and --tls-ca; without them write http://"
    )]
    DirectoryNeedsTls {
        /// The value.
        value: String,
    },
    /// One of the files of TLS is given without the others.
    #[error("{given} is given and {missing} is not: TLS needs --tls-cert, --tls-key and --tls-ca, all three")]
    HalfOfTls {
        /// A given flag.
        given: &'static str,
        /// A missing flag.
        missing: &'static str,
    },
    /// Other nodes could not reach this node, although it belongs to a cluster.
    #[error(
        "--directory {value} makes this node part of a cluster, so it must listen too: give --listen IP:PORT, like --listen 127.0.0.1:0"
    )]
    NoListener {
        /// The directory's URL.
        value: String,
    },
    /// One flag has no effect without another.
    #[error("{flag} {value} needs {needs}, which is not given")]
    Needs {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The missing requirement.
        needs: &'static str,
    },
    /// A value is not valid.
    #[error("{flag} {value} {wrong}; {right}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The error.
        wrong: &'static str,
        /// The requirement.
        right: &'static str,
    },
    /// The number of queue pairs of one link is 0 or too high.
    #[error(
        "--verbs-queue-pairs {queue_pairs} on {devices} device(s) is {} queue pairs for each link: give 1 to {most} in all",
        usize::from(*queue_pairs) * devices
    )]
    Rails {
        /// The value.
        queue_pairs: u8,
        /// The number of devices.
        devices: usize,
        /// The most queue pairs of one link.
        most: usize,
    },
    /// A size exceeds its limit.
    #[error("{flag} {value} is more than --pinned-limit {limit}: raise the limit to at least {value}, or lower {flag}")]
    OverLimit {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: Size,
        /// The bound.
        limit: Size,
    },
    /// The control group allows less.
    #[error(
        "--pinned-limit {limit} is more than the memory cgroup of this process allows, {group_limit} bytes, and the kernel would end it \
         before the limit is reached: give less, or raise the cgroup's limit (MemoryMax= of a systemd unit, limits.memory of a container)"
    )]
    OverGroup {
        /// The value.
        limit: Size,
        /// What the control group allows, in bytes.
        group_limit: u64,
    },
    /// No worker could connect within the limit.
    #[error(
        "--pinned-limit {limit} leaves no room for a worker: --pool-bytes {pool} and {beside} beside that are pinned before its arena is; \
         give {advised} or more, or lower --pool-bytes"
    )]
    LimitTooSmall {
        /// The value.
        limit: Size,
        /// The landing pool.
        pool: Size,
        /// The memory that is pinned besides pools and arenas.
        beside: Size,
        /// The requirement.
        advised: Size,
    },
    /// The path is too long for a socket.
    #[error("{flag} {}: the path of a socket has {most} bytes at most, and this one has {len}", value.display())]
    SocketPath {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The most possible.
        most: usize,
    },
    /// A size is too small.
    #[error("{flag} {value}: at least {least} are needed")]
    TooSmall {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: Size,
        /// The least that works.
        least: Size,
    },
    /// A fabric is turned on and not available.
    #[error("--{fabric} on: {why}. --{fabric} auto starts without it")]
    NoFabric {
        /// The fabric.
        fabric: FabricKind,
        /// The reason.
        why: String,
    },
    /// The required fabric is not available.
    #[error("--require {fabric}: {why}")]
    Require {
        /// The fabric.
        fabric: FabricKind,
        /// The reason.
        why: String,
    },
    /// The permissions of the socket are not valid.
    #[error(
        "--socket-mode {value:o}: permissions are octal digits from 600 to 777, like 660 (owner and group) or 666 (everybody)"
    )]
    SocketMode {
        /// The value.
        value: u32,
    },
    /// The number of rails is not valid.
    #[error("--tcp-rails {value}: a link has 1 to 4 rails")]
    TcpRails {
        /// The value.
        value: u8,
    },
}
