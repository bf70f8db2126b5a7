//! The requests and messages between the state machine and the control plane.

use super::directory::{Claim, DirectoryRequest};
use super::ids::SessionId;
use super::tenant::Vouches;
use crate::fabric::{FabricKind, LinkId};
use crate::op::Failure;
use crate::tensor::{Key, Name, TensorMeta};
use crate::wire::landing::SlotGrant;

/// The description of a peer that a link is made with, besides the fabric's own offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The peer's node name.
    pub name: Name,
    /// Its incarnation.
    pub incarnation: u64,
    /// The number of receive slots that the peer has for this link.
    pub receive_slots: u32,
    /// The tenants for which the peer may speak.
    pub vouches: Vouches,
    /// The fabrics that would have been better for this link, and why they do not carry it.
    pub passed_over: Vec<PassedOver>,
}

/// The reason why a fabric does not carry a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// The fabric.
    pub fabric: FabricKind,
    /// The reason, in words that name the nodes.
    pub why: String,
}

/// A request or a message to the control plane. The enum is exhaustive, so that a control plane that ignores one does
/// not compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Claim a key in the directory.
    Claim(Claim),
    /// Another request to the directory.
    Directory(DirectoryRequest),
    /// Make a link to that node. There is one answer: the link comes up, or a failure.
    Connect {
        /// The node's name.
        peer: Name,
    },
    /// Ask that node for landing slots. There is one answer: [`super::Node::buffers_prepared`] or
    /// [`super::Node::prepare_failed`].
    PrepareBuffers {
        /// The link over which the tensors will come.
        link: LinkId,
        /// The node that is asked.
        peer: Name,
        /// The requests, at most [`super::MAX_ASKS`].
        asks: Vec<super::control::BufferAsk>,
    },
    /// A link came up and can be used.
    LinkUp {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
    },
    /// A link that this side began has ended before it could be used. This is no answer to [`Control::Connect`].
    LinkFailed {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
        /// The reason.
        why: String,
    },
    /// A rail of a link with several rails died. The link continues without it.
    RailDown {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
        /// The number of the rail.
        rail: usize,
        /// The number of rails that are left.
        left: usize,
        /// The reason.
        why: String,
    },
    /// A link died.
    LinkDown {
        /// The link.
        link: LinkId,
        /// The peer.
        peer: Name,
        /// The reason.
        why: String,
    },
    /// An event for the operator of the sidecar.
    Event(super::events::NodeEvent),
    /// A worker is gone, or was evicted.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// The worker's name.
        worker: Name,
        /// The reason.
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
    /// The description of the tensors to come. In the flow's landing headers this description has the number
    /// [`PREPARED_METADATA_ID`].
    pub meta: TensorMeta,
    /// The worker to which the tensors are pushed.
    pub target: Name,
    /// The worker that pushes them, and owns the key.
    pub owner: Name,
    /// The owner's tenant.
    pub tenant: Name,
}

/// The answer to one of these requests: the number of the flow, and its slots or the failure.
pub type BufferAnswer = (u32, Result<Vec<SlotGrant>, Failure>);

/// The number of the first description of a flow that was prepared by a call.
pub const PREPARED_METADATA_ID: u32 = 1;

/// The most requests in one call.
pub const MAX_ASKS: usize = 1024;
