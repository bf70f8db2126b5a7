//! What the state machine wants done.

use super::{Control, SessionId, Tenant};
use crate::fabric::{AtomicOp, DownReason, GrantAccess, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::op::Reply;
use crate::plan::GatherList;
use crate::wire::landing::HEADER_BYTES;

/// Work for whoever drives a [`super::Node`]. To be done in order.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Tell a worker.
    Reply {
        /// Whom.
        session: SessionId,
        /// What.
        reply: Reply,
    },
    /// A worker broke its contract: throw it out. [`super::Node::session_evicted`] follows.
    CloseSession {
        /// Whom.
        session: SessionId,
        /// Why, naming the thing, the value and what would be right.
        why: String,
    },
    /// Nobody can reach that arena any more: deregister and unmap it.
    SegmentUnused {
        /// The arena.
        segment: SegmentId,
    },
    /// Show a version on its user's board, before anything that follows is done. Where it does not fit, [`super::Node::not_shown`].
    Show(Box<super::Shown>),
    /// Show no more what this ticket named, before anything that follows is done, and call [`super::Node::withdrawn`] as soon as
    /// no worker has marked it as read.
    Withdraw {
        /// On the board of which user.
        domain: Tenant,
        /// Which.
        ticket: u64,
    },
    /// Copy these ranges, one behind the other, and call [`super::Node::copied`] with this tag. Nothing else writes there meanwhile.
    Copy {
        /// From where.
        from: GatherList,
        /// To where.
        to: LocalSlice,
        /// Comes back.
        tag: u64,
    },
    /// Post a message.
    Send {
        /// Where to.
        link: LinkId,
        /// Its bytes.
        message: Vec<u8>,
    },
    /// Post a write.
    Write(Box<Write>),
    /// Grant a range; [`crate::fabric::FabricEvent::Granted`] with this tag follows, or the link dies.
    Grant {
        /// To whom.
        link: LinkId,
        /// What.
        range: LocalSlice,
        /// For what.
        access: GrantAccess,
        /// Comes back.
        tag: u64,
    },
    /// Take a grant back; [`crate::fabric::FabricEvent::Revoked`] follows, or the link dies.
    Revoke {
        /// From whom.
        link: LinkId,
        /// Which.
        key: RemoteKey,
        /// The same, as it was granted.
        tag: u64,
    },
    /// Operate on a word of the peer; [`crate::fabric::FabricEvent::AtomicDone`] follows, or the link dies.
    Atomic {
        /// Whose.
        link: LinkId,
        /// Comes back with its completion.
        work: WorkId,
        /// The word.
        remote: RemoteSlice,
        /// What to do.
        op: AtomicOp,
    },
    /// Operate on a word of this side, by the fabric that [`super::Node::use_words`] named;
    /// [`crate::fabric::FabricEvent::LocalAtomicDone`] follows, or [`super::Node::local_atomic_refused`].
    LocalAtomic {
        /// Comes back with its completion.
        work: WorkId,
        /// The word.
        word: LocalSlice,
        /// What to do.
        op: AtomicOp,
    },
    /// End a link.
    Disconnect {
        /// Which.
        link: LinkId,
        /// Why.
        reason: DownReason,
    },
    /// Answer a call for landing slots; see [`super::Node::prepare_buffers`].
    Prepared {
        /// The call.
        token: u64,
        /// One for each request, in any order.
        answers: Vec<super::BufferAnswer>,
    },
    /// Pass a segment to a peer for its workers to read; [`crate::fabric::FabricEvent::SegmentKept`] follows, or the link dies.
    Share {
        /// To whom.
        link: LinkId,
        /// Which.
        segment: SegmentId,
    },
    /// Take a segment that a peer has passed, give it a number of this node's, and tell [`super::Node::keep_segment`].
    Keep {
        /// Whose.
        link: LinkId,
        /// What the peer calls it.
        handle: u32,
    },
    /// Find out whether anybody still reads that segment over a link that is lost, and tell [`super::Node::readers_answered`].
    AskReaders {
        /// The segment.
        segment: SegmentId,
        /// The link's number among the marks.
        mark: u64,
    },
    /// Ask the control plane.
    Control(Control),
}

/// One write of a transfer.
#[derive(Debug)]
pub struct Write {
    /// Where to.
    pub link: LinkId,
    /// Comes back with its completion.
    pub work: WorkId,
    /// Bytes to put into their cell of registered memory before it is posted.
    pub header: Option<(LocalSlice, [u8; HEADER_BYTES as usize])>,
    /// What to gather.
    pub sgl: GatherList,
    /// Where it lands.
    pub remote: RemoteSlice,
    /// The immediate, on the last write of a transfer.
    pub immediate: Option<u32>,
}
