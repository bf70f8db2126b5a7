//! One link: its socket, its rings, and what is in flight.

use super::MAX_SEGMENTS;
use super::copy_pool::{CopyPool, Theirs, ToMap};
use super::job::Job;
use super::note::{Nonce, Note};
use super::quota::Mapped;
use super::record::{Element, Encoded, Record, Write};
use super::shared::LinkMemory;
use crate::links::{AckState, FabricLink, SentCounts, Sink, Works};
use crate::regions::Regions;
use crate::token::Token;
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use transfer_core::fabric::{DownReason, FabricEvent, LinkId, PostError, WorkId};
use transfer_core::memory::{LocalSlice, RemoteKey, SegmentId};
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::socket::{Message, Socket, SocketError};

/// The most messages of the socket that are read in one round.
const NOTES: usize = 64;

/// The stage of a link's life.
#[derive(Debug)]
pub(super) enum Stage {
    /// The acceptor waits for the Welcome. The initiator has to show this token, and the nonce that it read in the
    /// shared memory.
    Greeting { expect: Token, nonce: Nonce, deadline: Instant },
    /// Connected.
    Up,
    /// Ended for `reason`. Nothing is placed any longer except the pieces that are being copied at this moment.
    Ending { reason: DownReason },
}

/// A write that is being placed.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) job: Arc<Job>,
    pub(super) key: RemoteKey,
    pub(super) immediate: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) socket: Socket,
    pub(super) stage: Stage,
    pub(super) shared: LinkMemory,
    /// The peer's incarnation. Segments that the peer passes are marked with it.
    incarnation: u64,
    /// Records that found no room in the ring.
    pub(super) outbox: VecDeque<Box<[u8]>>,
    pub(super) works: Works<Signs>,
    /// The acknowledgements that the peer has not been sent.
    pub(super) acks: AckState,
    pub(super) counts: SentCounts,
    /// This side's segments that the peer knows. Both sides name them by their numbers on this side, which are never
    /// used again.
    pub(super) passed: HashSet<SegmentId>,
    /// This side's user namespace; 0 if it allows no references.
    namespace: u64,
    /// The link's mark, if both sides may refer to each other's memory.
    pub(super) mark: Option<u64>,
    /// The handles of the peer's segments that are to be reported once they are mapped.
    pub(super) coming: Vec<u32>,
    /// The segments that the peer has passed and their lengths, by handle.
    pub(super) theirs: HashMap<u32, (Arc<Theirs>, u64)>,
    pub(super) theirs_bytes: u64,
    /// The passed segments that are not mapped yet, with their handles. They wait until enough mapped segments are
    /// gone to make room.
    pub(super) unmapped: VecDeque<(u32, ToMap)>,
    pub(super) mapped: Arc<Mapped>,
    /// Memory for the record that is being read.
    pub(super) record: Option<Box<[u8; MAX_RECORD_BYTES]>>,
    /// A write that waits for a segment to be mapped.
    pub(super) stuck: Option<Write>,
    pub(super) landing: Option<Landing>,
    pub(super) copied: u64,
    /// Whether records were pushed that the peer has not been shown.
    pub(super) unpublished: bool,
    /// Whether this side has announced that it sleeps.
    pub(super) asleep: bool,
    /// The reason for the link's end that was found on the socket, such as the peer's farewell.
    pub(super) farewell: Option<DownReason>,
}

/// Signs of life of a peer that has something to do: the works that it has placed, and the count that it raises while
/// it copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signs {
    done: u64,
    beats: u32,
}

/// The parts of the fabric that a link needs to receive from its peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveContext<'a> {
    pub(super) regions: &'a Regions,
    pub(super) copy_pool: &'a CopyPool,
    /// The most bytes of a peer's segments that are mapped.
    pub(super) max_mapped_bytes: u64,
}

impl FabricLink for Link {
    fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Greeting { deadline, .. } => Some(deadline),
            Stage::Up => self.works.due().into_iter().chain(self.acks.due()).min(),
            Stage::Ending { .. } => None,
        }
    }
}

