//! Memory of the program, registered with a sidecar inside its process.

use super::both_clients;
use crate::error::{Error, ErrorWith};
use crate::memory::TensorMut;
use crate::request::HasHandle;
use crate::session::RELEASE_TIMEOUT;
use std::any::Any;
use transfer_core::tensor::{DType, TensorMeta};
use transfer_memory::segment::OwnedMemory;

/// The memory, if it is of this type.
fn own<M: OwnedMemory>(owner: Box<dyn OwnedMemory>) -> Option<M> {
    let owner: Box<dyn Any> = owner;
    Some(*owner.downcast::<M>().ok()?)
}

both_clients! {
    /// Whether the sidecar is inside of this process, which [`register`](Self::register) needs.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.handle().session().is_embedded()
    }

    /// Registers memory of this program with a sidecar [inside of this process](Self::embedded), as a tensor: a vector, or memory of
    /// another library. What is pushed of it is sent by tcp and by verbs from where it lies, and what is fetched
    /// [into](crate::Fetch::into) it lands there. No other process can map it, so readers of this host get a copy in the landing pool,
    /// which their reports count, and so do peers over shared memory. Versions in it are not found without a request.
    ///
    /// The tensor is like one of the arena, and takes no room there: a push consumes it, and nobody can change what is published.
    /// [`take_back`](Self::take_back) returns it, as does a push that fails. It is registered until the last holder of its memory is
    /// gone, or until [`unregister`](Self::unregister), and counts as pinned meanwhile. The call blocks while devices register the memory.
    ///
    /// # Errors
    /// [`Error::NotRegistered`]: the sidecar is another process, or the limit of pinned memory is reached. [`Error::WrongLength`],
    /// [`Error::Shape`]. With the memory, if no device may have it.
    pub fn register<M: OwnedMemory>(
        &self,
        mut memory: M,
        dtype: DType,
        dims: impl AsRef<[u64]>,
    ) -> Result<TensorMut, ErrorWith<M>> {
        let found_bytes = memory.range().1 as u64;
        let meta = match TensorMeta::of(dtype, dims.as_ref()) {
            Ok(meta) if meta.len_bytes() == found_bytes => meta,
            Ok(meta) => {
                let expected_bytes = meta.len_bytes();
                return Err(ErrorWith::new(Error::WrongLength { meta, expected_bytes, found_bytes }, Some(memory)));
            }
            Err(e) => return Err(ErrorWith::new(e.into(), Some(memory))),
        };
        let handle = self.handle();
        match handle.session().register(handle.worker(), Box::new(memory)) {
            Ok(block) => Ok(TensorMut::new(block, meta)),
            Err((e, owner)) => Err(ErrorWith::new(e, owner.and_then(own::<M>))),
        }
    }

    /// Ends the registration of a tensor's memory, and returns the memory. It blocks until no device has it.
    ///
    /// # Errors
    /// [`Error::OtherMemory`] with the tensor, if its memory was not registered as `M`, or if the sidecar is another process.
    /// [`Error::Forked`] with the tensor. [`Error::NoAnswer`] if devices do not let it go within 30 s; then it is freed when they do.
    pub fn unregister<M: OwnedMemory>(&self, tensor: TensorMut) -> Result<M, ErrorWith<TensorMut>> {
        let session = self.handle().session();
        if !tensor.block().is_owned_by::<M>() {
            return Err(ErrorWith::new(Error::OtherMemory { meta: tensor.meta().clone() }, Some(tensor)));
        }
        if session.is_forked() {
            return Err(ErrorWith::new(Error::Forked, Some(tensor)));
        }
        let (block, _) = tensor.into_parts();
        let waited = RELEASE_TIMEOUT;
        session.unregister(block).and_then(own::<M>).ok_or_else(|| ErrorWith::new(Error::NoAnswer { waited }, None))
    }
}
