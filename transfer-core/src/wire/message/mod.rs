//! Control messages between sidecars.
//!
//! A name (a key, a worker's name) is sent once per link by [`Body::Name`] and then called by its number and generation. Names are
//! numbered by the side that sends them; the two sides' tables are apart.
//!
//! - `layout`: their bytes.

mod layout;

pub(super) use layout::{read_atomic, write_atomic};

use super::WireError;
use super::landing::SlotGrant;
use crate::fabric::AtomicOp;
use crate::memory::RemoteSlice;
use crate::op::Failure;
use crate::tensor::{Name, Select, TensorMeta, Version};
use crate::trace::TraceContext;

/// The layout's version. A peer that speaks another one is refused when it connects.
pub const LAYOUT_VERSION: u8 = 5;

/// No message is longer, in bytes; every fabric can send this much at once.
pub const MAX_MESSAGE_BYTES: usize = crate::fabric::Capabilities::MIN_MESSAGE_BYTES;

/// The most slots in one [`Body::BufferResponse`].
pub const MAX_SLOTS_PER_MESSAGE: usize = 10;

/// Number and generation of a name in the sender's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameRef {
    /// Place in the table.
    pub id: u32,
    /// How often that place was used anew.
    pub generation: u32,
}

/// Which table an index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A pull: the index is the receiver's request.
    Pull,
    /// A push: the index is the sender's flow.
    Push,
    /// A counter or a barrier: the index is the request of whoever asks.
    Counter,
}

impl Role {
    const fn flags(self) -> u16 {
        match self {
            Role::Pull => 0,
            Role::Push => 1,
            Role::Counter => 2,
        }
    }

    fn from_flags(flags: u16) -> Result<Role, WireError> {
        let (what, value) = ("flags of a control message", u64::from(flags));
        match flags {
            0 => Ok(Role::Pull),
            1 => Ok(Role::Push),
            2 => Ok(Role::Counter),
            _ => Err(WireError::Value { what, value, expected: "0 to 2" }),
        }
    }
}

/// Why slots are called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recall {
    /// The flow ends: the worker that it is for is gone, or its key has ended.
    Ends,
    /// Others wait for the room. The flow goes on, and its sender asks for slots again when it needs some.
    Room,
}

impl Recall {
    fn from_wire(n: u8) -> Result<Recall, WireError> {
        match n {
            0 => Ok(Recall::Ends),
            1 => Ok(Recall::Room),
            _ => Err(WireError::Value { what: "reason of a recall", value: u64::from(n), expected: "0 or 1" }),
        }
    }
}

/// A control message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Receive slots given back.
    pub credits: u16,
    /// Request or flow; 0 where the kind has none.
    pub index: u32,
    /// What the index belongs to.
    pub role: Role,
    /// What it says.
    pub body: Body,
}

/// What a control message says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// From now on `name` has this number.
    Name {
        /// Its number.
        name: NameRef,
        /// The text.
        text: Name,
    },
    /// Pull: send me that version of that key, into that slot if it fits.
    TensorRequest {
        /// The key.
        key: NameRef,
        /// Which version.
        select: Select,
        /// The description that the receiver's slot was made for; 0 for none.
        metadata_id: u32,
        /// The tenant whose workers are to read it: they may be referred to it where it lies.
        tenant: NameRef,
        /// Where to; `None` asks for the description first.
        slot: Option<SlotGrant>,
        /// What asks for it, for whoever traces.
        trace: Option<TraceContext>,
    },
    /// Pull: that version is published and looks like this; give me a slot for it. Push: what follows looks like this.
    MetaDataUpdate {
        /// The version.
        version: Version,
        /// Number of the description.
        metadata_id: u32,
        /// The description.
        meta: TensorMeta,
    },
    /// Pull: here is a slot that fits.
    TensorReRequest {
        /// Where to.
        slot: SlotGrant,
    },
    /// In place of the data: it will not come.
    ErrorStatus(
        /// Why.
        Failure,
    ),
    /// Push: give me landing slots for this.
    BufferRequest {
        /// The key.
        key: NameRef,
        /// The worker for whom it is.
        target: NameRef,
        /// The worker whose it is.
        owner: NameRef,
        /// That worker's tenant.
        tenant: NameRef,
        /// Number of the description.
        metadata_id: u32,
        /// The description.
        meta: TensorMeta,
    },
    /// Push: here they are.
    BufferResponse {
        /// The slots, at most [`MAX_SLOTS_PER_MESSAGE`].
        slots: Vec<SlotGrant>,
    },
    /// Push: the consumer is done with a slot; it may be written again, with this fresh key.
    BufferIdle {
        /// The slot.
        slot: SlotGrant,
    },
    /// Push: the receiver wants the slots of this flow back.
    BufferRecall {
        /// What for.
        why: Recall,
        /// Which round of slots: how often the sender has asked for others since its first request. Comes back.
        round: u32,
    },
    /// Push: the sender will not write into them any more. Behind its data.
    Recalled {
        /// As in the BUFFER_RECALL that this answers.
        why: Recall,
        /// As in the BUFFER_RECALL that this answers.
        round: u32,
    },
    /// Push: the sender ends the flow by itself; its owner is gone.
    BufferRelease,
    /// Pull, in place of the data: read it where it lies. Only over links whose sides share their memory.
    ByReference {
        /// What the owner calls the reference.
        lease: u32,
        /// The owner's segment.
        segment: u32,
        /// Where its body begins there.
        offset: u64,
        /// The version.
        version: Version,
        /// Microseconds that the request waited for its version at the owner.
        waited_us: u32,
        /// Its description.
        meta: TensorMeta,
    },
    /// Pull: nobody reads that any more.
    ReleaseReference {
        /// As in the BY_REFERENCE.
        lease: u32,
    },
    /// Pull: I do not want it any more.
    Cancel,
    /// Pull: then it will not come any more. Behind the data that may have come.
    Cancelled,
    /// Nothing but credits.
    Ack,
    /// Are you there?
    Ping,
    /// I am.
    Pong,
    /// This side leaves in good order.
    Goodbye {
        /// Why.
        text: String,
    },
    /// Counter: which one has this name, and may I operate on its word myself?
    CounterOpen {
        /// The counter's key.
        name: NameRef,
        /// Who asks.
        tenant: NameRef,
        /// Whether the asking side can use a grant.
        wants_grant: bool,
    },
    /// Counter: this one; and here is its word, where it is granted.
    CounterOpened {
        /// Tells it from those that had the name before.
        identity: u64,
        /// Its word: 8 bytes.
        word: Option<RemoteSlice>,
    },
    /// Counter: do this for me.
    CounterOp {
        /// The counter's key.
        name: NameRef,
        /// Who asks.
        tenant: NameRef,
        /// Which counter of that name.
        identity: u64,
        /// What to do.
        op: AtomicOp,
    },
    /// Counter: it is done.
    CounterResult {
        /// What the counter held before.
        old: u64,
    },
    /// Counter: it lost its name; what was granted counts on for nobody.
    CounterEnded {
        /// The counter's key.
        name: NameRef,
    },
    /// Counter: one more arrival; answer when the round is complete.
    BarrierWait {
        /// The barrier's key.
        name: NameRef,
        /// Who asks.
        tenant: NameRef,
        /// How many arrivals make a round.
        members: u32,
    },
    /// Counter: the round is complete.
    BarrierReleased {
        /// Which one.
        round: u64,
        /// Whether this was its last arrival.
        leader: bool,
    },
    /// Pull, push: what pushed the version that is written next, for whoever traces. Sent only where there is something to tell.
    Trace {
        /// That version.
        version: Version,
        /// What pushed it.
        context: TraceContext,
    },
}

