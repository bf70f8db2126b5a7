//! One link: a queue pair, and everything that belongs to it.

use super::area::Area;
use super::counters::Counters;
use super::managed::Connection;
use super::send_queue::{NUMBER_BITS, SendQueue};
use super::windows::{WindowIndex, Windows};
use crate::links::FabricLink;
use smallvec::SmallVec;
use std::any::Any;
use std::time::Instant;
use transfer_core::fabric::{DownReason, LinkId, WorkId};
use transfer_core::memory::RemoteSlice;
use transfer_core::memory::SegmentId;
use transfer_verbs::{
    Errored, Init, MemoryWindow, QueuePair, QueuePairState, ReadyToSend, ReceiveList, SendKind, SendList, SendRequest,
};

/// The bit of a work request's number that marks a receive. The other bits are its slot.
pub(super) const RECEIVE: u32 = 1 << NUMBER_BITS;

/// Returns the id of a work request: the link, and the number of the request.
pub(super) fn work_id(link: LinkId, number: u32) -> u64 {
    u64::from(link.0) << 32 | u64::from(number)
}

/// The queue pair, in its state.
pub(super) enum At {
    Init(QueuePair<Init>),
    Ready(QueuePair<ReadyToSend>),
    Stopped {
        _kept: QueuePair<Errored>,
    },
    /// The queue pair could not even be stopped, so the device is gone; or it was taken for a step to the next state,
    /// which failed. The rest of it is kept, and is destroyed after its windows.
    Lost {
        _kept: Option<Box<dyn Any + Send>>,
    },
}

impl At {
    /// The value during a step to the next state.
    pub(super) const LOST: At = At::Lost { _kept: None };
}

/// The stage of a link's life.
#[derive(Debug)]
pub(super) enum Stage {
    /// Offered. The acceptor's answer is awaited.
    Offered,
    /// This side is ready; the peer has not been heard yet.
    Greeting {
        deadline: Instant,
    },
    Up,
    /// Ending for `reason`. The peer is being told, and nothing that it sends is reported any longer.
    Ending {
        reason: DownReason,
        deadline: Instant,
    },
    /// The queue pair is stopped, and the requests in flight are awaited. `sure`: no better reason will follow.
    Draining {
        reason: DownReason,
        sure: bool,
        deadline: Instant,
    },
}

/// The segments that a request reads, each once. Usually a header cell's segment and an arena.
pub(super) type Sources = SmallVec<[SegmentId; 2]>;

/// The purpose of a work request.
#[derive(Debug)]
pub(super) enum Posted {
    /// A write, and the segments that it reads.
    Write(WorkId, Sources),
    /// A message, and its slot if it is not inline.
    Send(WorkId, Option<u32>),
    /// An atomic operation, and the word for its result.
    Atomic(WorkId, u16),
    /// A bind, and the grant that is to be reported when it has completed.
    Bind(Option<(u64, RemoteSlice)>),
    Invalidate(WindowIndex),
    Probe,
    /// The first message of an initiator.
    Hello,
    /// The last message of a link that ends.
    Goodbye,
}

impl Posted {
    /// Returns the verbs term for the request.
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

/// Does the same as [`Link::post`], for a request that borrows another part of the link.
pub(super) fn post(id: LinkId, sends: &mut SendQueue<Posted>, list: &mut SendList, posted: Posted, kind: SendKind<'_>) {
    let ticket = sends.post(posted);
    let work_id = work_id(id, ticket.number);
    list.push(SendRequest { work_id, signaled: ticket.signaled, fence: false, kind });
}

pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) stage: Stage,
    /// Declared before the queue pair, so that its windows go first: destroying a queue pair that has bound windows
    /// can take very long (docs/adr/0001).
    pub(super) windows: Windows<MemoryWindow>,
    pub(super) at: At,
    pub(super) area: Area,
    pub(super) number: u32,
    /// The number of the completion queue, and the room that is reserved in it.
    pub(super) completions: (usize, u32),
    /// The number of this side's first packet.
    pub(super) packet_number: u32,
    pub(super) sends: SendQueue<Posted>,
    pub(super) list: SendList,
    pub(super) reposts: ReceiveList,
    /// Whether READs and atomic operations can be posted, because the peer answers some.
    pub(super) reads: bool,
    /// Whether anything has completed since the last round of probes.
    pub(super) heard: bool,
    /// The round of probes since which requests are in flight and nothing has completed.
    pub(super) stalled_since: Option<Instant>,
    /// Whether the link is listed for ringing.
    pub(super) listed: bool,
    /// The connection, if rdma_cm has made the link.
    pub(super) connection: Option<Connection>,
}

impl FabricLink for Link {
    fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Greeting { deadline } | Stage::Ending { deadline, .. } | Stage::Draining { deadline, .. } => {
                Some(deadline)
            }
            Stage::Offered | Stage::Up => None,
        }
    }
}

impl Link {
    /// Puts a request into the list that leaves with the next doorbell. The caller has checked that there is room.
    pub(super) fn post(&mut self, posted: Posted, kind: SendKind<'_>) {
        post(self.id, &mut self.sends, &mut self.list, posted, kind);
    }

    /// Hands the list to the device with one doorbell. The last request is signaled.
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

    /// Adds a receive slot to the list of slots that are to be posted.
    pub(super) fn repost(&mut self, slot: u32) {
        if let Some(element) = self.area.receive_slot(slot) {
            self.reposts.push(work_id(self.id, RECEIVE | slot), &[element]);
        }
    }

    /// Posts the receive slots of the list.
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

    /// Stops the queue pair. Nothing arrives any longer, and requests that have not left never will.
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

    /// Returns the keys of the grants into a segment.
    pub(super) fn keys_into(&self, segment: SegmentId) -> SmallVec<[(u32, u64); 8]> {
        self.windows.keys_into(segment).into()
    }

    /// Returns the last request in flight that reads a segment.
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
