//! The actions that the state machine asks its surroundings to carry out.

use super::control::Control;
use super::directory::{Claim, DirectoryRequest};
use super::events::NodeEvent;
use super::ids::SessionId;
use super::spill::SpillId;
use super::tenant::Tenant;
use crate::delta::NotApplied;
use crate::fabric::{AtomicOp, DownReason, GrantAccess, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::op::{Answer, OpId, Reply};
use crate::plan::GatherList;
use crate::tensor::{Key, Packing, TensorMeta, Version};
use crate::wire::landing::HEADER_BYTES;
use std::collections::VecDeque;

/// An action that a [`super::Node`] asks for. Actions must be carried out in order.
#[derive(Debug)]
pub enum Action {
    /// A post to a link, for the link's fabric. While the send queue of the link is full, the post waits, and so do all
    /// later posts to that link.
    Post(Post),
    /// An action for a fabric, which carries it out at once.
    Fabric(FabricAction),
    /// An action for the host of the node: sessions, memory, boards and the control plane.
    Host(HostAction),
    /// What is left of an action that was [taken](Action::take) out. A node makes none.
    Taken,
}

impl Action {
    /// Takes the action out.
    #[must_use]
    pub fn take(&mut self) -> Action {
        std::mem::replace(self, Action::Taken)
    }
}

/// A post to a link.
#[derive(Debug)]
pub enum Post {
    /// Post a message.
    Send {
        /// The link to the receiver.
        link: LinkId,
        /// The bytes of the message.
        message: Vec<u8>,
    },
    /// Post a write.
    Write(Box<Write>),
    /// Grant a range to the peer; [`crate::fabric::FabricEvent::Granted`] with this tag follows, or the link dies.
    Grant {
        /// The link to the peer.
        link: LinkId,
        /// The range.
        range: LocalSlice,
        /// The access that the grant allows.
        access: GrantAccess,
        /// The tag, which the event returns.
        tag: u64,
    },
    /// Revoke a grant; [`crate::fabric::FabricEvent::Revoked`] follows, or the link dies.
    Revoke {
        /// The link to the peer.
        link: LinkId,
        /// The key of the grant.
        key: RemoteKey,
        /// The tag of the grant.
        tag: u64,
    },
    /// Operate on a word of the peer; [`crate::fabric::FabricEvent::AtomicDone`] follows, or the link dies.
    Atomic {
        /// The link to the peer that has the word.
        link: LinkId,
        /// The number of the work, which the completion returns.
        work: WorkId,
        /// The word.
        remote: RemoteSlice,
        /// The operation.
        op: AtomicOp,
    },
    /// Pass a segment to a peer, whose workers may then read it; [`crate::fabric::FabricEvent::SegmentKept`] follows,
    /// or the link dies.
    Share {
        /// The link to the peer.
        link: LinkId,
        /// The segment.
        segment: SegmentId,
    },
}

impl Post {
    /// Returns the link that the post goes to.
    #[must_use]
    pub fn link(&self) -> LinkId {
        match self {
            Post::Send { link, .. }
            | Post::Grant { link, .. }
            | Post::Revoke { link, .. }
            | Post::Atomic { link, .. }
            | Post::Share { link, .. } => *link,
            Post::Write(write) => write.link,
        }
    }
}

/// An action for a fabric. It needs no room in a send queue.
#[derive(Debug)]
pub enum FabricAction {
    /// Operate on a word of this node, by the fabric that [`super::Node::use_words`] named;
    /// [`crate::fabric::FabricEvent::LocalAtomicDone`] or [`super::Node::local_atomic_refused`] follows.
    LocalAtomic {
        /// The number of the work, which the completion returns.
        work: WorkId,
        /// The word.
        word: LocalSlice,
        /// The operation.
        op: AtomicOp,
    },
    /// End a link.
    Disconnect {
        /// The link.
        link: LinkId,
        /// The reason.
        reason: DownReason,
    },
    /// Take a segment that a peer has passed, give it a number of this node, and call [`super::Node::keep_segment`].
    Keep {
        /// The link to the peer.
        link: LinkId,
        /// The peer's number for the segment.
        handle: u32,
    },
}

/// What the host has done: the answer to an action with a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostDone {
    /// The bytes of [`HostAction::Copy`] are copied.
    Copied,
    /// What has come of [`HostAction::Apply`].
    Applied(Result<(), NotApplied>),
    /// The digest of [`HostAction::Digest`].
    Digest([u8; 16]),
}

