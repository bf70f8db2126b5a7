//! Atomic operations on this side's own words, by the device that does them for peers: operations of a device and of a
//! processor are not atomic to each other. They go through a queue pair that is connected to another one of the same
//! device.
//!
//! The loopback has its own protection domain, in which only one page around each word is registered. So the keys that
//! it needs open nothing to a peer.

use super::area::{Area, WORDS};
use super::device::Device;
use super::device_error;
use super::local_pair::LocalPair;
use super::posting::atomic_kind;
use crate::links::Sink;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use transfer_core::fabric::{AtomicOp, FabricError, FabricEvent, WorkId};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_memory::segment::Segment;
use transfer_verbs::{
    Access, Completion, CompletionQueue, DeviceMemory, MemoryRegion, ProtectionDomain, SendList, SendRequest,
};

const PAGE: u64 = 4096;

/// The most pages that stay registered.
const MAX_PAGES: usize = 256;

/// One page of a segment.
struct Page {
    segment: Arc<Segment>,
    offset: u64,
    len: u64,
}

// SAFETY: the range lies inside the segment's one mapping, which is unmapped only when the segment is dropped, and
// this value prevents that. Neither changes. References to its bytes are formed only where no one writes them
// (`Mapping::as_bytes`), and the words of atomic operations are never such bytes.
unsafe impl DeviceMemory for Page {
    fn range(&self) -> (*mut u8, usize) {
        let start = self.segment.mapping().ptr_at(self.offset, self.len);
        (start.unwrap_or(std::ptr::null_mut()), self.len as usize)
    }

    fn writable(&self) -> bool {
        self.segment.mapping().access() == transfer_memory::segment::Access::ReadWrite
    }
}

/// The queue pair, and the operations in flight.
pub(super) struct Loopback {
    pair: LocalPair,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    results: Area,
    pages: HashMap<(SegmentId, u64), MemoryRegion>,
    /// Regions that are no longer used for new operations, but that an operation in flight may need.
    retired: Vec<MemoryRegion>,
    list: SendList,
    under_way: VecDeque<(WorkId, u16)>,
}

impl Loopback {
    pub(super) fn new(device: &Device) -> Result<Loopback, FabricError> {
        let what = "making a queue pair for operations on own words";
        let domain = ProtectionDomain::new(&device.context).map_err(device_error(what))?;
        let capacity = 2 * (u32::from(WORDS) + 1);
        let queue =
            CompletionQueue::new(&device.context, capacity, Some(&device.channel)).map_err(device_error(what))?;
        Ok(Loopback {
            pair: LocalPair::new(device, &domain, &queue, WORDS.into())?,
            results: Area::new(&domain, 0, 0)?,
            domain,
            queue,
            pages: HashMap::new(),
            retired: Vec::new(),
            list: SendList::new(),
            under_way: VecDeque::new(),
        })
    }

    pub(super) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Posts an operation on a word that lies inside this segment.
    pub(super) fn post(
        &mut self,
        work: WorkId,
        segment: &Arc<Segment>,
        word: LocalSlice,
        op: AtomicOp,
    ) -> Result<(), FabricError> {
        let what = "an operation on an own word";
        let (address, key) = {
            let region = self.page(segment, word)?;
            (region.address() + word.offset % PAGE, region.remote_key())
        };
        let Some((place, into)) = self.results.take_word() else {
            let why = format!("{WORDS} are under way, which is all that there may be");
            return Err(FabricError::Device { what, why });
        };
        let kind = atomic_kind(op, &into, address, key);
        self.list.push(SendRequest { work_id: place.into(), signaled: true, fence: false, kind });
        if let Err(error) = self.pair.asks.post_send(&mut self.list) {
            self.results.free_word(place);
            return Err(device_error(what)(error));
        }
        self.under_way.push_back((work, place));
        Ok(())
    }

    /// Returns the registered page of a word.
    fn page(&mut self, segment: &Arc<Segment>, word: LocalSlice) -> Result<&MemoryRegion, FabricError> {
        let offset = word.offset - word.offset % PAGE;
        let name = (word.segment, offset);
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&name) {
            self.retired.extend(self.pages.drain().map(|(_, region)| region));
        }
        match self.pages.entry(name) {
            hashbrown::hash_map::Entry::Occupied(found) => Ok(found.into_mut()),
            hashbrown::hash_map::Entry::Vacant(place) => {
                let len = PAGE.min(segment.len() - offset);
                let access = Access { local_write: true, remote_read: true, remote_atomic: true, ..Access::default() };
                let page = Arc::new(Page { segment: segment.clone(), offset, len });
                let region = MemoryRegion::register(&self.domain, page, access);
                Ok(place.insert(region.map_err(device_error("registering a word"))?))
            }
        }
    }

    /// Forgets a segment that is no longer registered.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        let gone = self.pages.extract_if(|(id, _), _| *id == segment).map(|(_, region)| region);
        self.retired.extend(gone);
        self.rest();
    }

    fn rest(&mut self) {
        if self.under_way.is_empty() {
            self.retired.clear();
        }
    }

    /// Reports completed operations. Returns whether there were any. An error means that the queue pair no longer
    /// works, and is to be dropped.
    pub(super) fn poll(&mut self, sink: &mut Sink<'_>) -> Result<bool, String> {
        let mut batch = [Completion::EMPTY; 16];
        let count = self.queue.poll(&mut batch).map_err(|error| error.to_string())?;
        for completion in &batch[..count] {
            completion.result.map_err(|status| status.to_string())?;
            // Completions come in posting order.
            let Some((work, place)) = self.under_way.pop_front() else { continue };
            let old = self.results.free_word(place);
            sink(FabricEvent::LocalAtomicDone { work, old: Ok(old) });
        }
        self.rest();
        Ok(count > 0)
    }

    /// Returns the operations whose end will not be known.
    pub(super) fn into_lost(self) -> Vec<WorkId> {
        self.under_way.iter().map(|(work, _)| *work).collect()
    }
}
