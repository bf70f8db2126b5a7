//! Versions that spread through their readers: what an owner has said by REDIRECT, the search for such a version at the nodes that it
//! has named, and the requests of other nodes that wait until a version has landed here.

use super::ids::{BlobId, PullId};
use super::tenant::Tenant;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::tensor::{Key, Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::Header;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// How long a node that was named by REDIRECT may take at least, before another one is asked.
const RELAY_TIMEOUT: Duration = Duration::from_secs(10);

/// The rate, in bytes per second, below which a link is given up for another one.
const SLOW_RATE: u64 = 50_000_000;

/// The longest time between two looks at whether a node shows a sign of life that is asked for a version. It has to show one between each
/// two.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The shortest time between two such looks, however little time is left.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// The part of the time that is left for a fetch that lies between two such looks at most.
const LOOKS: u32 = 20;

/// The least time until there is a link to a node that was named by REDIRECT.
const MIN_CONNECT_TIME: Duration = Duration::from_millis(250);

/// How long a node that was not reached is left out.
const UNREACHABLE_FOR: Duration = Duration::from_secs(60);

/// The most nodes of which it is kept that they were not reached.
const MAX_UNREACHABLE: usize = 1 << 12;

/// The digest by which versions are compared that do not come from their owner: XXH3 with 128 bits, the highest byte first.
#[derive(Clone, Default)]
pub struct VersionDigest(Xxh3);

impl VersionDigest {
    /// Adds the next bytes of the version.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes so far.
    #[must_use]
    pub fn get(&self) -> [u8; 16] {
        self.0.digest128().to_be_bytes()
    }
}

/// The key of an owner, and the tenant whose workers read it: the link to the owner, the tenant, and the key.
pub(super) type Spreading = (LinkId, Tenant, Key);

/// What an owner has said by REDIRECT.
#[derive(Debug)]
pub(super) struct Redirect {
    /// The link to the owner, and the request that it has answered. That waits until the version has come from another node, or is
    /// asked for there.
    pub(super) owner: LinkId,
    pub(super) request: PullId,
    /// The owner's name and incarnation.
    pub(super) owner_name: Name,
    pub(super) incarnation: u64,
    pub(super) identity: NonZeroU64,
    pub(super) version: Version,
    pub(super) digest: [u8; 16],
    pub(super) meta: TensorMeta,
    /// The nodes that are to be asked, in order.
    pub(super) sources: Vec<Name>,
}

impl Redirect {
    /// Whether a peer may describe the version like this.
    pub(super) fn is(&self, version: Version, meta: &TensorMeta) -> bool {
        (self.version, &self.meta) == (version, meta)
    }
}

/// Returns how long a node may take to send a version of this length to so many nodes at a time, before it counts as slow.
pub(super) fn relay_limit(len_bytes: u64, fan_out: usize) -> Duration {
    let at_a_time = u64::try_from(fan_out.max(1)).unwrap_or(u64::MAX);
    RELAY_TIMEOUT + Duration::from_secs(len_bytes.saturating_mul(at_a_time) / SLOW_RATE)
}

/// Why a node does not send a version of another one.
pub(super) fn not_here(node: &Name, key: &Key) -> Failure {
    let text = format!("node {node:?} does not have this version of key {key:?}, which its owner has sent to it");
    Failure::new(FailureCode::VersionGone, text)
}

/// Why a node does not send a version of another one that it cannot get itself.
pub(super) fn no_room(node: &Name, key: &Key) -> Failure {
    let text = format!("node {node:?} has no room for this version of key {key:?}, which its owner has sent to it");
    Failure::new(FailureCode::PoolFull, text)
}

/// Where a search has got to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SearchStage {
    /// No node is asked.
    Idle,
    /// A link to this node is being made.
    Connecting(Name),
    /// A node was asked by this request.
    Asked(LinkId, PullId),
}

/// The search for a version at the nodes that its owner has named, one after the other. It belongs to the request that the owner has
/// answered.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) redirect: Arc<Redirect>,
    pub(super) stage: SearchStage,
    /// The nodes that are asked one after the other.
    sources: Vec<Name>,
    /// How many of them were tried.
    tried: usize,
    /// There is a link to the owner.
    has_owner: bool,
    /// When the owner is asked at the latest, so that there is time for that.
    until: Time,
    /// When the node that is asked is given up, whatever it does.
    pub(super) limit: Option<Time>,
    look_every: Duration,
    /// When it is looked whether that node has shown a sign of life.
    look_at: Option<Time>,
    /// How many it had shown when it was looked last.
    signs: Option<u64>,
    /// When it was asked, or had shown one when it was looked last.
    shown_at: Time,
    /// When it got its slot.
    sends_since: Option<Time>,
    /// The requests to the owner that take the same publication from it by themselves.
    pub(super) aside: Vec<PullId>,
}

