//! Errors of the start of a sidecar.

use crate::config::{ConfigError, SettingError};
use crate::security::TlsError;
use std::io;
use std::path::PathBuf;
use transfer_core::fabric::FabricError;
use transfer_fabric::engine::{DiskError, EngineError};
use transfer_memory::socket::AddressError;

/// The reason why a sidecar did not start. A failed start leaves nothing behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings of a sidecar inside this process are not valid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The certificates are not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The workers' socket cannot be made.
    #[error("--socket: {0}")]
    Socket(#[from] AddressError),
    /// The sidecar cannot listen at an address.
    #[error("{flag} {address}: cannot listen there: {source}")]
    Listen {
        /// The flag.
        flag: &'static str,
        /// The flag's value.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A directory for a socket cannot be made.
    #[error("cannot make the directory {path:?}: {source}{}", hint_of_rights(source))]
    MakeDirectory {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder for copies cannot be opened.
    #[error("--copy-folder {}: cannot open it: {source}; it has to be a folder that the sidecar's user may read and write", path.display())]
    CopyFolder {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The tcp fabric does not start.
    #[error("--data-listen {address}: {source}")]
    Fabric {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the fabric.
        source: FabricError,
    },
    /// The rails of the tcp fabric are not valid.
    #[error("the rails of the tcp fabric: {0}")]
    Rails(#[source] transfer_core::rails::RailsError),
    /// Nothing can be written to disk in the folder for it.
    #[error("--spill-dir: {0}")]
    SpillDir(#[source] DiskError),
    /// The data plane does not start.
    #[error("the data plane does not start: {0}")]
    Engine(#[source] EngineError),
    /// The directory does not attach this node.
    #[error("the directory at {place} does not attach this node: {why}")]
    Directory {
        /// The URL of the directory.
        place: String,
        /// The reason that the directory gave.
        why: String,
    },
    /// The operating system refused another step.
    #[error("{what}: {source}")]
    System {
        /// The step.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The gRPC services cannot be set up, which is a defect of the build.
    #[error("the gRPC services cannot be put together: {0}")]
    Services(String),
}

/// Returns advice for a user who may not make the directory, because the default is a system directory.
fn hint_of_rights(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; --socket and --admin-socket may name paths in a folder of your own",
        _ => "",
    }
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> StartError {
        match error {
            EngineError::Disk(error) => StartError::SpillDir(error),
            error => StartError::Engine(error),
        }
    }
}
