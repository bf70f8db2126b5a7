//! What can be said of a configuration without starting: `transferd --check`.

use crate::StartError;
use crate::config::{LoadError, Loaded};
use crate::observe::logging::{self, LogError};
use crate::security::Prepared;
use crate::sidecar::check_required;

/// A configuration with which no sidecar starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// Values that cannot be.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The log's filter.
    #[error("--log: {0}")]
    Log(#[from] LogError),
    /// What a start would find.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Checks all that needs no start: the values, the files that they name, and whether this host has the fabric that is required.
///
/// # Errors
/// [`CheckError`] for the first that is wrong.
pub fn check(loaded: &Loaded) -> Result<(), CheckError> {
    let config = loaded.config()?;
    logging::check_filter(&loaded.flags.log.filter)?;
    Prepared::of(&config).map_err(StartError::from)?;
    check_required(&config).map_err(StartError::from)?;
    Ok(())
}