impl Search {
    /// Begins a search for fetches of which the first ends at the deadline. At most half of the time that it has is for the search.
    pub(super) fn new(now: Time, redirect: Redirect, deadline: Time) -> Search {
        let mut search = Search {
            sources: redirect.sources.clone(),
            redirect: Arc::new(redirect),
            stage: SearchStage::Idle,
            tried: 0,
            has_owner: true,
            until: now,
            limit: None,
            look_every: (deadline.since(now) / LOOKS).clamp(LOOK_AFTER, LOOK_EVERY),
            look_at: None,
            signs: None,
            shown_at: now,
            sends_since: None,
            aside: Vec::new(),
        };
        search.until = search.half_way(now, deadline);
        search
    }

    /// Whether a fetch with this deadline may wait, too: it still has half of its time when the owner is asked, and the nodes are not out of
    /// time already. The search does not get shorter for it, and does not look at nodes more often.
    pub(super) fn admits(&self, now: Time, deadline: Time) -> bool {
        now < self.until && self.half_way(now, deadline) >= self.until
    }

    /// Whether the node that is asked is to blame for an end at this time, which sends to so many at a time. That the fetches have no more time
    /// for other nodes than the owner tells nothing of it, unless it has had a slot for half of the time after which it is slow.
    pub(super) fn is_at_fault(&self, now: Time, fan_out: usize) -> bool {
        match self.sends_since {
            Some(since) => now.since(since) >= relay_limit(self.redirect.meta.len_bytes(), fan_out) / 2,
            None => now < self.until,
        }
    }

    /// Leaves all of the time until this deadline to the nodes, because the owner cannot be asked. One that sends keeps its limit, unless it
    /// is the last one. To one to which no link came up so far one may come yet.
    pub(super) fn lose_owner(&mut self, deadline: Time) {
        (self.until, self.has_owner) = (deadline, false);
        let is_connecting = usize::from(matches!(self.stage, SearchStage::Connecting(_)));
        let (before, after) = self.sources.split_at(self.tried.saturating_sub(is_connecting).min(self.sources.len()));
        let mut others = Vec::new();
        for node in after {
            if !before.contains(node) && !others.contains(node) && *node != self.redirect.owner_name {
                others.push(node.clone());
            }
        }
        self.later(others);
        // Without a limit it waits for room here, or the version is compared.
        if self.limit.is_some() && (self.look_at.is_some() || self.sources.is_empty()) {
            self.limit = Some(deadline);
        }
    }

    /// Leaves these nodes to be asked, and no others.
    pub(super) fn later(&mut self, nodes: Vec<Name>) {
        (self.sources, self.tried) = (nodes, 0);
    }

    /// Leaves a node out that is to be asked.
    pub(super) fn leave_out(&mut self, node: &Name) {
        let nodes = self.others().iter().filter(|other| *other != node).cloned().collect();
        self.later(nodes);
    }

    /// Returns the nodes that are to be asked after this one.
    pub(super) fn others(&self) -> &[Name] {
        self.sources.get(self.tried..).unwrap_or_default()
    }

    /// Returns the time at which half of what is left until a deadline has passed. If that is not enough for the version over a slow link,
    /// it is now: the fetch would fail where the owner alone would be in time.
    fn half_way(&self, now: Time, deadline: Time) -> Time {
        let half = deadline.since(now) / 2;
        if half < self.slow() { now } else { now + half }
    }

    /// Returns the time of the version over a slow link.
    fn slow(&self) -> Duration {
        Duration::from_secs(self.redirect.meta.len_bytes() / SLOW_RATE)
    }

    /// Looks at the node that is asked, which has shown so many signs of life until now. Returns whether it counts as alive: it has shown
    /// one since the last look, or one may be behind what it writes at this moment. Then it counts as alive for this time.
    pub(super) fn look(&mut self, now: Time, signs: u64, is_written: Option<Duration>) -> bool {
        let has_shown = self.signs != Some(signs);
        if has_shown {
            (self.signs, self.shown_at) = (Some(signs), now);
        }
        self.look_at = Some(now + self.look_every);
        has_shown || is_written.is_some_and(|time| now < self.shown_at + time)
    }

