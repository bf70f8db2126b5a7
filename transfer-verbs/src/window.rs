//! Memory windows of type 2: a range of a region, opened to the peer of one queue pair under a key of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rdma_sys::{ibv_mw, ibv_mw_type};

use crate::region;
use crate::sys::Handle;
use crate::{ProtectionDomain, RemoteKey, VerbsError};

/// A memory window. It is bound by posting [`SendKind::BindWindow`](crate::SendKind) and closed again by
/// [`SendKind::LocalInvalidate`](crate::SendKind) with its key, on the same queue pair.
///
/// **Closing a window that is not open panics the kernel of some devices (rxe)**, so the user has to keep account of
/// the windows that are open. Dropping a window deallocates it, which also closes it.
///
/// A window keeps the region that it was last bound to. It cannot be copied:
///
/// ```compile_fail
/// # fn of(window: &transfer_verbs::MemoryWindow) -> transfer_verbs::MemoryWindow {
/// window.clone()
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryWindow(pub(crate) Arc<WindowInner>);

#[derive(Debug)]
pub(crate) struct WindowInner {
    pub(crate) raw: Handle<ibv_mw>,
    pub(crate) domain: ProtectionDomain,
    /// The key of the last bind that was posted.
    key: AtomicU32,
    region: Mutex<Option<Arc<region::RegionInner>>>,
}

impl MemoryWindow {
    /// Makes a window that is not open.
    pub fn allocate(domain: &ProtectionDomain) -> Result<Self, VerbsError> {
        let context = domain.context();
        // SAFETY: the domain is alive. The function is a pointer in the context, not one that has to be linked.
        let raw = unsafe { rdma_sys::ibv_alloc_mw(domain.0.raw.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
        let Some(raw) = raw else {
            return Err(VerbsError::Unsupported { device: context.device_name().to_owned(), what: "memory windows" });
        };
        let raw = Handle::new(raw).map_err(|why| VerbsError::because(context.device_name(), "ibv_alloc_mw", why))?;
        // SAFETY: the window was just made; nothing else knows it.
        let key = unsafe { (*raw.raw()).rkey };
        Ok(Self(Arc::new(WindowInner {
            raw,
            domain: domain.clone(),
            key: AtomicU32::new(key),
            region: Mutex::new(None),
        })))
    }

    /// Returns the key of its next bind. It changes when a bind is posted, and wraps around after 256 binds.
    pub fn next_key(&self) -> RemoteKey {
        self.key().next()
    }

    /// Returns the key of the last bind that was posted.
    pub fn key(&self) -> RemoteKey {
        RemoteKey(self.0.key.load(Ordering::Acquire))
    }

    /// Releases the region that the window was last bound to. Only for a window whose invalidation has completed: a
    /// region with an open window cannot be deregistered, and is then kept forever.
    pub fn release_region(&self) {
        self.0.region.lock().take();
    }
}

impl WindowInner {
    /// Records that a bind was posted. The caller holds the context's `binding`.
    pub(crate) fn bound(&self, key: RemoteKey, region: Arc<region::RegionInner>) {
        // SAFETY: the window is alive, and only the library's posting, under the same lock, reads the field. The
        // library does not set it for a window of type 2, and its next bind needs the present key there.
        unsafe { (*self.raw.raw()).rkey = key.0 };
        self.key.store(key.0, Ordering::Release);
        *self.region.lock() = Some(region);
    }
}

impl Drop for WindowInner {
    fn drop(&mut self) {
        // SAFETY: lists that bind the window hold it, so this is its last use. It is deallocated before the region
        // that it may be bound to is released.
        let code = unsafe { rdma_sys::ibv_dealloc_mw(self.raw.raw()) };
        if code != 0 {
            let device = self.domain.context().device_name();
            tracing::error!(device, code, "a memory window could not be given back");
        }
    }
}
