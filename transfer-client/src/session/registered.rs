//! Memory of the program that is registered with a sidecar inside this process.

use super::Session;
use crate::error::Error;
use std::time::Duration;
use transfer_core::tensor::Name;
use transfer_memory::arena::Block;
use transfer_memory::segment::OwnedMemory;

/// The longest wait for the end of a registration.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

impl Session {
    /// Whether the sidecar is inside of this process.
    pub(crate) fn is_embedded(&self) -> bool {
        self.inside.is_some()
    }

    /// Registers memory. Blocks until that is done.
    ///
    /// # Errors
    /// [`Error::NotRegistered`], [`Error::Forked`], with the memory if no device may have it.
    pub(crate) fn register(
        &self,
        worker: &Name,
        owner: Box<dyn OwnedMemory>,
    ) -> Result<Block, (Error, Option<Box<dyn OwnedMemory>>)> {
        if self.is_forked() {
            return Err((Error::Forked, Some(owner)));
        }
        if let Some(gone) = self.gone() {
            return Err((gone.into(), Some(owner)));
        }
        match &self.inside {
            Some(inside) => inside.register(self, worker, owner),
            None => {
                let reason = "the sidecar is another process, which cannot read memory of this one: allocate the tensor in the \
                              arena, push a copy, or connect to a sidecar inside this process";
                Err((Error::NotRegistered { reason: reason.to_owned() }, Some(owner)))
            }
        }
    }

    /// Ends a registration, and waits until no device and no fabric has the memory. `None` if that takes too long: the memory is freed
    /// when it is over.
    pub(crate) fn unregister(&self, block: Block) -> Option<Box<dyn OwnedMemory>> {
        let freed = block.mapping().freed()?;
        drop(block);
        freed.recv_timeout(RELEASE_TIMEOUT).ok()
    }
}
