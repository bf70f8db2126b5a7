//! Registered memory.

use std::sync::Arc;
use std::{fmt, mem};

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_sge};

use crate::sys::Handle;
use crate::{LocalKey, ProtectionDomain, RegisterError, RemoteKey};

/// Memory that a device may access.
///
/// # Safety
/// For as long as the value lives, `range` is one mapping of that many bytes, readable, and writable if `writable`
/// says so, and both always return the same. A device, and through it a peer, reads the bytes and may change them at
/// any time: nothing in this process may hold a reference to bytes that a device could be writing.
pub unsafe trait DeviceMemory: Send + Sync {
    /// Its start and its length in bytes.
    fn range(&self) -> (*mut u8, usize);

    /// Whether it may be written.
    fn writable(&self) -> bool;
}

/// The access to a region, besides that the own device may read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The own device may write: receives, results of READs and atomics, and everything that a peer writes.
    pub local_write: bool,
    /// Windows may be bound to it.
    pub window_bind: bool,
    /// A peer may WRITE with the region's own remote key. Needs `local_write`.
    pub remote_write: bool,
    /// A peer may READ with the region's own remote key.
    pub remote_read: bool,
    /// A peer may use atomics with the region's own remote key. Needs `local_write`.
    pub remote_atomic: bool,
}

/// Registered memory. Clones are the same region. The registration, and the memory itself, are kept until the last
/// clone is gone.
#[derive(Clone, Debug)]
pub struct MemoryRegion(pub(crate) Arc<RegionInner>);

pub(crate) struct RegionInner {
    pub(crate) raw: Handle<ibv_mr>,
    pub(crate) domain: ProtectionDomain,
    local_key: LocalKey,
    remote_key: RemoteKey,
    address: u64,
    len_bytes: usize,
    memory: Arc<dyn DeviceMemory>,
}

impl fmt::Debug for RegionInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_key, remote_key, address, len_bytes, .. } = self;
        write!(f, "{len_bytes} bytes at {address:#x}, {local_key:?}, {remote_key:?}")
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: everything that uses the region holds it, so this is its last use. A work request that names its key
        // from now on fails.
        let code = unsafe { (context.0.functions.ibv_dereg_mr)(self.raw.raw()) };
        if code != 0 {
            // A window is still bound to it, so a peer may still write: the memory has to stay forever.
            mem::forget(self.memory.clone());
            tracing::error!(
                device = context.device_name(),
                len_bytes = self.len_bytes,
                code,
                "memory could not be deregistered, and is kept until the process ends"
            );
        }
    }
}

/// A range of one region, for a gather list. It is a plain value: a work request with an element whose region is gone
/// fails with a status.
///
/// An element comes only from a region:
///
/// ```compile_fail
/// # fn of(region: &transfer_verbs::MemoryRegion) -> transfer_verbs::Element {
/// transfer_verbs::Element { address: 0x1000, len_bytes: 16, key: region.local_key() }
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Element {
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) key: LocalKey,
}

impl Element {
    /// Its first byte's address in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// The key of its region.
    pub fn local_key(&self) -> LocalKey {
        self.key
    }

    pub(crate) fn raw(&self) -> ibv_sge {
        ibv_sge { addr: self.address, length: self.len_bytes, lkey: self.key.0 }
    }
}

impl Access {
    fn flags(self) -> libc::c_int {
        let flag = |set: bool, flag: ibv_access_flags| if set { flag.0 } else { 0 };
        (flag(self.local_write, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
            | flag(self.window_bind, ibv_access_flags::IBV_ACCESS_MW_BIND)
            | flag(self.remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
            | flag(self.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ)
            | flag(self.remote_atomic, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)) as libc::c_int
    }

    fn writes(self) -> bool {
        self.local_write || self.remote_write || self.remote_atomic
    }
}

impl MemoryRegion {
    /// Registers all of `memory`, which locks its pages.
    pub fn register(
        domain: &ProtectionDomain,
        memory: Arc<dyn DeviceMemory>,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let (start, len_bytes) = memory.range();
        if access.writes() && !memory.writable() {
            return Err(RegisterError::ReadOnly { len_bytes });
        }
        let context = domain.context();
        // SAFETY: the range is mapped and stays so for as long as `memory` lives, which the region holds. The contract
        // of `DeviceMemory` says that a device may read it, and write it if it is writable.
        let raw =
            unsafe { (context.0.functions.ibv_reg_mr)(domain.0.raw.raw(), start.cast(), len_bytes, access.flags()) };
        let raw = Handle::new(raw).map_err(|why| RegisterError::new(context.device_name(), len_bytes, why))?;
        // SAFETY: the region was just made, and its keys never change.
        let (local_key, remote_key) = unsafe { (LocalKey((*raw.raw()).lkey), RemoteKey((*raw.raw()).rkey)) };
        Ok(Self(Arc::new(RegionInner {
            raw,
            domain: domain.clone(),
            local_key,
            remote_key,
            address: start as u64,
            len_bytes,
            memory,
        })))
    }

    /// Returns the key for the own device.
    pub fn local_key(&self) -> LocalKey {
        self.0.local_key
    }

    /// Returns the key for a peer, if the region was registered with remote access.
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key
    }

    /// Returns the address of its first byte in this process, by which a peer names it, too.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len_bytes
    }

    /// Returns a range of it, or `None` if the range is not within it or is 4 GiB or longer.
    pub fn element(&self, offset: usize, len_bytes: usize) -> Option<Element> {
        let end = offset.checked_add(len_bytes)?;
        if end > self.0.len_bytes {
            return None;
        }
        Some(Element {
            address: self.0.address + offset as u64,
            len_bytes: u32::try_from(len_bytes).ok()?,
            key: self.0.local_key,
        })
    }
}
