//! What the state machine and the control plane say to each other.

use super::directory::{Claim, DirectoryRequest};
use super::ids::SessionId;
use super::tenant::Vouches;
use crate::fabric::{FabricKind, LinkId};
use crate::op::Failure;
use crate::tensor::{Key, Name, TensorMeta};
use crate::wire::landing::SlotGrant;

/// What a side tells about itself when a link is made, besides the fabric's own offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The peer's node name.
    pub name: Name,
    /// Its incarnation.
    pub incarnation: u64,
    /// How many receive slots it has for this link.
    pub receive_slots: u32,
    /// Of whom its word is taken.
    pub vouches: Vouches,
    /// Which fabrics would have been better for this link, and why they are not what carries it.
    pub passed_over: Vec<PassedOver>,
}

/// Why a fabric does not carry a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// The fabric.
    pub fabric: FabricKind,
    /// Why not, in words that name the nodes.
    pub why: String,
}

/// What the control plane is asked and told. Exhaustive: what nobody carries out must not compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Claim a key in the directory.
    Claim(Claim),
    /// Another request to the directory.
    Directory(DirectoryRequest),
    /// Make a link to that node. One answer: the link comes up, or a failure.
    Connect {
        /// The node's name.
        peer: Name,
    },
    /// Ask that node for landing slots. One answer: [`super::Node::buffers_prepared`] or [`super::Node::prepare_failed`].
    PrepareBuffers {
        /// The link over which the tensors will come.
        link: LinkId,
        /// The node.
        peer: Name,
        /// The requests, at most [`super::MAX_ASKS`].
        asks: Vec<super::control::BufferAsk>,
    },
    /// A link can be used.
    LinkUp {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
    },
    /// A link that this side began has ended before it could be used. [`Control::Connect`] is not answered by that.
    LinkFailed {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
        /// Why.
        why: String,
    },
    /// A rail of a link of several died; the link goes on without it.
    RailDown {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
        /// Which rail.
        rail: usize,
        /// How many are left.
        left: usize,
        /// Why.
        why: String,
    },
    /// A link died.
    LinkDown {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
        /// Why.
        why: String,
    },
    /// Something that whoever runs the sidecar may want to know.
    Event(super::events::NodeEvent),
    /// A worker is gone, or was thrown out.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// The worker's name.
        worker: Name,
        /// Why.
        why: String,
    },
}

/// One of the requests of a `PrepareBuffers` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferAsk {
    /// The sender's number of the flow.
    pub flow: u32,
    /// The key.
    pub key: Key,
    /// What will be sent. In the flow's landing headers this description has the number [`PREPARED_METADATA_ID`].
    pub meta: TensorMeta,
    /// The worker for whom it is.
    pub target: Name,
    /// The worker whose it is.
    pub owner: Name,
    /// That worker's tenant.
    pub tenant: Name,
}

/// The answer to one of them: the flow, and its slots or why there are none.
pub type BufferAnswer = (u32, Result<Vec<SlotGrant>, Failure>);

/// The number of the description that a flow begins with when it was prepared.
pub const PREPARED_METADATA_ID: u32 = 1;

/// The most requests in one call.
pub const MAX_ASKS: usize = 1024;
