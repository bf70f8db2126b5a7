//! One peer: credits, numbered names, what waits to be posted, and the landing slots that the peer may write to.

use super::counters::LinkCounters;
use super::ids::{BlobId, InFlowId, OperationId, OutFlowId, PullId, SlotId, of};
use super::meters::PathId;
use super::names::{MetaCache, NamesIn, NamesOut};
use super::pull::Pull;
use super::push_in::InFlow;
use super::push_out::OutFlow;
use super::references::LinkReferences;
use super::serve::Serve;
use super::slab::Slab;
use super::{BufferAsk, Carried, PeerInfo, SessionId, Tenant};
use crate::alloc::Allocation;
use crate::fabric::{Capabilities, FabricKind};
use crate::memory::RemoteSlice;
use crate::op::{Failure, FailureCode};
use crate::plan::GatherList;
use crate::tensor::{Key, TensorMeta};
use crate::time::Time;
use crate::trace::TraceContext;
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

/// A landing slot of ours.
pub(super) struct Slot {
    pub(super) range: Allocation,
    pub(super) domain: Tenant,
    pub(super) capacity: u64,
    pub(super) state: SlotState,
    pub(super) user: SlotUser,
    /// Since when nobody has a use for it, where that is so.
    pub(super) since: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotUser {
    Pull(PullId),
    /// And in which round of its requests.
    Flow(InFlowId, u32),
    /// Whoever it was for is gone: it goes back to the pool as soon as no write can reach it.
    Nobody,
}

/// The life of a slot. Its range goes back to the pool, or to a reader, only from states in which no write can reach it.
pub(super) enum SlotState {
    /// The fabric was asked to open it.
    Granting,
    /// The peer may write there.
    Granted(RemoteSlice),
    /// The fabric was asked to close it; then this happens.
    Revoking(AfterRevoke),
    /// Closed, and what has landed is delivered once what came before it is.
    Closed(Box<Landing>),
    /// Closed, and its bytes are being read.
    Held(BlobId),
}

pub(super) enum AfterRevoke {
    Free,
    Deliver(Box<Landing>),
}

/// A tensor that has landed.
pub(super) struct Landing {
    pub(super) header: Header,
    /// As it was described when it landed. What comes next may look different.
    pub(super) meta: TensorMeta,
    /// Bytes that a CPU copied on this side.
    pub(super) copied: u64,
    /// Push: what pushed it, where the peer said so, and when it did.
    pub(super) trace: Option<(TraceContext, Time)>,
}

pub(super) struct Link {
    pub(super) peer: PeerInfo,
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
    pub(super) slots: Slab<Slot, of::Slot>,
    /// For a mistake on purpose.
    #[cfg(test)]
    pub(super) slot_by_key: HashMap<u32, SlotId>,
    pub(super) in_flight: Slab<InFlight>,
    pub(super) pulls: Slab<Pull, of::Pull>,
    pub(super) serves: HashMap<u32, Serve>,
    pub(super) flows_out: Slab<OutFlow, of::OutFlow>,
    pub(super) flow_of: HashMap<(SessionId, Key), OutFlowId>,
    pub(super) flows_in: Slab<InFlow, of::InFlow>,
    pub(super) flow_in_of: HashMap<u32, InFlowId>,
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
            slots: Slab::default(),
            #[cfg(test)]
            slot_by_key: HashMap::new(),
            in_flight: Slab::default(),
            pulls: Slab::default(),
            serves: HashMap::new(),
            flows_out: Slab::default(),
            flow_of: HashMap::new(),
            flows_in: Slab::default(),
            flow_in_of: HashMap::new(),
            asks: Vec::new(),
            called: HashMap::new(),
            counters: LinkCounters::default(),
            references: LinkReferences::default(),
            outward: Carried::default(),
            inward: Carried::default(),
        }
    }

    /// Takes a slot out of the table, and from its flow.
    pub(super) fn remove_slot(&mut self, id: SlotId) -> Option<Slot> {
        self.disown_slot(id);
        self.slots.remove(id)
    }

    /// A slot has no use any more.
    pub(super) fn disown_slot(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if let SlotUser::Flow(flow, _) = slot.user
            && let Some(flow) = self.flows_in.get_mut(flow)
        {
            flow.slots.remove(&id);
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
