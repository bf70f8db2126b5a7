//! A request of a peer.

use crate::protocol::ids::{BlobId, CopyId};
use crate::protocol::keys::Blob;
use crate::protocol::passing::Publication;
use crate::protocol::relays::Spreading;
use crate::protocol::tenant::Tenant;
use crate::tensor::{BodyRange, Excerpt, Key, Name, Retention, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::MAX_SOURCES;
use std::num::NonZeroU64;

/// A request of a peer. It lives until it is answered.
pub(crate) struct Serve {
    key: Key,
    /// The peer's number for the key.
    name: u32,
    metadata_id: u32,
    /// The part of the version that is asked for. `None`: all of it.
    excerpt: Option<Box<Excerpt>>,
    /// The tenant whose workers will read it.
    reader: Tenant,
    slot: Option<SlotGrant>,
    /// The identity of the version that the peer has already.
    held: Option<NonZeroU64>,
    pub(crate) since: Time,
    pub(crate) waited_us: u32,
    /// The version, once it is published. The request holds a reference to it until the write is posted or the request
    /// ends.
    pub(crate) blob: Option<BlobId>,
    /// The published version, until the request ends: the version counts as being fetched.
    fetching: Option<BlobId>,
    /// The peer gave the request up while the write was in flight.
    cancelled: bool,
    /// The write is posted or queued, and owns the reference to the version; and since when.
    writing: bool,
    pub(crate) posted: Time,
    /// The trace context of the span that asks for the version, if the peer has sent it.
    pub(crate) trace: Option<TraceContext>,
    /// The request waits until the peer has the segment, and is then answered by reference.
    sharing: bool,
    cutting: Cutting,
    /// The request has a place among those of its link that take much memory; see [`Packs`](super::Packs).
    has_place: bool,
    /// `blob` is a copy that was made of memory.
    is_packed: bool,
    /// `blob` consists of ranges of several versions.
    is_gathered: bool,
    /// How many of the last deltas of the version are sent in its place.
    deltas: u8,
    spreading: Spread,
}

/// How the request takes part in the spreading of its version.
#[derive(Clone, PartialEq, Eq)]
enum Spread {
    /// It does not, so far.
    Not,
    /// It has to be answered from here.
    Direct,
    /// It holds the version until the peer has it. The peer gets it from here, or was sent to these other nodes, of which it asks the one in
    /// this place.
    Redirected(Option<Box<[Name; MAX_SOURCES]>>, usize),
    /// It is for this chunk.
    Chunk(Box<AskedChunk>),
}

/// A chunk of a publication that a peer asks for here.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AskedChunk {
    /// The key of its owner, if that is another node.
    pub(crate) of: Option<Spreading>,
    pub(crate) publication: Publication,
    pub(crate) version: Version,
    pub(crate) identity: NonZeroU64,
    pub(crate) range: BodyRange,
    /// Whether deltas of the version may follow, once it is known.
    pub(crate) deltas_follow: bool,
}

/// How far the part that is asked for is cut out of its version, if that is done before it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cutting {
    /// It is not.
    Not,
    /// It waits for a place, and has this number in the line.
    InLine(u64),
    /// The request waits for this copy.
    Copying(CopyId),
    /// `blob` is a copy of the part that is asked for, and nothing else.
    Done,
}

impl Serve {
    /// Creates a request whose version is not published yet.
    pub(crate) fn new(
        now: Time,
        (key, name): (Key, u32),
        reader: Tenant,
        (metadata_id, excerpt): (u32, Option<Box<Excerpt>>),
        slot: Option<SlotGrant>,
        trace: Option<TraceContext>,
    ) -> Serve {
        Serve {
            key,
            name,
            metadata_id,
            excerpt,
            reader,
            slot,
            held: None,
            since: now,
            waited_us: 0,
            blob: None,
            fetching: None,
            cancelled: false,
            writing: false,
            posted: Time::NEVER,
            trace,
            sharing: false,
            cutting: Cutting::Not,
            has_place: false,
            is_packed: false,
            is_gathered: false,
            deltas: 0,
            spreading: Spread::Not,
        }
    }

    /// Notes whether the request has to be answered from here.
    pub(crate) fn directly(self, direct: bool) -> Serve {
        Serve { spreading: if direct { Spread::Direct } else { Spread::Not }, ..self }
    }

    /// Makes it a request for this chunk.
    pub(crate) fn for_chunk(self, chunk: AskedChunk) -> Serve {
        Serve { spreading: Spread::Chunk(Box::new(chunk)), ..self }
    }

    /// Returns the chunk that it is for.
    pub(crate) fn chunk(&self) -> Option<&AskedChunk> {
        match &self.spreading {
            Spread::Chunk(chunk) => Some(chunk),
            _ => None,
        }
    }

