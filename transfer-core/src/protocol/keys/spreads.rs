//! How a version spreads: the nodes that get its chunks from this one, those that it has sent to other nodes for them, and the digests of
//! the chunks.
//!
//! The nodes are in the order in which they came. A node is sent only to nodes that came before it, and to those that have the version,
//! so no two wait for each other, however often they ask, and though a node may come back over another link.

use super::Keys;
use crate::fabric::LinkId;
use crate::protocol::ids::BlobId;
use crate::protocol::slab::Id;
use crate::tensor::Name;
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::{MAX_DIGESTS_PER_MESSAGE, MAX_SOURCES};
use std::num::NonZeroU64;
use std::time::Duration;

/// The most nodes that are kept for one version. Others are sent on, and nobody is sent to them.
const MAX_NODES: usize = 1 << 12;

/// How long a node counts as busy after it has asked for a chunk here, or was told to.
const BUSY_TIME: Duration = Duration::from_secs(1);

/// How many digests go out together, as long as there will be more.
const DIGESTS_AT_ONCE: usize = 8;

/// The nodes that have a version or will have it.
#[derive(Default)]
pub(super) struct Spread {
    nodes: Vec<ReachedNode>,
    /// The digests of its first chunks.
    digests: Vec<[u8; 16]>,
    /// The next one is being made.
    is_proving: bool,
    /// The requests that want the digests, and how many each of them has.
    listeners: Vec<((LinkId, u32), usize)>,
}

struct ReachedNode {
    link: LinkId,
    name: Name,
    /// Until when it counts as one to which the version flows from here.
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

/// Digests that are to be sent: for this request, from this chunk on.
pub(crate) type DigestsDue = ((LinkId, u32), usize, Vec<[u8; 16]>);

/// How many nodes get a version at a time, when that is asked, and which links are up.
#[derive(Clone, Copy)]
pub(crate) struct Fan<F> {
    pub(crate) out: usize,
    pub(crate) now: Time,
    pub(crate) is_up: F,
}

impl<F: Fn(LinkId) -> bool> Fan<F> {
    fn is_busy(&self, node: &ReachedNode) -> bool {
        self.now < node.busy_until && (self.is_up)(node.link)
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

    /// Takes the digests that are due, for all requests that have fewer than this.
    fn due(&mut self, at_least: usize) -> Vec<DigestsDue> {
        let Spread { digests, listeners, .. } = self;
        let mut due = Vec::new();
        for (request, sent) in listeners {
            while digests.len() - *sent >= at_least.max(1) {
                let until = digests.len().min(*sent + MAX_DIGESTS_PER_MESSAGE);
                due.push((*request, *sent, digests[*sent..until].to_vec()));
                *sent = until;
            }
        }
        due
    }
}

impl Keys {
    /// Returns the number by which a peer may name a version that it has got. `None`: each fetch of it has to come here,
    /// because they are counted.
    pub(crate) fn identity_of(&self, id: BlobId) -> Option<NonZeroU64> {
        let shared = !self.blobs.get(id)?.counts_fetches();
        // The highest bit is that of contents.
        shared.then(|| NonZeroU64::MIN.saturating_add(id.to_u64() & (u64::MAX >> 1)))
    }

    /// Returns the version with this identity.
    pub(crate) fn identified(&self, identity: NonZeroU64) -> Option<BlobId> {
        let id = Id::from_u64(identity.get() - 1);
        self.identity_of(id).filter(|found| *found == identity).map(|_| id)
    }

    /// Sets the trace context of the push of a version that comes from another node, if that has sent it.
    pub(crate) fn set_trace(&mut self, id: BlobId, trace: Option<TraceContext>) {
        if let Some(b) = self.blobs.get_mut(id).filter(|_| trace.is_some()) {
            b.set_trace(trace);
        }
    }

    /// Decides from where the chunks of a version come to a node that asks for it: from these nodes, or from here.
    pub(crate) fn spread<F: Fn(LinkId) -> bool>(
        &mut self,
        blob: BlobId,
        (link, name): (LinkId, &Name),
        fan: &Fan<F>,
    ) -> Option<[Name; MAX_SOURCES]> {
        let spread = self.spreads.entry(blob).or_default();
        let place = spread.place(name);
        let is_known = |at: usize| {
            let node = &spread.nodes[at];
            node.had_it || node.link == link && fan.is_busy(node)
        };
        let is_from_here = spread.is_free(fan) || place.is_some_and(is_known);
        let sources = if is_from_here { Vec::new() } else { spread.sources(place.unwrap_or(usize::MAX), fan) };
        let names = sources.first().copied().map(|first| {
            spread.nodes[first].children += 1;
            std::array::from_fn(|n| spread.nodes[sources.get(n).copied().unwrap_or(first)].name.clone())
        });
        let at = spread.enter(link, name, &fan.is_up);
        if names.is_none()
            && let Some(at) = at
        {
            spread.nodes[at].busy_until = fan.now + BUSY_TIME;
        }
        names
    }

