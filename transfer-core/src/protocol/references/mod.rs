//! References: versions of one node that workers of another node read in the memory of the first, over links whose two
//! sides share their memory.
//!
//! The owner answers a request with BY_REFERENCE in place of the bytes, and holds the version for the peer, as it does
//! for a worker, until RELEASE_REFERENCE. It does so only once the peer has confirmed that it keeps the segment: see
//! [`FabricEvent::SegmentKept`](crate::fabric::FabricEvent::SegmentKept). When the link is lost, the peer can no longer
//! release its references. The host of the owner's node is then asked repeatedly for readers
//! ([`HostAction::AskReaders`](crate::protocol::HostAction::AskReaders)), and the memory stays as it is until the host answers that there are none.
//!
//! # Layout
//! - `lent`: memory of this node that peers read. `foreign`: memory of peers that workers of this node read.

mod foreign;
mod lent;
#[cfg(test)]
mod tests;

pub(super) use foreign::Referred;
pub(super) use lent::{Lent, Passing};

use super::config::NodeConfig;
use super::ids::BlobId;
use super::slab::Slab;
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use foreign::Foreign;
use hashbrown::HashMap;
use lent::{Sharing, Unreturned};
use std::collections::BTreeMap;

/// The references between a node and its peers, as a state machine.
///
/// It knows links, segments and versions only by their ids. The node that holds it
/// - hands it **events**: both sides of a link allow references ([`begin`](References::begin)), a link is gone
///   ([`link_down`](References::link_down), then [`lost`](References::lost) and
///   [`keep_unreturned`](References::keep_unreturned)), a segment was passed, kept or ended, a
///   peer releases a reference ([`released`](References::released)), the host has checked for readers
///   ([`answered`](References::answered));
/// - carries out the **effects**: segments to pass and to unmap, and readers to check for, are pushed to the queue of
///   actions that comes with the event; versions that no peer reads are returned, and the node drops one reference to
///   each;
/// - asks [`look_at`](References::look_at) when to call [`look_after`](References::look_after).
pub(super) struct References {
    /// The most versions that peers may hold.
    limit: usize,
    /// The most requests of a peer that may wait until the peer has one segment.
    waiting_limit: usize,
    links: BTreeMap<LinkId, OfLink>,
    /// The segments of peers that this node keeps.
    foreign: HashMap<SegmentId, Foreign>,
    unreturned: Unreturned,
    /// The number of versions that peers hold, including the peers of lost links.
    held: usize,
}

/// The references over one link.
#[derive(Default)]
pub(super) struct OfLink {
    /// The link's number among the marks of readers.
    mark: u64,
    /// The segments of this node that were passed to the peer.
    shared: HashMap<SegmentId, Sharing>,
    /// The versions of this node that the peer holds.
    lent: Slab<BlobId>,
    /// The peer's segments that this node keeps, by the peer's number: this node's number and the length in bytes.
    kept: HashMap<u32, (SegmentId, u64)>,
}

impl References {
    /// Returns a machine without references.
    pub(super) fn new(config: &NodeConfig) -> References {
        References {
            limit: config.max_references,
            waiting_limit: config.max_requests_per_link,
            links: BTreeMap::new(),
            foreign: HashMap::new(),
            unreturned: Unreturned::default(),
            held: 0,
        }
    }

    /// Allows references over this link, under this mark.
    pub(super) fn begin(&mut self, link: LinkId, mark: u64) {
        self.links.entry(link).or_default().mark = mark;
    }

    /// Returns whether references are allowed over this link.
    pub(super) fn are_allowed(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Removes a link that is gone. The caller passes the returned value to [`lost`](References::lost).
    pub(super) fn link_down(&mut self, link: LinkId) -> Option<OfLink> {
        self.links.remove(&link)
    }

    /// Returns the number of blobs in segments of peers, and the number of versions that peers hold.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (u64, usize) {
        (self.foreign.values().map(Foreign::blobs).sum(), self.held)
    }

    /// Returns the mark of the link over which a peer's segment came.
    #[cfg(test)]
    pub(super) fn mark_of(&self, segment: SegmentId) -> Option<u64> {
        let keeps = |l: &&OfLink| l.kept.values().any(|(s, _)| *s == segment);
        self.links.values().find(keeps).map(|l| l.mark)
    }
}