    /// Notes whether deltas may follow of the version of another node that it is for.
    pub(crate) fn pass_on(&mut self, follow: bool) {
        if let Spread::Chunk(chunk) = &mut self.spreading {
            chunk.deltas_follow = follow;
        }
    }

    /// Lets the peer ask for chunks, of these nodes or here.
    pub(crate) fn redirect(&mut self, nodes: Option<[Name; MAX_SOURCES]>) {
        self.spreading = Spread::Redirected(nodes.map(Box::new), 0);
    }

    /// Whether the peer was told to ask for chunks.
    pub(crate) fn is_redirected(&self) -> bool {
        matches!(self.spreading, Spread::Redirected(..))
    }

    /// Returns the node that the peer asks, if it was sent to others.
    pub(crate) fn sent_to(&self) -> Option<&Name> {
        match &self.spreading {
            Spread::Redirected(Some(nodes), at) => nodes.get(*at),
            _ => None,
        }
    }

    /// Notes that the node in this place does not send the version to the peer, which asks the next one. Returns the node that the peer
    /// has asked so far as is known, and those two.
    pub(crate) fn source_failed(&mut self, place: usize) -> Option<[Name; 3]> {
        let Spread::Redirected(Some(nodes), at) = &mut self.spreading else { return None };
        let before = std::mem::replace(at, (place + 1).min(MAX_SOURCES - 1));
        Some([nodes.get(before)?.clone(), nodes.get(place)?.clone(), nodes[*at].clone()])
    }

    /// Whether the request has to be answered from here.
    pub(crate) fn is_direct(&self) -> bool {
        self.spreading == Spread::Direct
    }

    /// Notes which version the peer has already.
    pub(crate) fn holding(self, held: Option<NonZeroU64>) -> Serve {
        Serve { held, ..self }
    }

    /// Returns how many of the last deltas of a version make it of the one that the peer has. Only all of a version has some, and no copy
    /// of it.
    pub(crate) fn takes_deltas(&self, version: &Blob) -> Option<u8> {
        let is_all = !self.is_of_parts() && self.blob == self.fetching;
        version.deltas_since(self.held.filter(|_| is_all)?)
    }

    /// Whether the peer has some version.
    pub(crate) fn has_any(&self) -> bool {
        self.held.is_some()
    }

    /// Decides that so many of the last deltas of the version are sent.
    pub(crate) fn send_deltas(&mut self, count: u8) {
        self.deltas = count;
    }

    /// Returns how many of the last deltas of the version are sent in its place. 0: it is sent itself.
    pub(crate) fn deltas(&self) -> u8 {
        self.deltas
    }

    /// Whether the peer has the version with this identity.
    pub(crate) fn has(&self, identity: Option<NonZeroU64>) -> bool {
        self.held.is_some() && self.held == identity
    }

    /// Creates a request for ranges of several versions, of which this is the first key.
    pub(crate) fn of_gathered(now: Time, key: (Key, u32), reader: Tenant, trace: Option<TraceContext>) -> Serve {
        Serve { is_gathered: true, ..Serve::new(now, key, reader, (0, None), None, trace) }
    }