impl Body {
    /// The kind's number on the wire.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Body::Name { .. } => 1,
            Body::TensorRequest { .. } => 2,
            Body::MetaDataUpdate { .. } => 3,
            Body::TensorReRequest { .. } => 4,
            Body::ErrorStatus(_) => 5,
            Body::BufferRequest { .. } => 6,
            Body::BufferResponse { .. } => 7,
            Body::BufferIdle { .. } => 8,
            Body::BufferRecall { .. } => 9,
            Body::Recalled { .. } => 10,
            Body::BufferRelease => 11,
            Body::Cancel => 12,
            Body::Cancelled => 13,
            Body::Ack => 14,
            Body::Ping => 15,
            Body::Pong => 16,
            Body::Goodbye { .. } => 17,
            Body::CounterOpen { .. } => 18,
            Body::CounterOpened { .. } => 19,
            Body::CounterOp { .. } => 20,
            Body::CounterResult { .. } => 21,
            Body::CounterEnded { .. } => 22,
            Body::BarrierWait { .. } => 23,
            Body::BarrierReleased { .. } => 24,
            Body::Trace { .. } => 25,
            Body::ByReference { .. } => 26,
            Body::ReleaseReference { .. } => 27,
        }
    }

    /// The name that documents and traces use.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Body::Name { .. } => "NAME",
            Body::TensorRequest { .. } => "TENSOR_REQUEST",
            Body::MetaDataUpdate { .. } => "META_DATA_UPDATE",
            Body::TensorReRequest { .. } => "TENSOR_RE_REQUEST",
            Body::ErrorStatus(_) => "ERROR_STATUS",
            Body::BufferRequest { .. } => "BUFFER_REQUEST",
            Body::BufferResponse { .. } => "BUFFER_RESPONSE",
            Body::BufferIdle { .. } => "BUFFER_IDLE",
            Body::BufferRecall { .. } => "BUFFER_RECALL",
            Body::Recalled { .. } => "RECALLED",
            Body::BufferRelease => "BUFFER_RELEASE",
            Body::Cancel => "CANCEL",
            Body::Cancelled => "CANCELLED",
            Body::Ack => "ACK",
            Body::Ping => "PING",
            Body::Pong => "PONG",
            Body::Goodbye { .. } => "GOODBYE",
            Body::CounterOpen { .. } => "COUNTER_OPEN",
            Body::CounterOpened { .. } => "COUNTER_OPENED",
            Body::CounterOp { .. } => "COUNTER_OP",
            Body::CounterResult { .. } => "COUNTER_RESULT",
            Body::CounterEnded { .. } => "COUNTER_ENDED",
            Body::BarrierWait { .. } => "BARRIER_WAIT",
            Body::BarrierReleased { .. } => "BARRIER_RELEASED",
            Body::Trace { .. } => "TRACE",
            Body::ByReference { .. } => "BY_REFERENCE",
            Body::ReleaseReference { .. } => "RELEASE_REFERENCE",
        }
    }
}

impl Message {
    /// A message without credits; the link adds them when it is sent.
    #[must_use]
    pub fn new(role: Role, index: u32, body: Body) -> Message {
        Message { credits: 0, index, role, body }
    }
}
