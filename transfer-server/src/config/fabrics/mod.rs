//! The settings of the fabrics between nodes that can be turned on and off. Each has a file here.

mod shm;
mod verbs;

pub use shm::{ShmConfig, UseReferences};
pub use verbs::{DeviceName, IsolationChoice, NotADevice, VerbsConfig, VerbsConnect};

use super::ConfigError;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;

/// Whether to use a fabric between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UseFabric {
    /// Where it is possible. The status says why it is not used.
    Auto,
    /// Fail to start if it is not possible.
    On,
    /// Never.
    Off,
}

/// The settings of the fabrics. The fabric over tcp is always used where the sidecar listens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct FabricsConfig {
    /// RDMA between nodes.
    #[command(flatten)]
    pub verbs: VerbsConfig,

    /// Shared memory between the sidecars of one host.
    #[command(flatten)]
    pub shm: ShmConfig,
}

impl FabricsConfig {
    /// Returns the settings with which only tcp is used.
    #[must_use]
    pub fn none() -> FabricsConfig {
        FabricsConfig {
            verbs: VerbsConfig { wanted: UseFabric::Off, ..VerbsConfig::default() },
            shm: ShmConfig { wanted: UseFabric::Off, ..ShmConfig::default() },
        }
    }

    /// Returns the flag of each fabric, and whether it is used.
    fn switches(&self) -> [(&'static str, UseFabric); 2] {
        [("--verbs", self.verbs.wanted), ("--shm", self.shm.wanted)]
    }

    /// Returns the addresses at which fabrics listen, with their flags.
    pub(super) fn listeners(&self) -> [(&'static str, Option<SocketAddr>); 1] {
        [("--verbs-listen", self.verbs.listen)]
    }

    /// Checks that a fabric that is required can have links: the sidecar `listens` for other nodes.
    pub(super) fn check_listener(&self, listens: bool) -> Result<(), ConfigError> {
        match self.switches().into_iter().find(|(_, wanted)| *wanted == UseFabric::On) {
            Some((flag, _)) if !listens => {
                let needs = "--listen: links to other nodes are made there";
                Err(ConfigError::Needs { flag, value: "on".to_owned(), needs })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.verbs.check()
    }
}
