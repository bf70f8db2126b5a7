//! The fabric contract over a simulated world.

use super::conditions::Grants;
use super::connection::{Connection, Event, Grant, Side, SideNo, SideState, Work, WorkKind};
use super::digest::Seen;
use super::transit::{address_of, digest_of};
use super::world::{Endpoint, Happening, MemoryId, World, WorldState};
#[cfg(test)]
use crate::delta::NotApplied;
use crate::drive::{HeaderBytes, HeaderMemory};
use crate::fabric::{
    AtomicOp, Atomics, Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, Isolation,
    LinkId, Offer, PostError, Sharing, WorkId,
};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::plan::GatherList;
#[cfg(test)]
use crate::protocol::Broken;
use crate::tensor::{PackedRun, Packing};
use hashbrown::HashMap;
use rand::Rng;

/// A fabric at an endpoint of a [`World`].
#[derive(Debug)]
pub struct SimFabric {
    world: World,
    endpoint: Endpoint,
    capabilities: Capabilities,
    /// With a mistake, it reports the end of a grant as soon as that is asked for.
    revokes_early: bool,
    /// With a mistake, the grants whose end it reports, by their keys.
    tags: Option<HashMap<(LinkId, u32), u64>>,
}

impl SimFabric {
    /// Creates the fabric at that endpoint. There is one for each endpoint.
    #[must_use]
    pub fn new(world: &World, endpoint: Endpoint) -> SimFabric {
        let capabilities = world.lock().conditions.capabilities.clone();
        SimFabric { world: world.clone(), endpoint, capabilities, revokes_early: false, tags: None }
    }

    /// With this mistake, if it is one of a fabric.
    #[cfg(test)]
    pub(crate) fn with_mistake(self, mistake: Option<Broken>) -> SimFabric {
        let tags = (mistake == Some(Broken::NamesSlotsByKey)).then(HashMap::new);
        SimFabric { revokes_early: mistake == Some(Broken::DeliversBeforeRevoke), tags, ..self }
    }

    /// The grant whose end is reported. `None`: of none.
    fn revoked_tag(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Option<u64> {
        match &mut self.tags {
            Some(tags) => tags.remove(&(link, key.0)),
            None => Some(tag),
        }
    }
}

impl SimFabric {
    /// Returns the number that reader marks use for a link: the number of its connection.
    fn mark(&self, link: LinkId) -> Option<u64> {
        let w = self.world.lock();
        let place = w.endpoints.get(self.endpoint.0)?;
        w.conditions.references.then(|| place.links.get(&link).map(|(connection, _)| *connection as u64))?
    }
}

/// Access to landing headers in the memory that is registered at an endpoint.
#[derive(Debug, Clone)]
pub struct SimMemory {
    world: World,
    endpoint: Endpoint,
}

impl SimMemory {
    /// Gives access to that endpoint's memory.
    #[must_use]
    pub fn new(world: &World, endpoint: Endpoint) -> SimMemory {
        SimMemory { world: world.clone(), endpoint }
    }

    /// Returns a copy of a registered range.
    #[must_use]
    pub fn read(&self, slice: LocalSlice) -> Option<Vec<u8>> {
        self.world.lock().slice(self.endpoint.0, slice).map(<[u8]>::to_vec)
    }

    /// Packs what lies in these ranges into one. Returns whether all of them are registered, and the result fits.
    pub fn pack(&self, from: &[LocalSlice], packing: Packing, to: LocalSlice) -> bool {
        let all: Option<Vec<_>> = from.iter().map(|slice| self.read(*slice)).collect();
        all.is_some_and(|all| self.pack_bytes(&all.concat(), packing, to))
    }

    /// Packs bytes into a range, and fills the rest of it with zeros.
    pub(super) fn pack_bytes(&self, all: &[u8], packing: Packing, to: LocalSlice) -> bool {
        let mut out = vec![0; to.len as usize];
        let is_there = packing.into_iter().all(|PackedRun { from, to, len }| {
            let (from, to) =
                (all.get(from as usize..(from + len) as usize), out.get_mut(to as usize..(to + len) as usize));
            from.zip(to).map(|(from, to)| to.copy_from_slice(from)).is_some()
        });
        is_there && self.write(to, &out)
    }

