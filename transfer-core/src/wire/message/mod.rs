//! Control messages between sidecars.
//!
//! A name (a key, a worker's name) is sent once per link by [`Body::Name`]. Later messages refer to it by its number
//! and generation. The sending side assigns the numbers, so each side of a link has a table of its own.
//!
//! - `layout`: the bytes of a message.

mod layout;

pub(super) use layout::{read_atomic, write_atomic};

use super::WireError;
use super::landing::SlotGrant;
use crate::fabric::AtomicOp;
use crate::memory::RemoteSlice;
use crate::op::{Failure, RosterAnswer, RosterAsk};
use crate::tensor::{Excerpt, GatheredPart, Name, Select, TensorMeta, Version};
use crate::trace::TraceContext;
use std::num::NonZeroU64;

/// The version of the layout. A peer with another version is refused when it connects.
pub const LAYOUT_VERSION: u8 = 19;

/// The largest length of a message, in bytes. Every fabric can send this much in one message.
pub const MAX_MESSAGE_BYTES: usize = crate::fabric::Capabilities::MIN_MESSAGE_BYTES;

/// The largest number of slots in one [`Body::BufferResponse`].
pub const MAX_SLOTS_PER_MESSAGE: usize = 10;

/// The number of nodes that one [`Body::Redirect`] names.
pub const MAX_SOURCES: usize = 3;

/// The most digests in one [`Body::Digests`].
pub const MAX_DIGESTS_PER_MESSAGE: usize = 60;

/// The most chunks of a version.
pub const MAX_CHUNKS: u64 = 1024;

/// The number and generation of a name in the sender's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameRef {
    /// The place in the table.
    pub id: u32,
    /// The number of times that the place was reused.
    pub generation: u32,
}

/// The table that the index of a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A pull: the index is the receiver's request.
    Pull,
    /// A push: the index is the sender's flow.
    Push,
    /// A counter or a barrier: the index is the asking side's request.
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

/// The reason why a receiver calls slots back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recall {
    /// The flow ends, because its target worker is gone or its key has ended.
    Ends,
    /// Others wait for the room. The flow continues, and its sender requests slots again when it needs them.
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
    /// The number of receive slots that the sender gives back.
    pub credits: u16,
    /// The index of the request or flow; 0 if the kind has none.
    pub index: u32,
    /// The table that the index belongs to.
    pub role: Role,
    /// The kind and contents of the message.
    pub body: Body,
}

