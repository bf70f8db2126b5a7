//! Makes the fabric over shared memory if the configuration and the directory allow it, or gives the reason why not.

use super::{Made, Possible, Start, make_if_wanted};
use crate::config::{Config, ConfigError, UseFabric, UseReferences};
use crate::peering::FORM_DEADLINE;
use crate::sidecar::StartError;
use crate::sidecar::folder::make_directory;
use rustix::fs::Access;
use rustix::io::Errno;
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::wire::crc32c;
use transfer_fabric::engine::BoxedFabric;
use transfer_fabric::shm::{SOCKET_SUFFIX, ShmConfig, ShmFabric};

/// The length of the readable part of a node's name in the name of its socket.
const LEGIBLE_BYTES: usize = 40;

/// Makes the fabric, or returns the reason why it cannot be made.
///
/// # Errors
/// [`ConfigError::NoFabric`] if the fabric is turned on; an error if the configured directory cannot be made.
pub(super) fn fabric(start: &Start<'_>) -> Result<Made, StartError> {
    let config = start.config;
    let shm = &config.fabrics.shm;
    if let Some(directory) = &shm.directory
        && shm.wanted != UseFabric::Off
        && config.listen.is_some()
    {
        make_directory(directory)?;
    }
    Ok(make_if_wanted(config, (FabricKind::Shm, shm.wanted), |config| make(config, start.incarnation))?.into())
}

/// Checks whether the fabric is possible, as far as that can be checked without making it.
///
/// # Errors
/// [`ConfigError::NoFabric`] if the fabric is turned on.
pub(super) fn look(config: &Config) -> Result<Possible, ConfigError> {
    let shm = &config.fabrics.shm;
    let check = |config: &Config| {
        let directory = shm.directory(&config.socket);
        let may = Access::WRITE_OK | Access::EXEC_OK;
        match rustix::fs::access(directory.join("."), may) {
            // A missing directory is made at the start.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(format!("--shm-dir {}: {}", directory.display(), std::io::Error::from(e))),
        }
    };
    Ok(make_if_wanted(config, (FabricKind::Shm, shm.wanted), check)?.into())
}

fn make(config: &Config, incarnation: u64) -> Result<BoxedFabric, String> {
    let directory = config.fabrics.shm.directory(&config.socket);
    let mut shm = ShmConfig::new(&directory, &socket_name(config.node.as_str(), SOCKET_SUFFIX), incarnation);
    shm.references = config.fabrics.shm.references == UseReferences::On;
    // The fabric's time-out is shorter than the control plane's, so that the fabric reports the reason why a link does
    // not connect.
    shm.handshake_timeout = FORM_DEADLINE - Duration::from_secs(1);
    Ok(Box::new(ShmFabric::new(shm).map_err(|e| format!("--shm-dir {}: {e}", directory.display()))?))
}

/// Returns the name of a socket of this node. The name is unique for any characters of the node's name, and the same at
/// each start, so that the socket of a killed sidecar is replaced.
pub(in crate::sidecar) fn socket_name(node: &str, suffix: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let legible: String = node.chars().map(plain).take(LEGIBLE_BYTES).collect();
    if legible == node {
        format!("{node}{suffix}")
    } else {
        format!("{legible}-{:08x}{suffix}", crc32c(node.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_are_short_and_differ_between_nodes() {
        assert_eq!(socket_name("node-a", ".shm"), "node-a.shm");
        assert_ne!(socket_name("a/b", ".peers"), socket_name("a/b", ".shm"));
        let odd = ["a/b", "a b", "..", "ä", &"n".repeat(512), &"n".repeat(41)].map(|node| socket_name(node, ".shm"));
        for (i, name) in odd.iter().enumerate() {
            assert!(name.len() <= 60 && !name.contains('/') && !name.starts_with('.'), "{name}");
            assert!(odd[..i].iter().all(|other| other != name), "{name}");
        }
    }
}