/// An action for the host of a node. The enum is exhaustive, so that a host that ignores an action does not compile.
#[derive(Debug)]
pub enum HostAction {
    /// Send a reply to a worker.
    Reply {
        /// The worker's session.
        session: SessionId,
        /// The reply.
        reply: Reply,
    },
    /// Evict a worker that broke its contract. [`super::Node::session_evicted`] follows.
    CloseSession {
        /// The worker's session.
        session: SessionId,
        /// The reason. It names the thing, its value and the correct value.
        why: String,
    },
    /// Deregister and unmap a segment that can no longer be reached: the arena of a worker, or a segment of a peer.
    SegmentUnused {
        /// The segment.
        segment: SegmentId,
    },
    /// Show a version on its user's board, before any later action is carried out. If it does not fit, call
    /// [`super::Node::not_shown`].
    Show(Shown),
    /// Remove from its board what this ticket shows, before any later action is carried out. Call
    /// [`super::Node::withdrawn`] as soon as no hazard pointer of a worker holds the ticket.
    Withdraw {
        /// The user whose board it is.
        domain: Tenant,
        /// The ticket.
        ticket: u64,
    },
    /// Pack what lies in these ranges into one, and call [`super::Node::host_done`] with this tag. Nothing else writes to the
    /// target meanwhile. What is not packed there becomes zeros.
    Copy {
        /// The ranges to read, back to back.
        from: GatherList,
        /// Which of their bytes go where.
        packing: Box<Packing>,
        /// The target.
        to: LocalSlice,
        /// The tag.
        tag: u64,
    },
    /// Make a version of its base and its [delta](crate::delta), and call [`super::Node::host_done`] with this tag. Nothing else writes
    /// to the three meanwhile, and readers may read the base. What is behind the version in the target becomes zeros.
    Apply {
        /// The ranges of the base, back to back.
        base: GatherList,
        /// The delta.
        delta: LocalSlice,
        /// The target.
        to: LocalSlice,
        /// The length of the version in bytes.
        len: u64,
        /// The tag.
        tag: u64,
    },
    /// Compute the digest of what lies in these ranges, back to back, and call [`super::Node::host_done`] with this tag. It is XXH3 with
    /// 128 bits, the highest byte first.
    Digest {
        /// The ranges.
        of: GatherList,
        /// The tag.
        tag: u64,
    },
    /// Write these ranges to disk, back to back, and call [`super::Node::spill_written`] with this number. Nothing writes
    /// to them meanwhile. Only from [`SpillFree`](HostAction::SpillFree) on is it gone.
    SpillWrite {
        /// The number of the version.
        id: SpillId,
        /// The tenant whose version it is.
        tenant: Tenant,
        /// The ranges.
        from: GatherList,
        /// Their length in bytes.
        len: u64,
    },
    /// Pack what lies in a version on disk into one range of memory, and call [`super::Node::spill_read`] with this tag.
    /// What is not packed there becomes zeros.
    SpillRead {
        /// The number of the version.
        id: SpillId,
        /// Which bytes of the version go where.
        packing: Box<Packing>,
        /// The target.
        to: LocalSlice,
        /// The tag.
        tag: u64,
    },
    /// Free the space of a version on disk, after all reads that were asked for before.
    SpillFree {
        /// The number of the version.
        id: SpillId,
    },
    /// Answer a peer's call for landing slots; see [`super::Node::prepare_buffers`].
    Prepared {
        /// The token of the call.
        token: u64,
        /// One answer for each request, in any order.
        answers: Vec<super::control::BufferAnswer>,
    },
    /// Tell who sent a PING that its PONG has come; see [`super::Node::ping`].
    Ponged {
        /// The token of the PING.
        token: u64,
        /// Why no PONG comes: the link is gone.
        lost: Option<String>,
    },
    /// Find out whether any process still reads the segment over a link that is lost, and call
    /// [`super::Node::readers_answered`].
    AskReaders {
        /// The segment.
        segment: SegmentId,
        /// The link's number among the marks of readers.
        mark: u64,
    },
    /// A request or a message to the control plane.
    Control(Control),
}

impl From<Post> for Action {
    fn from(post: Post) -> Action {
        Action::Post(post)
    }
}

impl From<FabricAction> for Action {
    fn from(action: FabricAction) -> Action {
        Action::Fabric(action)
    }
}

impl From<HostAction> for Action {
    fn from(action: HostAction) -> Action {
        Action::Host(action)
    }
}

/// The actions that have not been polled yet.
#[derive(Default)]
pub(super) struct Actions(VecDeque<Action>);

impl Actions {
    pub(super) fn push(&mut self, action: impl Into<Action>) {
        self.0.push_back(action.into());
    }

    /// Claims a key in the directory.
    pub(super) fn claim(&mut self, claim: Claim) {
        self.push(HostAction::Control(Control::Claim(claim)));
    }

    pub(super) fn ask_directory(&mut self, request: DirectoryRequest) {
        self.push(HostAction::Control(Control::Directory(request)));
    }

    /// Sends a worker the answer to one of its operations.
    pub(super) fn answer(&mut self, session: SessionId, op: OpId, answer: Answer) {
        self.push(HostAction::Reply { session, reply: Reply::Answer { op, answer } });
    }

    /// Reports an event of the node.
    pub(super) fn report(&mut self, event: NodeEvent) {
        self.push(HostAction::Control(Control::Event(event)));
    }

    #[cfg(test)]
    pub(super) fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }

    /// Exchanges all actions for `batch`, which is empty.
    pub(super) fn swap(&mut self, batch: &mut VecDeque<Action>) {
        debug_assert!(batch.is_empty(), "these would be carried out twice: {batch:?}");
        std::mem::swap(&mut self.0, batch);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One write of a transfer.
#[derive(Debug)]
pub struct Write {
    /// The link to the receiver.
    pub link: LinkId,
    /// The number of the work, which the completion returns.
    pub work: WorkId,
    /// The header's cell of registered memory, and the bytes to put into the cell before the write is posted.
    pub header: Option<(LocalSlice, [u8; HEADER_BYTES as usize])>,
    /// The ranges to gather.
    pub sgl: GatherList,
    /// The memory of the peer in which the write lands.
    pub remote: RemoteSlice,
    /// The immediate data, on the last write of a transfer.
    pub immediate: Option<u32>,
}

/// A version to show on a board, or the notice of the owner that announces this version and the next ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The user on whose board it is shown.
    pub domain: Tenant,
    /// The ticket that names this showing of this version. Never 0 and never reused.
    pub ticket: u64,
    /// The key. In the same moment, this replaces what the board showed under the same key before.
    pub key: Key,
    /// The version.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// The memory in which the version lies.
    pub slice: LocalSlice,
    /// The notice to show in place of the version, if the owner announces its versions. Workers look there for the
    /// newest version.
    pub notice: Option<NoticeAt>,
}

/// A notice of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoticeAt {
    /// The worker that writes it.
    pub session: SessionId,
    /// The notice's number among those of the worker.
    pub notice: u16,
}