impl Link {
    pub(super) fn new(id: LinkId, socket: Socket, shared: LinkMemory, stage: Stage, own_namespace: u64) -> Link {
        Link {
            id,
            socket,
            stage,
            shared,
            incarnation: 0,
            outbox: VecDeque::new(),
            works: Works::new(),
            acks: AckState::default(),
            counts: SentCounts::default(),
            passed: HashSet::new(),
            namespace: own_namespace,
            mark: None,
            coming: Vec::new(),
            theirs: HashMap::new(),
            theirs_bytes: 0,
            unmapped: VecDeque::new(),
            mapped: Arc::default(),
            record: None,
            stuck: None,
            landing: None,
            copied: 0,
            unpublished: false,
            asleep: false,
            farewell: None,
        }
    }

    /// Records what the peer has said of itself. References are allowed if both sides want them and are in the same
    /// user namespace, where a user id is the same user.
    pub(super) fn meet(&mut self, incarnation: u64, namespace: u64, nonce: &Nonce) {
        self.incarnation = incarnation;
        let same = namespace == self.namespace && namespace != 0;
        self.mark = nonce.first_chunk().filter(|_| same).map(|bytes| u64::from_le_bytes(*bytes));
    }

    pub(super) fn signs(&self) -> Signs {
        Signs { done: self.works.placed(), beats: self.shared.peer_beats() }
    }

    /// Returns the elements of a write as the peer names them. Passes the peer the segments that it does not know yet.
    pub(super) fn elements(
        &mut self,
        sgl: &[LocalSlice],
        regions: &Regions,
    ) -> Result<super::record::Elements, PostError> {
        for slice in sgl {
            regions.source(slice)?;
        }
        let mut elements = super::record::Elements::new();
        for slice in sgl.iter().filter(|slice| slice.len > 0) {
            self.pass(slice.segment, regions)?;
            elements.push(Element { handle: slice.segment.0, offset: slice.offset, len: slice.len });
        }
        Ok(elements)
    }

    /// Passes the peer a segment, unless it knows it already.
    pub(super) fn pass(&mut self, segment: SegmentId, regions: &Regions) -> Result<(), PostError> {
        if self.passed.contains(&segment) {
            return Ok(());
        }
        let bad = || PostError::BadLocalSlice(LocalSlice { segment, offset: 0, len: 0 });
        let memory = regions.segment(segment).ok_or_else(bad)?;
        let fd = memory.open_for_peer().map_err(|error| {
            tracing::error!(%error, %segment, "a segment cannot be passed to a peer of this host");
            bad()
        })?;
        let note = Note::Segment { handle: segment.0, len: memory.len() }.encode();
        match self.socket.send(&note, &super::lent(&fd), Instant::now()) {
            Ok(()) => {}
            // The peer has not read its socket yet.
            Err(SocketError::TimedOut { .. }) => return Err(PostError::Full(self.id)),
            // `hear` notices that, too, and finds the reason.
            Err(SocketError::Closed) => return Err(PostError::LinkDown(self.id)),
            // Nothing else notices this error.
            Err(error) => {
                self.farewell
                    .get_or_insert(DownReason::Lost(format!("a segment cannot be passed to the peer: {error}")));
                return Err(PostError::LinkDown(self.id));
            }
        }
        self.passed.insert(segment);
        Ok(())
    }

