//! The settings of versions on disk.

use super::{ConfigError, Size};
use clap::Args;
use std::path::PathBuf;
use transfer_core::protocol;

/// Versions that are written to disk when memory is short: what tasks of an exchange have written.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Exchanges on disk")]
pub struct SpillConfig {
    /// The folder in which rows of exchanges are written to disk when they take too much of a worker's arena, in files
    /// without a name, not encrypted. It must be on a disk. Without it nothing is written to disk
    #[arg(id = "spill_dir", long = "spill-dir", env = "TRANSFER_SPILL_DIR", value_name = "DIR")]
    pub folder: Option<PathBuf>,

    /// The most bytes on disk for all tenants together
    #[arg(
        id = "spill_bytes",
        long = "spill-bytes",
        env = "TRANSFER_SPILL_BYTES",
        value_name = "SIZE",
        default_value_t = Size(64 << 30)
    )]
    pub bytes: Size,

    /// The most bytes on disk for one tenant. Default: that of --spill-bytes
    #[arg(
        id = "spill_bytes_per_tenant",
        long = "spill-bytes-per-tenant",
        env = "TRANSFER_SPILL_BYTES_PER_TENANT",
        value_name = "SIZE"
    )]
    pub tenant_bytes: Option<Size>,

    /// The share of its arena, in percent, that rows of exchanges may take until they are written to disk
    #[arg(
        id = "spill_high_percent",
        long = "spill-high-percent",
        env = "TRANSFER_SPILL_HIGH_PERCENT",
        value_name = "PERCENT",
        default_value_t = 60
    )]
    pub high_percent: u32,

    /// The share of its arena, in percent, down to which they are written then
    #[arg(
        id = "spill_low_percent",
        long = "spill-low-percent",
        env = "TRANSFER_SPILL_LOW_PERCENT",
        value_name = "PERCENT",
        default_value_t = 40
    )]
    pub low_percent: u32,
}

impl Default for SpillConfig {
    fn default() -> SpillConfig {
        SpillConfig { folder: None, bytes: Size(64 << 30), tenant_bytes: None, high_percent: 60, low_percent: 40 }
    }
}

impl SpillConfig {
    /// Checks the marks and the limits.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let (high, low) = (self.high_percent, self.low_percent);
        if high > 100 || low >= high {
            return Err(ConfigError::SpillMarks { high, low });
        }
        match self.tenant_bytes {
            Some(tenant) if tenant > self.bytes => Err(ConfigError::SpillLimits { tenant, all: self.bytes }),
            _ => Ok(()),
        }
    }

    /// Returns the configuration of the node. `None`: nothing is written to disk.
    pub(crate) fn node(&self) -> Option<protocol::SpillConfig> {
        self.folder.as_ref().map(|_| protocol::SpillConfig {
            high_percent: self.high_percent.into(),
            low_percent: self.low_percent.into(),
            tenant_bytes: self.tenant_bytes.unwrap_or(self.bytes).0,
            total_bytes: self.bytes.0,
        })
    }
}
