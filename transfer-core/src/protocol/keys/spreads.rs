//! How a version spreads: the nodes to which this one sends it, and those that it has sent to other nodes for it.
//!
//! The nodes are in the order in which they came. A node is sent only to nodes that came before it, and to those that have the version,
//! so no two wait for each other, however often they ask, and though a node may come back over another link.

use super::Keys;
use crate::fabric::LinkId;
use crate::protocol::ids::BlobId;
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::message::MAX_SOURCES;
use std::time::Duration;

/// The most nodes that are kept for one version. Others are sent on, and nobody is sent to them.
const MAX_NODES: usize = 1 << 12;

/// How long a node that the version is sent to counts as busy without a slot for it.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// The nodes that have a version or will have it.
#[derive(Default)]
pub(super) struct Spread {
    nodes: Vec<ReachedNode>,
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

struct ReachedNode {
    link: LinkId,
    name: Name,
    /// How many times the version is on its way to it from here.
    sends: u32,
    /// Until when one that is on its way counts: a node may have no room for it, or stop.
    busy_until: Time,
    /// How many nodes are waiting that were sent to it first.
    children: usize,
    /// The version has come to it, as far as is known here.
    has_it: bool,
    /// It has had the version. Others may wait for it, so it waits for nobody.
    had_it: bool,
    /// It has not sent the version to a node that was sent to it, and has not asked for it since.
    has_failed: bool,
}

impl ReachedNode {
    fn came(&mut self, has_come: bool) {
        (self.has_it, self.had_it) = (self.has_it || has_come, self.had_it || has_come);
        self.has_failed &= !has_come;
    }
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

/// How many nodes get a version at a time, when that is asked, and which links are up.
#[derive(Clone, Copy)]
pub(crate) struct Fan<F> {
    pub(crate) out: usize,
    pub(crate) now: Time,
    pub(crate) is_up: F,
}

impl<F: Fn(LinkId) -> bool> Fan<F> {
    fn is_busy(&self, node: &ReachedNode) -> bool {
        node.sends > 0 && self.now < node.busy_until && (self.is_up)(node.link)
    }
}

impl Spread {
    fn place(&self, name: &Name) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == *name)
    }

    fn is_free<F: Fn(LinkId) -> bool>(&self, fan: &Fan<F>) -> bool {
        self.nodes.iter().filter(|node| fan.is_busy(node)).count() < fan.out
    }

    /// Returns the nodes to which a node is sent that is at this place, or is to be: those that came before it, and those that have
    /// the version. The first of them is the first one with fewer children than it may have; one that has the version goes before
    /// one that waits for it.
    fn sources<F: Fn(LinkId) -> bool>(&self, place: usize, fan: &Fan<F>) -> Vec<usize> {
        let is_source = |(at, node): &(usize, &ReachedNode)| {
            (*at < place || node.has_it && *at != place) && !node.has_failed && (fan.is_up)(node.link)
        };
        let mut found: Vec<_> = self.nodes.iter().enumerate().filter(is_source).map(|(at, _)| at).collect();
        found.sort_by_key(|at| (self.nodes[*at].children / fan.out.max(1), !self.nodes[*at].has_it, *at));
        found.truncate(MAX_SOURCES);
        found
    }
}

impl Keys {
    /// Decides what becomes of the request of a node for a version. For one that has waited for the digest it `is_decided`: it goes to
    /// another node, if there is one.
    pub(crate) fn spread<F: Fn(LinkId) -> bool>(
        &mut self,
        blob: BlobId,
        (link, index, name): (LinkId, u32, &Name),
        is_decided: bool,
        fan: &Fan<F>,
    ) -> Spreads {
        let spread = self.spreads.entry(blob).or_default();
        let place = spread.place(name);
        if spread.is_free(fan) && !is_decided
            || place.is_some_and(|at| spread.nodes[at].had_it)
            || place.is_some_and(|at| spread.nodes[at].link == link && spread.nodes[at].sends > 0)
        {
            return Spreads::Send;
        }
        let sources = spread.sources(place.unwrap_or(usize::MAX), fan);
        let Some(first) = sources.first().copied() else { return Spreads::Send };
        let Proof::Made(digest) = spread.proof else {
            spread.waiting.push((link, index));
            let begins = matches!(spread.proof, Proof::None);
            spread.proof = Proof::Making;
            return Spreads::Prove(begins);
        };
        spread.nodes[first].children += 1;
        let names = std::array::from_fn(|n| spread.nodes[sources.get(n).copied().unwrap_or(first)].name.clone());
        spread.enter(link, name, &fan.is_up);
        Spreads::Redirect(digest, names)
    }

    /// Notes that a version is sent to a node, as soon as that has a slot for it.
    pub(crate) fn send_begins(&mut self, now: Time, blob: BlobId, link: LinkId, name: &Name) {
        let spread = self.spreads.entry(blob).or_default();
        if let Some(at) = spread.enter(link, name, |_| true) {
            let node = &mut spread.nodes[at];
            (node.sends, node.busy_until) = (node.sends + 1, now + SLOT_TIMEOUT);
        }
    }

