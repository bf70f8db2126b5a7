//! Which version is asked for: a kind and a version, in control messages and in records of the rings.

use super::{Reader, WireError};
use crate::tensor::{Select, Version};

/// Reads a selector's kind and version.
///
/// # Errors
/// [`WireError::Value`] for an unknown kind.
pub(super) fn select(kind: u8, version: u64) -> Result<Select, WireError> {
    match kind {
        0 => {
            Reader::zero("version of the latest", version)?;
            Ok(Select::Latest)
        }
        1 => Ok(Select::AtLeast(Version(version))),
        2 => Ok(Select::Exactly(Version(version))),
        3 => Ok(Select::After(Version(version))),
        4 => Ok(Select::Following(Version(version))),
        n => Err(WireError::Value { what: "version selector", value: u64::from(n), expected: "0 to 4" }),
    }
}

/// Returns the kind of a choice of versions, and its version.
pub(super) fn select_parts(select: Select) -> (u8, u64) {
    match select {
        Select::Latest => (0, 0),
        Select::AtLeast(v) => (1, v.0),
        Select::Exactly(v) => (2, v.0),
        Select::After(v) => (3, v.0),
        Select::Following(v) => (4, v.0),
    }
}
