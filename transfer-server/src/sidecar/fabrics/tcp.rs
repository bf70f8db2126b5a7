//! Makes the fabric over TCP if the sidecar has an address for other nodes.

use super::{Made, Possible, Start};
use crate::config::{Config, ConfigError};
use crate::peering::FORM_DEADLINE;
use crate::sidecar::StartError;
use std::net::SocketAddr;
use std::time::Duration;
use transfer_core::rails::{self, RailsConfig, inner_slots};
use transfer_fabric::tcp::{TcpConfig, TcpFabric};

/// The reason why the fabric is missing, for a configuration that requires it.
pub(super) const NOT_ASKED: &str = "the tcp fabric needs --listen, or --data-listen";

/// Makes the fabric, with its rails. Returns its address, too. Nodes with different numbers of rails can be linked.
///
/// # Errors
/// The fabric cannot listen at its address, or the rails are not valid.
pub(super) fn fabric(start: &Start<'_>) -> Result<Made, StartError> {
    let Start { config, security, .. } = start;
    let Some(address) = config.data_address() else { return Ok(Made::NotAsked) };
    let mut tcp = TcpConfig::new(address);
    tcp.advertise = config.data_advertise.map(|ip| SocketAddr::new(ip, 0));
    tcp.tls = security.for_data().filter(|_| config.security.encrypts_data());
    // The fabric's time-out is shorter than the control plane's, so that the fabric reports the reason why a link does
    // not connect.
    tcp.handshake_timeout = FORM_DEADLINE - Duration::from_secs(1);
    let rails = vec![0; usize::from(config.tcp_rails)];
    tcp.receive_slots = inner_slots(tcp.receive_slots, rails.len());
    let tcp = TcpFabric::new(tcp).map_err(|source| StartError::Fabric { address, source })?;
    let bound = tcp.address();
    let fabric = rails::over(vec![Box::new(tcp)], RailsConfig::new(&rails)).map_err(StartError::Rails)?;
    Ok(Made::Fabric(fabric, Some(bound)))
}

/// Checks whether the configuration asks for the fabric.
///
/// # Errors
/// Returns no error.
pub(super) fn look(config: &Config) -> Result<Possible, ConfigError> {
    Ok(if config.data_address().is_some() { Possible::Yes } else { Possible::NotAsked })
}
