//! How work requests travel, and where they are checked.

use super::connection::{Event, Grant, Late, SideNo, SideState, Work, WorkKind};
use super::world::{Happening, WorldState};
use crate::fabric::{AtomicOp, DownReason, GrantAccess};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice};
use crate::plan::GatherList;
use crate::wire::landing::{Header, SlotNumber};
use rand::Rng;

impl WorldState {
    /// Returns all bytes of a gather list, or `None` if a part of it is not registered.
    pub(super) fn gather(&self, endpoint: usize, sgl: &[LocalSlice]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for slice in sgl {
            out.extend_from_slice(self.slice(endpoint, *slice)?);
        }
        Some(out)
    }

    /// Puts a post into the pipe.
    pub(super) fn enter(&mut self, connection: usize, from: SideNo, work: Work) {
        let Some(side) = self.connections[connection].sides[from].as_mut() else { return };
        side.outstanding += 1;
        if side.cut {
            return;
        }
        side.pipe.push_back(work);
        if !side.stepping {
            side.stepping = true;
            let at = self.soon();
            self.schedule(at, Happening::Step { connection, from });
        }
    }

    /// Advances the first work of a pipe: a part of it lands, or it arrives completely.
    pub(super) fn step(&mut self, connection: usize, from: SideNo) {
        let to = 1 - from;
        let [Some(a), Some(b)] = &self.connections[connection].sides else { return };
        let receiver = if to == 0 { a } else { b };
        match receiver.state {
            SideState::Begun => {
                let at = self.soon();
                return self.schedule(at, Happening::Step { connection, from });
            }
            SideState::Down => return self.stop_pipe(connection, from),
            SideState::Up => {}
        }
        let Some(sender) = self.connections[connection].sides[from].as_mut() else { return };
        let Some(mut work) = sender.pipe.pop_front() else {
            sender.stepping = false;
            return;
        };
        let arrived = match &mut work.kind {
            WorkKind::Send(bytes) => self.message_arrives(connection, to, bytes),
            WorkKind::Write { sgl, remote, immediate, digest, placed, gathered } => {
                let piece = (&*sgl, *remote, *immediate, *digest);
                self.write_moves(connection, from, piece, placed, gathered.as_deref())
            }
            WorkKind::Atomic { remote, op, old } => self.atomic_arrives(connection, to, *remote, *op).map(|value| {
                *old = value;
                true
            }),
        };
        match arrived {
            Ok(true) => self.arrived(connection, from, work),
            Ok(false) => {
                if let Some(sender) = self.connections[connection].sides[from].as_mut() {
                    sender.pipe.push_front(work);
                }
            }
            Err(what) => {
                self.stop_pipe(connection, from);
                let mut reasons = [DownReason::Refused(what.clone()), DownReason::Refused(what.clone())];
                reasons[to] = DownReason::Violation(what);
                return self.lose(connection, reasons);
            }
        }
        let at = self.soon();
        self.schedule(at, Happening::Step { connection, from });
    }

    fn stop_pipe(&mut self, connection: usize, from: SideNo) {
        if let Some(sender) = self.connections[connection].sides[from].as_mut() {
            sender.pipe.clear();
            sender.stepping = false;
        }
    }

    fn take_slot(&mut self, connection: usize, to: SideNo) -> Result<usize, String> {
        let Some(receiver) = self.connections[connection].sides[to].as_mut() else { return Err("no receiver".into()) };
        let Some(left) = receiver.free_slots.checked_sub(1) else {
            return Err("no receive slot is free".into());
        };
        receiver.free_slots = left;
        Ok(receiver.endpoint)
    }

    fn message_arrives(&mut self, connection: usize, to: SideNo, bytes: &mut Vec<u8>) -> Result<bool, String> {
        let endpoint = self.take_slot(connection, to)?;
        let link = self.link(connection, to);
        self.endpoints[endpoint].events.push_back(Event::Message(link, std::mem::take(bytes)));
        Ok(true)
    }

