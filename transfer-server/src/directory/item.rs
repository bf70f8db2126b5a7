//! The messages between a node and the directory, as values.

use std::sync::Arc;
use transfer_core::protocol::{Claim, DirectoryRequest};
use transfer_core::tensor::{Key, Name};

/// The identity of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its name.
    pub node: Name,
    /// The address of its gRPC services, as host:port. Empty: none.
    pub address: Arc<str>,
    /// The number of this start, higher than all before.
    pub incarnation: u64,
    /// The path of a Unix socket at which others of its host may call it instead. Empty: none.
    pub local: Arc<str>,
    /// Whether it takes the name from another living sidecar.
    pub replace: bool,
}

/// An item that a node sends after its [`Hello`]. `directory.proto` describes the rules and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeItem {
    /// A key has an owner here. Answered by [`Answer::Claimed`], [`Answer::ClaimRefused`], [`Answer::ClaimDenied`] or
    /// [`Answer::ClaimFull`].
    Claim {
        /// The node's number for this claim.
        number: u64,
        /// The claim.
        claim: Claim,
    },
    /// Another request. [`Answer::Located`] and [`Answer::WorkerLocated`] answer those that have an answer.
    Request(DirectoryRequest),
    /// A worker connected here. Answered by [`Answer::WorkerAdmitted`] or [`Answer::WorkerRefused`].
    WorkerUp {
        /// Its name.
        worker: Name,
    },
    /// A worker left. No answer.
    WorkerDown {
        /// Its name.
        worker: Name,
    },
    /// Ask for the address of a node. Answered by [`Answer::NodeLocated`] at once.
    ResolveNode {
        /// The node's name.
        node: Name,
    },
    /// The node ends, and does not count as lost. Its attachment ends.
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
    /// Another sidecar wants this node's name. Answered by [`NodeItem::Pong`].
    Ping {
        /// The directory's number for it.
        ping: u64,
    },
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
        /// Its node.
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
        /// The limit.
        why: Arc<str>,
    },
    /// A key of this node is now entered for another one.
    Lost {
        /// The key.
        key: Key,
        /// Its owner.
        owner: Name,
    },
    /// The worker is entered.
    WorkerAdmitted {
        /// Its name.
        worker: Name,
    },
    /// A worker of that name is connected at another node.
    WorkerRefused {
        /// Its name.
        worker: Name,
        /// That node.
        node: Name,
    },
    /// A watched key was found.
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
        /// Its name.
        worker: Name,
        /// Its node; `None`: no such worker is connected.
        node: Option<Name>,
    },
    /// The address of a node.
    NodeLocated {
        /// Its name.
        node: Name,
        /// Its address; `None`: no such node is attached.
        at: Option<NodeAt>,
    },
}

/// A node that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAt {
    /// Its name.
    pub node: Name,
    /// The address of its gRPC services, as host:port. Empty: none.
    pub address: Arc<str>,
    /// As in [`Hello`].
    pub local: Arc<str>,
    /// Its incarnation.
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
