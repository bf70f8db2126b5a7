//! The contract of a fabric.
//!
//! A fabric moves bytes between the registered memory of two sidecars. Its contract is that of a reliable connected
//! queue pair, and is the same on every fabric, so one protocol engine serves all of them. docs/adr/0001 compares each
//! rule with real verbs.
//!
//! # The rules
//! 1. **Done means acknowledged.** [`FabricEvent::WriteDone`] means that the write is placed at the peer as far as the
//!    peer's fabric can tell: the source may be reused, and nothing will be sent again. Only the receiver, at the
//!    immediate, knows that the bytes can be read. [`FabricEvent::SendDone`] means that the message lies in one of the
//!    peer's receive slots.
//! 2. **Order, per direction.** Posts to one link arrive in posting order: when [`FabricEvent::Immediate`] or
//!    [`FabricEvent::Message`] is reported, every write posted before it on that link is placed. Completions of a
//!    side's own posts are reported in posting order too. There is no order between arrivals and completions: a peer's
//!    answer may be reported before the completion of the post that it answers. Across links there is no order.
//! 3. **Receive slots.** Each immediate and each message consumes one of the peer's receive slots. The poster counts
//!    them (credits). A fabric may kill the link of a sender that overruns them.
//! 4. **Every write is checked** by the receiving side: key, link, permission, and bounds if
//!    [`Capabilities::checks_bounds`] is set. A refused write touches nothing. A write that is cut (revoked in its
//!    middle, or the link is lost) may have placed a prefix of its range, and nothing outside of it. In both cases the
//!    link is dead, and both sides get [`FabricEvent::LinkDown`]. So a receiver trusts no byte without its immediate
//!    and a checked landing header.
//! 5. **Dead means drained.** After [`FabricEvent::LinkDown`] no byte arrives through that link, all its grants are
//!    gone, and no further event of it is reported. A post that was not completed before has an unknown outcome.
//! 6. **Grants.** A grant opens one range to one link. It is in force before the peer receives any message that was
//!    posted after [`FabricEvent::Granted`] was reported. A revoke ends with [`FabricEvent::Revoked`] or with
//!    [`FabricEvent::LinkDown`]: at once if the receiving side places the bytes, later on verbs. After either event no
//!    write through the grant can touch memory. A grant is named by its tag, because keys are reused, and because all
//!    grants into a segment share one key under [`Isolation::Segment`]. With that isolation the end of a grant closes
//!    nothing by itself, so a grant is revoked only after the peer has said that it will not write there again.
//! 7. **Memory outlives use.** A registered segment stays mapped until it is deregistered, and deregistering first
//!    revokes its grants.

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

/// The number of a link: a reliable connection to one peer over one fabric. A number is never reused within one
/// incarnation of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// The number that the poster gives to a work request. The completion carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// The access that a grant gives the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrantAccess {
    /// The peer may write the range.
    Write,
    /// The peer may operate on the range's words by [`Atomics::post_atomic`]. Start and length of the range are
    /// multiples of 8 bytes.
    Atomic,
}

/// The information that one side needs about the other to connect: opaque bytes in the fabric's own layout, carried by
/// the gRPC `Connect` call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer(pub Vec<u8>);

/// Moves bytes between registered memory of two sidecars. See the module's rules.
///
/// Optional abilities of a fabric have traits of their own: [`Atomics`], [`Sharing`], [`Rails`].
///
/// # Order of calls
/// *Memory*: [`register`](Fabric::register) a segment before a slice of it is posted or granted.
///
/// *Connecting*: the initiator calls [`offer`](Fabric::offer). The acceptor calls [`accept`](Fabric::accept) with that
/// offer and answers with its own. The initiator calls [`connect`](Fabric::connect) with the answer. Each side gets
/// [`FabricEvent::Connected`] when the link can be used, or [`FabricEvent::LinkDown`].
///
/// *Working*: post and grant in any order, and call [`poll`](Fabric::poll) often. Before sleeping, call
/// [`arm`](Fabric::arm), poll once more, and wait until one of [`wait_fds`](Fabric::wait_fds) is readable. If one is,
/// call [`woken`](Fabric::woken) before the next poll.
pub trait Fabric: Send {
    /// The form in which this fabric gets a segment's memory.
    type Memory;

    /// Returns the fabric's kind, for reports and for `require`. The planner never asks for it.
    fn kind(&self) -> FabricKind;

    /// Returns the fabric's capabilities.
    fn capabilities(&self) -> &Capabilities;

