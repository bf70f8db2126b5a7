//! The required fabrics: whether a running sidecar has them, and whether one that is not started would.

use super::{shm, verbs};
use crate::config::{Config, ConfigError};
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::PassedOver;

/// Checks whether a sidecar could have the fabrics that its configuration requires. Makes none of them, because a
/// socket may belong to a running sidecar.
///
/// # Errors
/// As at a start.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let (mut kinds, mut lacking) = (Vec::new(), Vec::new());
    let looks = [(FabricKind::Shm, shm::look(config)?), (FabricKind::Verbs, verbs::look(config)?)];
    for (kind, look) in looks {
        match look {
            Ok(()) => kinds.push(kind),
            Err(why_not) => lacking.push(why_not),
        }
    }
    kinds.extend(config.data_address().map(|_| FabricKind::Tcp));
    held(config.require, &kinds, &lacking)
}

/// Checks that the required fabric is among the existing ones.
pub(super) fn held(
    require: Option<FabricKind>,
    kinds: &[FabricKind],
    lacking: &[PassedOver],
) -> Result<(), ConfigError> {
    let Some(fabric) = require.filter(|kind| !kinds.contains(kind)) else { return Ok(()) };
    let why = match (lacking.iter().find(|lack| lack.fabric == fabric), fabric) {
        (Some(lack), _) => lack.why.clone(),
        (None, FabricKind::Tcp) => "the tcp fabric needs --listen, or --data-listen".to_owned(),
        _ => format!("this build of transferd has no {fabric} fabric; tcp, shm and verbs are those that it has"),
    };
    Err(ConfigError::Require { fabric, why })
}
