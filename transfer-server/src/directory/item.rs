//! What a node and the directory say to each other, as values.

use std::sync::Arc;
use transfer_core::tensor::{Key, Name};

/// Who a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its name.
    pub node: Name,
    /// Where its gRPC services listen, as host:port. Empty: nowhere.
    pub address: Arc<str>,
    /// Another number at each start, higher than before.
    pub incarnation: u64,
    /// Where others of its host may call it instead: the path of a Unix socket. Empty: nowhere.
    pub local: Arc<str>,
    /// Whether it takes the place of another sidecar of its name that lives.
    pub replace: bool,
}

/// What a node says after its [`Hello`]. Rules and answers stand in `directory.proto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeItem {
    /// A key has an owner here. Answered by [`Answer::Claimed`] [`Answer::ClaimRefused`] or [`Answer::ClaimFull`].
    Claim {
        /// The node's number for this claim.
        claim: u64,
        /// The key.
        key: Key,
        /// The owner's worker name.
        owner: Name,
        /// That worker's tenant.
        tenant: Name,
        /// Whether the owner is a worker of this node.
        resident: bool,
        /// Whether to take it from whoever has it.
        takeover: bool,
    },
    /// A key ended here. No answer.
    Unclaim {
        /// The key.
        key: Key,
    },
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
    /// Watch a key. Answered by [`Answer::Located`] once there is an entry newer than that.
    Resolve {
        /// The key.
        key: Key,
        /// The number of the entry that proved wrong; 0 for none.
        newer_than: u64,
    },
    /// End a watch. No answer.
    StopResolve {
        /// The key.
        key: Key,
    },
    /// Answered by [`Answer::WorkerLocated`] at once.
    ResolveWorker {
        /// The worker's name.
        worker: Name,
    },
    /// Answered by [`Answer::NodeLocated`] at once.
    ResolveNode {
        /// The node's name.
        node: Name,
    },
    /// The node is ending, and is not to be missed. Its attachment ends.
    Leave,
    /// Answers [`Answer::Ping`].
    Pong {
        /// As in the question.
        ping: u64,
    },
}

/// What the directory says.
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
        claim: u64,
        /// The entry's number.
        sequence: u64,
    },
    /// Another worker owns the key.
    ClaimRefused {
        /// As in [`NodeItem::Claim`].
        claim: u64,
        /// The owner.
        owner: Name,
        /// Its node.
        node: Name,
    },
    /// The tenant may not have the key, or this node may not speak for it.
    ClaimDenied {
        /// As in [`NodeItem::Claim`].
        claim: u64,
        /// Why.
        why: Arc<str>,
    },
    /// The node has as many keys as it may.
    ClaimFull {
        /// As in [`NodeItem::Claim`].
        claim: u64,
        /// The limit.
        why: Arc<str>,
    },
    /// A key that was entered for this node is entered for another one now.
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
        /// Where it is.
        at: NodeAt,
        /// The entry's number.
        sequence: u64,
    },
    /// Where a worker is.
    WorkerLocated {
        /// Its name.
        worker: Name,
        /// Its node; `None`: no such worker is connected.
        node: Option<Name>,
    },
    /// Where a node is.
    NodeLocated {
        /// Its name.
        node: Name,
        /// Where; `None`: no such node is attached.
        at: Option<NodeAt>,
    },
}

/// A node that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAt {
    /// Its name.
    pub node: Name,
    /// Where its gRPC services listen, as host:port. Empty: nowhere.
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