/// The kind and contents of a control message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// Assigns a number to a name.
    Name {
        /// The number, with its generation.
        name: NameRef,
        /// The text of the name.
        text: Name,
    },
    /// Pull: requests a version of a key, written into the given slot if it fits.
    TensorRequest {
        /// The key.
        key: NameRef,
        /// The version to send.
        select: Select,
        /// The id of the description that the slot was made for; 0 if there is none.
        metadata_id: u32,
        /// The tenant whose workers will read the version. The owner may answer BY_REFERENCE for them.
        tenant: NameRef,
        /// The part of the version that is to be sent. `None`: all of it.
        excerpt: Option<Box<Excerpt>>,
        /// The slot for the version. With `None` the owner sends the description first.
        slot: Option<SlotGrant>,
        /// The identity of the version that this side has already. If it is still the one that is asked for, the owner says
        /// so by UNCHANGED and sends nothing.
        held: Option<NonZeroU64>,
        /// Whether the owner has to answer itself, and not by REDIRECT.
        direct: bool,
        /// The trace context of the fetch that asks, if it has one.
        trace: Option<TraceContext>,
    },
    /// Pull: the version is published and has this description; the owner needs a slot for it. Push: the following data
    /// has this description.
    MetaDataUpdate {
        /// The version.
        version: Version,
        /// The id of the description.
        metadata_id: u32,
        /// The description.
        meta: TensorMeta,
    },
    /// Pull: answers META_DATA_UPDATE with a slot that fits.
    TensorReRequest {
        /// The slot.
        slot: SlotGrant,
    },
    /// Tells that the data will not be sent.
    ErrorStatus(
        /// The reason.
        Failure,
    ),
    /// Push: requests landing slots for a key.
    BufferRequest {
        /// The key.
        key: NameRef,
        /// The worker that the key is pushed to.
        target: NameRef,
        /// The worker that owns the key.
        owner: NameRef,
        /// The owner's tenant.
        tenant: NameRef,
        /// The id of the description.
        metadata_id: u32,
        /// The description.
        meta: TensorMeta,
    },
    /// Push: answers BUFFER_REQUEST with slots.
    BufferResponse {
        /// The slots, at most [`MAX_SLOTS_PER_MESSAGE`].
        slots: Vec<SlotGrant>,
    },
    /// Push: the receiver is done with a slot. The sender may write it again, with this new key.
    BufferIdle {
        /// The slot.
        slot: SlotGrant,
    },
    /// Push: the receiver asks for the slots of this flow back.
    BufferRecall {
        /// The reason.
        why: Recall,
        /// The round of slots: the number of requests for slots that the sender has made after its first. RECALLED
        /// repeats it.
        round: u32,
    },
    /// Push: answers BUFFER_RECALL. The sender will not write into the slots again. Sent behind its data.
    Recalled {
        /// The reason in the BUFFER_RECALL.
        why: Recall,
        /// The round in the BUFFER_RECALL.
        round: u32,
    },
    /// Push: the sender ends the flow, because its owner is gone.
    BufferRelease,
    /// Pull, instead of the data: the version can be read in the owner's memory. Only over links whose sides share
    /// their memory.
    ByReference {
        /// The owner's number for the reference.
        lease: u32,
        /// The owner's segment.
        segment: u32,
        /// The offset in the segment: of the metadata and the body, or of the metadata and the table of ranges.
        offset: u64,
        /// The number of ranges of the segment that make up the body, in order. Their table then lies behind the
        /// metadata; see [`crate::wire::ranges`]. 0: the body itself lies there, in one piece.
        ranges: u32,
        /// The version.
        version: Version,
        /// Microseconds that the request waited for its version at the owner.
        waited_us: u32,
        /// The description.
        meta: TensorMeta,
    },
    /// Pull: the requesting side has no reader of the reference left.
    ReleaseReference {
        /// The number in the BY_REFERENCE.
        lease: u32,
    },
    /// Pull: the requesting side gives the request up.
    Cancel,
    /// Pull: answers CANCEL. The data will not be sent after this message; it may have been sent before.
    Cancelled,
    /// Carries only credits.
    Ack,
    /// Asks whether the peer is alive.
    Ping,
    /// Answers PING.
    Pong,
    /// Pull: the request waits for a version that is not the next one. The receiver can say so if it waits in vain.
    Behind {
        /// The newest version.
        newest: Version,
    },
    /// Pull: the version that is asked for is the one that the request says this side has.
    Unchanged {
        /// The version.
        version: Version,
    },
    /// Pull: the version that is asked for is published, has this description, and comes as a delta of the version that the
    /// request says this side has. The owner needs a slot for the delta.
    Delta {
        /// The version.
        version: Version,
        /// The id of the description.
        metadata_id: u32,
        /// The length of the delta in bytes.
        len: u64,
        /// The description.
        meta: TensorMeta,
    },
    /// Pull: the version that is asked for is this one, and comes in chunks, from the nodes with these names, which have it or are
    /// receiving it. The request goes on: the owner holds the version until the other side has it ([`Body::Taken`]), or gives it up.
    Redirect {
        /// The version.
        version: Version,
        /// The owner's number of this publication.
        identity: NonZeroU64,
        /// The id of the description.
        metadata_id: u32,
        /// The length of a chunk in bytes; the last one may be shorter. There are at most [`MAX_CHUNKS`].
        chunk_bytes: u64,
        /// The nodes, in the order in which they are to be asked. One that is named twice is asked once. The owner may be among them.
        sources: [NameRef; MAX_SOURCES],
        /// The description.
        meta: TensorMeta,
    },
    /// Pull: requests a chunk of a version, of its owner or of a node that has the version or is receiving it.
    ChunkRequest {
        /// The key.
        key: NameRef,
        /// The tenant whose workers will read the version.
        tenant: NameRef,
        /// The node that owns the key.
        owner: NameRef,
        /// That node's incarnation.
        incarnation: u64,
        /// The version.
        version: Version,
        /// Its number of the publication, as its REDIRECT has it.
        identity: NonZeroU64,
        /// Where the chunk begins among all bytes that are sent of the version. It is as long as the slot.
        offset: u64,
        /// The slot for the chunk.
        slot: SlotGrant,
        /// The trace context of the fetch that asks, if it has one.
        trace: Option<TraceContext>,
    },
    /// Pull: the digests of the next chunks of a version that the owner has answered by REDIRECT. They come in order.
    Digests {
        /// The number of the first of these chunks.
        first: u32,
        /// Their digests: XXH3 with 128 bits, the highest byte first.
        digests: Vec<[u8; 16]>,
    },
    /// Pull: the version has come from a node that REDIRECT has named. Ends the request as CANCEL does.
    Taken,
    /// Pull: a node that REDIRECT has named does not send the version. The next one is asked.
    SourceFailed {
        /// Its place among those that are named.
        source: u8,
    },
    /// Counter: asks for the counter with this name, and whether this side may operate on its word directly.
    CounterOpen {
        /// The counter's key.
        name: NameRef,
        /// The tenant that asks.
        tenant: NameRef,
        /// Whether the asking side can use a grant.
        wants_grant: bool,
    },
    /// Counter: answers COUNTER_OPEN with the counter, and with its word if that is granted.
    CounterOpened {
        /// A number that distinguishes the counter from earlier ones with the same name.
        identity: u64,
        /// The counter's word: 8 bytes.
        word: Option<RemoteSlice>,
    },
    /// Counter: asks the home to do an operation.
    CounterOp {
        /// The counter's key.
        name: NameRef,
        /// The tenant that asks.
        tenant: NameRef,
        /// The identity of the counter, from COUNTER_OPENED.
        identity: u64,
        /// The operation.
        op: AtomicOp,
    },
    /// Counter: the operation is done.
    CounterResult {
        /// The value of the counter before the operation.
        old: u64,
    },
    /// Counter: the counter has lost its name. A word that was granted for it has no use from now on.
    CounterEnded {
        /// The counter's key.
        name: NameRef,
    },
    /// Counter: a worker has arrived at the barrier. The home answers when the round is complete.
    BarrierWait {
        /// The barrier's key.
        name: NameRef,
        /// The tenant that asks.
        tenant: NameRef,
        /// The number of arrivals that complete a round.
        members: u32,
    },
    /// Counter: a round of the barrier is complete.
    BarrierReleased {
        /// The number of the round.
        round: u64,
        /// Whether this arrival was the last of the round.
        leader: bool,
    },
    /// Counter: asks the roster of a sharded state. The home answers at once, later, or never.
    RosterAsk {
        /// The state's key.
        name: NameRef,
        /// The tenant that asks.
        tenant: NameRef,
        /// The question.
        ask: RosterAsk,
    },
    /// Counter: the answer of a roster.
    RosterAnswer(RosterAnswer),
    /// Pull, push: the trace context of the push of the version that is written next. Sent only if there is one.
    Trace {
        /// The version.
        version: Version,
        /// The trace context of the push.
        context: TraceContext,
    },
    /// Pull: requests ranges of the newest versions of several keys together. The owner describes them as one body of
    /// bytes, and writes them one behind the other.
    GatherRequest {
        /// The text with which the keys begin.
        stem: NameRef,
        /// The tenant whose workers will read the versions.
        tenant: NameRef,
        /// The parts. Together they make a [`Gathered`](crate::tensor::Gathered).
        parts: Vec<GatheredPart>,
        /// The trace context of the fetch that asks, if it has one.
        trace: Option<TraceContext>,
    },
}

