//! The contract of a fabric.
//!
//! A fabric moves bytes between the registered memory of two sidecars. Its contract is that of a reliable connected queue pair,
//! the same on every fabric, so that one protocol engine serves all of them. docs/adr/0001 says how each rule was held against
//! real verbs.
//!
//! # The rules
//! 1. **Done means acknowledged.** [`FabricEvent::WriteDone`] means that the write is placed at the peer as far as the peer's fabric
//!    can tell: the source may be used again, and nothing will be sent again. Only the receiver, at the immediate, knows that the
//!    bytes can be read. [`FabricEvent::SendDone`] means that the message lies in one of the peer's receive slots.
//! 2. **Order, per direction.** What is posted to one link arrives in posting order: when [`FabricEvent::Immediate`] or
//!    [`FabricEvent::Message`] is reported, every write posted before it on that link is placed. Completions of one's own posts come in
//!    posting order too. Between the two kinds there is no order: a peer's answer may come before the completion of what it
//!    answers. Across links there is no order.
//! 3. **Receive slots.** Each immediate and each message consumes one of the peer's receive slots. Whoever posts counts them
//!    (credits); a fabric may kill the link of a sender that overruns them.
//! 4. **Every write is checked** by the receiving side: key, link, permission, and bounds where
//!    [`Capabilities::checks_bounds`] says so. One that is refused touches nothing; one that is cut (revoked in its middle, the
//!    link lost) may have placed a prefix of its range, and nothing outside. Either way the link is dead, and both sides hear
//!    [`FabricEvent::LinkDown`]. So nobody believes a byte without its immediate and a checked landing header.
//! 5. **Dead means drained.** After [`FabricEvent::LinkDown`] no byte arrives through that link any more, all its grants are gone,
//!    and no further event of it is reported. What was posted and not completed before it has an unknown outcome.
//! 6. **Grants.** A grant opens one range to one link. It is in force before any message posted after
//!    [`FabricEvent::Granted`] was reported is received by the peer. A revoke ends with [`FabricEvent::Revoked`] or with
//!    [`FabricEvent::LinkDown`], at once where the receiving side places the bytes, later on verbs; after either no write through
//!    the grant can touch memory. A grant is named by its tag: keys come again, and all grants into a segment have one key where
//!    [`Isolation::Segment`] is told. There the end of a grant closes nothing by itself, so only a peer that will not write any more
//!    has its grant taken back.
//! 7. **Memory outlives use.** A registered segment stays mapped until it is deregistered, and deregistering takes its grants back
//!    first.

mod atomics;
mod capabilities;
mod error;
mod event;
mod rails;
mod sharing;

pub use atomics::{AtomicOp, Atomics};
pub use capabilities::{Capabilities, FabricKind, Isolation};
pub use error::{DownReason, FabricError, PostError};
pub use event::FabricEvent;
pub use rails::{LinkRails, Rails};
pub use sharing::Sharing;

use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use std::fmt;

/// A link: a reliable connection to one peer over one fabric. Never reused within one incarnation of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// What the poster of a work request calls it; comes back with its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// What a grant lets the peer do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrantAccess {
    /// Write the range.
    Write,
    /// Operate on the range's words: [`Atomics::post_atomic`]. The range starts at a multiple of 8 and is as long.
    Atomic,
}

/// What one side must know of the other to connect: opaque bytes of the fabric's own layout, carried by the gRPC `Connect` call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer(pub Vec<u8>);

/// Moves bytes between registered memory of two sidecars. See the module's rules.
///
/// What only some fabrics do is in traits of its own: [`Atomics`], [`Sharing`], [`Rails`].
///
/// # Order of calls
/// *Memory*: [`register`](Fabric::register) a segment before a slice of it is posted or granted.
/// *Connecting*: the initiator calls [`offer`](Fabric::offer); the acceptor [`accept`](Fabric::accept)s it and answers with its own
/// offer; the initiator calls [`connect`](Fabric::connect) with that. Each side hears [`FabricEvent::Connected`] when the link can be
/// used, or [`FabricEvent::LinkDown`].
/// *Working*: post and grant as you like, [`poll`](Fabric::poll) often. Before sleeping, [`arm`](Fabric::arm), poll once more, and wait
/// for one of [`wait_fds`](Fabric::wait_fds) to be readable.
pub trait Fabric: Send {
    /// How this fabric is handed a segment's memory.
    type Memory;

