//! Two or more fabrics, driven by one thread.

use super::{Memory, Rig};
use std::time::{Duration, Instant};
use transfer_core::fabric::{
    Atomics, DownReason, Fabric, FabricEvent, GrantAccess, LinkId, LinkRails, PostError, WorkId,
};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};

/// The time without progress after which a test counts as hanging.
const HANG: Duration = Duration::from_secs(60);

/// A [`FabricEvent`] that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Connected(LinkId),
    WriteDone(LinkId, WorkId),
    SendDone(LinkId, WorkId),
    AtomicDone(LinkId, WorkId, u64),
    LocalAtomicDone(WorkId, Result<u64, String>),
    Granted(LinkId, u64, RemoteSlice),
    Revoked(LinkId, RemoteKey, u64),
    Message(LinkId, Vec<u8>),
    Immediate(LinkId, u32),
    RailDown(LinkId, usize),
    Down(LinkId, DownReason),
    References(LinkId, u64),
    SegmentCame(LinkId, u32),
    SegmentKept(LinkId, SegmentId),
    SegmentGone(LinkId, u32),
}

impl Heard {
    fn of(event: FabricEvent<'_>) -> Heard {
        match event {
            FabricEvent::Connected { link } => Heard::Connected(link),
            FabricEvent::WriteDone { link, work } => Heard::WriteDone(link, work),
            FabricEvent::SendDone { link, work } => Heard::SendDone(link, work),
            FabricEvent::AtomicDone { link, work, old } => Heard::AtomicDone(link, work, old),
            FabricEvent::LocalAtomicDone { work, old } => Heard::LocalAtomicDone(work, old),
            FabricEvent::Granted { link, tag, remote } => Heard::Granted(link, tag, remote),
            FabricEvent::Revoked { link, key, tag } => Heard::Revoked(link, key, tag),
            FabricEvent::Message { link, bytes } => Heard::Message(link, bytes.to_vec()),
            FabricEvent::Immediate { link, value, .. } => Heard::Immediate(link, value),
            FabricEvent::RailDown { link, rail, .. } => Heard::RailDown(link, rail),
            FabricEvent::LinkDown { link, reason } => Heard::Down(link, reason),
            FabricEvent::References { link, mark } => Heard::References(link, mark),
            FabricEvent::SegmentCame { link, handle } => Heard::SegmentCame(link, handle),
            FabricEvent::SegmentKept { link, segment } => Heard::SegmentKept(link, segment),
            FabricEvent::SegmentGone { link, handle } => Heard::SegmentGone(link, handle),
            other => panic!("an event that the suite does not know: {other:?}"),
        }
    }

    /// Returns the link of the event, if it has one.
    pub fn link(&self) -> Option<LinkId> {
        match self {
            Heard::LocalAtomicDone(..) => None,
            Heard::Connected(link)
            | Heard::WriteDone(link, _)
            | Heard::SendDone(link, _)
            | Heard::AtomicDone(link, ..)
            | Heard::Granted(link, ..)
            | Heard::Revoked(link, ..)
            | Heard::Message(link, _)
            | Heard::Immediate(link, _)
            | Heard::RailDown(link, _)
            | Heard::References(link, _)
            | Heard::SegmentCame(link, _)
            | Heard::SegmentKept(link, _)
            | Heard::SegmentGone(link, _)
            | Heard::Down(link, _) => Some(*link),
        }
    }
}

/// One fabric, its memory, and its events.
pub struct Side<R: Rig> {
    fabric: Option<R::Fabric>,
    pub memory: Memory<R>,
    pub heard: Vec<Heard>,
}

/// The numbers of a link at its two ends, that of side 0 first.
#[derive(Debug, Clone, Copy)]
pub struct Link(pub [LinkId; 2]);

/// Two sides with `len` bytes of memory each, registered as [`Pair::SEGMENT`].
pub struct Pair<R: Rig> {
    pub rig: R,
    pub sides: Vec<Side<R>>,
    links: u32,
    works: u64,
    /// The tags of live grants, each with the granting side's link and the granted slice.
    tags: Vec<(LinkId, RemoteSlice, u64)>,
}

impl<R: Rig> Pair<R> {
    pub const SEGMENT: SegmentId = SegmentId(1);

    pub fn new(mut rig: R, len: u64) -> Pair<R> {
        let sides = (0..2).map(|_| {
            let mut fabric = rig.fabric();
            let memory = rig.memory(len);
            fabric.register(Self::SEGMENT, memory.clone()).unwrap();
            Side { fabric: Some(fabric), memory, heard: Vec::new() }
        });
        let sides = sides.collect();
        Pair { rig, sides, links: 0, works: 0, tags: Vec::new() }
    }