    /// Makes a version of its base and its delta. All three must be registered.
    ///
    /// # Errors
    /// [`NotApplied`].
    #[cfg(test)]
    pub(crate) fn apply(&self, base: &[LocalSlice], delta: LocalSlice, to: LocalSlice) -> Result<(), NotApplied> {
        let base: Vec<_> = base.iter().filter_map(|slice| self.read(*slice)).collect();
        let made = crate::delta::apply(&base.concat(), &self.read(delta).unwrap_or_default())?;
        assert!(self.write(LocalSlice { len: made.len() as u64, ..to }, &made), "{to}");
        Ok(())
    }

    /// Returns the digest of what lies in these ranges, as a host computes it.
    #[cfg(test)]
    pub(crate) fn digest(&self, of: &[LocalSlice]) -> [u8; 16] {
        let mut digest = crate::protocol::VersionDigest::default();
        of.iter().filter_map(|slice| self.read(*slice)).for_each(|bytes| digest.add(&bytes));
        digest.get()
    }

    /// Writes into a registered range. Returns whether it is registered.
    pub(super) fn write(&self, slice: LocalSlice, bytes: &[u8]) -> bool {
        let mut w = self.world.lock();
        let memory = w.endpoints.get(self.endpoint.0).and_then(|e| e.segments.get(&slice.segment)).copied();
        memory.is_some_and(|m| w.store(m, slice.offset, bytes))
    }
}

impl HeaderMemory for SimMemory {
    fn read_header(&self, slice: LocalSlice) -> Option<HeaderBytes> {
        self.world.lock().slice(self.endpoint.0, slice)?.try_into().ok()
    }

    fn write_header(&mut self, slice: LocalSlice, header: &HeaderBytes) -> bool {
        self.write(slice, header)
    }
}

/// Returns the offer that carries the number of a connection.
fn offer_of(connection: usize) -> Offer {
    Offer((connection as u64).to_le_bytes().to_vec())
}

fn connection_of(offer: &Offer) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(offer.0.as_slice().try_into().ok()?)).ok()
}

impl WorldState {
    /// Returns the connection and side of a link that can take a post.
    fn side(&mut self, endpoint: Endpoint, link: LinkId) -> Result<(usize, SideNo), PostError> {
        let found = self.endpoints.get(endpoint.0).and_then(|e| e.links.get(&link)).copied();
        let (connection, side) = found.ok_or(PostError::LinkDown(link))?;
        let queue = self.conditions.send_queue;
        match self.connections[connection].sides[side].as_ref() {
            Some(s) if s.state == SideState::Up && s.outstanding < queue => Ok((connection, side)),
            Some(s) if s.state == SideState::Up => Err(PostError::Full(link)),
            _ => Err(PostError::LinkDown(link)),
        }
    }

    /// Returns the connection and side of a link that is up and not lost, even if its send queue is full.
    fn side_of(&self, endpoint: Endpoint, link: LinkId) -> Option<(usize, SideNo)> {
        let (connection, side) = self.endpoints.get(endpoint.0)?.links.get(&link).copied()?;
        let s = self.connections[connection].sides[side].as_ref()?;
        (s.state == SideState::Up && !self.connections[connection].lost).then_some((connection, side))
    }

    /// Reports an event to a side that is up.
    fn tell(&mut self, connection: usize, side: SideNo, event: impl FnOnce(LinkId) -> Event) {
        if let Some(s) = self.connections[connection].sides[side].as_ref().filter(|s| s.state == SideState::Up) {
            let (endpoint, event) = (s.endpoint, event(s.link));
            self.endpoints[endpoint].events.push_back(event);
        }
    }

    /// Returns the key that all grants into a segment share.
    fn key_of_all(&mut self, endpoint: Endpoint, segment: SegmentId) -> RemoteKey {
        let place = &mut self.endpoints[endpoint.0];
        *place.keys.entry(segment).or_insert_with(|| {
            self.next_key += 1;
            RemoteKey(self.next_key)
        })
    }

    fn free_key(&mut self) -> u32 {
        if self.conditions.reuse_keys && !self.retired_keys.is_empty() && self.rng.random() {
            let i = self.rng.random_range(0..self.retired_keys.len());
            return self.retired_keys.swap_remove(i);
        }
        self.next_key += 1;
        self.next_key
    }
}