impl Body {
    /// Returns the kind's number on the wire.
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
            Body::Behind { .. } => 17,
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
            Body::GatherRequest { .. } => 28,
            Body::Unchanged { .. } => 29,
            Body::RosterAsk { .. } => 30,
            Body::RosterAnswer(_) => 31,
            Body::Delta { .. } => 32,
            Body::Redirect { .. } => 33,
            Body::ChunkRequest { .. } => 34,
            Body::Taken => 35,
            Body::SourceFailed { .. } => 36,
            Body::Digests { .. } => 37,
        }
    }

    /// Returns the name that documents and traces use.
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
            Body::Behind { .. } => "BEHIND",
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
            Body::GatherRequest { .. } => "GATHER_REQUEST",
            Body::Unchanged { .. } => "UNCHANGED",
            Body::RosterAsk { .. } => "ROSTER_ASK",
            Body::RosterAnswer(_) => "ROSTER_ANSWER",
            Body::Delta { .. } => "DELTA",
            Body::Redirect { .. } => "REDIRECT",
            Body::ChunkRequest { .. } => "CHUNK_REQUEST",
            Body::Digests { .. } => "DIGESTS",
            Body::Taken => "TAKEN",
            Body::SourceFailed { .. } => "SOURCE_FAILED",
        }
    }
}

impl Message {
    /// Creates a message without credits. The link adds them when the message is sent.
    #[must_use]
    pub fn new(role: Role, index: u32, body: Body) -> Message {
        Message { credits: 0, index, role, body }
    }
}