    /// Notes that a node asks for a chunk here.
    pub(crate) fn chunk_asked(&mut self, now: Time, blob: BlobId, link: LinkId) {
        if let Some(node) = self.spreading_to(blob, link) {
            node.busy_until = now + BUSY_TIME;
        }
    }

    /// Notes that the request of a node has ended, which was sent to others, this one first, or got the version from here, and whether the
    /// version has come to it.
    pub(crate) fn spread_ended(&mut self, blob: BlobId, link: LinkId, first: Option<&Name>, has_come: bool) {
        if let Some(node) = self.spreading_to(blob, link) {
            node.came(has_come);
            node.busy_until = Time(0);
        }
        let Some(spread) = self.spreads.get_mut(&blob) else { return };
        if let Some(at) = first.and_then(|first| spread.place(first)) {
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

    /// Notes that a request wants the digests of a version with so many chunks. Returns those that are made, and the number of the next
    /// one if it is to be begun.
    pub(crate) fn want_digests(
        &mut self,
        blob: BlobId,
        request: (LinkId, u32),
        chunks: usize,
    ) -> (Vec<DigestsDue>, Option<usize>) {
        let spread = self.spreads.entry(blob).or_default();
        spread.listeners.push((request, 0));
        let begins = !spread.is_proving && spread.digests.len() < chunks;
        spread.is_proving |= begins;
        (spread.due(1), begins.then_some(spread.digests.len()))
    }

    /// Forgets a request that wanted the digests of a version, and has ended.
    pub(crate) fn want_no_digests(&mut self, blob: BlobId, request: (LinkId, u32)) {
        if let Some(spread) = self.spreads.get_mut(&blob) {
            spread.listeners.retain(|(listener, _)| *listener != request);
        }
    }

    /// Stores the digest of the next chunk of a version with so many. Returns what is due, and the number of the next one: `None` if there is
    /// none, or nobody wants it.
    pub(crate) fn digest_made(
        &mut self,
        blob: BlobId,
        digest: [u8; 16],
        chunks: usize,
    ) -> (Vec<DigestsDue>, Option<usize>) {
        let Some(spread) = self.spreads.get_mut(&blob) else { return (Vec::new(), None) };
        spread.digests.push(digest);
        let is_last = spread.digests.len() >= chunks;
        let due = spread.due(if is_last { 1 } else { DIGESTS_AT_ONCE });
        spread.is_proving = !is_last && !spread.listeners.is_empty();
        (due, spread.is_proving.then_some(spread.digests.len()))
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
                (node.link, node.busy_until, node.has_it) = (link, Time(0), false);
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
        self.nodes.push(ReachedNode { link, name, busy_until, children: 0, has_it, had_it, has_failed });
        Some(self.nodes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob() -> BlobId {
        Id::from_u64(0)
    }

    fn second(n: u64) -> Time {
        Time(0) + Duration::from_secs(n)
    }

    /// Lets a node ask for the version at this second, by its link. Returns the nodes to which it is sent; none if it gets it from here.
    fn asks(keys: &mut Keys, n: u32, at: u64) -> Vec<String> {
        let name = Name::new(&format!("n{n}")).unwrap();
        let fan = Fan { out: 2, now: second(at), is_up: |link| link != LinkId(99) };
        let names = keys.spread(blob(), (LinkId(n), &name), &fan);
        names.into_iter().flatten().map(|name| name.as_str().to_owned()).collect()
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_are_sent_to_those_before_them_in_a_tree() {
        let mut keys = Keys::default();
        assert!([1, 2, 1].iter().all(|n| asks(&mut keys, *n, 0).is_empty()), "nodes are counted, not transfers");
        let first: Vec<_> = (3..9).map(|n| asks(&mut keys, n, 0)[0].clone()).collect();
        assert_eq!(first, ["n1", "n1", "n2", "n2", "n3", "n3"]);
        // Who asks again is sent to no node that may wait for it.
        let mut names = asks(&mut keys, 4, 0);
        names.sort();
        assert_eq!(names, ["n1", "n2", "n3"]);
        // A node for which there is no other asks here.
        keys.spread_ended(blob(), LinkId(1), None, false);
        assert!(asks(&mut keys, 9, 0).is_empty(), "one is done");
    }

    /// Two nodes get the version from here, and two more were told to ask the first of them.
    fn two_wait_at_the_first() -> Keys {
        let mut keys = Keys::default();
        asks(&mut keys, 1, 0);
        asks(&mut keys, 2, 0);
        for n in 3..5 {
            assert_eq!(asks(&mut keys, n, 0)[0], "n1");
        }
        keys
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_that_have_the_version_are_named_first() {
        let mut keys = two_wait_at_the_first();
        // The second node has it, and then the fourth, which was sent to the first one.
        keys.spread_ended(blob(), LinkId(2), None, true);
        assert!(asks(&mut keys, 5, 0).is_empty());
        keys.spread_ended(blob(), LinkId(4), Some(&Name::new("n1").unwrap()), true);
        assert_eq!(asks(&mut keys, 6, 0), ["n2", "n4", "n1"]);
        assert_eq!(asks(&mut keys, 3, 0)[0], "n2", "though it came before the fourth");
        assert_eq!(asks(&mut keys, 3, 0)[0], "n4");
        // A node that comes back over another link has nothing.
        let (four, fan) = (Name::new("n4").unwrap(), Fan { out: 2, now: Time(0), is_up: |_| true });
        assert_eq!(keys.spread(blob(), (LinkId(44), &four), &fan), None, "others may wait for it");
        assert_ne!(asks(&mut keys, 7, 0)[0], "n4");
    }

    #[test]
    fn node_that_is_skipped_is_waited_for_no_more() {
        let mut keys = two_wait_at_the_first();
        // The third one could not ask the first, and the second has failed.
        let [one, two, three] = ["n1", "n2", "n3"].map(|name| Name::new(name).unwrap());
        keys.source_failed(blob(), [&one, &two, &three]);
        assert_eq!(asks(&mut keys, 5, 0), ["n1", "n3", "n4"]);
    }

    // Promise: spreading, seen to fail
    #[test]
    fn nodes_that_ask_for_no_chunk_are_not_busy() {
        let mut keys = two_wait_at_the_first();
        keys.chunk_asked(second(0) + BUSY_TIME / 2, blob(), LinkId(1));
        assert!(asks(&mut keys, 5, 1).is_empty(), "the second has asked for nothing");
        assert!(!asks(&mut keys, 6, 1).is_empty());
        assert!(asks(&mut keys, 6, 2).is_empty());
    }

    // Promise: spreading, seen to fail
    #[test]
    fn digests_go_out_as_they_are_made_and_to_late_requests_at_once() {
        let mut keys = Keys::default();
        let (first, late) = ((LinkId(1), 7), (LinkId(2), 8));
        assert_eq!(keys.want_digests(blob(), first, 70), (vec![], Some(0)));
        for n in 1..DIGESTS_AT_ONCE {
            assert_eq!(keys.digest_made(blob(), [0; 16], 70), (vec![], Some(n)));
        }
        let (due, next) = keys.digest_made(blob(), [0; 16], 70);
        assert_eq!((due, next), (vec![(first, 0, vec![[0; 16]; 8])], Some(8)));
        assert_eq!(keys.want_digests(blob(), late, 70), (vec![(late, 0, vec![[0; 16]; 8])], None));
        // The last ones are sent, however few they are.
        let mut sent = 8;
        for n in 8..70 {
            let (due, next) = keys.digest_made(blob(), [0; 16], 70);
            sent +=
                due.iter().filter(|(request, ..)| *request == first).map(|(.., digests)| digests.len()).sum::<usize>();
            assert_eq!(next, (n < 69).then_some(n + 1));
        }
        assert_eq!(sent, 70);
        let (due, next) = keys.want_digests(blob(), (LinkId(3), 9), 70);
        assert_eq!(
            due.iter().map(|(_, from, digests)| (*from, digests.len())).collect::<Vec<_>>(),
            [(0, 60), (60, 10)]
        );
        assert_eq!(next, None, "all are made");
        // Nobody wants any.
        let mut keys = Keys::default();
        keys.want_digests(blob(), first, 70);
        keys.want_no_digests(blob(), first);
        assert_eq!(keys.digest_made(blob(), [0; 16], 70), (vec![], None));
    }
}
