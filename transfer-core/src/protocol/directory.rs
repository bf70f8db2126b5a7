//! The requests of a node to the directory, and the directory's answers and news.

use crate::tensor::{Key, Name};

/// A claim of a key for its owner. Answered by [`DirectoryNews::Claimed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The key.
    pub key: Key,
    /// The owner's worker name.
    pub owner: Name,
    /// The owner's tenant: [`super::Tenants::name`].
    pub tenant: Name,
    /// Whether the owner is a worker of this node. If so, no other node can have a worker of that name. A tensor that
    /// landed here is claimed in the name of its owner, a worker elsewhere.
    pub resident: bool,
    /// Whether to take the key from its present owner. The present owner's node is sent [`DirectoryNews::KeyLost`].
    pub takeover: bool,
    /// The number by which a directory has entered the key for this owner and node before, or 0.
    pub entered: u64,
}

/// The directory's refusal of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimRefused {
    /// Another worker owns the key.
    Owned {
        /// The owner's name.
        owner: Name,
        /// The owner's node.
        node: Name,
    },
    /// The tenant may not have the key, or this node may not speak for the tenant. Holds the reason.
    Denied(String),
    /// The directory cannot be reached. Holds the reason.
    Unreachable(String),
    /// This node has reached its limit of keys in the directory. Holds a text that names the limit.
    Full(String),
}

/// A request to the directory, other than a [`Claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryRequest {
    /// Remove the entry of a key that has ended here. Has no answer.
    Unclaim {
        /// The key.
        key: Key,
    },
    /// Watch a key until it has an entry newer than `newer_than`, or until [`DirectoryRequest::StopResolve`]. Answered
    /// by [`DirectoryNews::Located`].
    Resolve {
        /// The key.
        key: Key,
        /// The number of the entry that proved wrong, or 0.
        newer_than: u64,
    },
    /// End a watch. Has no answer.
    StopResolve {
        /// The key.
        key: Key,
    },
    /// This node has claimed again all that it has. Follows [`DirectoryNews::Attached`], and has no answer.
    Recited,
    /// Find the node of a worker. Answered by [`DirectoryNews::WorkerLocated`].
    ResolveWorker {
        /// The worker's name.
        worker: Name,
        /// The tenant that asks: [`super::Tenants::name`]. Its own worker of that name is found before another
        /// tenant's.
        tenant: Name,
    },
}

/// An answer or a message of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryNews {
    /// This node is attached to a directory that has none of the node's entries. The node claims all of its keys again.
    Attached,
    /// The answer to a [`Claim`]. If a key was granted without the directory, a refusal may follow later.
    Claimed {
        /// The key.
        key: Key,
        /// `Ok` if this node now has the entry, with the entry's number; 0 if the key was granted without the directory.
        result: Result<u64, ClaimRefused>,
    },
    /// A key of this node now has another owner, or the same owner at another node.
    KeyLost {
        /// The key.
        key: Key,
        /// The new owner.
        owner: Name,
    },
    /// The answer to [`DirectoryRequest::Resolve`].
    Located {
        /// The key.
        key: Key,
        /// The node that owns it.
        node: Name,
        /// The number of the entry. A higher number is newer.
        sequence: u64,
    },
    /// The answer to [`DirectoryRequest::ResolveWorker`].
    WorkerLocated {
        /// The worker's name.
        worker: Name,
        /// The tenant that asked.
        tenant: Name,
        /// The worker's node. `None`: no worker of that name is connected.
        node: Option<Name>,
    },
}
