//! Posts are checked, and put into the list of their link. They leave with the next poll, behind one doorbell.

use super::VerbsFabric;
use super::config::GrantReport;
use super::link::{Link, Posted, Sources};
use super::windows::Revoke;
use smallvec::SmallVec;
use transfer_core::fabric::{AtomicOp, FabricEvent, GrantAccess, Isolation, LinkId, PostError, WorkId};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice};
use transfer_verbs::{Data, Element, MemoryWindow, RemoteAccess, RemoteKey as DeviceKey, SendKind};

/// The share of the send queue that writes and messages leave to grants, revokes, probes and goodbyes: one place in
/// this many.
const RESERVED_SHARE: u32 = 8;

/// The places among these that grants and revokes leave to a probe and a goodbye.
const LAST_WORDS: u32 = 2;

const WORD: u64 = 8;

/// The largest inline write that is gathered on the stack.
const MAX_INLINE: usize = 1024;

impl VerbsFabric {
    /// Returns the link, if it is up and has room for one more write, message or atomic operation.
    fn up_with_room(&mut self, link: LinkId) -> Result<&mut Link, PostError> {
        let reserve = (self.config.send_queue / RESERVED_SHARE).max(LAST_WORDS);
        let found = self.links.up(link)?;
        if found.sends.has_room(1, reserve) { Ok(found) } else { Err(PostError::Full(link)) }
    }

    /// Adds the link to the links that the next `ring` looks at.
    pub(super) fn list(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(id)
            && !std::mem::replace(&mut link.listed, true)
        {
            self.to_ring.push(id);
        }
    }

    pub(super) fn write(
        &mut self,
        id: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.up_with_room(id)?;
        let gathered = self.capabilities.check_write(sgl, &remote)?;
        for slice in sgl {
            self.regions.find(slice)?;
        }
        let Some(link) = self.links.get_mut(id) else { return Err(PostError::LinkDown(id)) };
        let (address, key) = (remote.address, DeviceKey::from_peer(remote.key().0));
        let mut copy = [0; MAX_INLINE];
        if gathered > 0 && gathered <= u64::from(self.device.inline_bytes) {
            let mut filled = 0;
            for slice in sgl {
                let (_, rest) = copy.split_at_mut(filled);
                let Some(part) = rest.get_mut(..slice.len as usize) else { break };
                let bad = |_| PostError::BadLocalSlice(*slice);
                self.regions.find(slice)?.segment.mapping().copy_out(slice.offset, part).map_err(bad)?;
                filled += part.len();
            }
            let data = Data::Inline(&[&copy[..filled]]);
            link.post(Posted::Write(work, Sources::new()), SendKind::Write { data, address, key, immediate });
            self.counters.inline += 1;
        } else {
            let (mut elements, mut from) = (SmallVec::<[Element; 8]>::new(), Sources::new());
            // Some devices take an element of no bytes for one of 2 GiB.
            for slice in sgl.iter().filter(|slice| slice.len > 0) {
                elements.push(self.regions.element(slice)?);
                if !from.contains(&slice.segment) {
                    from.push(slice.segment);
                }
            }
            let data = Data::Gather(&elements);
            link.post(Posted::Write(work, from), SendKind::Write { data, address, key, immediate });
        }
        self.counters.writes += 1;
        self.list(id);
        Ok(())
    }

    pub(super) fn send(&mut self, id: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        let inline = message.len() <= self.device.inline_bytes as usize;
        self.up_with_room(id)?;
        self.capabilities.check_message(message)?;
        let link = self.links.up(id)?;
        if inline {
            let data = Data::Inline(&[message]);
            link.post(Posted::Send(work, None), SendKind::Send { data, immediate: None });
            self.counters.inline += u64::from(!message.is_empty());
        } else {
            let (slot, element) = link.area.store(message).ok_or(PostError::Full(id))?;
            let data = Data::Gather(&[element]);
            link.post(Posted::Send(work, Some(slot)), SendKind::Send { data, immediate: None });
        }
        self.counters.sends += 1;
        self.list(id);
        Ok(())
    }