    /// Returns when the node that is asked is given up, or looked at.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        let limit = self.limit?;
        Some(self.look_at.map_or(limit, |look| look.min(limit)))
    }

    /// Returns the place of the node that is asked among those that the owner has named, where one is and the owner can be told.
    pub(super) fn place(&self) -> Option<u8> {
        self.asked().filter(|_| self.has_owner).and_then(|_| u8::try_from(self.tried.checked_sub(1)?).ok())
    }

    /// Returns the next node that is to be asked. This node is not.
    pub(super) fn next_source(&mut self, now: Time, here: &Name) -> Option<Name> {
        self.stage = SearchStage::Idle;
        let sources = &self.sources;
        while let Some(name) = sources.get(self.tried).filter(|_| now < self.until) {
            self.tried += 1;
            if !sources[..self.tried - 1].contains(name) && name != here {
                return Some(name.clone());
            }
        }
        None
    }

    /// Sets when the node that is now being asked, or connected to, is given up. One that is asked may wait for its own copy as long as
    /// it shows signs of life.
    pub(super) fn begin_limit(&mut self, now: Time) {
        self.limit = Some(match self.stage {
            // As long as one that shows no sign of life.
            SearchStage::Connecting(_) => (now + (2 * self.look_every).max(MIN_CONNECT_TIME)).min(self.until),
            SearchStage::Idle | SearchStage::Asked(..) => self.until,
        });
        let looks = matches!(self.stage, SearchStage::Asked(..));
        (self.look_at, self.signs, self.shown_at) = (looks.then(|| now + self.look_every), None, now);
        self.sends_since = None;
    }

    /// Sets when the node that begins to send is given up, which sends to so many at a time. From here on it gets half of the time until the
    /// deadline, or that of the version over a slow link; no other node gets that. It is not looked at: a sign of life may be behind the
    /// version.
    pub(super) fn begin_sending(&mut self, now: Time, deadline: Time, fan_out: usize) {
        // It may have had to wait, there or here.
        let half = deadline.since(now) / 2;
        let until = self.until.max(now + half.max(self.slow()));
        let limit = now + relay_limit(self.redirect.meta.len_bytes(), fan_out);
        // The last one has all of the time.
        let is_last = !self.has_owner && self.others().is_empty();
        self.limit = Some(if is_last { self.until } else { limit.min(until) });
        (self.look_at, self.sends_since) = (None, Some(now));
    }

    /// Returns the request by which a node was asked.
    pub(super) fn asked(&self) -> Option<(LinkId, PullId)> {
        match self.stage {
            SearchStage::Asked(link, pull) => Some((link, pull)),
            SearchStage::Idle | SearchStage::Connecting(_) => None,
        }
    }
}

/// What is being compared with a digest, or what a digest is being made of.
pub(super) enum Proof {
    /// A version that is published here.
    Published(BlobId),
    /// A version that has come from a node that its owner has named.
    Came(LinkId, PullId, BlobId, Box<(Header, u64)>),
}

/// The requests of other nodes for versions that are on their way to this one, and the nodes that were not reached when versions were
/// searched for.
///
/// Nobody waits here for what is not coming: whether something is, its caller finds out.
#[derive(Default)]
pub(super) struct Relays {
    waiting: HashMap<Spreading, BTreeSet<(LinkId, u32)>>,
    /// Versions of this node of which a send has ended, and for whose digests requests wait.
    ended_sends: Vec<BlobId>,
    /// When each may be tried again.
    unreachable: HashMap<Name, Time>,
}

impl Relays {
    /// Lets the request of a peer wait until the version has come.
    pub(super) fn wait(&mut self, of: Spreading, request: (LinkId, u32)) {
        self.waiting.entry(of).or_default().insert(request);
    }

    /// Whether requests of peers wait for a version.
    pub(super) fn is_awaited(&self, of: &Spreading) -> bool {
        self.waiting.contains_key(of)
    }