    /// Whether parts of versions are asked for. Their description serves this request alone.
    pub(crate) fn is_of_parts(&self) -> bool {
        self.is_gathered || self.excerpt.is_some()
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the tenant whose workers will read the version.
    pub(crate) fn reader(&self) -> Tenant {
        self.reader
    }

    /// Returns the part of the version that is asked for. `None`: all of it.
    pub(crate) fn excerpt(&self) -> Option<&Excerpt> {
        self.excerpt.as_deref()
    }

    /// Returns the part that is still to be cut out of the version that the request holds. `None`: all of it.
    pub(crate) fn part(&self) -> Option<&Excerpt> {
        self.excerpt().filter(|_| self.cutting != Cutting::Done)
    }

    /// Lets the request wait for a place, with this number in the line.
    pub(crate) fn line_up(&mut self, number: u64) {
        self.cutting = Cutting::InLine(number);
    }

    /// Returns the request's number in the line, if it waits for a place.
    pub(crate) fn number_in_line(&self) -> Option<u64> {
        match self.cutting {
            Cutting::InLine(number) => Some(number),
            Cutting::Not | Cutting::Copying(_) | Cutting::Done => None,
        }
    }

    /// Lets the request wait for a copy of the part that is asked for.
    pub(crate) fn copy(&mut self, copying: CopyId) {
        self.cutting = Cutting::Copying(copying);
    }

    /// Returns the copy that the request waits for.
    pub(crate) fn copying(&self) -> Option<CopyId> {
        match self.cutting {
            Cutting::Copying(copying) => Some(copying),
            Cutting::Not | Cutting::InLine(_) | Cutting::Done => None,
        }
    }

    /// Whether the request waits for this copy.
    pub(crate) fn waits_for_copy(&self, copying: CopyId) -> bool {
        self.copying() == Some(copying)
    }

    /// Takes a place, to send the part from where it lies: nothing is cut out before.
    pub(crate) fn gather(&mut self) {
        (self.cutting, self.has_place) = (Cutting::Not, true);
    }

    /// Takes the copy, with its place, if it has one. `is_packed` says whether it was made of memory, and so counts as copied.
    /// Returns the version that the request held until now.
    pub(crate) fn copied(&mut self, copy: BlobId, has_place: bool, is_packed: bool) -> Option<BlobId> {
        (self.cutting, self.has_place, self.is_packed) = (Cutting::Done, has_place, is_packed);
        self.blob.replace(copy)
    }

    /// Whether the request has a place until its part is sent.
    pub(crate) fn has_place(&self) -> bool {
        self.has_place
    }

    /// Whether what is sent was packed or copied before.
    pub(crate) fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// Whether the version is published.
    pub(crate) fn is_published(&self) -> bool {
        self.fetching.is_some()
    }

    /// Whether the request waits until the peer has the segment.
    pub(crate) fn is_sharing(&self) -> bool {
        self.sharing
    }

    /// Returns the version that counts as being fetched by this request.
    pub(crate) fn fetching(&self) -> Option<BlobId> {
        self.fetching
    }

    /// Takes the version, which is now published and held for this request.
    pub(crate) fn publish(&mut self, now: Time, blob: BlobId) {
        (self.blob, self.fetching) = (Some(blob), Some(blob));
        self.waited_us = u32::try_from(now.since(self.since).as_micros()).unwrap_or(u32::MAX);
    }

    /// Marks the request as one that is answered by reference once the peer has the segment.
    pub(crate) fn share(&mut self) {
        self.sharing = true;
    }

    /// Whether the slot fits a version of this length whose description has this number.
    pub(crate) fn fits(&self, len_bytes: u64, description: Option<u32>) -> bool {
        description == Some(self.metadata_id) && self.slot.as_ref().is_some_and(|slot| slot.capacity >= len_bytes)
    }

    /// Notes that the peer is told the description of the version. The peer grants another slot for it.
    pub(crate) fn describe(&mut self, metadata_id: u32) {
        (self.metadata_id, self.slot) = (metadata_id, None);
    }

    /// Returns the version that waits for a slot, or `None` if the request does not wait for one.
    pub(crate) fn waits_for_slot(&self) -> Option<BlobId> {
        let waits = !self.writing && !self.sharing && self.copying().is_none() && !self.is_redirected();
        self.blob.filter(|_| waits && self.slot.is_none())
    }

    /// Takes the slot that the peer has granted.
    pub(crate) fn grant(&mut self, slot: SlotGrant) {
        self.slot = Some(slot);
    }

    /// Begins the write. Takes the slot and the reference out of the request.
    pub(crate) fn write(&mut self, now: Time) -> Option<(SlotGrant, BlobId)> {
        let begun = (self.slot.take()?, self.blob.take()?);
        (self.writing, self.posted) = (true, now);
        Some(begun)
    }

    /// Returns the header that goes with the write.
    pub(crate) fn header(
        &self,
        index: u32,
        slot: &SlotGrant,
        (version, identity): (Version, Option<NonZeroU64>),
        (deltas_follow, spreads): (bool, bool),
        body_len: u64,
    ) -> Header {
        let (identity, follow) = match self.chunk() {
            Some(chunk) if chunk.of.is_some() => (Some(chunk.identity), chunk.deltas_follow),
            _ => (identity, deltas_follow),
        };
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
            packed: self.is_packed(),
            identity: identity.filter(|_| !self.is_gathered),
            deltas_follow: follow && !self.is_of_parts(),
            is_delta: self.deltas > 0,
            spreads: (spreads || self.chunk().is_some()) && !self.is_of_parts(),
        }
    }

    /// Handles the peer's CANCEL. Returns whether the request must still wait for its write, which is in flight.
    pub(crate) fn cancel(&mut self) -> bool {
        self.cancelled = self.writing;
        self.writing
    }

    /// Whether the peer gave the request up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &'static str {
        match (self.writing, self.blob, &self.slot) {
            (true, _, _) => "Writing",
            (false, Some(_), _) if self.sharing => "Sharing",
            (false, Some(_), _) if self.number_in_line().is_some() || self.copying().is_some() => "Copying",
            (false, Some(_), _) if self.is_redirected() => "Redirected",
            (false, Some(_), _) => "Described",
            (false, None, None) => "Waiting",
            (false, None, Some(_)) => "Waiting, slot",
        }
    }
}