    /// Returns the atomic operations of a side whose fabric has them.
    pub fn atomics(&mut self, side: usize) -> &mut dyn Atomics {
        self.fabric(side).atomics().expect("it operates on words")
    }

    /// Returns the rails of a side's link.
    pub fn rails(&mut self, side: usize, link: LinkId) -> LinkRails {
        self.fabric(side).rails().map_or(LinkRails::ONE, |rails| rails.rails_of(link))
    }

    pub fn fabric(&mut self, side: usize) -> &mut R::Fabric {
        self.sides[side].fabric.as_mut().unwrap()
    }

    pub fn kill(&mut self, side: usize) {
        let fabric = self.sides[side].fabric.take().unwrap();
        self.rig.kill(fabric);
    }

    /// Returns numbers for a new link.
    pub fn new_link(&mut self) -> Link {
        self.links += 1;
        Link([LinkId(self.links), LinkId(1000 + self.links)])
    }

    pub fn new_work(&mut self) -> WorkId {
        self.works += 1;
        WorkId(self.works)
    }

    pub fn slice(offset: u64, len: u64) -> LocalSlice {
        LocalSlice { segment: Self::SEGMENT, offset, len }
    }

    /// Polls all sides once.
    pub fn round(&mut self) {
        let moved = (0..self.sides.len()).filter(|side| self.round_of(*side)).count();
        if moved == 0 {
            self.rig.idle();
        }
    }

    /// Polls one side once. Returns whether anything moved.
    pub fn round_of(&mut self, side: usize) -> bool {
        let Side { fabric: Some(fabric), heard, .. } = &mut self.sides[side] else { return false };
        fabric.poll(&mut |event| {
            let event = Heard::of(event);
            let link = event.link();
            let dead = heard.iter().any(|earlier| matches!(earlier, Heard::Down(dead, _) if Some(*dead) == link));
            assert!(!dead, "{event:?} after the end of its link");
            heard.push(event);
        })
    }

    /// Drives one side alone until it has a matching event, or until `most` has passed.
    pub fn alone(&mut self, side: usize, most: Duration, mut fits: impl FnMut(&Heard) -> bool) {
        let start = Instant::now();
        while !self.sides[side].heard.iter().any(&mut fits) && start.elapsed() < most {
            if !self.round_of(side) {
                self.rig.idle();
            }
        }
    }

