//! A copy of a version for a worker of another tenant.

use crate::alloc::Allocation;
use crate::memory::{ALIGNMENT, padded};
use crate::protocol::ids::{BlobId, OperationId};
use crate::protocol::tenant::Tenant;
use crate::tensor::Key;
use crate::time::Time;

/// A copy that waits for room, or is being made.
pub(super) struct Copying {
    /// `None` once the fetch has ended; then this only waits for the bytes to be copied.
    pub(super) op: Option<OperationId>,
    pub(super) key: Key,
    pub(super) from: BlobId,
    /// Whose it will be.
    pub(super) reader: Tenant,
    pub(super) len: u64,
    /// The room that it has.
    pub(super) to: Option<Allocation>,
    /// When it got that.
    pub(super) began: Time,
}

impl Copying {
    /// How much room it waits for. `None`: it has it.
    pub(super) fn needs(&self) -> Option<u64> {
        match self.to {
            // An empty tensor takes the least that can be allocated.
            None => padded(self.len).map(|len| len.max(ALIGNMENT)),
            Some(_) => None,
        }
    }
}
