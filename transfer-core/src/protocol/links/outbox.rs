//! The messages and writes that wait to be posted to a link.

use crate::plan::GatherList;
use crate::protocol::ids::{BlobId, OperationId};
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::Message;
use std::collections::VecDeque;

/// A message or a write that waits to be posted. Each uses one of the peer's receive slots.
pub(in crate::protocol) enum Out {
    Message(Message),
    Write(OutWrite),
}

/// A transfer that is to be written into a slot of the peer.
pub(in crate::protocol) struct OutWrite {
    pub(in crate::protocol) blob: BlobId,
    pub(in crate::protocol) body: GatherList,
    pub(in crate::protocol) slot: SlotGrant,
    pub(in crate::protocol) header: Header,
    pub(in crate::protocol) purpose: Purpose,
}

/// The purpose of a write.
#[derive(Clone, Copy)]
pub(in crate::protocol) enum Purpose {
    /// Answers the peer's request with this index.
    Serve(u32),
    /// Pushes an operation's tensor.
    Push(OperationId),
}

/// A write that was posted and has not completed.
pub(in crate::protocol) struct InFlight {
    pub(in crate::protocol) blob: BlobId,
    pub(in crate::protocol) cell: u32,
    pub(in crate::protocol) purpose: Purpose,
}

/// The queue of one link, in strict order.
#[derive(Default)]
pub(in crate::protocol) struct Outbox {
    queue: VecDeque<Out>,
    /// The link is in the node's list of links with something to post.
    is_listed: bool,
}

impl Outbox {
    /// Returns how many messages and writes wait.
    pub(in crate::protocol) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds a message or a write at the end.
    pub(in crate::protocol) fn push(&mut self, out: Out) {
        self.queue.push_back(out);
    }

    /// Takes the first message or write.
    pub(in crate::protocol) fn pop(&mut self) -> Option<Out> {
        self.queue.pop_front()
    }

    /// Puts back at the front a message or a write that cannot be posted yet.
    pub(in crate::protocol) fn put_back(&mut self, out: Out) {
        self.queue.push_front(out);
    }

    /// Notes that the link is listed. Returns `true` if it was not listed before.
    pub(in crate::protocol) fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }

    /// Notes that the link is not listed any more.
    pub(in crate::protocol) fn unlist(&mut self) {
        self.is_listed = false;
    }

    /// Takes all messages and writes, for a link that is down.
    pub(in crate::protocol) fn take_all(&mut self) -> VecDeque<Out> {
        std::mem::take(&mut self.queue)
    }
}
