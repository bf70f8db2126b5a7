//! The part of segments that a ring uses.

use crate::region::Memory;
use std::sync::Arc;

/// The memory of one ring, which both ends share.
#[derive(Debug)]
pub struct Mapping(pub(crate) Arc<Memory>);

/// The error of a mapping. It never occurs here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("memory cannot be mapped")]
pub struct MapError;
