//! The two sides of a link, and what is under way between them.

use crate::fabric::{AtomicOp, DownReason, GrantAccess, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::plan::GatherList;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// One of the two sides: 0 is the initiator's.
pub(super) type SideNo = usize;

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) sides: [Option<Side>; 2],
    /// It is dying: both sides hear of it, each in its time.
    pub(super) lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SideState {
    Begun,
    Up,
    Down,
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) endpoint: usize,
    pub(super) link: LinkId,
    pub(super) state: SideState,
    /// What it will say when it goes down.
    pub(super) reason: Option<DownReason>,
    /// Posts, grants and revokes under way.
    pub(super) outstanding: usize,
    /// Receive slots that are free for the other side.
    pub(super) free_slots: u32,
    /// What the other side may write to, by tag.
    pub(super) grants: BTreeMap<u64, Grant>,
    /// What this side has posted and what has not arrived, in order.
    pub(super) pipe: VecDeque<Work>,
    /// The connection is lost, and of what this side posts nothing arrives any more: what came later would have overtaken what
    /// was lost.
    pub(super) cut: bool,
    /// The pipe's next step stands in the agenda.
    pub(super) stepping: bool,
    /// What has arrived, and this side does not know yet, in order.
    pub(super) placed: VecDeque<Work>,
    pub(super) last_completion: Time,
}

impl Side {
    pub(super) fn new(endpoint: usize, link: LinkId, receive_slots: u32) -> Side {
        Side {
            endpoint,
            link,
            state: SideState::Begun,
            reason: None,
            outstanding: 0,
            free_slots: receive_slots,
            grants: BTreeMap::new(),
            pipe: VecDeque::new(),
            cut: false,
            stepping: false,
            placed: VecDeque::new(),
            last_completion: Time(0),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    /// Never used again, unlike the key.
    pub(super) number: u64,
    pub(super) range: LocalSlice,
    pub(super) remote: RemoteSlice,
    pub(super) access: GrantAccess,
    pub(super) in_force: bool,
    /// Its key opens nothing else.
    pub(super) has_own_key: bool,
}

#[derive(Debug)]
pub(super) struct Work {
    pub(super) id: WorkId,
    pub(super) kind: WorkKind,
}

#[derive(Debug)]
pub(super) enum WorkKind {
    Send(Vec<u8>),
    Write {
        sgl: GatherList,
        remote: RemoteSlice,
        immediate: Option<u32>,
        /// Of the source, when it was posted: it must not change until the write is done.
        digest: u64,
        placed: u64,
        /// All of it, where its source may be gone before it lands.
        gathered: Option<Vec<u8>>,
    },
    Atomic {
        remote: RemoteSlice,
        op: AtomicOp,
        /// What the word held before, once it was operated on.
        old: u64,
    },
}

/// What an endpoint has to report.
#[derive(Debug)]
pub(super) enum Event {
    Connected(LinkId),
    WriteDone(LinkId, WorkId),
    SendDone(LinkId, WorkId),
    AtomicDone(LinkId, WorkId, u64),
    LocalAtomicDone(WorkId, Result<u64, String>),
    Granted(LinkId, u64, RemoteSlice),
    Revoked(LinkId, RemoteKey, u64),
    Message(LinkId, Vec<u8>),
    Immediate { link: LinkId, value: u32, len_bytes: u64, late: Option<Late>, lies: bool },
    Down(LinkId, DownReason),
    SegmentCame(LinkId, u32),
    SegmentKept(LinkId, SegmentId),
    SegmentGone(LinkId, u32),
}

/// A write that will come once more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    pub(super) connection: usize,
    pub(super) to: SideNo,
    pub(super) number: u64,
    pub(super) range: LocalSlice,
}
