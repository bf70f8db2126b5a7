//! The links of a node to its peers: the state of each link, and the messages and writes that wait to be posted to it.
//!
//! # Layout
//! - `link`: one link that is up. `peers`: the nodes to which there is a link, and the operations that wait for one.
//! - `credits`: the receive slots of both ends.
//! - `outbox`: the messages and writes that wait to be posted. `post`: posts them, as credits and header cells allow.
//! - `cells`: the memory of landing headers, which all links share.
//! - `names`, `descriptions`: the names and descriptions that both ends refer to by number. `numbers`: both, for one
//!   link.

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
use super::control::PeerInfo;
use super::ids::BlobId;
use super::rules::Rules;
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
/// It knows versions and operations only by their ids. Its caller
/// - passes in **events**: a link comes or goes ([`up`](Links::up), [`down`](Links::down)) or cannot be made
///   ([`connect_failed`](Links::connect_failed)), a peer has used a slot, given credits back, numbered a name or
///   described a tensor ([`slot_used`](Links::slot_used), [`given_back`](Links::given_back),
///   [`name_told`](Links::name_told), [`hear`](Links::hear)), a write is placed ([`write_done`](Links::write_done));
/// - gives **commands**: [`post`](Links::post) a message or a write, [`connect`](Links::connect) to a node, end a link
///   for a [`violation`](Links::violation) or for another reason ([`disconnect`](Links::disconnect));
/// - calls [`flush`](Links::flush) after all other work. Posts go into the queue of actions that is passed in.
///
/// **Getters** return [`Link`]s to read.
pub(super) struct Links {
    /// The most messages and writes that may wait for one peer.
    queue_limit: usize,
    /// The most names that a link keeps numbered in each direction.
    names_limit: usize,
    links: BTreeMap<LinkId, Link>,
    peers: HashMap<Name, Peer>,
    /// Links that have something to post.
    dirty: Vec<LinkId>,
    cells: HeaderCells,
    rules: Rules,
}

/// The work that was in flight or queued on a link that is down.
pub(super) struct Lost {
    /// The name of the peer.
    pub(super) peer: Name,
    /// The version and the purpose of each write that was posted.
    pub(super) in_flight: Vec<(BlobId, Purpose)>,
    /// The messages and writes that were not posted.
    pub(super) unsent: VecDeque<Out>,
}

impl Links {
    /// Creates the links of a node, with none up. `headers` is registered memory for landing headers.
    pub(super) fn new(config: &NodeConfig, headers: LocalSlice) -> Links {
        Links {
            queue_limit: config.max_queued_per_link,
            names_limit: config.max_names_per_link,
            links: BTreeMap::new(),
            peers: HashMap::new(),
            dirty: Vec::new(),
            cells: HeaderCells::new(headers),
            rules: config.rules,
        }
    }

    /// Returns a link that is up.
    pub(super) fn get(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    /// Returns the peer of a link that is up.
    pub(super) fn peer_of(&self, link: LinkId) -> Option<&PeerInfo> {
        self.get(link).map(Link::peer)
    }

    /// Returns the name of a link's peer, or an empty name if the link is gone.
    pub(super) fn peer_name(&self, link: LinkId) -> &str {
        self.links.get(&link).map_or("", |l| l.peer().name.as_str())
    }

    /// Returns all links that are up.
    pub(super) fn all(&self) -> &BTreeMap<LinkId, Link> {
        &self.links
    }

    /// Returns how many header cells and how many writes are in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> (usize, usize) {
        (self.cells.in_use(), self.links.values().map(Link::in_flight).sum())
    }

    /// Returns the free credits, the receive slots owed to the peer, and the number of the peer's receive slots.
    #[cfg(test)]
    pub(super) fn credits(&self, link: LinkId) -> Option<(u32, u32, u32)> {
        self.links.get(&link).map(Link::all_credits)
    }

    /// Changes the tenants for which a peer may speak.
    #[cfg(test)]
    pub(super) fn set_vouches(&mut self, link: LinkId, vouches: super::tenant::Vouches) {
        if let Some(l) = self.links.get_mut(&link) {
            l.set_vouches(vouches);
        }
    }
}
