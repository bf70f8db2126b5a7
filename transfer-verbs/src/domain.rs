//! Protection domains. Objects that were made in one domain can be used together.

use std::sync::Arc;

use rdma_sys::ibv_pd;

use crate::sys::Handle;
use crate::{Context, VerbsError};

/// A protection domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(pub(crate) Arc<DomainInner>);

#[derive(Debug)]
pub(crate) struct DomainInner {
    pub(crate) raw: Handle<ibv_pd>,
    pub(crate) context: Context,
}

impl ProtectionDomain {
    /// Makes a domain.
    pub fn new(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = Handle::new(unsafe { (context.0.functions.ibv_alloc_pd)(context.0.raw.raw()) })
            .map_err(|why| VerbsError::because(context.device_name(), "ibv_alloc_pd", why))?;
        Ok(Self(Arc::new(DomainInner { raw, context: context.clone() })))
    }

    /// Returns the device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain holds it, so this is its last use.
        let code = unsafe { (self.context.0.functions.ibv_dealloc_pd)(self.raw.raw()) };
        if code != 0 {
            // A region that could not be deregistered is still in it.
            tracing::warn!(device = self.context.device_name(), code, "a protection domain could not be given back");
        }
    }
}