    /// Notes that a node has a slot for the version, which is on its way to it until this time at most.
    pub(crate) fn send_flows(&mut self, blob: BlobId, link: LinkId, until: Time) {
        if let Some(node) = self.spreading_to(blob, link) {
            node.busy_until = until;
        }
    }

    /// Notes that a version is not on its way to a node any more, and whether it has come.
    pub(crate) fn send_ends(&mut self, blob: BlobId, link: LinkId, has_come: bool) {
        if let Some(node) = self.spreading_to(blob, link) {
            node.sends = node.sends.saturating_sub(1);
            node.came(has_come);
        }
    }

    /// Notes that a node that was sent to others, this one first, waits no more, and whether the version has come to it.
    pub(crate) fn sent_node_ends(&mut self, blob: BlobId, link: LinkId, first: &Name, has_come: bool) {
        if let Some(node) = self.spreading_to(blob, link) {
            node.came(has_come);
        }
        let Some(spread) = self.spreads.get_mut(&blob) else { return };
        if let Some(at) = spread.place(first) {
            spread.nodes[at].children = spread.nodes[at].children.saturating_sub(1);
        }
    }

    /// Notes that a node which was sent to others does not get the version from this one of them, and asks the next. It counted as waiting
    /// for the first.
    pub(crate) fn source_failed(&mut self, blob: BlobId, [counted, failed, next]: [&Name; 3]) {
        let Some(spread) = self.spreads.get_mut(&blob) else { return };
        if let Some(node) = spread.place(counted).map(|at| &mut spread.nodes[at]) {
            node.children = node.children.saturating_sub(1);
        }
        if let Some(node) = spread.place(failed).map(|at| &mut spread.nodes[at]) {
            (node.has_it, node.has_failed) = (false, true);
        }
        if let Some(node) = spread.place(next).map(|at| &mut spread.nodes[at]) {
            node.children += 1;
        }
    }

    fn spreading_to(&mut self, blob: BlobId, link: LinkId) -> Option<&mut ReachedNode> {
        self.spreads.get_mut(&blob)?.nodes.iter_mut().find(|node| node.link == link)
    }

    /// Whether requests wait for the digest of a version.
    pub(crate) fn has_unproved(&self, blob: BlobId) -> bool {
        self.spreads.get(&blob).is_some_and(|spread| !spread.waiting.is_empty())
    }

    /// Takes the first request that waits for the digest of a version, if it can be answered from here.
    pub(crate) fn next_unproved<F: Fn(LinkId) -> bool>(&mut self, blob: BlobId, fan: &Fan<F>) -> Option<(LinkId, u32)> {
        let spread = self.spreads.get_mut(&blob)?;
        let is_one = !spread.waiting.is_empty() && spread.is_free(fan);
        is_one.then(|| spread.waiting.remove(0))
    }