    /// Returns the keys for whose versions requests of peers wait.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Spreading> {
        self.waiting.keys()
    }

    /// Forgets a request that has ended.
    pub(super) fn forget(&mut self, of: &Spreading, request: (LinkId, u32)) {
        let Some(waiting) = self.waiting.get_mut(of) else { return };
        waiting.remove(&request);
        if waiting.is_empty() {
            self.waiting.remove(of);
        }
    }

    /// Takes the requests that wait for a version.
    pub(super) fn take(&mut self, of: &Spreading) -> BTreeSet<(LinkId, u32)> {
        self.waiting.remove(of).unwrap_or_default()
    }

    /// Notes that a send of a version has ended, for whose digest requests wait.
    pub(super) fn ended_send(&mut self, blob: BlobId) {
        self.ended_sends.push(blob);
    }

    /// Whether there are versions of which a send has ended.
    pub(super) fn has_ended_sends(&self) -> bool {
        !self.ended_sends.is_empty()
    }

    /// Takes a version of which a send has ended.
    pub(super) fn take_ended_send(&mut self) -> Option<BlobId> {
        self.ended_sends.pop()
    }

    /// Notes that no link to a node came up.
    pub(super) fn not_reached(&mut self, now: Time, node: &Name) {
        self.unreachable.retain(|_, until| *until > now);
        if self.unreachable.len() < MAX_UNREACHABLE {
            self.unreachable.insert(node.clone(), now + UNREACHABLE_FOR);
        }
    }

    /// Notes that there is a link to a node.
    pub(super) fn reached(&mut self, node: &Name) {
        self.unreachable.remove(node);
    }

    /// Whether no link to a node came up when it was tried, and it is not to be tried again so far.
    pub(super) fn is_unreachable(&self, now: Time, node: &Name) -> bool {
        self.unreachable.get(node).is_some_and(|until| *until > now)
    }

    /// Returns how many requests wait; for tests.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slab::Id;
    use crate::tensor::DType;

    /// A search for a version that takes 20 s at 50 MB/s, for a fetch that has so many seconds.
    fn search(seconds: u64) -> Search {
        let name = |text| Name::new(text).unwrap();
        let redirect = Redirect {
            owner: LinkId(1),
            request: Id::from_u64(0),
            owner_name: name("owner"),
            incarnation: 1,
            identity: NonZeroU64::MIN,
            version: Version(1),
            digest: [0; 16],
            meta: TensorMeta::of(DType::U8, &[1_000_000_000]).unwrap(),
            sources: vec![name("here"), name("other")],
        };
        Search::new(Time(0), redirect, second(seconds))
    }

    fn second(n: u64) -> Time {
        Time(0) + Duration::from_secs(n)
    }

    // Promise: spreading, seen to fail
    #[test]
    fn fetch_with_too_little_time_for_two_tries_goes_to_the_owner() {
        let name = |text| Name::new(text).unwrap();
        for (seconds, is_asked) in [(39, false), (40, true)] {
            let mut search = search(seconds);
            assert_eq!(search.next_source(Time(0), &name("here")), is_asked.then(|| name("other")), "{seconds} s");
        }
    }

    // Promise: spreading
    #[test]
    fn node_that_begins_to_send_has_the_time_of_the_version_over_a_slow_link() {
        // Half of what is left is enough at 6 s. At 30 s the time of the search is over, while there was no room here.
        for (waits_here, begins, given_up) in [(false, 6, 28), (false, 24, 44), (true, 30, 50)] {
            let mut search = search(50);
            search.stage = SearchStage::Asked(LinkId(2), Id::from_u64(0));
            search.begin_limit(second(0));
            assert_eq!(search.limit, Some(second(25)));
            if waits_here {
                search.limit = None;
            }
            search.begin_sending(second(begins), second(50), 2);
            assert_eq!(search.limit, Some(second(given_up)), "from {begins} s on");
        }
    }

    // Promise: spreading, seen to fail
    #[test]
    fn slot_of_one_node_gives_the_others_no_more_time() {
        let name = |text| Name::new(text).unwrap();
        let mut search = search(50);
        assert!(search.admits(second(1), second(50)) && search.admits(second(24), second(74)));
        search.stage = SearchStage::Asked(LinkId(2), Id::from_u64(0));
        search.begin_sending(second(24), second(50), 2);
        assert_eq!(search.limit, Some(second(44)));
        assert!(search.admits(second(24), second(74)), "the search has not become longer");
        assert!(!search.admits(second(25), second(1000)), "no time is left for other nodes");
        assert_eq!(search.next_source(second(25), &name("here")), None);
    }

    // Promise: spreading, seen to fail
    #[test]
    fn looks_are_apart_however_little_time_is_left() {
        let mut search = search(50);
        for deadline in [24, 25, 26] {
            assert!(!search.admits(second(25), second(deadline)));
        }
        search.begin_limit(second(0));
        let mut short = Search::new(Time(0), Arc::into_inner(search.redirect).unwrap(), Time(0));
        for signs in 0..3 {
            assert!(short.look(Time(0), signs, None));
            assert!(!short.look(Time(0), signs, None), "no sign since the last look");
            assert_eq!(short.look_at, Some(Time(0) + LOOK_AFTER));
        }
    }

    #[test]
    fn limit_of_a_node_counts_the_nodes_that_it_sends_to() {
        let seconds = |fan_out| relay_limit(1_000_000_000, fan_out).as_secs();
        assert_eq!([seconds(0), seconds(1), seconds(4)], [30, 30, 90]);
        assert!(relay_limit(u64::MAX, usize::MAX) > Duration::from_secs(1 << 38));
    }
}