    /// Tells the peer that a segment is no longer registered. All records that name it were posted before.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        if self.passed.remove(&segment) {
            self.push(&Record::Forget(segment.0), &[]);
        }
    }

    pub(super) fn post(&mut self, work: WorkId, record: &Record, message: &[u8]) {
        self.works.post(work, matches!(record, Record::Write(_)));
        self.push(record, message);
    }

    /// Reads the socket. A reason for the link's end is kept in `farewell`. Returns whether anything has come.
    pub(super) fn hear(&mut self, context: ReceiveContext<'_>, sink: &mut Sink<'_>) -> Result<bool, DownReason> {
        let mut any = false;
        for _ in 0..NOTES {
            match self.socket.try_receive(1) {
                Ok(None) => break,
                Ok(Some(Message::Bytes { bytes, mut descriptors })) => {
                    any = true;
                    let note = Note::decode(&bytes).map_err(|why| DownReason::Violation(why.into()))?;
                    self.note(note, descriptors.pop(), context, sink)?;
                }
                // A doorbell. The rings are checked anyway.
                Ok(Some(_)) => any = true,
                Err(SocketError::Closed) => {
                    self.farewell
                        .get_or_insert(DownReason::Lost("the peer has closed its socket, or has ended".into()));
                    break;
                }
                Err(error) => return Err(DownReason::Lost(error.to_string())),
            }
        }
        Ok(any)
    }

    fn note(
        &mut self,
        note: Note,
        fd: Option<rustix::fd::OwnedFd>,
        context: ReceiveContext<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), DownReason> {
        let violation = |why: &str| Err(DownReason::Violation(why.into()));
        match (note, fd, &self.stage) {
            (
                Note::Welcome { token, nonce, incarnation, namespace },
                None,
                Stage::Greeting { expect, nonce: written, .. },
            ) => {
                if !token.is(expect) {
                    return violation("a welcome with the wrong token");
                }
                if nonce != *written {
                    return violation("a welcome from somebody who does not read the same memory");
                }
                self.stage = Stage::Up;
                self.meet(incarnation, namespace, &nonce);
                sink(FabricEvent::Connected { link: self.id });
                if let Some(mark) = self.mark {
                    sink(FabricEvent::References { link: self.id, mark });
                }
                Ok(())
            }
            (Note::Segment { handle, len }, Some(fd), Stage::Up) => {
                let bytes = self.theirs_bytes.saturating_add(len);
                if self.theirs.len() >= MAX_SEGMENTS || bytes > context.max_mapped_bytes {
                    return violation("more segments than a peer may pass");
                }
                if self.theirs.contains_key(&handle) {
                    return violation("a segment with the handle of another");
                }
                let into = Arc::new(Theirs::default());
                self.theirs_bytes = bytes;
                self.theirs.insert(handle, (into.clone(), len));
                if self.mark.is_some() {
                    self.coming.push(handle);
                }
                self.unmapped
                    .push_back((handle, ToMap { fd, len, incarnation: self.incarnation, mark: self.mark, into }));
                self.map(context);
                Ok(())
            }
            (Note::Bye(why), None, _) => {
                self.farewell = Some(DownReason::PeerClosed(why));
                Ok(())
            }
            (Note::Refuse(why), None, _) => {
                self.farewell = Some(DownReason::Refused(why));
                Ok(())
            }
            _ => violation("a note that does not belong there"),
        }
    }

    /// Pushes a record behind the records that wait.
    pub(super) fn push(&mut self, record: &Record, message: &[u8]) {
        let placed = self.acks.placed();
        let encoded = Encoded::new(record, message, placed);
        self.acks.tell(placed);
        self.counts.count(*record == Record::Ack);
        let pushed = self.outbox.is_empty() && self.shared.out.try_push(encoded.bytes()).unwrap_or(false);
        if !pushed {
            // This also happens if the peer has broken the ring: the next `send` reports that.
            self.outbox.push_back(encoded.bytes().into());
        }
        self.unpublished |= pushed;
    }

    /// Has the passed segments mapped, as far as there is room.
    pub(super) fn map(&mut self, context: ReceiveContext<'_>) {
        while let Some((_, next)) = self.unmapped.front()
            && let Some(share) = self.mapped.share(next.len, context.max_mapped_bytes)
            && let Some((_, next)) = self.unmapped.pop_front()
        {
            next.into.count(share);
            context.copy_pool.map(next);
        }
    }

    /// Handles a Forget: the peer has taken a segment back.
    pub(super) fn forgotten(&mut self, handle: u32, context: ReceiveContext<'_>) -> Result<(), DownReason> {
        let none = || DownReason::Violation("a segment ends that there is not".into());
        let (theirs, len) = self.theirs.remove(&handle).ok_or_else(none)?;
        self.theirs_bytes -= len;
        self.unmapped.retain(|(waiting, _)| *waiting != handle);
        context.copy_pool.discard(vec![theirs], None);
        Ok(())
    }

    /// Takes all segments that the peer has passed, and the copy that read them last, so that the copy pool can unmap
    /// them.
    pub(super) fn take_theirs(&mut self) -> (Vec<Arc<Theirs>>, Option<Arc<Job>>) {
        self.unmapped.clear();
        let theirs = self.theirs.drain().map(|(_, (theirs, _))| theirs).collect();
        (theirs, self.landing.take().map(|landing| landing.job))
    }
}
