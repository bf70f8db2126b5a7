//! How a version spreads: the nodes to which this one sends it, and those that it has sent to other nodes for it.
//!
//! The nodes are in the order in which they came. A node is sent only to nodes that came before it, so no two wait for each other,
//! however often they ask, and though a node may come back over another link.

use super::Keys;
use crate::fabric::LinkId;
use crate::protocol::ids::BlobId;
use crate::tensor::Name;
use crate::wire::message::MAX_SOURCES;

/// The most nodes that are kept for one version. Others are sent on, and nobody is sent to them.
const MAX_NODES: usize = 1 << 12;

/// The nodes that have a version or will have it.
#[derive(Default)]
pub(super) struct Spread {
    nodes: Vec<Node>,
    proof: Proof,
    /// The requests that wait for the digest.
    waiting: Vec<(LinkId, u32)>,
}

#[derive(Default)]
enum Proof {
    #[default]
    None,
    Making,
    Made([u8; 16]),
}

struct Node {
    link: LinkId,
    name: Name,
    /// How many times the version is on its way to it from here.
    sends: u32,
    /// How many nodes were sent to it first.
    children: usize,
}

/// What an owner does with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spreads {
    /// It sends the version.
    Send,
    /// The request waits for the digest of the version, which is to be made if this is true.
    Prove(bool),
    /// Nodes have the version, or will have it, and it has this digest.
    Redirect([u8; 16], [Name; MAX_SOURCES]),
}

impl Spread {
    fn place(&self, name: &Name) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == *name)
    }

    /// Returns the nodes to which a node is sent that is at this place, or is to be: those that came before it. The first of them is the
    /// first one with fewer children than `fan_out`.
    fn sources(&self, place: usize, fan_out: usize, is_up: impl Fn(LinkId) -> bool) -> Vec<usize> {
        let before = self.nodes.iter().enumerate().take(place);
        let mut found: Vec<_> = before.filter(|(_, node)| is_up(node.link)).map(|(at, _)| at).collect();
        found.sort_by_key(|at| (self.nodes[*at].children / fan_out.max(1), *at));
        found.truncate(MAX_SOURCES);
        found
    }
}

impl Keys {
    /// Decides what becomes of the request of a node for a version, of which `fan_out` nodes get it from here at a time. For one that has
    /// waited for the digest it `is_decided`: it goes to another node, if there is one.
    pub(crate) fn spread(
        &mut self,
        blob: BlobId,
        (link, index, name): (LinkId, u32, &Name),
        fan_out: usize,
        is_decided: bool,
        is_up: impl Fn(LinkId) -> bool,
    ) -> Spreads {
        let spread = self.spreads.entry(blob).or_default();
        let place = spread.place(name);
        let is_sent = |node: &&Node| node.sends > 0 && is_up(node.link);
        let busy = spread.nodes.iter().filter(is_sent).count();
        if busy < fan_out && !is_decided
            || place.is_some_and(|at| spread.nodes[at].link == link && spread.nodes[at].sends > 0)
        {
            return Spreads::Send;
        }
        let sources = spread.sources(place.unwrap_or(usize::MAX), fan_out, &is_up);
        let Some(first) = sources.first().copied() else { return Spreads::Send };
        let Proof::Made(digest) = spread.proof else {
            spread.waiting.push((link, index));
            let begins = matches!(spread.proof, Proof::None);
            spread.proof = Proof::Making;
            return Spreads::Prove(begins);
        };
        spread.nodes[first].children += 1;
        let names = std::array::from_fn(|n| spread.nodes[sources.get(n).copied().unwrap_or(first)].name.clone());
        spread.enter(link, name, &is_up);
        Spreads::Redirect(digest, names)
    }

    /// Notes that a version is sent to a node.
    pub(crate) fn send_begins(&mut self, blob: BlobId, link: LinkId, name: &Name) {
        let spread = self.spreads.entry(blob).or_default();
        if let Some(at) = spread.enter(link, name, |_| true) {
            spread.nodes[at].sends += 1;
        }
    }

