//! A request of a peer.

use crate::protocol::ids::BlobId;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Retention, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{Header, SlotGrant};

/// A request of a peer. It lives until it is answered.
pub(crate) struct Serve {
    key: Key,
    /// The peer's number for the key.
    name: u32,
    metadata_id: u32,
    /// The tenant whose workers will read it.
    reader: Tenant,
    slot: Option<SlotGrant>,
    pub(crate) since: Time,
    pub(crate) waited_us: u32,
    /// Set once the version is there; it is held until the write is posted, or the request ends.
    pub(crate) blob: Option<BlobId>,
    /// The same version, until the request ends: it counts as being fetched.
    fetching: Option<BlobId>,
    /// The peer gave it up while the write was on its way.
    cancelled: bool,
    /// The write is posted or queued, and owns the reference.
    writing: bool,
    /// The span that asks for it, where the peer said so.
    pub(crate) trace: Option<TraceContext>,
    /// It is answered by reference once the peer has the segment.
    sharing: bool,
}

impl Serve {
    /// A request whose version is not there yet.
    pub(crate) fn new(
        now: Time,
        (key, name): (Key, u32),
        reader: Tenant,
        metadata_id: u32,
        slot: Option<SlotGrant>,
        trace: Option<TraceContext>,
    ) -> Serve {
        Serve {
            key,
            name,
            metadata_id,
            reader,
            slot,
            since: now,
            waited_us: 0,
            blob: None,
            fetching: None,
            cancelled: false,
            writing: false,
            trace,
            sharing: false,
        }
    }

    /// Its key.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// The tenant whose workers will read it.
    pub(crate) fn reader(&self) -> Tenant {
        self.reader
    }

    /// Whether its version is there.
    pub(crate) fn is_published(&self) -> bool {
        self.fetching.is_some()
    }

    /// Whether it waits for the peer to have the segment.
    pub(crate) fn is_sharing(&self) -> bool {
        self.sharing
    }

    /// The version that counts as being fetched by it.
    pub(crate) fn fetching(&self) -> Option<BlobId> {
        self.fetching
    }

    /// Its version is there, and is held for it.
    pub(crate) fn publish(&mut self, now: Time, blob: BlobId) {
        (self.blob, self.fetching) = (Some(blob), Some(blob));
        self.waited_us = u32::try_from(now.since(self.since).as_micros()).unwrap_or(u32::MAX);
    }

    /// It will be answered by reference.
    pub(crate) fn share(&mut self) {
        self.sharing = true;
    }

    /// Whether its slot takes a version of this length with the description of this number.
    pub(crate) fn fits(&self, len_bytes: u64, description: Option<u32>) -> bool {
        description == Some(self.metadata_id) && self.slot.as_ref().is_some_and(|slot| slot.capacity >= len_bytes)
    }

    /// The peer is told what the version looks like, and grants another slot for it.
    pub(crate) fn describe(&mut self, metadata_id: u32) {
        (self.metadata_id, self.slot) = (metadata_id, None);
    }

    /// The version that waits for a slot. `None` where none is awaited.
    pub(crate) fn waits_for_slot(&self) -> Option<BlobId> {
        self.blob.filter(|_| !self.writing && !self.sharing && self.slot.is_none())
    }

    /// The peer has granted a slot.
    pub(crate) fn grant(&mut self, slot: SlotGrant) {
        self.slot = Some(slot);
    }

    /// The write begins. It takes the slot and the reference.
    pub(crate) fn write(&mut self) -> Option<(SlotGrant, BlobId)> {
        let begun = (self.slot.take()?, self.blob.take()?);
        self.writing = true;
        Some(begun)
    }

    /// The header that goes with the write.
    pub(crate) fn header(&self, index: u32, slot: &SlotGrant, version: Version, body_len: u64) -> Header {
        Header {
            slot: slot.number,
            index,
            metadata_id: self.metadata_id,
            version,
            body_len,
            pieces: 1,
            waited_us: self.waited_us,
            name: self.name,
            retention: Retention::default(),
        }
    }

    /// The peer gives it up. Whether that is for later, because the write is on its way.
    pub(crate) fn cancel(&mut self) -> bool {
        self.cancelled = self.writing;
        self.writing
    }

    /// Whether the peer gave it up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &'static str {
        match (self.writing, self.blob, self.slot) {
            (true, _, _) => "Writing",
            (false, Some(_), _) if self.sharing => "Sharing",
            (false, Some(_), _) => "Described",
            (false, None, None) => "Waiting",
            (false, None, Some(_)) => "Waiting, slot",
        }
    }
}
