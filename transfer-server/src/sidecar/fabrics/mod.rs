//! The fabrics of this build. To add a fabric, add a module here and a line in [`FABRICS`].

mod shm;
mod tcp;
mod verbs;

pub(super) use shm::socket_name;
pub(super) use verbs::datagrams;

use super::StartError;
use crate::config::{Config, ConfigError, UseFabric};
use crate::security::Security;
use std::net::SocketAddr;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::PassedOver;
use transfer_fabric::engine::BoxedFabric;

/// All fabrics, the best first.
const FABRICS: [Factory; 3] = [
    Factory { kind: FabricKind::Shm, make: shm::fabric, look: shm::look },
    Factory { kind: FabricKind::Verbs, make: verbs::fabric, look: verbs::look },
    Factory { kind: FabricKind::Tcp, make: tcp::fabric, look: tcp::look },
];

/// Makes the fabric of one kind.
struct Factory {
    kind: FabricKind,
    /// Makes the fabric.
    make: fn(&Start<'_>) -> Result<Made, StartError>,
    /// Checks whether the fabric could be made. Makes nothing, because a running sidecar may own the socket.
    look: fn(&Config) -> Result<Possible, ConfigError>,
}

/// The inputs of a fabric.
pub(super) struct Start<'a> {
    pub(super) config: &'a Config,
    pub(super) security: &'a Security,
    pub(super) incarnation: u64,
}

/// The result of making a fabric.
pub(super) enum Made {
    /// The fabric, and its address if it listens at one.
    Fabric(BoxedFabric, Option<SocketAddr>),
    /// The fabric cannot be made, for this reason.
    No(PassedOver),
    /// The configuration does not ask for the fabric.
    NotAsked,
}

impl From<Result<BoxedFabric, PassedOver>> for Made {
    fn from(made: Result<BoxedFabric, PassedOver>) -> Made {
        made.map_or_else(Made::No, |fabric| Made::Fabric(fabric, None))
    }
}

/// The result of checking whether a fabric could be made.
pub(super) enum Possible {
    Yes,
    No(PassedOver),
    NotAsked,
}

impl From<Result<(), PassedOver>> for Possible {
    fn from(possible: Result<(), PassedOver>) -> Possible {
        possible.map_or_else(Possible::No, |()| Possible::Yes)
    }
}

/// Calls `make` if a fabric is wanted and the sidecar can have links. Otherwise, or if that fails, returns the reason
/// why there is no such fabric.
///
/// # Errors
/// [`ConfigError::NoFabric`] with that reason, if the fabric is turned on.
fn make_if_wanted<T>(
    config: &Config,
    (fabric, wanted): (FabricKind, UseFabric),
    make: impl FnOnce(&Config) -> Result<T, String>,
) -> Result<Result<T, PassedOver>, ConfigError> {
    let made = match wanted {
        UseFabric::Off => Err(format!("it was started with --{fabric} off")),
        _ if config.listen.is_none() => Err("it was started without --listen, so it has no links to others".to_owned()),
        UseFabric::Auto | UseFabric::On => make(config),
    };
    match made {
        Ok(made) => Ok(Ok(made)),
        Err(why) if wanted == UseFabric::On => Err(ConfigError::NoFabric { fabric, why }),
        Err(why) => {
            tracing::info!(%fabric, why, "a fabric is not used");
            Ok(Err(PassedOver { fabric, why }))
        }
    }
}

/// The fabrics of a sidecar, the best first.
pub(super) struct Fabrics {
    pub(super) fabrics: Vec<BoxedFabric>,
    /// The address of the tcp fabric.
    pub(super) data: Option<SocketAddr>,
    /// The missing fabrics, each with the reason.
    pub(super) lacking: Vec<PassedOver>,
}

impl Fabrics {
    /// Makes all fabrics that can be made.
    ///
    /// # Errors
    /// A fabric that the configuration asks for failed, or the required fabric is missing.
    pub(super) fn make(start: &Start<'_>) -> Result<Fabrics, StartError> {
        let mut all = Fabrics { fabrics: Vec::new(), data: None, lacking: Vec::new() };
        for factory in &FABRICS {
            match (factory.make)(start)? {
                Made::Fabric(fabric, address) => {
                    all.fabrics.push(fabric);
                    all.data = all.data.or(address);
                }
                Made::No(why_not) => all.lacking.push(why_not),
                Made::NotAsked => {}
            }
        }
        check_required(start.config.require, &all.kinds(), &all.lacking)?;
        Ok(all)
    }

    pub(super) fn kinds(&self) -> Vec<FabricKind> {
        self.fabrics.iter().map(|fabric| fabric.kind()).collect()
    }
}

/// Checks whether a sidecar could have the fabric that its configuration requires.
///
/// # Errors
/// The same errors as a start would have.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let (mut kinds, mut lacking) = (Vec::new(), Vec::new());
    for factory in &FABRICS {
        match (factory.look)(config)? {
            Possible::Yes => kinds.push(factory.kind),
            Possible::No(why_not) => lacking.push(why_not),
            Possible::NotAsked => {}
        }
    }
    check_required(config.require, &kinds, &lacking)
}

/// Checks that the required fabric, if any, is among `kinds`.
fn check_required(
    require: Option<FabricKind>,
    kinds: &[FabricKind],
    lacking: &[PassedOver],
) -> Result<(), ConfigError> {
    let Some(fabric) = require.filter(|kind| !kinds.contains(kind)) else { return Ok(()) };
    let why = match (lacking.iter().find(|lack| lack.fabric == fabric), fabric) {
        (Some(lack), _) => lack.why.clone(),
        (None, FabricKind::Tcp) => tcp::NOT_ASKED.to_owned(),
        _ => {
            let known: Vec<_> = FABRICS.iter().map(|factory| factory.kind.name()).collect();
            format!("this build of transferd has no {fabric} fabric; its fabrics are {}", known.join(", "))
        }
    };
    Err(ConfigError::Require { fabric, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_are_made_in_the_order_in_which_links_prefer_them() {
        assert_eq!(FABRICS.map(|factory| factory.kind), FabricKind::BEST_FIRST);
    }
}
