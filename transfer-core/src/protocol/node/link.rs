//! One peer: credits, numbered names, what waits to be posted, and the landing slots that the peer may write to.

use super::counters::LinkCounters;
use super::pull::Pull;
use super::push_out::OutFlow;
use super::references::LinkReferences;
use super::serve::Serve;
use crate::fabric::LinkId;
use crate::fabric::{Capabilities, FabricKind};
use crate::op::{Failure, FailureCode};
use crate::plan::GatherList;
use crate::protocol::control::BufferAnswer;
use crate::protocol::control::{BufferAsk, PeerInfo};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, OperationId, OutFlowId, of};
use crate::protocol::meters::PathId;
use crate::protocol::names::{MetaCache, NamesIn, NamesOut};
use crate::protocol::slab::Slab;
use crate::protocol::snapshot::Carried;
use crate::tensor::Key;
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::Message;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Credits that only a bare ACK may use, so that two sides which ran out can always give each other credits back.
pub(super) const RESERVED_CREDITS: u32 = 2;

/// Something that waits to be posted. Each uses one of the peer's receive slots.
pub(super) enum Out {
    Message(Message),
    Write(OutWrite),
}

/// A transfer that is about to be written into a slot of the peer.
pub(super) struct OutWrite {
    pub(super) blob: BlobId,
    pub(super) body: GatherList,
    pub(super) slot: SlotGrant,
    pub(super) header: Header,
    pub(super) purpose: Purpose,
}

/// What a write is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Answers the peer's request of this index.
    Serve(u32),
    /// Pushes an operation's tensor.
    Push(OperationId),
}

/// A write that was posted and is not done.
pub(super) struct InFlight {
    pub(super) blob: BlobId,
    pub(super) cell: u32,
    pub(super) purpose: Purpose,
}

pub(crate) struct Link {
    pub(crate) peer: PeerInfo,
    pub(super) kind: FabricKind,
    pub(super) limits: Capabilities,
    /// Where its transfers are counted.
    pub(super) path: PathId,
    /// Receive slots of the peer that are free.
    pub(super) credits: u32,
    /// Receive slots of ours that the peer used and does not know to be free again.
    pub(super) owed: u32,
    /// The peer broke the contract; what it says until the link is down does not count.
    pub(super) ending: bool,
    pub(super) outbox: VecDeque<Out>,
    /// It stands in the node's list of links with something to post.
    pub(super) dirty: bool,
    pub(super) names_out: NamesOut,
    pub(super) names_in: NamesIn,
    pub(super) meta_out: MetaCache,
    pub(super) meta_in: MetaCache,
    pub(super) next_metadata_id: u32,
    pub(super) in_flight: Slab<InFlight>,
    pub(crate) pulls: Slab<Pull, of::Pull>,
    pub(crate) serves: HashMap<u32, Serve>,
    pub(crate) flows_out: Slab<OutFlow, of::OutFlow>,
    pub(super) flow_of: HashMap<(SessionId, Key), OutFlowId>,
    /// Flows that ask for slots with the next call.
    pub(super) asks: Vec<BufferAsk>,
    /// Flows whose slots the peer asked for by a call, and the call.
    pub(super) called: HashMap<u32, u64>,
    pub(super) counters: LinkCounters,
    pub(super) references: LinkReferences,
    /// What it has carried to the peer, and from there.
    pub(super) outward: Carried,
    pub(super) inward: Carried,
}

impl Link {
    pub(super) fn new(peer: PeerInfo, kind: FabricKind, limits: Capabilities, path: PathId) -> Link {
        let credits = peer.receive_slots;
        Link {
            peer,
            kind,
            limits,
            path,
            credits,
            owed: 0,
            ending: false,
            outbox: VecDeque::new(),
            dirty: false,
            names_out: NamesOut::default(),
            names_in: NamesIn::default(),
            meta_out: MetaCache::default(),
            meta_in: MetaCache::default(),
            next_metadata_id: 1,
            in_flight: Slab::default(),
            pulls: Slab::default(),
            serves: HashMap::new(),
            flows_out: Slab::default(),
            flow_of: HashMap::new(),
            asks: Vec::new(),
            called: HashMap::new(),
            counters: LinkCounters::default(),
            references: LinkReferences::default(),
            outward: Carried::default(),
            inward: Carried::default(),
        }
    }

    /// Where `required` must carry a transfer and cannot on this link: what it is instead, and why.
    pub(super) fn unmet(&self, required: Option<FabricKind>) -> Option<Failure> {
        let required = required.filter(|kind| *kind != self.kind)?;
        let mut text = format!("{required} is required, but the link to node {:?} is {}", self.peer.name, self.kind);
        if let Some(passed) = self.peer.passed_over.iter().find(|passed| passed.fabric == required) {
            text.push_str(", because ");
            text.push_str(&passed.why);
        }
        Some(Failure::new(FailureCode::RequireUnmet, text))
    }

    /// How much the peer may be owed before it is told by a message of its own.
    /// At least two, or each of two sides would acknowledge the other's acknowledgements for ever.
    pub(super) fn ack_threshold(&self) -> u32 {
        (self.limits.receive_slots / 4).clamp(2, u32::from(u16::MAX))
    }

    /// As many of the peer's credits as one message can give back.
    pub(super) fn take_owed(&mut self) -> u16 {
        let credits = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(credits);
        credits
    }
}

/// A call of a peer for landing slots that is being answered.
pub(crate) struct Call {
    pub(super) link: LinkId,
    pub(super) left: usize,
    pub(super) answers: Vec<BufferAnswer>,
}