    /// Which fabric this is, for reports and for `require`. The planner never asks it.
    fn kind(&self) -> FabricKind;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Makes a segment a memory region: with every device, or with none.
    ///
    /// # Errors
    /// [`FabricError`] where a device refuses or the segment is registered already.
    fn register(&mut self, segment: SegmentId, memory: Self::Memory) -> Result<(), FabricError>;

    /// Ends a segment's registration. Grants inside it are taken back first; a link whose peer still writes there dies (rule 4).
    ///
    /// # Errors
    /// [`FabricError::UnknownSegment`].
    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError>;

    /// Checks that a slice can be posted from. [`crate::rails`] posts the parts of a list one by one, and asks for all of them
    /// before the first.
    ///
    /// # Errors
    /// [`PostError::BadLocalSlice`].
    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError>;

    /// Begins a link as its initiator: what the peer has to know.
    ///
    /// # Errors
    /// [`FabricError`] where no link can be made.
    fn offer(&mut self, link: LinkId) -> Result<Offer, FabricError>;

    /// Begins a link as its acceptor, with what the initiator offered; answers what the initiator has to know.
    ///
    /// # Errors
    /// [`FabricError::BadOffer`] for an offer that is not understood.
    fn accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError>;

    /// Goes on as the initiator, with what the acceptor answered.
    ///
    /// # Errors
    /// [`FabricError::BadOffer`], or what the device says.
    fn connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError>;

    /// Ends a link. [`FabricEvent::LinkDown`] follows, here and at the peer. Unknown and dead links are ignored.
    fn disconnect(&mut self, link: LinkId, reason: DownReason);

    /// Opens `range` to the peer of `link`. [`FabricEvent::Granted`] follows with this `tag`, which no other grant of the link has while it
    /// lives: a key may be that of many grants, where [`Capabilities::isolation`] says so.
    ///
    /// # Errors
    /// [`PostError`]; nothing is granted then. [`PostError::Full`] passes by itself. [`PostError::Unsupported`] for
    /// [`GrantAccess::Atomic`] where the capabilities say that there is none.
    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError>;

    /// Takes the grant of this tag back, which has this key. [`FabricEvent::Revoked`] follows, with both. A grant that is gone already is
    /// reported revoked.
    ///
    /// # Errors
    /// [`PostError::LinkDown`]: the grant went with the link. [`PostError::Full`] passes by itself.
    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError>;

    /// Gathers `sgl` into the contiguous `remote`, in order, and raises `immediate` at the peer when all of it is placed.
    /// The lengths of `sgl` must add up to `remote.len`; an empty list with an immediate is allowed.
    /// The memory of `sgl` must not change until the write is done.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. [`PostError::Full`] passes by itself.
    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError>;

    /// Sends a small message into one of the peer's receive slots. At most [`Capabilities::max_message_bytes`]. The bytes are taken
    /// at once.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. [`PostError::Full`] passes by itself.
    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError>;

    /// Its operations on words of memory, where [`Capabilities::atomics`] says that it has them.
    fn atomics(&mut self) -> Option<&mut dyn Atomics> {
        None
    }

    /// Its way to pass segments to a peer, for a fabric whose links can report [`FabricEvent::References`].
    fn sharing(&mut self) -> Option<&mut dyn Sharing<Memory = Self::Memory>> {
        None
    }

    /// The rails of its links, where they may have more than one.
    fn rails(&self) -> Option<&dyn Rails> {
        None
    }

    /// What it runs with, as names and values for people: its device, its addresses, its limits.
    fn describe(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What it has counted since its beginning, by name; for people and for metrics.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Makes progress and reports what happened, a bounded amount per call. Returns whether anything was reported or moved.
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool;

    /// Asks that one of [`wait_fds`](Fabric::wait_fds) become readable when [`poll`](Fabric::poll) has something to do again.
    fn arm(&mut self);

    /// What to wait on, the same for the fabric's whole life. None for a fabric that must be polled (the simulated one).
    fn wait_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>>;
}
