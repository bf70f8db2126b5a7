//! The fabrics of this build. Another one is a module beside this one, and a line in [`FABRICS`].

use super::{StartError, shm, tcp, verbs};
use crate::config::{Config, ConfigError};
use crate::security::Security;
use std::net::SocketAddr;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::PassedOver;
use transfer_fabric::engine::BoxedFabric;

/// All of them, the best first.
const FABRICS: [Factory; 3] = [
    Factory { kind: FabricKind::Shm, make: shm::fabric, look: shm::look },
    Factory { kind: FabricKind::Verbs, make: verbs::fabric, look: verbs::look },
    Factory { kind: FabricKind::Tcp, make: tcp::fabric, look: tcp::look },
];

/// Makes the fabric of one kind.
struct Factory {
    kind: FabricKind,
    /// Makes it.
    make: fn(&Start<'_>) -> Result<Made, StartError>,
    /// Looks whether it could be made. It makes nothing: a socket may be that of a sidecar that runs.
    look: fn(&Config) -> Result<Possible, ConfigError>,
}

/// What a fabric is made from.
pub(super) struct Start<'a> {
    pub(super) config: &'a Config,
    pub(super) security: &'a Security,
    pub(super) incarnation: u64,
}

/// What came of it.
pub(super) enum Made {
    /// The fabric, and the address that it listens at, for one that listens.
    Fabric(BoxedFabric, Option<SocketAddr>),
    /// There is none.
    No(PassedOver),
    /// There is none, because nothing asks for one.
    NotAsked,
}

/// Whether a fabric could be made.
pub(super) enum Possible {
    Yes,
    No(PassedOver),
    NotAsked,
}

/// The fabrics of a sidecar, the best first.
pub(super) struct Fabrics {
    pub(super) fabrics: Vec<BoxedFabric>,
    /// The address that the tcp fabric listens at.
    pub(super) data: Option<SocketAddr>,
    /// Those that it could have and has not, and why.
    pub(super) lacking: Vec<PassedOver>,
}

impl Fabrics {
    /// Makes all that can be made.
    ///
    /// # Errors
    /// Those of a fabric that has to be there, and a lack of the one that the configuration requires.
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

/// Looks whether a sidecar could have the fabric that its configuration requires.
///
/// # Errors
/// Those of a start.
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

/// Whether the one that is required is among those that there are.
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
