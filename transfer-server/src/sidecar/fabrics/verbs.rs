//! Makes the fabric over RDMA verbs if the host and the configuration allow it, or gives the reason why not.

use super::{Made, Possible, Start, make_if_wanted};
use crate::config::{Config, ConfigError, DeviceName, IsolationChoice, Size, VerbsConnect};
use crate::locked;
use crate::peering::FORM_DEADLINE;
use crate::sidecar::StartError;
use std::time::Duration;
use transfer_core::fabric::{FabricKind, Isolation};
use transfer_core::rails::{self, RailsConfig, inner_slots};
use transfer_fabric::engine::BoxedFabric;
use transfer_fabric::verbs::datagrams::Datagrams;
use transfer_fabric::verbs::{Connecting, GrantReport, VerbsConfig, VerbsFabric};
use transfer_verbs::Mtu;
use transfer_verbs::choose::{self, Wanted};

/// Makes the fabric, or returns the reason why it cannot be made.
///
/// # Errors
/// [`ConfigError::NoFabric`] if the fabric is turned on.
pub(super) fn fabric(start: &Start<'_>) -> Result<Made, StartError> {
    Ok(make_if_wanted(start.config, (FabricKind::Verbs, start.config.fabrics.verbs.wanted), make)?.into())
}

/// Checks whether the fabric is possible, as far as that can be checked without making it.
///
/// # Errors
/// [`ConfigError::NoFabric`] if the fabric is turned on.
pub(super) fn look(config: &Config) -> Result<Possible, ConfigError> {
    let check = |config: &Config| usable(config).map(drop);
    Ok(make_if_wanted(config, (FabricKind::Verbs, config.fabrics.verbs.wanted), check)?.into())
}

/// Returns the settings of each device's fabric, if the host has the devices and lets this process use them.
fn usable(config: &Config) -> Result<Vec<VerbsConfig>, String> {
    // The fabric checks this again, but its error names the fabric's own step, which does not help the user.
    transfer_verbs::available().map_err(|e| e.to_string())?;
    let settings = settings(config);
    for of in &settings {
        let wanted = Wanted { device: of.device.clone(), port: of.port, gid_index: of.gid_index };
        choose::port(&wanted).map_err(|e| e.to_string())?;
    }
    check_locked_memory(config.pool_bytes)?;
    Ok(settings)
}

/// Makes the queue pair for datagrams, on the first device.
///
/// # Errors
/// The reason why there is none.
pub(in crate::sidecar) fn datagrams(config: &Config) -> Result<Datagrams, String> {
    let first = settings(config).into_iter().next().unwrap_or_default();
    Datagrams::start(&first).map_err(|e| e.to_string())
}

/// Makes one fabric for each device, and the rails over all of them.
fn make(config: &Config) -> Result<BoxedFabric, String> {
    let (mut fabrics, mut rails) = (Vec::<BoxedFabric>::new(), Vec::new());
    for (place, settings) in usable(config)?.into_iter().enumerate() {
        fabrics.push(Box::new(VerbsFabric::open(settings).map_err(|e| e.to_string())?));
        rails.extend(vec![place; config.fabrics.verbs.queue_pairs.into()]);
    }
    rails::over(fabrics, RailsConfig::new(&rails)).map_err(|e| e.to_string())
}

/// Checks the limit of locked memory. If not even the first pool can be registered, no worker could connect, so the
/// sidecar starts without RDMA.
fn check_locked_memory(pool_bytes: Size) -> Result<(), String> {
    match locked::limit_bytes() {
        Some(limit) if limit < pool_bytes.0 => Err(format!(
            "registered memory is locked, this process may lock {} (RLIMIT_MEMLOCK), and --pool-bytes {pool_bytes} is more: raise the \
             limit (`ulimit -l unlimited` in the shell, `LimitMEMLOCK=infinity` in the systemd unit, `--ulimit memlock=-1` for the \
             container), or lower --pool-bytes",
            Size(limit)
        )),
        _ => Ok(()),
    }
}

/// Returns the settings of each device's fabric.
fn settings(config: &Config) -> Vec<VerbsConfig> {
    let told = &config.fabrics.verbs;
    let rails = told.devices.len().max(1) * usize::from(told.queue_pairs);
    let defaults = VerbsConfig::default();
    let of_any = VerbsConfig {
        device: None,
        port: told.port,
        gid_index: told.gid_index,
        connect: match (told.connect, told.listen) {
            (VerbsConnect::RdmaCm, Some(listen)) => Connecting::RdmaCm { listen },
            _ => Connecting::QueuePairData,
        },
        mtu: told.mtu.and_then(Mtu::from_len_bytes),
        timeout: told.timeout,
        retry_count: told.retry,
        rnr_retry: told.rnr_retry,
        min_rnr_timer: told.min_rnr_timer,
        traffic_class: told.traffic_class,
        service_level: told.service_level,
        pkey_index: told.pkey_index,
        isolation: match told.isolation {
            IsolationChoice::Window => Isolation::Grant,
            IsolationChoice::Pool => Isolation::Segment,
        },
        // With several queue pairs, the key on one of them may overtake the binds of the others.
        grants: if rails > 1 { GrantReport::Completed } else { GrantReport::Posted },
        receive_slots: inner_slots(defaults.receive_slots, rails),
        max_registered_bytes: config.pinned_limit.0,
        // The fabric's time-out is shorter than the control plane's, so that the fabric reports the reason why a link
        // does not connect.
        handshake_timeout: FORM_DEADLINE - Duration::from_secs(1),
        ..defaults
    };
    if told.devices.is_empty() {
        return vec![of_any];
    }
    let of = |device: &DeviceName| VerbsConfig {
        device: Some(device.name.clone()),
        port: device.port.or(told.port),
        ..of_any.clone()
    };
    told.devices.iter().map(of).collect()
}
