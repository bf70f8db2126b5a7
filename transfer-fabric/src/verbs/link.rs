//! One link: a queue pair, and what belongs to it.

use super::area::Area;
use super::counters::Counters;
use super::managed::Connection;
use super::send_queue::{NUMBER_BITS, SendQueue};
use super::windows::{WindowIndex, Windows};
use smallvec::SmallVec;
use std::any::Any;
use std::time::Instant;
use transfer_core::fabric::{DownReason, LinkId, WorkId};
use transfer_core::memory::RemoteSlice;
use transfer_core::memory::SegmentId;
use transfer_verbs::{
    Errored, Init, MemoryWindow, QueuePair, QueuePairState, ReadyToSend, ReceiveList, SendKind, SendList, SendRequest,
};

/// In a work request's number: it is a receive, and the other bits are its slot.
pub(super) const RECEIVE: u32 = 1 << NUMBER_BITS;

/// The id of a work request: the link, and which of its requests.
pub(super) fn work_id(link: LinkId, number: u32) -> u64 {
    u64::from(link.0) << 32 | u64::from(number)
}

/// The queue pair, by its state.
pub(super) enum At {
    Init(QueuePair<Init>),
    Ready(QueuePair<ReadyToSend>),
    Stopped {
        _kept: QueuePair<Errored>,
    },
    /// It could not even be stopped, so the device is gone; or it was taken for a step to the next state, which failed. What there is
    /// of it is kept, to be destroyed after its windows.
    Lost {
        _kept: Option<Box<dyn Any + Send>>,
    },
}

impl At {
    /// For the time of a step to the next state.
    pub(super) const LOST: At = At::Lost { _kept: None };
}

/// Where a link is in its life.
#[derive(Debug)]
pub(super) enum Stage {
    /// Offered; the acceptor's answer is awaited.
    Offered,
    /// This side is ready; the peer has not been heard yet.
    Greeting {
        deadline: Instant,
    },
    Up,
    /// Ending for `reason`: the peer is being told, and nothing it sends is reported any more.
    Ending {
        reason: DownReason,
        deadline: Instant,
    },
    /// The queue pair is stopped; what was under way is awaited. `sure`: the reason will not get better.
    Draining {
        reason: DownReason,
        sure: bool,
        deadline: Instant,
    },
}

/// Segments that a request reads, each once. Mostly a header cell's and an arena.
pub(super) type Sources = SmallVec<[SegmentId; 2]>;

/// What a work request was for.
#[derive(Debug)]
pub(super) enum Posted {
    /// A write, and the segments that it reads.
    Write(WorkId, Sources),
    /// A message, and the slot it lies in where it is not inline.
    Send(WorkId, Option<u32>),
    /// An atomic operation, and the word its result lands in.
    Atomic(WorkId, u16),
    /// A bind; what is to be reported when it has completed.
    Bind(Option<(u64, RemoteSlice)>),
    Invalidate(WindowIndex),
    Probe,
    /// The first message of an initiator.
    Hello,
    /// The last message of a link that ends.
    Goodbye,
}

impl Posted {
    /// What the field calls it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Posted::Write(..) => "WRITE",
            Posted::Send(..) => "SEND",
            Posted::Atomic(..) => "atomic operation",
            Posted::Bind(_) => "BIND_MW",
            Posted::Invalidate(_) => "LOCAL_INV",
            Posted::Probe => "probe (a WRITE of no bytes)",
            Posted::Hello | Posted::Goodbye => "SEND of the fabric's own",
        }
    }
}

/// [`Link::post`], for a request that borrows another part of the link.
pub(super) fn post(id: LinkId, sends: &mut SendQueue<Posted>, list: &mut SendList, posted: Posted, kind: SendKind<'_>) {
    let ticket = sends.post(posted);
    let work_id = work_id(id, ticket.number);
    list.push(SendRequest { work_id, signaled: ticket.signaled, fence: false, kind });
}

pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) stage: Stage,
    /// Before the queue pair, so that its windows go first: to destroy a queue pair that has bound ones can take very long
    /// (docs/adr/0001).
    pub(super) windows: Windows<MemoryWindow>,
    pub(super) at: At,
    pub(super) area: Area,
    pub(super) number: u32,
    /// The completion queue, and the room set aside in it.
    pub(super) completions: (usize, u32),
    /// The number of our first packet.
    pub(super) packet_number: u32,
    pub(super) sends: SendQueue<Posted>,
    pub(super) list: SendList,
    pub(super) reposts: ReceiveList,
    /// Whether READs and atomic operations can be posted: the peer answers some.
    pub(super) reads: bool,
    /// Something completed since the last look.
    pub(super) heard: bool,
    /// Listed for ringing.
    pub(super) listed: bool,
    /// By rdma_cm.
    pub(super) connection: Option<Connection>,
}

impl Link {
    /// Puts a request into the list that leaves with the next doorbell. The caller has looked for room.
    pub(super) fn post(&mut self, posted: Posted, kind: SendKind<'_>) {
        post(self.id, &mut self.sends, &mut self.list, posted, kind);
    }

    /// Hands the list to the device: one doorbell, of which the last request is signaled.
    pub(super) fn ring(&mut self, counters: &mut Counters) -> Result<(), DownReason> {
        let At::Ready(queue_pair) = &mut self.at else { return Ok(()) };
        let waiting = self.sends.waiting();
        if waiting == 0 {
            return Ok(());
        }
        self.list.signal_last();
        counters.doorbells += 1;
        match queue_pair.post_send(&mut self.list) {
            Ok(()) => {
                self.sends.rang(waiting);
                Ok(())
            }
            Err(error) => {
                self.sends.rang(u32::try_from(error.taken).unwrap_or(u32::MAX));
                self.sends.forget_waiting();
                self.list.clear();
                Err(DownReason::Lost(error.to_string()))
            }
        }
    }

    /// Notes a receive slot to be posted (again).
    pub(super) fn repost(&mut self, slot: u32) {
        if let Some(element) = self.area.receive_slot(slot) {
            self.reposts.push(work_id(self.id, RECEIVE | slot), &[element]);
        }
    }

    /// Posts the receive slots that were noted.
    pub(super) fn post_receives(&mut self) -> Result<(), DownReason> {
        if self.reposts.is_empty() {
            return Ok(());
        }
        let posted = match &mut self.at {
            At::Init(queue_pair) => queue_pair.post_receive(&mut self.reposts),
            At::Ready(queue_pair) => queue_pair.post_receive(&mut self.reposts),
            At::Stopped { .. } | At::Lost { .. } => {
                self.reposts.clear();
                return Ok(());
            }
        };
        posted.map_err(|error| DownReason::Lost(error.to_string()))
    }

    /// Stops the queue pair: nothing arrives any more. What has not left, never will.
    pub(super) fn stop(&mut self) {
        fn stopped<S: QueuePairState + Send>(queue_pair: QueuePair<S>) -> At {
            match queue_pair.into_error() {
                Ok(queue_pair) => At::Stopped { _kept: queue_pair },
                Err(refused) => {
                    tracing::warn!(error = %refused, "a queue pair could not be stopped, and will be destroyed");
                    At::Lost { _kept: Some(Box::new(refused.queue_pair)) }
                }
            }
        }
        self.list.clear();
        self.reposts.clear();
        self.sends.forget_waiting();
        self.at = match std::mem::replace(&mut self.at, At::LOST) {
            At::Init(queue_pair) => stopped(queue_pair),
            At::Ready(queue_pair) => stopped(queue_pair),
            other => other,
        };
    }

    /// The keys of the grants into a segment.
    pub(super) fn keys_into(&self, segment: SegmentId) -> SmallVec<[(u32, u64); 8]> {
        self.windows.keys_into(segment).into()
    }

    /// The last request under way that reads a segment.
    pub(super) fn last_reading(&self, segment: SegmentId) -> Option<u32> {
        self.sends.last_where(|posted| matches!(posted, Posted::Write(_, from) if from.contains(&segment)))
    }
}

impl Drop for Link {
    /// Stops the queue pair before its windows are deallocated and it is destroyed, in this order.
    fn drop(&mut self) {
        self.stop();
    }
}
