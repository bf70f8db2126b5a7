//! What waits to be posted to a link.

use crate::plan::GatherList;
use crate::protocol::ids::{BlobId, OperationId};
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::Message;
use std::collections::VecDeque;

/// Something that waits to be posted. Each uses one of the peer's receive slots.
pub(in crate::protocol) enum Out {
    Message(Message),
    Write(OutWrite),
}

/// A transfer that is about to be written into a slot of the peer.
pub(in crate::protocol) struct OutWrite {
    pub(in crate::protocol) blob: BlobId,
    pub(in crate::protocol) body: GatherList,
    pub(in crate::protocol) slot: SlotGrant,
    pub(in crate::protocol) header: Header,
    pub(in crate::protocol) purpose: Purpose,
}

/// What a write is for.
#[derive(Clone, Copy)]
pub(in crate::protocol) enum Purpose {
    /// Answers the peer's request of this index.
    Serve(u32),
    /// Pushes an operation's tensor.
    Push(OperationId),
}

/// A write that was posted and is not done.
pub(in crate::protocol) struct InFlight {
    pub(in crate::protocol) blob: BlobId,
    pub(in crate::protocol) cell: u32,
    pub(in crate::protocol) purpose: Purpose,
}

/// The queue of one link. Nothing overtakes anything.
#[derive(Default)]
pub(in crate::protocol) struct Outbox {
    queue: VecDeque<Out>,
    /// It stands in the node's list of links with something to post.
    is_listed: bool,
}

impl Outbox {
    /// How much waits.
    pub(in crate::protocol) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Puts something behind all that waits.
    pub(in crate::protocol) fn push(&mut self, out: Out) {
        self.queue.push_back(out);
    }

    /// Takes the next.
    pub(in crate::protocol) fn pop(&mut self) -> Option<Out> {
        self.queue.pop_front()
    }

    /// Puts back what was taken and cannot be posted yet.
    pub(in crate::protocol) fn put_back(&mut self, out: Out) {
        self.queue.push_front(out);
    }

    /// Notes that the link is listed. Returns whether it was not before.
    pub(in crate::protocol) fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }

    /// Notes that the link is listed no longer.
    pub(in crate::protocol) fn unlist(&mut self) {
        self.is_listed = false;
    }

    /// All that waits, for a link that is down.
    pub(in crate::protocol) fn take_all(&mut self) -> VecDeque<Out> {
        std::mem::take(&mut self.queue)
    }
}
