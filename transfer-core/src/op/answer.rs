//! Replies: what a worker hears from its sidecar.

use super::{CounterReport, Failure, LeaseId, OpId, Report, RosterAnswer};
use crate::memory::LocalSlice;
use crate::tensor::{Name, TensorMeta, Version};

/// One record in a worker's completion ring.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// An operation has ended.
    Answer {
        /// The number of the operation.
        op: OpId,
        /// The one answer that it gets.
        answer: Answer,
    },
    /// A worker of this node would watch a notice for the next versions of the key. Follows the answer to the push.
    Watched {
        /// The push that published the newest version.
        pushed: OpId,
    },
    /// Nobody can reach this pushed range any more: it belongs to the worker again.
    Returned {
        /// The push that lent it.
        pushed: OpId,
        /// Where it starts in the worker's arena, in bytes.
        offset: u64,
    },
    /// This number of versions is published under the key of a [`Request::CountUnfetched`](super::Request::CountUnfetched). None
    /// follows after 0.
    Unfetched {
        /// The number of the request.
        number: u64,
        /// The number of versions. `None`: the key is not the worker's.
        left: Option<u32>,
    },
}

/// The end of an operation. It has this one type from the node to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The version is visible; with `to`, it has landed there.
    Pushed {
        /// The version that it got.
        version: Version,
        /// Of a version of which deltas may follow: the bytes per second at which the versions before it left this node for the node that
        /// got them slowest. 0: none has left it, or so fast that nothing was measured.
        link_rate: u64,
        /// How it went.
        report: Report,
    },
    /// The tensor is here, and stays until the lease is released.
    Fetched {
        /// The lease, to be released.
        lease: LeaseId,
        /// The tensor.
        tensor: FetchedTensor,
    },
    /// The version lies in the range that the fetch named.
    Landed {
        /// Its version.
        version: Version,
        /// How the fetch went.
        report: Report,
    },
    /// The fetch ended without success, and the range that it named may be half new.
    Torn {
        /// The reason.
        failure: Failure,
    },
    /// The landing slots are there.
    Reserved,
    /// Nobody can reach that version any more: its range is the worker's to write.
    TakenBack {
        /// The version.
        version: Version,
        /// The push that published it.
        pushed: OpId,
        /// Where it starts in the worker's arena, in bytes.
        offset: u64,
    },
    /// The key is gone.
    Deleted,
    /// The counter exists.
    CounterOpened {
        /// The node where it lives, as long as its sidecar does.
        home: Name,
        /// Tells it from those that had the name before.
        identity: u64,
    },
    /// The operation on a counter is done.
    Counted {
        /// The counter's value before the operation.
        old: u64,
        /// How it went.
        report: CounterReport,
    },
    /// All have arrived at the barrier.
    Released {
        /// The number of the round, from 0.
        round: u64,
        /// Whether this arrival was the last one of its round. There is one in each.
        leader: bool,
        /// How it went.
        report: CounterReport,
    },
    /// The answer of a roster.
    Roster(RosterAnswer),
    /// The operation ended without success. A range that was pushed is the worker's again, unless `kept`. A range into which was
    /// to be fetched is untouched.
    Failed {
        /// The reason.
        failure: Failure,
        /// A transfer may still read the pushed range: [`Reply::Returned`] follows when none does any more.
        kept: bool,
    },
}

/// A fetched tensor. It does not change while its lease is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedTensor {
    /// Its version.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// Where it lies; with `ranges`, where its metadata and the table of its ranges lie.
    pub slice: LocalSlice,
    /// The number of ranges of that segment that make up its body. 0: the body lies in one piece, behind the metadata.
    pub ranges: u32,
    /// Whether it is the part that the fetch asked for, in one piece. If not, it is the whole version, and the part is to
    /// be looked for there.
    pub is_part: bool,
    /// Which publication a part is of: two parts of one version of a key are of the same push only if they have the same number, since a number of version
    /// comes again after its owner has begun anew. 0: it is not known, or this is no part.
    pub publication: u64,
    /// How the fetch went.
    pub report: Report,
}
