//! The state of a copy.

use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::memory::{ALIGNMENT, padded};
use crate::protocol::ids::{BlobId, OperationId, OutFlowId, PullId};
use crate::protocol::node::replies::Carried;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Excerpt, Key, TensorMeta};
use crate::time::Time;
use crate::wire::landing::Header;

/// Who wants a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol::node) enum CopyReader {
    /// A fetch of a worker of this node.
    Op(OperationId),
    /// The request of a peer with this index.
    Peer(LinkId, u32),
    /// A push to a worker of another node, by this flow.
    Push(OperationId, LinkId, OutFlowId),
    /// A request of this node, whose answer has come as a delta: see `fetching/deltas`.
    Pull(LinkId, PullId),
}

/// A delta that has landed.
pub(in crate::protocol::node) struct LandedDelta {
    pub(in crate::protocol::node) range: Allocation,
    pub(in crate::protocol::node) header: Header,
    /// The description of the version.
    pub(in crate::protocol::node) meta: TensorMeta,
    pub(in crate::protocol::node) carried: Carried,
}

/// A copy that waits for room or is in progress.
pub(in crate::protocol::node) struct Copying {
    /// Who wants it. `None` once that has ended: the copy then only waits until its bytes are copied.
    pub(in crate::protocol::node) wanted_by: Option<CopyReader>,
    /// Others that share it.
    pub(in crate::protocol::node) also: Vec<CopyReader>,
    pub(in crate::protocol::node) key: Key,
    pub(in crate::protocol::node) from: BlobId,
    /// The part to copy. `None`: all of it.
    pub(in crate::protocol::node) excerpt: Option<Excerpt>,
    /// The tenant in whose landing pool the copy will lie.
    pub(in crate::protocol::node) reader: Tenant,
    pub(in crate::protocol::node) len: u64,
    /// The room in the reader's landing pool, once it is allocated.
    pub(in crate::protocol::node) to: Option<Allocation>,
    /// When the room was allocated; until then, when the fetch asked for the copy.
    pub(in crate::protocol::node) began: Time,
    /// Whether the copy counts as a fetch of the version, by who wants it. A request of a peer counts by itself.
    pub(in crate::protocol::node) is_fetch: bool,
    /// The link on which it has a place among those that are packed.
    pub(in crate::protocol::node) place: Option<LinkId>,
    /// The delta by which `from` becomes the version that is made. `None`: it is copied.
    pub(in crate::protocol::node) delta: Option<Box<LandedDelta>>,
}

impl Copying {
    /// Returns how much room the copy waits for, in bytes. `None` if it has room.
    pub(in crate::protocol::node) fn needs(&self) -> Option<u64> {
        match self.to {
            // An empty tensor takes the smallest size that can be allocated.
            None => padded(self.len).map(|len| len.max(ALIGNMENT)),
            Some(_) => None,
        }
    }
}
