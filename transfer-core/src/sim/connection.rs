//! The two sides of a link, and the work in flight between them.

use crate::fabric::{AtomicOp, DownReason, GrantAccess, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::plan::GatherList;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// The number of a side. Side 0 is the initiator's.
pub(super) type SideNo = usize;

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) sides: [Option<Side>; 2],
    /// The connection is dying. Each side learns of it at its own time.
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
    /// The reason that the side will report when it goes down.
    pub(super) reason: Option<DownReason>,
    /// The number of posts, grants and revokes that are outstanding.
    pub(super) outstanding: usize,
    /// The receive slots that are free for the other side.
    pub(super) free_slots: u32,
    /// The grants to the other side, by tag.
    pub(super) grants: BTreeMap<u64, Grant>,
    /// Work that this side has posted and that has not arrived, in order.
    pub(super) pipe: VecDeque<Work>,
    /// The connection is lost, and nothing that this side posts arrives from now on. A later arrival would have
    /// overtaken the lost work.
    pub(super) cut: bool,
    /// The pipe's next step is in the agenda.
    pub(super) stepping: bool,
    /// Work that has arrived and whose completion this side has not been told, in order.
    pub(super) placed: VecDeque<Work>,
    pub(super) last_completion: Time,
    /// The writes of the other side that have arrived since its last immediate. Only with late packets.
    pub(super) arrived: Vec<Late>,
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
            arrived: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    /// The grant's number. It is never reused, unlike the key.
    pub(super) number: u64,
    pub(super) range: LocalSlice,
    pub(super) remote: RemoteSlice,
    pub(super) access: GrantAccess,
    pub(super) in_force: bool,
    /// The key opens no other grant.
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
        /// The digest of the source when it was posted. The source must not change until the write is done.
        digest: u64,
        placed: u64,
        /// All bytes of the write, if its source may be gone before it lands.
        gathered: Option<Vec<u8>>,
    },
    Atomic {
        remote: RemoteSlice,
        op: AtomicOp,
        /// The value of the word before the operation, once it is done.
        old: u64,
    },
}

/// An event that an endpoint will report.
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
    Immediate { link: LinkId, value: u32, len_bytes: u64, late: Vec<Late>, lies: bool },
    Down(LinkId, DownReason),
    SegmentCame(LinkId, u32),
    SegmentKept(LinkId, SegmentId),
    SegmentGone(LinkId, u32),
}

/// A write that will be repeated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    pub(super) connection: usize,
    pub(super) to: SideNo,
    pub(super) number: u64,
    pub(super) range: LocalSlice,
}