impl Fabric for SimFabric {
    type Memory = MemoryId;

    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, segment: SegmentId, memory: MemoryId) -> Result<(), FabricError> {
        let mut w = self.world.lock();
        let segments = &mut w.endpoints[self.endpoint.0].segments;
        if segments.contains_key(&segment) {
            return Err(FabricError::AlreadyRegistered(segment));
        }
        segments.insert(segment, memory);
        Ok(())
    }

    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        let mut w = self.world.lock();
        let place = &mut w.endpoints[self.endpoint.0];
        place.segments.remove(&segment).ok_or(FabricError::UnknownSegment(segment))?;
        place.keys.remove(&segment);
        let links: Vec<_> = place.links.values().copied().collect();
        for (connection, side) in links {
            if w.conditions.references {
                w.tell(connection, 1 - side, |link| Event::SegmentGone(link, segment.0));
            }
            if let Some(s) = w.connections[connection].sides[side].as_mut() {
                s.grants.retain(|_, g| g.range.segment != segment);
            }
        }
        Ok(())
    }

    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError> {
        let known = self.world.lock().slice(self.endpoint.0, *slice).is_some();
        if known { Ok(()) } else { Err(PostError::BadLocalSlice(*slice)) }
    }

    fn offer(&mut self, link: LinkId) -> Result<Offer, FabricError> {
        let mut w = self.world.lock();
        let connection = w.connections.len();
        let side = Side::new(self.endpoint.0, link, self.capabilities.receive_slots);
        w.connections.push(Connection { sides: [Some(side), None], lost: false });
        w.endpoints[self.endpoint.0].links.insert(link, (connection, 0));
        Ok(offer_of(connection))
    }

    fn accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        let mut w = self.world.lock();
        let bad = |why: &str| FabricError::BadOffer { link, why: why.to_owned() };
        let connection = connection_of(peer).ok_or_else(|| bad("it is no number"))?;
        let c = w.connections.get_mut(connection).ok_or_else(|| bad("no such connection was offered"))?;
        if c.sides[1].is_some() {
            return Err(bad("it is taken"));
        }
        c.sides[1] = Some(Side::new(self.endpoint.0, link, self.capabilities.receive_slots));
        let lost = c.lost;
        w.endpoints[self.endpoint.0].links.insert(link, (connection, 1));
        if lost {
            let at = w.soon();
            w.schedule(at, Happening::Down { connection, side: 1 });
        }
        Ok(offer_of(connection))
    }

    fn connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError> {
        let mut w = self.world.lock();
        let mine = w.endpoints[self.endpoint.0].links.get(&link).copied();
        let Some((connection, 0)) = mine else {
            return Err(FabricError::WrongState { link, what: "connect" });
        };
        if connection_of(peer) != Some(connection) || w.connections[connection].sides[1].is_none() {
            return Err(FabricError::BadOffer { link, why: "nobody accepted".into() });
        }
        if !w.connections[connection].lost {
            for side in 0..2 {
                let at = w.soon();
                w.schedule(at, Happening::Connected { connection, side });
            }
        }
        Ok(())
    }

    fn disconnect(&mut self, link: LinkId, reason: DownReason) {
        let mut w = self.world.lock();
        let Some((connection, side)) = w.endpoints[self.endpoint.0].links.get(&link).copied() else { return };
        let peer = match &reason {
            DownReason::Violation(why) => DownReason::Refused(why.clone()),
            other => DownReason::PeerClosed(other.to_string()),
        };
        let mut reasons = [peer.clone(), peer];
        reasons[side] = reason;
        w.lose(connection, reasons);
    }

    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError> {
        if access == GrantAccess::Atomic {
            if !self.capabilities.atomics {
                return Err(PostError::Unsupported { link, what: "open words to atomic operations" });
            }
            if !range.offset.is_multiple_of(8) || !range.len.is_multiple_of(8) {
                return Err(PostError::BadLocalSlice(range));
            }
        }
        let mut w = self.world.lock();
        let (connection, side) = w.side(self.endpoint, link)?;
        if w.slice(self.endpoint.0, range).is_none() {
            return Err(PostError::BadLocalSlice(range));
        }
        let has_own_key = access == GrantAccess::Atomic || self.capabilities.isolation == Isolation::Grant;
        let key = match has_own_key {
            true => RemoteKey(w.free_key()),
            false => w.key_of_all(self.endpoint, range.segment),
        };
        w.next_number += 1;
        let number = w.next_number;
        let remote = RemoteSlice::new(address_of(range), range.len, key);
        if let Some(s) = w.connections[connection].sides[side].as_mut() {
            s.outstanding += 1;
            let grant = Grant { number, range, remote, access, in_force: false, has_own_key };
            if s.grants.insert(tag, grant).is_some() {
                w.fault(|| format!("{link} has a grant with tag {tag:#x} already"));
            }
        }
        match w.conditions.grants {
            Grants::Immediate => w.granted(connection, side, tag),
            Grants::Delayed => {
                let at = w.soon();
                w.schedule(at, Happening::Granted { connection, side, tag });
            }
        }
        Ok(())
    }

    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        let mut w = self.world.lock();
        let (connection, side) = w.side(self.endpoint, link)?;
        if let Some(s) = w.connections[connection].sides[side].as_mut() {
            s.outstanding += 1;
        }
        if self.revokes_early {
            w.endpoints[self.endpoint.0].events.push_back(Event::Revoked(link, key, tag));
        }
        match w.conditions.grants {
            Grants::Immediate => w.revoked(connection, side, key, tag),
            Grants::Delayed => {
                let at = w.soon();
                w.schedule(at, Happening::Revoked { connection, side, key, tag });
            }
        }
        Ok(())
    }

    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.capabilities.check_write(sgl, &remote)?;
        let mut w = self.world.lock();
        let (connection, side) = w.side(self.endpoint, link)?;
        if let Some(bad) = sgl.iter().find(|s| w.slice(self.endpoint.0, **s).is_none()) {
            return Err(PostError::BadLocalSlice(*bad));
        }
        let digest = digest_of(&w.gather(self.endpoint.0, sgl).unwrap_or_default());
        let sgl = GatherList::from_slice(sgl);
        w.note(|| format!("{} writes {link} {} bytes, immediate {immediate:x?}", self.endpoint.0, remote.len));
        let kind = WorkKind::Write { sgl, remote, immediate, digest, placed: 0, gathered: None };
        w.enter(connection, side, Work { id: work, kind });
        Ok(())
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        self.capabilities.check_message(message)?;
        let mut w = self.world.lock();
        let (connection, side) = w.side(self.endpoint, link)?;
        w.note_message("sends", self.endpoint.0, link, message);
        w.digest.add(Seen::Message, self.endpoint.0 as u64, message);
        w.enter(connection, side, Work { id: work, kind: WorkKind::Send(message.to_vec()) });
        Ok(())
    }

    fn atomics(&mut self) -> Option<&mut dyn Atomics> {
        if self.capabilities.atomics { Some(self) } else { None }
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing<Memory = MemoryId>> {
        Some(self)
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        let bound = self.world.lock().rng.random_range(1..32);
        for reported in 0..bound {
            // The world is not locked while the sink runs, because the sink may access its memory.
            let Some(event) = self.world.lock().next_event(self.endpoint) else { return reported > 0 };
            match event {
                Event::Connected(link) => {
                    sink(FabricEvent::Connected { link });
                    if let Some(mark) = self.mark(link) {
                        sink(FabricEvent::References { link, mark });
                    }
                }
                Event::SegmentCame(link, handle) => sink(FabricEvent::SegmentCame { link, handle }),
                Event::SegmentKept(link, segment) => sink(FabricEvent::SegmentKept { link, segment }),
                Event::SegmentGone(link, handle) => sink(FabricEvent::SegmentGone { link, handle }),
                Event::WriteDone(link, work) => sink(FabricEvent::WriteDone { link, work }),
                Event::SendDone(link, work) => sink(FabricEvent::SendDone { link, work }),
                Event::AtomicDone(link, work, old) => sink(FabricEvent::AtomicDone { link, work, old }),
                Event::LocalAtomicDone(work, old) => sink(FabricEvent::LocalAtomicDone { work, old }),
                Event::Granted(link, tag, remote) => {
                    if let Some(tags) = &mut self.tags {
                        tags.insert((link, remote.key().0), tag);
                    }
                    sink(FabricEvent::Granted { link, tag, remote });
                }
                Event::Revoked(link, key, tag) => {
                    if let Some(tag) = self.revoked_tag(link, key, tag) {
                        sink(FabricEvent::Revoked { link, key, tag });
                    }
                }
                Event::Message(link, bytes) => sink(FabricEvent::Message { link, bytes: &bytes }),
                Event::Immediate { link, value, len_bytes, .. } => {
                    sink(FabricEvent::Immediate { link, value, len_bytes, copied: 0 });
                }
                Event::Down(link, reason) => sink(FabricEvent::LinkDown { link, reason }),
            }
        }
        true
    }

    fn arm(&mut self) {}

    fn wait_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        Vec::new()
    }
}

