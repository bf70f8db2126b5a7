//! The settings of shared memory between sidecars.

use super::UseFabric;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// Whether workers read each other's memory over such a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UseReferences {
    /// If the other sidecar allows it, too.
    On,
    /// The receiving sidecar copies.
    Off,
}

/// Shared memory between two sidecars of one host.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Shared memory")]
pub struct ShmConfig {
    /// Use shared memory between this sidecar and others of this host and user, also in other containers: auto with
    /// those that have the same directory, on or fail to start, off
    #[arg(id = "use_shm", long = "shm", env = "TRANSFER_SHM", value_enum, default_value_t = UseFabric::Auto)]
    pub wanted: UseFabric,

    /// The directory that both sidecars share. Default: that of --socket
    #[arg(id = "shm_directory", long = "shm-dir", env = "TRANSFER_SHM_DIR", value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// Whether a fetch over shared memory reads the owner's own memory, read-only, if both sidecars allow it and the
    /// workers are of one user; off: the receiving sidecar copies
    #[arg(
        id = "shm_reference",
        long = "shm-reference",
        env = "TRANSFER_SHM_REFERENCE",
        value_enum,
        default_value_t = UseReferences::On
    )]
    pub references: UseReferences,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { wanted: UseFabric::Auto, directory: None, references: UseReferences::On }
    }
}

impl ShmConfig {
    /// Returns the directory, for a sidecar whose workers connect at `socket`.
    #[must_use]
    pub fn directory(&self, socket: &Path) -> PathBuf {
        let beside = || socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.directory.clone().unwrap_or_else(|| beside().to_owned())
    }
}
