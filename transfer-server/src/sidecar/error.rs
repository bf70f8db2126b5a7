//! A sidecar that did not start.

use crate::config::ConfigError;
use crate::security::TlsError;
use std::io;
use std::path::PathBuf;
use transfer_core::fabric::FabricError;
use transfer_fabric::engine::EngineError;
use transfer_memory::socket::AddressError;

/// Why a sidecar did not start. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its certificates cannot be.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The workers' socket cannot be.
    #[error("--socket: {0}")]
    Socket(#[from] AddressError),
    /// An address cannot be listened at.
    #[error("{flag} {address}: cannot listen there: {source}")]
    Listen {
        /// The flag.
        flag: &'static str,
        /// Its value.
        address: String,
        /// The system's words.
        source: io::Error,
    },
    /// A directory for a socket cannot be made.
    #[error("cannot make the directory {path:?}: {source}{}", hint_of_rights(source))]
    MakeDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The tcp fabric does not start.
    #[error("--data-listen {address}: {source}")]
    Fabric {
        /// The address.
        address: std::net::SocketAddr,
        /// The fabric's words.
        source: FabricError,
    },
    /// The rails that were asked for cannot be.
    #[error("the rails of the tcp fabric: {0}")]
    Rails(#[source] transfer_core::rails::RailsError),
    /// The data plane does not start.
    #[error("the data plane does not start: {0}")]
    Engine(#[from] EngineError),
    /// The directory does not take this node.
    #[error("the directory at {place} does not attach this node: {why}")]
    Directory {
        /// Its URL.
        place: String,
        /// Its words.
        why: String,
    },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's words.
        source: io::Error,
    },
    /// The gRPC services cannot be put together: a defect of the build.
    #[error("the gRPC services cannot be put together: {0}")]
    Services(String),
}

/// What to do where a user may not make a folder: the default is one of the system.
fn hint_of_rights(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; --socket and --admin-socket may name paths in a folder of your own",
        _ => "",
    }
}