    /// Notes that a version is not on its way to a node any more.
    pub(crate) fn send_ends(&mut self, blob: BlobId, link: LinkId) {
        let Some(spread) = self.spreads.get_mut(&blob) else { return };
        if let Some(node) = spread.nodes.iter_mut().find(|node| node.link == link) {
            node.sends = node.sends.saturating_sub(1);
        }
    }

    /// Forgets a request that has waited for a digest, and has ended.
    pub(crate) fn waits_no_more(&mut self, blob: BlobId, request: (LinkId, u32)) {
        if let Some(spread) = self.spreads.get_mut(&blob) {
            spread.waiting.retain(|waiting| *waiting != request);
        }
    }

    /// Whether nodes were sent to others for a version.
    pub(crate) fn has_spread(&self, blob: BlobId) -> bool {
        self.spreads.get(&blob).is_some_and(|spread| !matches!(spread.proof, Proof::None))
    }

    /// Stores the digest of a version. Returns the requests that have waited for it.
    pub(crate) fn proved(&mut self, blob: BlobId, digest: [u8; 16]) -> Vec<(LinkId, u32)> {
        let Some(spread) = self.spreads.get_mut(&blob) else { return Vec::new() };
        spread.proof = Proof::Made(digest);
        std::mem::take(&mut spread.waiting)
    }
}

impl Spread {
    /// Enters a node behind the others, if it is not there yet. Returns its place.
    fn enter(&mut self, link: LinkId, name: &Name, is_up: impl Fn(LinkId) -> bool) -> Option<usize> {
        if let Some(at) = self.place(name) {
            let node = &mut self.nodes[at];
            if node.link != link {
                // What was on its way over its link before has ended.
                (node.link, node.sends) = (link, 0);
            }
            return Some(at);
        }
        if self.nodes.len() >= MAX_NODES {
            self.nodes.retain(|node| is_up(node.link));
        }
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        self.nodes.push(Node { link, name: name.clone(), sends: 0, children: 0 });
        Some(self.nodes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slab::Id;

    /// A version of an owner, and the nodes that ask for it by their links.
    fn asks(keys: &mut Keys, n: u32) -> Spreads {
        let (blob, name) = (Id::from_u64(0), Name::new(&format!("n{n}")).unwrap());
        let way = keys.spread(blob, (LinkId(n), 0, &name), 2, false, |link| link != LinkId(99));
        if way == Spreads::Send {
            keys.send_begins(blob, LinkId(n), &name);
        }
        way
    }

    fn first_source(way: &Spreads) -> String {
        let Spreads::Redirect(_, names) = way else { panic!("{way:?}") };
        names[0].as_str().to_owned()
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_are_sent_to_those_before_them_in_a_tree() {
        let mut keys = Keys::default();
        let blob = Id::from_u64(0);
        assert_eq!([1, 2].map(|n| asks(&mut keys, n)), [Spreads::Send, Spreads::Send]);
        assert_eq!(asks(&mut keys, 1), Spreads::Send, "nodes are counted, not transfers");
        keys.send_ends(blob, LinkId(1));
        assert_eq!(asks(&mut keys, 3), Spreads::Prove(true));
        assert_eq!(asks(&mut keys, 4), Spreads::Prove(false));
        assert_eq!(keys.proved(blob, [7; 16]), [(LinkId(3), 0), (LinkId(4), 0)]);
        let first: Vec<_> = (3..9).map(|n| first_source(&asks(&mut keys, n))).collect();
        assert_eq!(first, ["n1", "n1", "n2", "n2", "n3", "n3"]);
        // Who asks again is sent to no node that may wait for it.
        let Spreads::Redirect(digest, names) = asks(&mut keys, 4) else { panic!() };
        assert_eq!(digest, [7; 16]);
        let mut names = names.map(|name| name.as_str().to_owned());
        names.sort();
        assert_eq!(names, ["n1", "n2", "n3"]);
        // A node for which there is no other asks here.
        keys.send_ends(blob, LinkId(1));
        keys.send_ends(blob, LinkId(2));
        assert_eq!(asks(&mut keys, 9), Spreads::Send, "two are done");
    }
}
