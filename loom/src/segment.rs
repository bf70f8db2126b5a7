//! What a ring knows of segments.

use crate::region::Memory;
use std::sync::Arc;

/// The memory of one ring, which both ends have.
#[derive(Debug)]
pub struct Mapping(pub(crate) Arc<Memory>);

/// There is nothing to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("memory cannot be mapped")]
pub struct MapError;