    /// Drives both sides until `done`.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair<R>) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let sides = &self.sides;
            assert!(start.elapsed() < HANG, "waiting for {what}; heard {:?}", [&sides[0].heard, &sides[1].heard]);
            self.round();
        }
    }

    /// Drives both sides until `side` has a matching event, and removes the event from the list.
    pub fn hear<T>(&mut self, side: usize, what: &str, mut fits: impl FnMut(&Heard) -> Option<T>) -> T {
        let mut found = None;
        self.until(what, |pair| {
            let heard = &mut pair.sides[side].heard;
            let at = heard.iter().position(|event| {
                found = fits(event);
                found.is_some()
            });
            // The end of a link stays in the list, so that a later event of that link is noticed.
            if let Some(at) = at.filter(|at| !matches!(heard[*at], Heard::Down(..))) {
                heard.remove(at);
            }
            found.is_some()
        });
        found.unwrap()
    }

    /// Begins a new link from `initiator`. Neither side is connected yet.
    pub fn begin(&mut self, initiator: usize) -> Link {
        let acceptor = 1 - initiator;
        let link = self.new_link();
        let offer = self.fabric(initiator).offer(link.0[initiator]).unwrap();
        let answer = self.fabric(acceptor).accept(link.0[acceptor], &offer).unwrap();
        self.fabric(initiator).connect(link.0[initiator], &answer).unwrap();
        link
    }

    /// Makes a connected link, begun by `initiator`.
    pub fn connect(&mut self, initiator: usize) -> Link {
        let link = self.begin(initiator);
        for side in 0..2 {
            self.hear(side, "Connected", |h| (*h == Heard::Connected(link.0[side])).then_some(()));
        }
        link
    }

    /// Opens a range of `side`'s memory to the other side, and announces it by a message. The grant must be in force
    /// when that message arrives, and need not be earlier.
    pub fn grant(&mut self, side: usize, link: Link, range: LocalSlice) -> RemoteSlice {
        self.grant_for(side, link, range, GrantAccess::Write)
    }

    /// Opens words of `side`'s memory to atomic operations of the other side.
    pub fn grant_words(&mut self, side: usize, link: Link, range: LocalSlice) -> RemoteSlice {
        self.grant_for(side, link, range, GrantAccess::Atomic)
    }

    fn grant_for(&mut self, side: usize, link: Link, range: LocalSlice, access: GrantAccess) -> RemoteSlice {
        let tag = self.new_work().0;
        let (id, peer) = (link.0[side], link.0[1 - side]);
        self.fabric(side).grant(id, range, access, tag).unwrap();
        let remote = self.hear(side, "Granted", |h| match h {
            Heard::Granted(l, t, remote) if (*l, *t) == (id, tag) => Some(*remote),
            _ => None,
        });
        self.tags.push((id, remote, tag));
        let told = self.post_send(side, link, &remote.address.to_le_bytes()).unwrap();
        let message = Heard::Message(peer, remote.address.to_le_bytes().to_vec());
        self.hear(1 - side, "Message", |h| (*h == message).then_some(()));
        self.hear(side, "SendDone", |h| (*h == Heard::SendDone(id, told)).then_some(()));
        remote
    }

    /// Returns the tag of a grant that [`Pair::grant`] made; for any other slice, a new tag.
    pub fn tag_of(&mut self, side: usize, link: Link, remote: RemoteSlice) -> u64 {
        let of = |(id, granted, _): &&(LinkId, RemoteSlice, u64)| (*id, *granted) == (link.0[side], remote);
        let tag = self.tags.iter().find(of).map(|(.., tag)| *tag);
        tag.unwrap_or_else(|| self.new_work().0)
    }

    pub fn revoke(&mut self, side: usize, link: Link, remote: RemoteSlice) {
        let (id, key, tag) = (link.0[side], remote.key(), self.tag_of(side, link, remote));
        self.fabric(side).revoke(id, key, tag).unwrap();
        self.hear(side, "Revoked", |h| (*h == Heard::Revoked(id, key, tag)).then_some(()));
        self.tags.retain(|(.., of)| *of != tag);
    }

    pub fn post_write(
        &mut self,
        side: usize,
        link: Link,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<WorkId, PostError> {
        let work = self.new_work();
        self.fabric(side).post_write(link.0[side], work, sgl, remote, immediate)?;
        Ok(work)
    }

    pub fn post_send(&mut self, side: usize, link: Link, message: &[u8]) -> Result<WorkId, PostError> {
        let work = self.new_work();
        self.fabric(side).post_send(link.0[side], work, message)?;
        Ok(work)
    }

    pub fn write_done(&mut self, side: usize, link: Link, work: WorkId) {
        let id = link.0[side];
        self.hear(side, "WriteDone", |h| (*h == Heard::WriteDone(id, work)).then_some(()));
    }

    pub fn immediate(&mut self, side: usize, link: Link) -> u32 {
        let id = link.0[side];
        self.hear(side, "Immediate", |h| match h {
            Heard::Immediate(l, value) if *l == id => Some(*value),
            _ => None,
        })
    }

    /// Drives both sides until both report the link as dead.
    pub fn dead(&mut self, link: Link) -> [DownReason; 2] {
        [0, 1].map(|side| {
            let id = link.0[side];
            self.hear(side, "LinkDown", |h| match h {
                Heard::Down(l, reason) if *l == id => Some(reason.clone()),
                _ => None,
            })
        })
    }

    /// Writes a pattern of `seed` into `side`'s memory, and returns it.
    pub fn fill(&mut self, side: usize, offset: u64, len: u64, seed: u64) -> Vec<u8> {
        let bytes = pattern(len, seed);
        self.rig.write(&self.sides[side].memory, offset, &bytes);
        bytes
    }

    pub fn read(&mut self, side: usize, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.rig.read(&self.sides[side].memory, offset, &mut bytes);
        bytes
    }

    /// Checks that the link works: a message, its answer and a write arrive.
    pub fn works(&mut self, link: Link) {
        for side in 0..2 {
            let (to, tag) = (link.0[1 - side], self.new_work().0);
            self.post_send(side, link, &tag.to_le_bytes()).unwrap();
            self.hear(1 - side, "Message", |h| (*h == Heard::Message(to, tag.to_le_bytes().to_vec())).then_some(()));
            let bytes = self.fill(side, 0, 64, tag);
            let remote = self.grant(1 - side, link, Self::slice(64, 64));
            let work = self.post_write(side, link, &[Self::slice(0, 64)], remote, None).unwrap();
            self.write_done(side, link, work);
            assert_eq!(self.read(1 - side, 64, 64), bytes);
            self.revoke(1 - side, link, remote);
        }
    }
}

/// Returns bytes that identify their place: they differ at each 8-byte position and for each seed, and no 8 bytes are
/// all zero.
pub fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).map(|i| (i + 1).wrapping_add(seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len as usize);
    bytes
}
