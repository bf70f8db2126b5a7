//! Memory of one node that workers of another read by reference, over links whose two sides share their memory.
//!
//! The owner answers a request with BY_REFERENCE in place of the bytes, and holds the version for the peer as it holds one for a worker,
//! until RELEASE_REFERENCE. It does so only once the peer has said of the segment that it has it, and keeps it: see
//! [`FabricEvent::SegmentKept`](crate::fabric::FabricEvent::SegmentKept). When the link is lost, nobody can say who still reads. Then the
//! host of the node is asked repeatedly ([`HostAction::AskReaders`]), and the memory stays as it is until the answer is that nobody does.
//!
//! # Layout
//! - `lent`: memory of ours that peers read. `foreign`: memory of peers that workers of ours read.

mod foreign;
mod lent;
#[cfg(test)]
mod tests;

pub(super) use foreign::Referred;
pub(super) use lent::Passing;

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
/// It knows links, segments and versions by their ids, and nothing else of them. Whoever holds it
/// - hands it **events**: both sides of a link allow references ([`begin`](References::begin)), a link is gone
///   ([`link_down`](References::link_down), then [`lost`](References::lost)), a segment was passed, kept or ended, a peer gives a reference
///   back ([`released`](References::released)), the host has looked for readers ([`answered`](References::answered));
/// - does what **comes out**: segments to pass and to forget, and readers to look for, go into the queue of actions that is handed in with
///   the event; versions that nobody reads are returned, each to be let go;
/// - asks [`look_at`](References::look_at) when to call [`look_after`](References::look_after).
pub(super) struct References {
    /// The most versions that peers may hold.
    limit: usize,
    /// The most requests that may wait for one segment to be kept.
    waiting_limit: usize,
    links: BTreeMap<LinkId, OfLink>,
    /// Segments of peers.
    foreign: HashMap<SegmentId, Foreign>,
    unreturned: Unreturned,
    /// How many versions peers hold, those of links that are lost too.
    held: usize,
}

/// The references over one link.
#[derive(Default)]
pub(super) struct OfLink {
    /// The link's number among the marks of readers.
    mark: u64,
    /// Segments of ours that the peer was passed.
    shared: HashMap<SegmentId, Sharing>,
    /// What the peer holds of ours.
    lent: Slab<BlobId>,
    /// The peer's segments that we keep, as it calls them: how we call them, and their lengths.
    kept: HashMap<u32, (SegmentId, u64)>,
}

impl References {
    /// No references.
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

    /// The two sides of this link may refer to each other's memory.
    pub(super) fn begin(&mut self, link: LinkId, mark: u64) {
        self.links.entry(link).or_default().mark = mark;
    }

    /// Whether the two sides of this link may refer to each other's memory.
    pub(super) fn are_allowed(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// A link is gone. What was referred to over it goes to [`lost`](References::lost).
    pub(super) fn link_down(&mut self, link: LinkId) -> Option<OfLink> {
        self.links.remove(&link)
    }

    /// What is held of others, and for others.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (u64, usize) {
        (self.foreign.values().map(Foreign::blobs).sum(), self.held)
    }

    /// The mark of the link over which a peer's segment came.
    #[cfg(test)]
    pub(super) fn mark_of(&self, segment: SegmentId) -> Option<u64> {
        let keeps = |l: &&OfLink| l.kept.values().any(|(s, _)| *s == segment);
        self.links.values().find(keeps).map(|l| l.mark)
    }
}