    pub(super) fn open_range(
        &mut self,
        id: LinkId,
        range: LocalSlice,
        access: GrantAccess,
        tag: u64,
    ) -> Result<(), PostError> {
        let atomic = access == GrantAccess::Atomic;
        if atomic && !self.capabilities.atomics {
            return Err(PostError::Unsupported { link: id, what: "open words to atomic operations" });
        }
        self.links.up(id)?;
        let found = self.regions.find_writable(&range)?;
        let address = found.region.address() + range.offset;
        if atomic && (!address.is_multiple_of(WORD) || !range.len.is_multiple_of(WORD)) {
            return Err(PostError::BadLocalSlice(range));
        }
        if self.capabilities.isolation == Isolation::Segment && !atomic {
            let remote = RemoteSlice::new(address, range.len, RemoteKey(found.region.remote_key().to_wire()));
            self.regions.opened(range.segment);
            self.links.report(FabricEvent::Granted { link: id, tag, remote });
            return Ok(());
        }
        let Some(link) = self.links.get_mut(id) else { return Err(PostError::LinkDown(id)) };
        if !link.sends.has_room(1, LAST_WORDS) {
            return Err(PostError::Full(id));
        }
        let index = match link.windows.next_free() {
            Some(index) => index,
            None => {
                let limit = u64::from(self.config.max_windows);
                PostError::check("memory windows of one link", link.windows.len() as u64 + 1, limit)?;
                let window = MemoryWindow::allocate(self.regions.domain()).map_err(|error| {
                    tracing::warn!(%error, %id, "no memory window for a grant");
                    let count = link.windows.len() as u64;
                    PostError::Limit { what: "memory windows of one link", value: count + 1, limit: count }
                })?;
                link.windows.add(window)
            }
        };
        let Some(key) = link.windows.window(index).map(|window| window.next_key().to_wire()) else {
            return Err(PostError::Full(id));
        };
        let remote = RemoteSlice::new(address, range.len, RemoteKey(key));
        if range.len == 0 {
            // A bind of no bytes would end the link, and nothing can be written through such a grant.
            link.windows.hollow(index, key, range.segment, tag);
            self.links.report(FabricEvent::Granted { link: id, tag, remote });
            return Ok(());
        }
        if !link.windows.bound(index, key, range.segment, tag) {
            return Err(PostError::Full(id));
        }
        let later = self.config.grants == GrantReport::Completed;
        let access = RemoteAccess { write: !atomic, read: atomic, atomic };
        let Link { windows, sends, list, .. } = link;
        if let Some(window) = windows.window(index) {
            let (offset, len_bytes) = (range.offset as usize, range.len as usize);
            let kind = SendKind::BindWindow { window, region: &found.region, offset, len_bytes, access };
            super::link::post(id, sends, list, Posted::Bind(later.then_some((tag, remote))), kind);
        }
        self.counters.binds += 1;
        if !later {
            self.links.report(FabricEvent::Granted { link: id, tag, remote });
        }
        self.list(id);
        Ok(())
    }

    pub(super) fn close_range(&mut self, id: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        let link = self.links.up(id)?;
        if link.windows.needs_invalidation(key.0, tag) && !link.sends.has_room(1, LAST_WORDS) {
            return Err(PostError::Full(id));
        }
        self.invalidate(id, key, tag);
        Ok(())
    }

    /// Revokes a grant, if it still exists.
    pub(super) fn invalidate(&mut self, id: LinkId, key: RemoteKey, tag: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        match link.windows.revoke(key.0, tag) {
            Revoke::Post(index) => {
                link.post(Posted::Invalidate(index), SendKind::LocalInvalidate { key: DeviceKey::from_peer(key.0) });
                self.counters.invalidations += 1;
                self.list(id);
            }
            Revoke::Gone => self.links.report(FabricEvent::Revoked { link: id, key, tag }),
            Revoke::Posted => {}
        }
    }

    pub(super) fn operate(
        &mut self,
        id: LinkId,
        work: WorkId,
        remote: RemoteSlice,
        op: AtomicOp,
    ) -> Result<(), PostError> {
        let link = self.up_with_room(id)?;
        if !link.reads {
            return Err(PostError::Unsupported { link: id, what: "operate on words of the peer" });
        }
        if remote.len != WORD {
            return Err(PostError::Limit { what: "bytes of a word", value: remote.len, limit: WORD });
        }
        PostError::check("bytes behind a word's boundary", remote.address % WORD, 0)?;
        let (word, into) = link.area.take_word().ok_or(PostError::Full(id))?;
        let (address, key) = (remote.address, DeviceKey::from_peer(remote.key().0));
        link.post(Posted::Atomic(work, word), atomic_kind(op, &into, address, key));
        self.counters.atomics += 1;
        self.list(id);
        Ok(())
    }

    /// Rings for every link whose requests should leave now. Returns whether any left.
    pub(super) fn ring(&mut self) -> bool {
        let mut rang = false;
        for id in std::mem::take(&mut self.to_ring) {
            let Some(link) = self.links.get_mut(id) else { continue };
            link.listed = false;
            if !link.sends.should_ring() {
                // The link is listed again when a doorbell is answered.
                continue;
            }
            rang = true;
            if let Err(reason) = link.ring(&mut self.counters) {
                self.fail(id, reason, true);
            }
        }
        rang
    }
}

/// Returns the work request of an atomic operation.
pub(super) fn atomic_kind(op: AtomicOp, into: &Element, address: u64, key: DeviceKey) -> SendKind<'_> {
    match op {
        AtomicOp::Load => SendKind::Read { into: std::slice::from_ref(into), address, key },
        AtomicOp::FetchAdd(add) => SendKind::FetchAdd { into: *into, address, key, add },
        AtomicOp::CompareSwap { expected, new } => {
            SendKind::CompareSwap { into: *into, address, key, compare: expected, swap: new }
        }
    }
}
