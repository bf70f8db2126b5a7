//! What the state machine wants done.

use super::control::Control;
use super::directory::{Claim, DirectoryRequest};
use super::ids::SessionId;
use super::tenant::Tenant;
use crate::fabric::{AtomicOp, DownReason, GrantAccess, LinkId, WorkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::op::Reply;
use crate::plan::GatherList;
use crate::tensor::{Key, TensorMeta, Version};
use crate::wire::landing::HEADER_BYTES;
use std::collections::VecDeque;

/// What a [`super::Node`] wants done. Actions are done in order.
#[derive(Debug)]
pub enum Action {
    /// By the fabric of a link. It waits where the send queue of the link is full, and so does what comes behind it on that link.
    Post(Post),
    /// By a fabric, at once.
    Fabric(FabricAction),
    /// By the host of the node: sessions, memory, boards and the control plane.
    Host(HostAction),
}

/// A post to a link.
#[derive(Debug)]
pub enum Post {
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
    /// Pass a segment to a peer for its workers to read; [`crate::fabric::FabricEvent::SegmentKept`] follows, or the link dies.
    Share {
        /// To whom.
        link: LinkId,
        /// Which.
        segment: SegmentId,
    },
}

impl Post {
    /// The link that it is posted to.
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

/// Work for a fabric that does not wait for room in a send queue.
#[derive(Debug)]
pub enum FabricAction {
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
    /// Take a segment that a peer has passed, give it a number of this node's, and tell [`super::Node::keep_segment`].
    Keep {
        /// Whose.
        link: LinkId,
        /// What the peer calls it.
        handle: u32,
    },
}

/// Work for the host of a node. Exhaustive: work that nobody does must not compile.
#[derive(Debug)]
pub enum HostAction {
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
    Show(Box<super::action::Shown>),
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
    /// Answer a call for landing slots; see [`super::Node::prepare_buffers`].
    Prepared {
        /// The call.
        token: u64,
        /// One for each request, in any order.
        answers: Vec<super::control::BufferAnswer>,
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

/// The actions that were not polled yet.
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

    pub(super) fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(super) fn last(&self) -> Option<&Action> {
        self.0.back()
    }
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

/// A version to be shown on a board, or where its owner shows it and those that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// On the board of which user.
    pub domain: Tenant,
    /// Names this showing of this version. Never 0, and never used again.
    pub ticket: u64,
    /// Its key. What was shown under the same key before is to be shown no more from the same moment on.
    pub key: Key,
    /// Which version it is.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// Where it lies.
    pub slice: LocalSlice,
    /// Whose notice is to be shown in its place, where its owner announces its versions: workers look there for the newest one.
    pub notice: Option<NoticeAt>,
}

/// A notice: whose it is, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoticeAt {
    /// The worker that writes it.
    pub session: SessionId,
    /// Its number among those of that worker.
    pub notice: u16,
}