impl Atomics for SimFabric {
    fn post_atomic(&mut self, link: LinkId, work: WorkId, remote: RemoteSlice, op: AtomicOp) -> Result<(), PostError> {
        if remote.len != 8 {
            return Err(PostError::Limit { what: "bytes of a word", value: remote.len, limit: 8 });
        }
        let mut w = self.world.lock();
        let (connection, side) = w.side(self.endpoint, link)?;
        w.note(|| format!("{} does {op:?} over {link} to {:#x}", self.endpoint.0, remote.address));
        w.enter(connection, side, Work { id: work, kind: WorkKind::Atomic { remote, op, old: 0 } });
        Ok(())
    }

    fn post_local_atomic(&mut self, work: WorkId, word: LocalSlice, op: AtomicOp) -> Result<(), FabricError> {
        let refused = |why: &str| FabricError::Device { what: "an atomic operation", why: why.to_owned() };
        if word.len != 8 || !word.offset.is_multiple_of(8) {
            return Err(refused("it is not on a word"));
        }
        let mut w = self.world.lock();
        if w.slice(self.endpoint.0, word).is_none() {
            return Err(refused("the word is not in registered memory"));
        }
        let at = w.soon();
        w.schedule(at, Happening::LocalAtomic { endpoint: self.endpoint.0, work, word, op });
        Ok(())
    }
}