    fn write_moves(
        &mut self,
        connection: usize,
        from: SideNo,
        (sgl, remote, immediate, digest): (&GatherList, RemoteSlice, Option<u32>, u64),
        placed: &mut u64,
        gathered: Option<&[u8]>,
    ) -> Result<bool, String> {
        let to = 1 - from;
        let mut bytes = match gathered {
            Some(bytes) => bytes.to_vec(),
            None => self.source(connection, from, sgl, digest).unwrap_or_else(|| vec![0; usize_of(remote.len)]),
        };
        // A header is falsified only before any byte of the write has landed.
        let lies = immediate.is_some() && *placed == 0 && self.chance(self.conditions.lies) && self.lie(&mut bytes);
        let grant = if remote.len > 0 { Some(self.check(connection, to, remote, GrantAccess::Write)?) } else { None };
        let rest = remote.len - *placed;
        let piece = if rest == 0 || lies || self.rng.random() { rest } else { self.rng.random_range(0..=rest) };
        if let Some(grant) = grant {
            let range = landing(&grant, remote).sub(*placed, piece).unwrap_or(grant.range);
            let endpoint = self.connections[connection].sides[to].as_ref().map_or(0, |s| s.endpoint);
            let (start, end) = (usize_of(*placed), usize_of(*placed + piece));
            self.land(endpoint, range, &bytes[start..end]);
        }
        *placed += piece;
        if *placed < remote.len {
            return Ok(false);
        }
        let own = grant.filter(|_| self.conditions.late_packets > 0);
        let own = own.map(|grant| Late { connection, to, number: grant.number, range: landing(&grant, remote) });
        let Some(value) = immediate else {
            if let Some(receiver) = self.connections[connection].sides[to].as_mut() {
                receiver.arrived.extend(own);
            }
            return Ok(true);
        };
        let endpoint = self.take_slot(connection, to)?;
        let before = self.connections[connection].sides[to].as_mut().map(|s| std::mem::take(&mut s.arrived));
        let late = match own {
            Some(own) if self.chance(self.conditions.late_packets) => {
                // What came before through another grant may come again, too.
                let others = before.into_iter().flatten().filter(|late| late.number != own.number);
                others.chain([own]).collect()
            }
            _ => Vec::new(),
        };
        let link = self.link(connection, to);
        self.note(|| format!("{endpoint} gets {link} immediate {value:#x} of {} bytes", remote.len));
        self.endpoints[endpoint].events.push_back(Event::Immediate { link, value, len_bytes: remote.len, late, lies });
        Ok(true)
    }

    /// Falsifies a landing header. Returns `false` if the bytes do not begin with one.
    fn lie(&mut self, bytes: &mut [u8]) -> bool {
        let Some(first) = bytes.first_chunk_mut() else { return false };
        let Ok(mut header) = Header::decode(first) else { return false };
        match self.rng.random_range(0..3) {
            0 => header.slot = SlotNumber(header.slot.0 ^ 1),
            1 => header.body_len += 1 << 40,
            _ => {
                first[20] ^= 1;
                return true;
            }
        }
        *first = header.encode();
        true
    }

    /// Gathers the source of a write. A source that changed since the post is a fault.
    fn source(&mut self, connection: usize, from: SideNo, sgl: &GatherList, digest: u64) -> Option<Vec<u8>> {
        let endpoint = self.connections[connection].sides[from].as_ref()?.endpoint;
        let bytes = self.gather(endpoint, sgl);
        match &bytes {
            None => self.fault(|| format!("{sgl:?} of endpoint {endpoint} went away under a write")),
            Some(bytes) if digest_of(bytes) != digest => {
                self.fault(|| format!("{sgl:?} of endpoint {endpoint} changed under a write"));
            }
            Some(_) => {}
        }
        bytes
    }

    /// Handles the arrival of a peer's atomic operation on a word. Returns the value of the word before it.
    fn atomic_arrives(
        &mut self,
        connection: usize,
        to: SideNo,
        remote: RemoteSlice,
        op: AtomicOp,
    ) -> Result<u64, String> {
        if !remote.address.is_multiple_of(8) {
            return Err(format!("an atomic operation on {remote:?}, which is no word"));
        }
        let grant = self.check(connection, to, remote, GrantAccess::Atomic)?;
        let endpoint = self.connections[connection].sides[to].as_ref().map_or(0, |s| s.endpoint);
        self.operate(endpoint, landing(&grant, remote), op).ok_or_else(|| format!("{remote:?} is not there"))
    }

