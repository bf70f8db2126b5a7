//! The messages between a node and the directory, as values.

use std::sync::Arc;
use transfer_core::protocol::{Claim, DirectoryRequest};
use transfer_core::tensor::{Key, Name};

/// The identity of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The node's name.
    pub node: Name,
    /// The address of its gRPC services, as host:port. Empty: none.
    pub address: Arc<str>,
    /// The number of this start. It is higher than the number of every earlier start.
    pub incarnation: u64,
    /// The path of a Unix socket at which sidecars of its host may call it instead. Empty: none.
    pub local: Arc<str>,
    /// Whether it takes the name from another live sidecar.
    pub replace: bool,
}

/// An item that a node sends after its [`Hello`]. `directory.proto` describes the rules and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeItem {
    /// A key has an owner at this node. Answered by [`Answer::Claimed`], [`Answer::ClaimRefused`],
    /// [`Answer::ClaimDenied`] or [`Answer::ClaimFull`].
    Claim {
        /// The node's number for this claim.
        number: u64,
        /// The claim.
        claim: Claim,
    },
    /// Another request. [`Answer::Located`] and [`Answer::WorkerLocated`] answer the requests that have an answer.
    Request(DirectoryRequest),
    /// A worker connected here. Answered by [`Answer::WorkerAdmitted`], [`Answer::WorkerRefused`] or
    /// [`Answer::WorkerDenied`].
    WorkerUp {
        /// The worker's name.
        worker: Name,
        /// The worker's tenant.
        tenant: Name,
        /// The number of the last entry of this worker; 0: it was never entered.
        entered: u64,
    },
    /// A worker left. No answer.
    WorkerDown {
        /// The worker's name.
        worker: Name,
    },
    /// Asks for the address of a node. Answered by [`Answer::NodeLocated`] at once.
    ResolveNode {
        /// The node's name.
        node: Name,
    },
    /// The node leaves. It does not count as lost, and its attachment ends.
    Leave,
    /// Answers [`Answer::Ping`].
    Pong {
        /// The number of the ping.
        ping: u64,
    },
}

/// An item that the directory sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Another sidecar claims this node's name. Answered by [`NodeItem::Pong`].
    Ping {
        /// The number of the ping.
        ping: u64,
    },
    /// The host lives. Only one of several hosts says so.
    Alive,
    /// The key is entered.
    Claimed {
        /// As in [`NodeItem::Claim`].
        number: u64,
        /// The entry's number.
        sequence: u64,
    },
    /// Another worker owns the key.
    ClaimRefused {
        /// As in [`NodeItem::Claim`].
        number: u64,
        /// The owner.
        owner: Name,
        /// The owner's node.
        node: Name,
    },
    /// The tenant may not have the key, or this node may not speak for it.
    ClaimDenied {
        /// As in [`NodeItem::Claim`].
        number: u64,
        /// The reason.
        why: Arc<str>,
    },
    /// The node has reached its limit of keys.
    ClaimFull {
        /// As in [`NodeItem::Claim`].
        number: u64,
        /// The limit, in words.
        why: Arc<str>,
    },
    /// A key of this node is now entered for another node.
    Lost {
        /// The key.
        key: Key,
        /// The new owner.
        owner: Name,
    },
    /// The worker is entered.
    WorkerAdmitted {
        /// The worker's name.
        worker: Name,
        /// The entry's number.
        entered: u64,
    },
    /// The worker is not entered, for a reason that concerns this node alone.
    WorkerDenied {
        /// The worker's name.
        worker: Name,
        /// The reason.
        why: Arc<str>,
    },
    /// A worker of the same name and tenant is connected at another node.
    WorkerRefused {
        /// The worker's name.
        worker: Name,
        /// The other node.
        node: Name,
    },
    /// A watched key has an entry.
    Located {
        /// The key.
        key: Key,
        /// The node of its owner.
        at: NodeAt,
        /// The entry's number.
        sequence: u64,
    },
    /// The node of a worker.
    WorkerLocated {
        /// The worker's name.
        worker: Name,
        /// The tenant that asked.
        tenant: Name,
        /// The worker's node; `None`: no such worker is connected.
        node: Option<Name>,
    },
    /// The address of a node.
    NodeLocated {
        /// The node's name.
        node: Name,
        /// The node's address; `None`: no such node is attached.
        at: Option<NodeAt>,
    },
}

/// A node that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAt {
    /// The node's name.
    pub node: Name,
    /// The address of its gRPC services, as host:port. Empty: none.
    pub address: Arc<str>,
    /// As in [`Hello`].
    pub local: Arc<str>,
    /// The node's incarnation.
    pub incarnation: u64,
}

/// An entry for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAt {
    /// The owner's worker name.
    pub owner: Name,
    /// The owner's node.
    pub at: NodeAt,
    /// The entry's number.
    pub sequence: u64,
}
