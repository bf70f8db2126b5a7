//! A configuration that cannot be. Each error names the flag, its value, and what would be right.

use super::Size;
use std::net::SocketAddr;
use std::path::PathBuf;
use transfer_core::fabric::FabricKind;
use transfer_core::tensor::InvalidName;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A node name that cannot be.
    #[error("--node {value:?}: {source}; give a name that no other node of the cluster has")]
    Node {
        /// The value.
        value: String,
        /// What is wrong with it.
        source: InvalidName,
    },
    /// An address that other hosts can reach, with neither TLS nor `--insecure`.
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
    /// A page that other hosts can reach.
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
    /// A rule about tenants.
    #[error("{flag} {rule:?}: {why}")]
    Tenants {
        /// The flag.
        flag: &'static str,
        /// What the rule is for.
        rule: String,
        /// What is wrong.
        why: String,
    },
    /// An address that nobody can connect to.
    #[error(
        "{flag} is missing: {because} {value} is no address that other nodes can connect to. Give {flag} {form}, as they shall call it"
    )]
    Unspecified {
        /// The flag that is missing.
        flag: &'static str,
        /// The flag whose value is no use.
        because: &'static str,
        /// That value.
        value: SocketAddr,
        /// What the missing one takes.
        form: &'static str,
    },
    /// A value that says where other nodes find this one, and is not understood.
    #[error("--advertise {value:?} is no HOST:PORT, like node-a:7471 or 10.0.0.7:7471")]
    Advertise {
        /// The value.
        value: String,
    },
    /// `--directory` is neither.
    #[error(
        "--directory {value:?} is neither \"embedded\" nor the URL of the node that hosts it, like https://node-a:7471 or \
         http://10.0.0.7:7471"
    )]
    Directory {
        /// The value.
        value: String,
    },
    /// A directory in the clear for a node that has certificates.
    #[error("--directory {value}: with --tls-cert the directory is asked over TLS: write https:// in place of http://")]
    DirectoryInTheClear {
        /// The value.
        value: String,
    },
    /// A directory over TLS for a node that has no certificates.
    #[error(
        "--directory {value} is asked over TLS, which needs --tls-cert, --tls-key and --tls-ca; without them write http://"
    )]
    DirectoryNeedsTls {
        /// The value.
        value: String,
    },
    /// One of the files that TLS needs, without the others.
    #[error("{given} is given and {missing} is not: TLS needs --tls-cert, --tls-key and --tls-ca, all three")]
    HalfOfTls {
        /// A flag that is there.
        given: &'static str,
        /// A flag that is not.
        missing: &'static str,
    },
    /// A node of a cluster that no other node could reach.
    #[error(
        "--directory {value} makes this node part of a cluster, so it must listen too: give --listen IP:PORT, like --listen 127.0.0.1:0"
    )]
    NoListener {
        /// The directory's URL.
        value: String,
    },
    /// One flag that has no effect without another.
    #[error("{flag} {value} needs {needs}, which is not given")]
    Needs {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What it needs.
        needs: &'static str,
    },
    /// A value that cannot be.
    #[error("{flag} {value} {wrong}; {right}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        wrong: &'static str,
        /// What would be right.
        right: &'static str,
    },
    /// Queue pairs for one link that are none, or too many.
    #[error(
        "--verbs-queue-pairs {queue_pairs} on {devices} device(s) is {} queue pairs for each link: give 1 to {most} in all",
        usize::from(*queue_pairs) * devices
    )]
    Rails {
        /// The value.
        queue_pairs: u8,
        /// How many devices there are.
        devices: usize,
        /// The most queue pairs of one link.
        most: usize,
    },
    /// Memory that does not fit its bound.
    #[error("{flag} {value} is more than --pinned-limit {limit}: raise the limit to at least {value}, or lower {flag}")]
    OverLimit {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: Size,
        /// The bound.
        limit: Size,
    },
    /// A bound with which no worker could connect.
    #[error(
        "--pinned-limit {limit} leaves no room for a worker: --pool-bytes {pool} and {beside} beside that are pinned before its arena is; \
         give {advised} or more, or lower --pool-bytes"
    )]
    LimitTooSmall {
        /// The value.
        limit: Size,
        /// The landing pool.
        pool: Size,
        /// What is pinned beside pools and arenas.
        beside: Size,
        /// What would be enough.
        advised: Size,
    },
    /// A path that a socket cannot have.
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
    /// A size of which something must be there.
    #[error("{flag} {value}: at least {least} are needed")]
    TooSmall {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: Size,
        /// The least that works.
        least: Size,
    },
    /// RDMA that must be and cannot.
    #[error("--verbs on: {why}. --verbs auto starts without it")]
    NoVerbs {
        /// Why it cannot be.
        why: String,
    },
    /// Shared memory that must be and cannot.
    #[error("--shm on: {why}. --shm auto starts without it")]
    NoShm {
        /// Why it cannot be.
        why: String,
    },
    /// A fabric that this sidecar does not have.
    #[error("--require {fabric}: {why}")]
    Require {
        /// The fabric.
        fabric: FabricKind,
        /// Why it cannot be.
        why: String,
    },
    /// A socket's permissions.
    #[error(
        "--socket-mode {value:o}: permissions are octal digits from 600 to 777, like 660 (owner and group) or 666 (everybody)"
    )]
    SocketMode {
        /// The value.
        value: u32,
    },
    /// More rails than a link can have, or none.
    #[error("--tcp-rails {value}: a link has 1 to 4 rails")]
    TcpRails {
        /// The value.
        value: u8,
    },
}
