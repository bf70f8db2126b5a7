//! The links of a node to its peers: what is known of each peer, and what waits to be posted to it.
//!
//! # Layout
//! - `link`: one link that is up. `peers`: which nodes there is a link to, and who waits for one.
//! - `credits`: the receive slots of both ends.
//! - `outbox`: what waits to be posted. `post`: posting it, as credits and header cells allow.
//! - `cells`: the memory of landing headers, which all links share.
//! - `names`, `descriptions`: what both ends call by number. `numbers`: both of one link.

mod cells;
mod credits;
mod descriptions;
mod link;
mod names;
mod numbers;
mod outbox;
mod peers;
mod post;
#[cfg(test)]
mod tests;

pub(super) use link::Link;
pub(super) use outbox::{Out, OutWrite, Purpose};
pub(super) use peers::Before;

use super::config::NodeConfig;
use super::ids::BlobId;
use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::tensor::Name;
use cells::HeaderCells;
use hashbrown::HashMap;
use outbox::Outbox;
use peers::Peer;
use std::collections::{BTreeMap, VecDeque};

/// The links of a node, as a state machine.
///
/// It knows versions and operations by their ids, and nothing else of them. Whoever holds it
/// - hands it **events**: a link comes or goes ([`up`](Links::up), [`down`](Links::down)) or cannot be made
///   ([`connect_failed`](Links::connect_failed)), a peer has used a slot, given credits back, numbered a name or described a tensor
///   ([`slot_used`](Links::slot_used), [`given_back`](Links::given_back), [`name_told`](Links::name_told), [`hear`](Links::hear)), a write is
///   placed ([`write_done`](Links::write_done));
/// - gives it **commands**: [`post`](Links::post) something, [`connect`](Links::connect) to a node, end a link for a
///   [`violation`](Links::violation) or otherwise ([`disconnect`](Links::disconnect));
/// - calls [`flush`](Links::flush) when nothing else is left. What is posted goes into the queue of actions that is handed in.
///
/// **Getters** hand out [`Link`]s to read.
pub(super) struct Links {
    /// The most messages and writes that may wait for one peer.
    queue_limit: usize,
    /// The most names that a link keeps numbered in each direction.
    names_limit: usize,
    links: BTreeMap<LinkId, Link>,
    peers: HashMap<Name, Peer>,
    /// Links with something to post.
    dirty: Vec<LinkId>,
    cells: HeaderCells,
    /// A rule to break.
    #[cfg(test)]
    broken: Option<super::broken::Broken>,
}

/// What was under way on a link that is down.
pub(super) struct Lost {
    /// The peer.
    pub(super) peer: Name,
    /// The writes that were posted, and what they were for.
    pub(super) in_flight: Vec<(BlobId, Purpose)>,
    /// What was not posted.
    pub(super) unsent: VecDeque<Out>,
}

impl Links {
    /// No links. `headers` is registered memory for landing headers.
    pub(super) fn new(config: &NodeConfig, headers: LocalSlice) -> Links {
        Links {
            queue_limit: config.max_queued_per_link,
            names_limit: config.max_names_per_link,
            links: BTreeMap::new(),
            peers: HashMap::new(),
            dirty: Vec::new(),
            cells: HeaderCells::new(headers),
            #[cfg(test)]
            broken: config.broken,
        }
    }

    /// A link that is up.
    pub(super) fn get(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    /// The name of a link's peer; empty where the link is gone.
    pub(super) fn peer_name(&self, link: LinkId) -> &str {
        self.links.get(&link).map_or("", |l| l.peer().name.as_str())
    }

    /// All links that are up.
    pub(super) fn all(&self) -> &BTreeMap<LinkId, Link> {
        &self.links
    }

    /// The header cells and the writes that are in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> (usize, usize) {
        (self.cells.in_use(), self.links.values().map(Link::in_flight).sum())
    }

    /// Credits here, receive slots owed to the peer, and how many the peer has in all.
    #[cfg(test)]
    pub(super) fn credits(&self, link: LinkId) -> Option<(u32, u32, u32)> {
        self.links.get(&link).map(Link::all_credits)
    }

    /// Changes whose word is taken of a peer.
    #[cfg(test)]
    pub(super) fn set_vouches(&mut self, link: LinkId, vouches: super::tenant::Vouches) {
        if let Some(l) = self.links.get_mut(&link) {
            l.set_vouches(vouches);
        }
    }
}
