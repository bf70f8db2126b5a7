//! What a node asks the directory, and what the directory tells it.

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
    /// Whether the owner is a worker of this node, so that no other node can have a worker of its name. A tensor that landed here for a
    /// worker elsewhere is claimed in its name, too.
    pub resident: bool,
    /// Whether to take the key from its present owner, whose node is told [`DirectoryNews::KeyLost`].
    pub takeover: bool,
}

/// The directory's refusal of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimRefused {
    /// Another worker owns the key.
    Owned {
        /// Its name.
        owner: Name,
        /// Its node.
        node: Name,
    },
    /// The tenant may not have the key, or this node may not speak for the tenant. With the reason.
    Denied(String),
    /// The directory cannot be reached. With the reason.
    Unreachable(String),
    /// This node has reached its limit of keys in the directory. With the limit.
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
    /// Watch a key until it has an entry newer than `newer_than`, or until [`DirectoryRequest::StopResolve`]. Answered by
    /// [`DirectoryNews::Located`].
    Resolve {
        /// The key.
        key: Key,
        /// The number of the entry that proved wrong; 0 for none.
        newer_than: u64,
    },
    /// End a watch. Has no answer.
    StopResolve {
        /// The key.
        key: Key,
    },
    /// Find the node of a worker. Answered by [`DirectoryNews::WorkerLocated`].
    ResolveWorker {
        /// The worker's name.
        worker: Name,
    },
}

/// News of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryNews {
    /// This node is attached to a directory that has none of its entries: it claims all of its keys again.
    Attached,
    /// The answer to a [`Claim`]. A refusal may follow later where a key was granted without the directory.
    Claimed {
        /// The key.
        key: Key,
        /// Whether this node has the entry now.
        result: Result<(), ClaimRefused>,
    },
    /// A key of this node now has another owner, or the same owner at another node.
    KeyLost {
        /// The key.
        key: Key,
        /// The owner now.
        owner: Name,
    },
    /// The answer to [`DirectoryRequest::Resolve`].
    Located {
        /// The key.
        key: Key,
        /// The node that owns it.
        node: Name,
        /// The entry's number: higher is newer.
        sequence: u64,
    },
    /// The answer to [`DirectoryRequest::ResolveWorker`].
    WorkerLocated {
        /// The worker's name.
        worker: Name,
        /// Its node; `None`: no such worker is connected.
        node: Option<Name>,
    },
}
