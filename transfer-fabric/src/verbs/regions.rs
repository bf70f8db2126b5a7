//! Segments as memory regions of the device. They are counted, checked, and released when nothing uses them any
//! longer.

use super::area::SegmentMemory;
use hashbrown::HashMap;
use std::sync::Arc;
use transfer_core::fabric::{FabricError, Isolation, LinkId, PostError};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_memory::segment::{self, Segment};
use transfer_verbs::{Access, Element, MemoryRegion, ProtectionDomain};

/// A registered segment.
#[derive(Clone)]
pub(super) struct Registered {
    pub(super) segment: Arc<Segment>,
    pub(super) region: MemoryRegion,
    /// Whether peers know a key that opens all of it.
    is_open: bool,
}

/// A region that is no longer registered, and that posted work requests still read: for each link, the last such
/// request.
struct Retired {
    _registered: Registered,
    waits_for: Vec<(LinkId, u32)>,
}

/// The segments of one fabric.
pub(super) struct Regions {
    domain: ProtectionDomain,
    by_id: HashMap<SegmentId, Registered>,
    retired: Vec<Retired>,
    limit_bytes: u64,
    used_bytes: u64,
    access: Access,
}

impl Regions {
    pub(super) fn new(domain: ProtectionDomain, limit_bytes: u64, windows: bool, isolation: Isolation) -> Regions {
        let remote_write = isolation == Isolation::Segment;
        let access = Access { local_write: true, window_bind: windows, remote_write, ..Access::default() };
        Regions { domain, by_id: HashMap::new(), retired: Vec::new(), limit_bytes, used_bytes: 0, access }
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Counts bytes that are to be registered. Returns an error if they exceed the limit.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<(), FabricError> {
        let sum = self.used_bytes.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        self.used_bytes = sum.ok_or_else(|| {
            let (used, limit) = (self.used_bytes, self.limit_bytes);
            let why = format!("{bytes} bytes more than the {used} that are, and the limit for this fabric is {limit}");
            FabricError::Device { what: "registering memory", why }
        })?;
        Ok(())
    }

    /// Stops counting bytes that are no longer registered.
    pub(super) fn release(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    pub(super) fn register(&mut self, id: SegmentId, segment: Arc<Segment>) -> Result<(), FabricError> {
        if self.by_id.contains_key(&id) {
            return Err(FabricError::AlreadyRegistered(id));
        }
        let bytes = segment.len();
        self.reserve(bytes)?;
        let writable = segment.mapping().access() == segment::Access::ReadWrite;
        // Peers get no right to a segment that is not writable. With a key for each grant, only windows open the
        // others, too.
        let access = if writable { self.access } else { Access::default() };
        match MemoryRegion::register(&self.domain, Arc::new(SegmentMemory(segment.clone())), access) {
            Ok(region) => {
                self.by_id.insert(id, Registered { segment, region, is_open: false });
                Ok(())
            }
            Err(error) => {
                self.release(bytes);
                Err(match writable {
                    true => FabricError::Device { what: "registering memory", why: error.to_string() },
                    false => FabricError::Unreadable { why: format!("{error}; Linux 6.2 and later can") },
                })
            }
        }
    }

    /// Records that peers are told a key for a whole segment.
    pub(super) fn opened(&mut self, id: SegmentId) {
        if let Some(registered) = self.by_id.get_mut(&id) {
            registered.is_open = true;
        }
    }

    /// Returns whether peers know a key for a whole segment.
    pub(super) fn is_open(&self, id: SegmentId) -> bool {
        self.by_id.get(&id).is_some_and(|registered| registered.is_open)
    }

    pub(super) fn knows(&self, id: SegmentId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Forgets a segment whose grants are gone. It stays registered until the work requests that may read it have
    /// completed.
    pub(super) fn deregister(&mut self, id: SegmentId, waits_for: Vec<(LinkId, u32)>) {
        let Some(registered) = self.by_id.remove(&id) else { return };
        self.release(registered.segment.len());
        if !waits_for.is_empty() {
            self.retired.push(Retired { _registered: registered, waits_for });
        }
    }

    /// Returns whether any segment waits to be released.
    pub(super) fn any_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Releases the regions that no request reads any longer. `pending` tells whether a link still has that work
    /// request in flight.
    pub(super) fn let_go(&mut self, mut pending: impl FnMut(LinkId, u32) -> bool) {
        self.retired.retain_mut(|retired| {
            retired.waits_for.retain(|(link, number)| pending(*link, *number));
            !retired.waits_for.is_empty()
        });
    }

    /// Returns the segment of a slice, which must lie inside it.
    pub(super) fn find(&self, slice: &LocalSlice) -> Result<&Registered, PostError> {
        let bad = || PostError::BadLocalSlice(*slice);
        let registered = self.by_id.get(&slice.segment).ok_or_else(bad)?;
        registered.segment.mapping().ptr_at(slice.offset, slice.len).map_err(|_| bad())?;
        Ok(registered)
    }

    /// Returns the segment of a slice that may be opened to peers.
    pub(super) fn find_writable(&self, slice: &LocalSlice) -> Result<&Registered, PostError> {
        let found = self.find(slice)?;
        let writable = found.segment.mapping().access() == segment::Access::ReadWrite;
        if writable { Ok(found) } else { Err(PostError::BadLocalSlice(*slice)) }
    }

    /// Returns a slice as an element of a gather list.
    pub(super) fn element(&self, slice: &LocalSlice) -> Result<Element, PostError> {
        let found = self.find(slice)?;
        let element = found.region.element(slice.offset as usize, slice.len as usize);
        element.ok_or(PostError::BadLocalSlice(*slice))
    }
}