    /// Operates on a word of an endpoint's registered memory. Returns the value of the word before.
    pub(super) fn operate(&mut self, endpoint: usize, word: LocalSlice, op: AtomicOp) -> Option<u64> {
        let old = u64::from_ne_bytes(self.slice(endpoint, word)?.try_into().ok()?);
        let new = match op {
            AtomicOp::FetchAdd(n) => Some(old.wrapping_add(n)),
            AtomicOp::CompareSwap { expected, new } => (old == expected).then_some(new),
            AtomicOp::Load => None,
        };
        if let Some(new) = new {
            self.land(endpoint, word, &new.to_ne_bytes());
        }
        self.note(|| format!("{endpoint} {word} was {old}: {op:?}"));
        Some(old)
    }

    fn check(
        &mut self,
        connection: usize,
        to: SideNo,
        remote: RemoteSlice,
        access: GrantAccess,
    ) -> Result<Grant, String> {
        let side = self.connections[connection].sides[to].as_ref();
        let grant = side.and_then(|s| {
            // A device checks only the key.
            let of_all = self.whole_segment(s.endpoint, remote.key()).filter(|_| access == GrantAccess::Write);
            of_all.or_else(|| s.grants.values().find(|g| g.has_own_key && g.remote.key() == remote.key()).copied())
        });
        let end = remote.address.checked_add(remote.len);
        match grant {
            Some(g)
                if g.in_force
                    && g.access == access
                    && remote.address >= g.remote.address
                    && end.is_some_and(|end| end <= g.remote.address + g.remote.len) =>
            {
                Ok(g)
            }
            other => Err(format!("a write to {remote:?} through {other:?}")),
        }
    }

    /// Returns the range that a key opens if all grants into a segment share it: the whole segment.
    fn whole_segment(&self, endpoint: usize, key: RemoteKey) -> Option<Grant> {
        let place = &self.endpoints[endpoint];
        let segment = *place.keys.iter().find(|(_, of)| **of == key)?.0;
        let len = self.memories.get(place.segments.get(&segment)?.0)?.len() as u64;
        let range = LocalSlice { segment, offset: 0, len };
        let remote = RemoteSlice::new(address_of(range), len, key);
        Some(Grant { number: 0, range, remote, access: GrantAccess::Write, in_force: true, has_own_key: false })
    }

    fn arrived(&mut self, connection: usize, from: SideNo, work: Work) {
        let at = self.soon();
        let Some(sender) = self.connections[connection].sides[from].as_mut() else { return };
        if sender.state != SideState::Up {
            return;
        }
        let at = at.max(sender.last_completion);
        sender.last_completion = at;
        sender.placed.push_back(work);
        self.schedule(at, Happening::Completed { connection, side: from });
    }

    pub(super) fn completed(&mut self, connection: usize, from: SideNo) {
        let Some(sender) = self.connections[connection].sides[from].as_mut() else { return };
        let Some(work) = sender.placed.pop_front() else { return };
        sender.outstanding -= 1;
        let (endpoint, link) = (sender.endpoint, sender.link);
        let event = match &work.kind {
            WorkKind::Send(_) => Event::SendDone(link, work.id),
            WorkKind::Atomic { old, .. } => Event::AtomicDone(link, work.id, *old),
            WorkKind::Write { sgl, digest, .. } => {
                self.source(connection, from, sgl, *digest);
                Event::WriteDone(link, work.id)
            }
        };
        self.endpoints[endpoint].events.push_back(event);
    }

    /// Handles a late packet: the write lands again, with other bytes, if its grant is still in force.
    pub(super) fn late(&mut self, late: &Late) {
        let Some(side) = self.connections[late.connection].sides[late.to].as_ref() else { return };
        let endpoint = side.endpoint;
        let open = side.state == SideState::Up && side.grants.values().any(|g| g.number == late.number && g.in_force);
        self.note(|| format!("{endpoint} gets a late packet for {}, open: {open}", late.range));
        if open {
            let bytes: Vec<u8> = (0..late.range.len).map(|_| self.rng.random()).collect();
            self.land(endpoint, late.range, &bytes);
        }
    }
}

/// Returns the address by which peers name the start of a range.
pub(super) fn address_of(range: LocalSlice) -> u64 {
    u64::from(range.segment.0) << 32 | range.offset
}

/// Returns the range in which a checked write lands.
fn landing(grant: &Grant, remote: RemoteSlice) -> LocalSlice {
    let offset = grant.range.offset + (remote.address - grant.remote.address);
    LocalSlice { segment: grant.range.segment, offset, len: remote.len }
}

/// Converts a length. The memory of a world is always short enough for a `usize`.
fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// FNV-1a, for detecting a change.
pub(super) fn digest_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}
