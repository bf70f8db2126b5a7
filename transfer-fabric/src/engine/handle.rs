//! How the control plane talks to the data-plane thread.
//!
//! Commands go in through a bounded crossbeam channel and a wake-up of an eventfd; what the engine wants of the control plane comes
//! out through the [`ControlSink`] given at its start. Neither side ever waits for the other inside a call.

use super::listing::{Listing, PageFrom};
use std::any::Any;
use std::sync::Arc;
use transfer_core::fabric::{FabricError, FabricKind, LinkId, Offer};
use transfer_core::memory::SegmentId;
use transfer_core::protocol::{
    BufferAnswer, BufferAsk, Deleted, NotDeleted, Page, SessionId, Snapshot, Tenant, Unfinished,
};
pub use transfer_core::protocol::{ClaimRefused, Control as ControlRequest, PeerInfo};
use transfer_core::tensor::{Key, Name};
use transfer_memory::segment::Segment;
use transfer_memory::session::SidecarEnd;

/// What a fabric shows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricDescription {
    /// Which one.
    pub kind: FabricKind,
    /// What it runs with: names and values for people.
    pub settings: Vec<(&'static str, String)>,
    /// What it has counted since the start, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// Takes an answer from the engine's thread; must not block.
pub type Answer<T> = Box<dyn FnOnce(T) + Send>;

/// What the control plane tells the engine.
#[non_exhaustive]
pub enum EngineCommand {
    /// A landing pool for a tenant. Comes before the tenant's first session.
    AddPool {
        /// Whose.
        domain: Tenant,
        /// Its number, not used before in this incarnation; not [`super::HEADER_SEGMENT`] and not
        /// [`super::COUNTER_SEGMENT`].
        id: SegmentId,
        /// The memory.
        segment: Segment,
        /// The board of the tenant's workers, all zeros, where they shall have one.
        board: Option<Arc<Segment>>,
    },
    /// A worker connected and is mapped.
    OpenSession {
        /// The session, its rings and its arena.
        end: Box<SidecarEnd>,
        /// Its tenant.
        domain: Tenant,
        /// Dropped when the session's socket is let go: for a worker that was thrown out, at the end of its process.
        place: Box<dyn Any + Send>,
    },
    /// The directory's answer to [`ControlRequest::Resolve`]; may come again when the key moves.
    Located {
        /// The key.
        key: Key,
        /// The node that owns it.
        node: Name,
        /// The entry's number: higher is newer.
        sequence: u64,
    },
    /// The directory's answer to [`ControlRequest::ResolveWorker`].
    WorkerLocated {
        /// The worker's name.
        worker: Name,
        /// Its node; `None`: no such worker is connected.
        node: Option<Name>,
    },
    /// The directory's answer to [`ControlRequest::Claim`].
    Claimed {
        /// The key.
        key: Key,
        /// Whether it is ours now.
        result: Result<(), ClaimRefused>,
    },
    /// The directory has given a key of this node to another owner.
    KeyLost {
        /// The key.
        key: Key,
        /// Its owner now.
        owner: Name,
    },
    /// The directory has given a worker's name to a worker of another node.
    NameLost {
        /// The worker's session.
        session: SessionId,
        /// That node.
        node: Name,
    },
    /// Begin a link as its initiator.
    BeginLink {
        /// The peer.
        peer: Name,
        /// Over which fabric.
        fabric: FabricKind,
        /// The link and what to send along in `Connect`, with our receive slots.
        answer: Answer<Result<(LinkId, Offer, u32), FabricError>>,
    },
    /// Begin a link as its acceptor.
    AcceptLink {
        /// The peer.
        peer: PeerInfo,
        /// Over which fabric.
        fabric: FabricKind,
        /// The peer's offer.
        offer: Offer,
        /// What to answer to `Connect`, with our receive slots.
        answer: Answer<Result<(LinkId, Offer, u32), FabricError>>,
    },
    /// Go on as the initiator, with the acceptor's answer.
    FinishLink {
        /// From [`EngineCommand::BeginLink`].
        link: LinkId,
        /// The peer, as it told.
        peer: PeerInfo,
        /// The peer's offer.
        offer: Offer,
        /// Whether the fabric took it.
        answer: Answer<Result<(), FabricError>>,
    },
    /// No link to that peer can be made: what waits for it fails.
    ConnectFailed {
        /// The peer.
        peer: Name,
        /// A link that was begun for it.
        link: Option<LinkId>,
        /// Why, in words.
        why: String,
    },
    /// End a link that was begun, without failing what waits for another one to the same peer.
    AbandonLink {
        /// The link.
        link: LinkId,
        /// Why, in words.
        why: String,
    },
    /// A peer calls for landing slots.
    PrepareBuffers {
        /// The link over which the tensors will come.
        link: LinkId,
        /// Who calls.
        peer: Name,
        /// In which incarnation.
        incarnation: u64,
        /// For what.
        asks: Vec<BufferAsk>,
        /// One for each, in any order; `None` where there is no such link to that peer.
        answer: Answer<Option<Vec<BufferAnswer>>>,
    },
    /// The answers to [`ControlRequest::PrepareBuffers`].
    BuffersPrepared {
        /// The link.
        link: LinkId,
        /// One for each request, in any order.
        answers: Vec<BufferAnswer>,
    },
    /// [`ControlRequest::PrepareBuffers`] brought no answer.
    PrepareFailed {
        /// The link.
        link: LinkId,
        /// As in the request.
        asks: Vec<BufferAsk>,
        /// Why, in words.
        why: String,
    },
    /// Claim again everything that is published here: the directory is a new one.
    ClaimAll,
    /// Show the node at a glance.
    Snapshot(Answer<Snapshot>),
    /// Show everything that metrics are made of.
    Measure(Answer<super::Measured>),
    /// Show what each fabric runs with.
    Describe(Answer<Vec<FabricDescription>>),
    /// Show a page of a list.
    List {
        /// Which page.
        from: PageFrom,
        /// Of which list.
        listing: Listing,
    },
    /// End a key, whoever owns it.
    Delete {
        /// The key.
        key: Key,
        /// Of which tenant alone it may be.
        only: Option<Tenant>,
        /// What has ended.
        answer: Answer<Result<Deleted, NotDeleted>>,
    },
    /// Call back landing slots that lie idle: of one user, or of all.
    Evict {
        /// Of whom.
        domain: Option<Tenant>,
        /// 0, or where the last call ended.
        place: u64,
        /// The length of a slot of each key that was called back.
        answer: Answer<Page<u64>>,
    },
    /// Take nothing new from here on.
    Drain,
    /// Show what a draining node has still to do.
    Unfinished(Answer<Unfinished>),
    /// Change how the engine waits for work.
    SetPoll(super::PollStrategy),
    /// End: sessions are told, links closed, the thread returns.
    Stop,
}

/// Where the engine's requests go. Called on its thread; must not block.
pub type ControlSink = Box<dyn FnMut(ControlRequest) + Send>;