    /// Registers a segment as a memory region with every device of the fabric, or with none.
    ///
    /// # Errors
    /// [`FabricError`] if a device refuses or the segment is already registered.
    fn register(&mut self, segment: SegmentId, memory: Self::Memory) -> Result<(), FabricError>;

    /// Ends a segment's registration. Grants inside it are revoked first. The link of a peer that still writes there
    /// dies (rule 4).
    ///
    /// # Errors
    /// [`FabricError::UnknownSegment`].
    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError>;

    /// Checks that a slice can be posted from. [`crate::rails`] posts the parts of a gather list one by one, and checks
    /// all of them before the first post.
    ///
    /// # Errors
    /// [`PostError::BadLocalSlice`].
    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError>;

    /// Begins a link as its initiator. Returns the offer for the peer.
    ///
    /// # Errors
    /// [`FabricError`] if no link can be made.
    fn offer(&mut self, link: LinkId) -> Result<Offer, FabricError>;

    /// Begins a link as its acceptor, with the initiator's offer. Returns the offer for the initiator.
    ///
    /// # Errors
    /// [`FabricError::BadOffer`] if the offer is malformed or refused.
    fn accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError>;

    /// Continues a link as its initiator, with the acceptor's offer.
    ///
    /// # Errors
    /// [`FabricError::BadOffer`], or the device's error.
    fn connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError>;

    /// Ends a link. [`FabricEvent::LinkDown`] follows, here and at the peer. Unknown and dead links are ignored.
    fn disconnect(&mut self, link: LinkId, reason: DownReason);

    /// Opens `range` to the peer of `link`. [`FabricEvent::Granted`] follows with this `tag`. The tag must be unique
    /// among the link's live grants; the key need not be, because [`Capabilities::isolation`] may let many grants share
    /// one key.
    ///
    /// # Errors
    /// [`PostError`]; nothing is granted then. [`PostError::Full`] is temporary. [`PostError::Unsupported`] for
    /// [`GrantAccess::Atomic`] if the capabilities have no atomics.
    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError>;

    /// Revokes the grant with this key and this tag. [`FabricEvent::Revoked`] follows, with both. A grant that has
    /// already ended is reported as revoked.
    ///
    /// # Errors
    /// [`PostError::LinkDown`]: the grant ended with the link. [`PostError::Full`] is temporary.
    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError>;

    /// Gathers `sgl` into the contiguous `remote`, in order, and raises `immediate` at the peer when all of it is
    /// placed. The lengths of `sgl` must add up to `remote.len`; an empty list with an immediate is allowed. The memory
    /// of `sgl` must not change until the write is done.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. [`PostError::Full`] is temporary.
    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError>;

    /// Sends a message of at most [`Capabilities::max_message_bytes`] into one of the peer's receive slots. The bytes
    /// are copied before the call returns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. [`PostError::Full`] is temporary.
    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError>;

    /// Returns the fabric's atomic operations, if [`Capabilities::atomics`] is set.
    fn atomics(&mut self) -> Option<&mut dyn Atomics> {
        None
    }

    /// Returns the interface for passing segments to a peer, on a fabric whose links can report
    /// [`FabricEvent::References`].
    fn sharing(&mut self) -> Option<&mut dyn Sharing<Memory = Self::Memory>> {
        None
    }

    /// Returns the interface for the rails of links, on a fabric whose links may have more than one.
    fn rails(&self) -> Option<&dyn Rails> {
        None
    }

    /// Returns names and values for display: the fabric's device, its addresses, its limits.
    fn describe(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Returns the fabric's counters since its start, by name, for display and for metrics.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Reports the events that are known by now, without sending or receiving: for example the results of grants and
    /// revokes, on a fabric that makes them at once. So their consequences are posted in the same turn. Everything that
    /// is not reported here comes with [`poll`](Fabric::poll). Returns whether anything was reported.
    fn report(&mut self, _sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        false
    }

    /// Makes a bounded amount of progress and reports the events. Returns whether anything was reported or moved.
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool;

    /// Requests that one of [`wait_fds`](Fabric::wait_fds) become readable when [`poll`](Fabric::poll) has work again.
    fn arm(&mut self);

    /// Tells the fabric that one of [`wait_fds`](Fabric::wait_fds) was readable. A look at a socket is a system call, so
    /// a fabric may look less often after a wait that has not reported it.
    fn woken(&mut self) {}

    /// Returns the descriptors to wait on. They do not change during the fabric's life. The list is empty for a fabric
    /// that must be polled, such as the simulated one.
    fn wait_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>>;
}