impl Sharing for SimFabric {
    type Memory = MemoryId;

    fn share(&mut self, link: LinkId, segment: SegmentId) -> Result<(), PostError> {
        let mut w = self.world.lock();
        let (connection, side) = w.side(self.endpoint, link)?;
        w.tell(connection, 1 - side, |link| Event::SegmentCame(link, segment.0));
        Ok(())
    }

    fn keep(&mut self, link: LinkId, handle: u32) -> Option<(MemoryId, u64)> {
        let mut w = self.world.lock();
        let (connection, side) = w.side_of(self.endpoint, link)?;
        let segment = SegmentId(handle);
        let owner = w.connections[connection].sides[1 - side].as_ref()?.endpoint;
        let memory = *w.endpoints[owner].segments.get(&segment)?;
        w.tell(connection, 1 - side, |link| Event::SegmentKept(link, segment));
        Some((memory, w.memories[memory.0].len() as u64))
    }
}

impl WorldState {
    /// Takes the next event of an endpoint, and frees the receive slot that the event used.
    fn next_event(&mut self, endpoint: Endpoint) -> Option<Event> {
        if self.endpoints[endpoint.0].events.is_empty() {
            self.run_by_itself();
        }
        let event = self.endpoints[endpoint.0].events.pop_front()?;
        let link = match &event {
            Event::Message(link, bytes) => {
                let (link, bytes) = (*link, bytes.clone());
                self.note_message("hears", endpoint.0, link, &bytes);
                link
            }
            Event::Immediate { link, late, lies, .. } => {
                let (link, lies, late) = (*link, *lies, late.clone());
                let at = self.endpoints[endpoint.0].links.get(&link).copied();
                let side = at.and_then(|(connection, side)| self.connections[connection].sides[side].as_ref());
                if lies && side.is_some_and(|s| s.state != SideState::Down) {
                    self.lied.insert((endpoint.0, link));
                }
                for late in late {
                    let at = self.soon();
                    self.schedule(at, Happening::Late(late));
                }
                link
            }
            _ => return Some(event),
        };
        if let Some((connection, side)) = self.endpoints[endpoint.0].links.get(&link).copied()
            && let Some(s) = self.connections[connection].sides[side].as_mut()
        {
            s.free_slots += 1;
        }
        Some(event)
    }
}
