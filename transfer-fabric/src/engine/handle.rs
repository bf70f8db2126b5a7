//! The interface between the control plane and the data-plane thread.
//!
//! Commands go in through a bounded crossbeam channel and a wake-up of an eventfd. Requests of the engine to the
//! control plane come out through the [`ControlSink`] given at its start. Neither side ever waits for the other inside
//! a call.

use super::listing::{Listing, PageFrom};
use super::pings::PingError;
use super::readers::ReaderSink;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use transfer_core::fabric::{FabricError, FabricKind, LinkId, Offer};
use transfer_core::memory::SegmentId;
use transfer_core::op::Request;
use transfer_core::protocol::{BufferAnswer, BufferAsk, DirectoryNews, Node, SessionId, Snapshot, Tenant};
pub use transfer_core::protocol::{Control as ControlRequest, PeerInfo};
use transfer_core::tensor::Name;
use transfer_core::time::Time;
use transfer_memory::segment::Segment;
use transfer_memory::session::SidecarEnd;

/// A fabric's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricDescription {
    /// The fabric.
    pub kind: FabricKind,
    /// Its settings: names and values for people.
    pub settings: Vec<(&'static str, String)>,
    /// Its counts since the start, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// The reason why memory is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRegistered {
    /// A fabric refuses it.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The worker's session is over.
    #[error("the session is over")]
    SessionOver,
}

/// Takes an answer from the engine's thread; must not block.
pub type Answer<T> = Box<dyn FnOnce(T) + Send>;

/// A request of an operator to the node, which runs on the engine's thread.
pub type Operate = Box<dyn FnOnce(Time, &mut Node) + Send>;

/// A command of the control plane to the engine.
#[non_exhaustive]
pub enum EngineCommand {
    /// A landing pool for a tenant. Comes before the tenant's first session.
    AddPool {
        /// The tenant.
        domain: Tenant,
        /// The pool's number. It was not used before in this incarnation, and is neither [`super::HEADER_SEGMENT`] nor
        /// [`super::COUNTER_SEGMENT`].
        id: SegmentId,
        /// The memory.
        segment: Segment,
        /// The board of the tenant's workers, all zeros, if they have one.
        board: Option<Arc<Segment>>,
    },
    /// A worker has connected, and its segments are mapped.
    OpenSession {
        /// The session, its rings and its arena.
        end: Box<SidecarEnd>,
        /// Its tenant.
        domain: Tenant,
        /// Dropped when the sidecar closes the session's socket. The socket of an evicted worker stays open until the
        /// worker closes its end or exits.
        place: Box<dyn Any + Send>,
    },
    /// Open a session of the sidecar's own. Its requests are [`EngineCommand::Reader`].
    OpenReader {
        /// Its number, which no other session has or had.
        session: SessionId,
        /// Its name in lists.
        name: Name,
        /// Its tenant, which has a pool.
        domain: Tenant,
        /// A number that no segment has or had.
        arena: SegmentId,
        /// Receives its replies.
        sink: ReaderSink,
    },
    /// A worker of this process has registered memory of its own.
    RegisterMemory {
        /// The worker's session.
        session: SessionId,
        /// A number that no segment has or had.
        id: SegmentId,
        /// The memory.
        segment: Arc<Segment>,
        /// The place by which the worker names it, behind its arena; or the reason why it is not registered.
        answer: Answer<Result<u64, NotRegistered>>,
    },
    /// Registered memory is not to be used any longer. Nothing is published there, and nothing lands there.
    ReleaseMemory {
        /// Its number.
        id: SegmentId,
    },
    /// A request of a reader: a fetch, a cancellation, a release. Ignored if its session has ended.
    Reader {
        /// The reader's session.
        session: SessionId,
        /// The request.
        request: Request,
    },
    /// End the session of a reader, with its fetches and leases.
    CloseReader {
        /// The session.
        session: SessionId,
        /// The reason.
        why: String,
    },
    /// News of the directory.
    Directory(DirectoryNews),
    /// The name of a worker whose session is over is free for another. A worker that has left waits for this.
    NameFree {
        /// The worker's session.
        session: SessionId,
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
        /// The fabric.
        fabric: FabricKind,
        /// The link, the offer for `Connect`, and this side's receive slots.
        answer: Answer<Result<(LinkId, Offer, u32), FabricError>>,
    },
    /// Begin a link as its acceptor.
    AcceptLink {
        /// The peer.
        peer: PeerInfo,
        /// The fabric.
        fabric: FabricKind,
        /// The peer's offer.
        offer: Offer,
        /// The answer to `Connect`, with this side's receive slots.
        answer: Answer<Result<(LinkId, Offer, u32), FabricError>>,
    },
    /// Continue as the initiator, with the acceptor's answer.
    FinishLink {
        /// The link from [`EngineCommand::BeginLink`].
        link: LinkId,
        /// The peer's description of itself.
        peer: PeerInfo,
        /// The peer's offer.
        offer: Offer,
        /// Whether the fabric accepted it.
        answer: Answer<Result<(), FabricError>>,
    },
    /// No link to that peer can be made. Requests that wait for one fail.
    ConnectFailed {
        /// The peer.
        peer: Name,
        /// A link that was begun for it.
        link: Option<LinkId>,
        /// The reason.
        why: String,
    },
    /// End a link that was begun. Requests that wait for another link to the same peer do not fail.
    AbandonLink {
        /// The link.
        link: LinkId,
        /// The reason.
        why: String,
    },
    /// A peer requests landing slots.
    PrepareBuffers {
        /// The link over which the tensors will come.
        link: LinkId,
        /// The calling peer.
        peer: Name,
        /// Its incarnation.
        incarnation: u64,
        /// Its requests.
        asks: Vec<BufferAsk>,
        /// Receives one answer for each request, in any order; `None` if there is no such link to that peer.
        answer: Answer<Option<Vec<BufferAnswer>>>,
    },
    /// The answers to [`ControlRequest::PrepareBuffers`].
    BuffersPrepared {
        /// The link.
        link: LinkId,
        /// One answer for each request, in any order.
        answers: Vec<BufferAnswer>,
    },
    /// [`ControlRequest::PrepareBuffers`] got no answer.
    PrepareFailed {
        /// The link.
        link: LinkId,
        /// As in the request.
        asks: Vec<BufferAsk>,
        /// The reason.
        why: String,
    },
    /// Show an overview of the node.
    Snapshot(Answer<Snapshot>),
    /// Show everything that the metrics need.
    Measure(Answer<super::Measured>),
    /// Show each fabric's description.
    Describe(Answer<Vec<FabricDescription>>),
    /// Show a page of a list.
    List {
        /// The page.
        from: PageFrom,
        /// The list.
        listing: Listing,
    },
    /// What an operator asks of the node, in bounded steps. The closure gives its answer itself.
    Operate(Operate),
    /// Measure the time between a PING on a link and its PONG.
    Ping {
        /// The link.
        link: LinkId,
        /// Receives the time.
        answer: Answer<Result<Duration, PingError>>,
    },
    /// Change how the engine waits for work.
    SetPoll(super::PollStrategy),
    /// Stop: sessions are told, links closed, and the thread returns.
    Stop,
}

/// The receiver of the engine's requests. Called on its thread; must not block.
pub type ControlSink = Box<dyn FnMut(ControlRequest) + Send>;