    /// Forgets a request that has waited for a digest, and has ended.
    pub(crate) fn waits_no_more(&mut self, blob: BlobId, request: (LinkId, u32)) {
        if let Some(spread) = self.spreads.get_mut(&blob) {
            spread.waiting.retain(|waiting| *waiting != request);
        }
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
            node.has_failed = false;
            if node.link != link {
                // What was on its way over its link before has ended. It may be another process, which has nothing.
                (node.link, node.sends, node.has_it) = (link, 0, false);
            }
            return Some(at);
        }
        if self.nodes.len() >= MAX_NODES {
            self.nodes.retain(|node| is_up(node.link));
        }
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        let (link, name, busy_until) = (link, name.clone(), Time(0));
        let (has_it, had_it, has_failed) = (false, false, false);
        self.nodes.push(ReachedNode { link, name, sends: 0, busy_until, children: 0, has_it, had_it, has_failed });
        Some(self.nodes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slab::Id;

    /// A version of an owner, and the nodes that ask for it by their links, at a second.
    fn asks(keys: &mut Keys, n: u32, second: u64) -> Spreads {
        let (blob, name) = (Id::from_u64(0), Name::new(&format!("n{n}")).unwrap());
        let now = Time(0) + Duration::from_secs(second);
        let fan = Fan { out: 2, now, is_up: |link| link != LinkId(99) };
        let way = keys.spread(blob, (LinkId(n), 0, &name), false, &fan);
        if way == Spreads::Send {
            keys.send_begins(now, blob, LinkId(n), &name);
            keys.send_flows(blob, LinkId(n), now + Duration::from_secs(30));
        }
        way
    }

    fn sources(way: &Spreads) -> Vec<String> {
        let Spreads::Redirect(_, names) = way else { panic!("{way:?}") };
        names.iter().map(|name| name.as_str().to_owned()).collect()
    }

    fn first_source(way: &Spreads) -> String {
        sources(way)[0].clone()
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_are_sent_to_those_before_them_in_a_tree() {
        let mut keys = Keys::default();
        let blob = Id::from_u64(0);
        assert_eq!([1, 2].map(|n| asks(&mut keys, n, 0)), [Spreads::Send, Spreads::Send]);
        assert_eq!(asks(&mut keys, 1, 0), Spreads::Send, "nodes are counted, not transfers");
        keys.send_ends(blob, LinkId(1), false);
        assert_eq!(asks(&mut keys, 3, 0), Spreads::Prove(true));
        assert_eq!(asks(&mut keys, 4, 0), Spreads::Prove(false));
        assert_eq!(keys.proved(blob, [7; 16]), [(LinkId(3), 0), (LinkId(4), 0)]);
        let first: Vec<_> = (3..9).map(|n| first_source(&asks(&mut keys, n, 0))).collect();
        assert_eq!(first, ["n1", "n1", "n2", "n2", "n3", "n3"]);
        // Who asks again is sent to no node that may wait for it.
        let again = asks(&mut keys, 4, 0);
        assert!(matches!(again, Spreads::Redirect(digest, _) if digest == [7; 16]));
        let mut names = sources(&again);
        names.sort();
        assert_eq!(names, ["n1", "n2", "n3"]);
        // A node for which there is no other asks here.
        keys.send_ends(blob, LinkId(1), false);
        keys.send_ends(blob, LinkId(2), false);
        assert_eq!(asks(&mut keys, 9, 0), Spreads::Send, "two are done");
    }

    /// Two nodes are sent the version, and two more were told to ask the first of them.
    fn two_wait_at_the_first() -> (Keys, BlobId) {
        let mut keys = Keys::default();
        let blob = Id::from_u64(0);
        asks(&mut keys, 1, 0);
        asks(&mut keys, 2, 0);
        keys.proved(blob, [7; 16]);
        for n in 3..5 {
            assert_eq!(first_source(&asks(&mut keys, n, 0)), "n1");
        }
        (keys, blob)
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_that_have_the_version_are_named_first() {
        let (mut keys, blob) = two_wait_at_the_first();
        // The second node has it, and then the fourth, which was sent to the first one.
        keys.send_ends(blob, LinkId(2), true);
        assert_eq!(asks(&mut keys, 5, 0), Spreads::Send);
        keys.sent_node_ends(blob, LinkId(4), &Name::new("n1").unwrap(), true);
        assert_eq!(sources(&asks(&mut keys, 6, 0)), ["n2", "n4", "n1"]);
        assert_eq!(first_source(&asks(&mut keys, 3, 0)), "n2", "though it came before the fourth");
        assert_eq!(first_source(&asks(&mut keys, 3, 0)), "n4");
        // A node that comes back over another link has nothing.
        let (four, fan) = (Name::new("n4").unwrap(), Fan { out: 2, now: Time(0), is_up: |_| true });
        assert_eq!(keys.spread(blob, (LinkId(44), 0, &four), false, &fan), Spreads::Send, "others may wait for it");
        keys.send_begins(Time(0), blob, LinkId(44), &four);
        assert_ne!(first_source(&asks(&mut keys, 7, 0)), "n4");
    }

    #[test]
    fn node_that_is_skipped_is_waited_for_no_more() {
        let (mut keys, blob) = two_wait_at_the_first();
        // The third one could not ask the first, and the second has failed.
        let [one, two, three] = ["n1", "n2", "n3"].map(|name| Name::new(name).unwrap());
        keys.source_failed(blob, [&one, &two, &three]);
        assert_eq!(sources(&asks(&mut keys, 5, 0)), ["n1", "n3", "n4"]);
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_to_which_nothing_flows_are_not_busy() {
        let mut keys = Keys::default();
        let (blob, one) = (Id::from_u64(0), Name::new("n1").unwrap());
        keys.send_begins(Time(0), blob, LinkId(1), &one);
        assert_eq!(asks(&mut keys, 2, 0), Spreads::Send);
        assert_eq!(asks(&mut keys, 3, 0), Spreads::Prove(true), "the first may be about to grant a slot");
        assert_eq!(asks(&mut keys, 4, 2), Spreads::Send, "it has granted none");
        assert_eq!(asks(&mut keys, 5, 3), Spreads::Prove(false));
        assert_eq!(asks(&mut keys, 5, 31), Spreads::Send, "the second is as slow as one that has stopped");
        // Those that wait for the digest are answered as soon as there is a place.
        let fan = Fan { out: 2, now: Time(0) + Duration::from_secs(31), is_up: |_| true };
        assert_eq!(keys.next_unproved(blob, &fan), None);
        keys.send_ends(blob, LinkId(4), true);
        assert_eq!(keys.next_unproved(blob, &fan), Some((LinkId(3), 0)));
    }
}
