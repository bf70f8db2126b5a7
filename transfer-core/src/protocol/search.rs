//! The search for a version at the nodes that its owner has named, one after the other, and last at the owner.

use super::chunks::Chunks;
use super::ids::BlobId;
use super::relays::Redirect;
use crate::fabric::LinkId;
use crate::tensor::Name;
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// How long a node may take that lives and sends no chunk, before another one is asked.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a node may take to end what it is writing, where no length is known.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The rate, in bytes per second, at which a node is taken to write at least.
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

/// How long is waited until no peer can write any more to the places of chunks that were given up, when nothing else is missing.
pub(super) const CLOSING: Duration = Duration::from_secs(1);

/// Returns how long a node may be silent at most while it may be writing something else of this length, or is being written to.
pub(super) fn silent_for(len_bytes: u64) -> Duration {
    WRITE_TIMEOUT + Duration::from_secs(len_bytes / SLOW_RATE)
}

/// Where a search has got to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SearchStage {
    /// No node is asked: it waits for room here.
    Idle,
    /// A link to this node is being made.
    Connecting(Name),
    /// The node behind this link is asked for chunks.
    Asked(LinkId),
}

/// The search for a version at the nodes that its owner has named, one after the other. It belongs to the request that the owner has
/// answered, or, once the link to the owner has ended, to one of a link to another node.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) redirect: Arc<Redirect>,
    pub(super) stage: SearchStage,
    /// What has come, once there is room.
    pub(super) chunks: Option<Box<Chunks>>,
    /// The digests of the first chunks, as the owner has sent them before there was room.
    pub(super) digests: Vec<[u8; 16]>,
    /// The place in the queue for room, which it keeps.
    pub(super) number_in_queue: Option<u64>,
    /// What has come is being copied to this blob, to which the search has a reference: so many runs are left.
    pub(super) moving: Option<(BlobId, usize)>,
    /// Until when is waited for peers that may still write to the places of the chunks that are missing, if no others are.
    pub(super) stuck_until: Option<Time>,
    /// The nodes that are asked one after the other.
    sources: Vec<Name>,
    /// How many of them were tried.
    tried: usize,
    /// Until when nodes that have asked here for chunks of it may come back for more.
    pub(super) asked_until: Option<Time>,
    /// There is a link to the owner.
    pub(super) has_owner: bool,
    /// When the owner is asked for what is missing, unless that will be here in time.
    until: Time,
    /// When the node that is asked is given up, or what else is waited for.
    limit: Option<Time>,
    /// The node that is asked has such limits, while chunks are asked of it.
    is_limited: bool,
    look_every: Duration,
    /// When it is looked whether that node has shown a sign of life.
    look_at: Option<Time>,
    /// How many it had shown when it was looked last.
    signs: Option<u64>,
    /// When it was asked, or had shown one when it was looked last.
    shown_at: Time,
    /// When it was asked, and how many chunks have come from it since.
    asked_at: Time,
    came: u32,
}

/// What becomes of a search whose node has reached a limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The node is given up, and is to blame.
    Blamed,
    /// The node is given up because the fetches have no more time for it.
    NoTime,
}

impl Search {
    /// Begins a search for fetches of which the first ends at the deadline.
    pub(super) fn new(now: Time, redirect: Redirect, deadline: Time) -> Search {
        Search {
            sources: redirect.sources.clone(),
            redirect: Arc::new(redirect),
            stage: SearchStage::Idle,
            chunks: None,
            digests: Vec::new(),
            number_in_queue: None,
            moving: None,
            stuck_until: None,
            asked_until: None,
            tried: 0,
            has_owner: true,
            until: now + deadline.since(now) / 2,
            limit: None,
            is_limited: false,
            look_every: (deadline.since(now) / LOOKS).clamp(LOOK_AFTER, LOOK_EVERY),
            look_at: None,
            signs: None,
            shown_at: now,
            asked_at: now,
            came: 0,
        }
    }

    /// Notes that a fetch with this deadline waits, too: half of its time is left when the owner is asked.
    pub(super) fn join(&mut self, now: Time, deadline: Time) {
        self.until = self.until.min(now + deadline.since(now) / 2);
        if self.limit.is_some() && matches!(self.stage, SearchStage::Asked(_)) {
            self.limit = Some(self.limit.unwrap_or(self.until).min(self.until));
        }
    }

    /// Leaves all of the time until this deadline to the nodes, because the owner cannot be asked. To one to which no link came up so far one
    /// may come yet.
    pub(super) fn lose_owner(&mut self, now: Time, deadline: Time) {
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
        if self.limit.is_some() && self.look_at.is_some() {
            self.limit = Some(self.next_limit(now));
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

    /// Returns when the node that is asked is given up, or looked at, or what else is waited for.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        [self.limit, self.look_at, self.stuck_until].into_iter().flatten().min()
    }

    /// Whether the node that is asked, or connected to, has reached its limit.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.limit.is_some_and(|limit| limit <= now)
    }

    /// Stores the next digests of the owner. Returns the chunks that can be compared now, with their digests. `None`: these are not the next
    /// ones.
    pub(super) fn add_digests(&mut self, first: u32, digests: &[[u8; 16]]) -> Option<Vec<(usize, [u8; 16])>> {
        if let Some(chunks) = &mut self.chunks {
            return chunks.add_digests(first, digests);
        }
        let begin = self.digests.len();
        if usize::try_from(first) != Ok(begin) || (begin + digests.len()) as u64 > self.count() {
            return None;
        }
        self.digests.extend_from_slice(digests);
        Some(Vec::new())
    }

    /// Whether the digests of all chunks are known.
    pub(super) fn has_all_digests(&self) -> bool {
        match &self.chunks {
            Some(chunks) => chunks.has_all_digests(),
            None => self.digests.len() as u64 == self.count(),
        }
    }

    /// Returns the number of chunks.
    fn count(&self) -> u64 {
        self.redirect.meta.len_bytes().div_ceil(self.redirect.chunk_bytes.max(1))
    }

    /// Returns the place of the node that is asked among those that the owner has named, where one is and the owner can be told.
    pub(super) fn place(&self) -> Option<u8> {
        let is_named = self.has_owner && matches!(self.stage, SearchStage::Asked(_));
        self.tried.checked_sub(1).filter(|_| is_named).and_then(|at| u8::try_from(at).ok())
    }

    /// Returns the next node that is to be asked. This node is not.
    pub(super) fn next_source(&mut self, now: Time, here: &Name) -> Option<Name> {
        self.idle();
        let sources = &self.sources;
        while let Some(name) = sources.get(self.tried).filter(|_| now < self.until) {
            self.tried += 1;
            if !sources[..self.tried - 1].contains(name) && name != here {
                return Some(name.clone());
            }
        }
        self.tried = self.sources.len();
        None
    }

    /// Asks no node.
    pub(super) fn idle(&mut self) {
        (self.stage, self.limit, self.look_at) = (SearchStage::Idle, None, None);
        self.is_limited = false;
    }

    /// Waits until there is a link to this node.
    pub(super) fn connect(&mut self, now: Time, node: Name) {
        self.stage = SearchStage::Connecting(node);
        // As long as one that shows no sign of life.
        self.limit = Some((now + (2 * self.look_every).max(MIN_CONNECT_TIME)).min(self.until));
        self.look_at = None;
    }

    /// Asks the node behind this link, and nobody else: the owner, whose limit is that of the fetches.
    pub(super) fn ask_owner(&mut self, now: Time, link: LinkId) {
        self.idle();
        (self.stage, self.asked_at, self.came) = (SearchStage::Asked(link), now, 0);
        self.tried = self.sources.len();
    }

    /// Asks the node behind this link.
    pub(super) fn ask(&mut self, now: Time, link: LinkId) {
        (self.stage, self.asked_at, self.came) = (SearchStage::Asked(link), now, 0);
        self.is_limited = true;
        self.begin_limit(now);
    }

    /// Lets the limits of the node that is asked begin, or none be, since chunks are asked of it, or none are: it is not to blame for the
    /// owner's digests, or for what others may still write.
    pub(super) fn limit_while(&mut self, now: Time, is_asked: bool) {
        if !is_asked {
            (self.limit, self.look_at) = (None, None);
        } else if self.is_limited && self.limit.is_none() {
            self.begin_limit(now);
        }
    }

    fn begin_limit(&mut self, now: Time) {
        (self.look_at, self.signs, self.shown_at) = (Some(now + self.look_every), None, now);
        self.limit = Some(self.next_limit(now));
    }

    /// Notes that a chunk has come from this link.
    pub(super) fn chunk_came(&mut self, now: Time, link: LinkId) {
        if self.stage == SearchStage::Asked(link) {
            self.came += 1;
            if self.limit.is_some() {
                self.limit = Some(self.next_limit(now));
            }
        }
    }

    fn next_limit(&self, now: Time) -> Time {
        // The last one has all of the time.
        let is_last = !self.has_owner && self.others().is_empty();
        if is_last { self.until } else { self.until.min(now + CHUNK_TIMEOUT) }
    }

    /// Decides what becomes of the node that is asked, which has reached its limit, for fetches of which the first ends at the deadline. Half of
    /// their time is over, or no chunk has come for too long. `None`: what is missing will be here in half of the time that is left, so it
    /// goes on.
    pub(super) fn overdue(&mut self, now: Time, deadline: Time) -> Option<Overdue> {
        if now < self.until {
            return Some(Overdue::Blamed);
        }
        let Some(chunks) = &self.chunks else { return Some(Overdue::NoTime) };
        let left = u32::try_from(chunks.left()).unwrap_or(u32::MAX);
        let took = now.since(self.asked_at);
        let half = deadline.since(now) / 2;
        let needs = took.checked_mul(left).map(|time| time / self.came.max(1));
        let is_in_time = self.has_owner && self.came > 0 && needs.is_some_and(|needs| needs <= half);
        if is_in_time && half > Duration::ZERO {
            self.until = now + half;
            self.limit = Some(self.next_limit(now));
            return None;
        }
        Some(Overdue::NoTime)
    }

    /// Returns the link to the node that is asked.
    pub(super) fn asked(&self) -> Option<LinkId> {
        match self.stage {
            SearchStage::Asked(link) => Some(link),
            SearchStage::Idle | SearchStage::Connecting(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slab::Id;
    use crate::protocol::tenant::Tenant;
    use crate::tensor::{DType, Key, TensorMeta, Version};
    use std::num::NonZeroU64;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    /// A search for a fetch that has so many seconds.
    fn search(seconds: u64) -> Search {
        let redirect = Redirect {
            owner: LinkId(1),
            request: Id::from_u64(0),
            owner_name: name("owner"),
            incarnation: 1,
            identity: NonZeroU64::MIN,
            version: Version(1),
            chunk_bytes: 1 << 20,
            meta: TensorMeta::of(DType::U8, &[1_000_000_000]).unwrap(),
            sources: vec![name("here"), name("other")],
            key: Key::new("k").unwrap(),
            reader: Tenant::User(0),
        };
        Search::new(Time(0), redirect, second(seconds))
    }

    fn second(n: u64) -> Time {
        Time(0) + Duration::from_secs(n)
    }

    // Promise: spreading, seen to fail
    #[test]
    fn node_is_given_up_that_lives_and_sends_no_chunk() {
        let mut search = search(100);
        assert_eq!(search.next_source(Time(0), &name("here")), Some(name("other")));
        search.ask(Time(0), LinkId(2));
        assert_eq!(search.limit, Some(second(10)));
        search.chunk_came(second(7), LinkId(2));
        assert_eq!(search.limit, Some(second(17)));
        search.chunk_came(second(8), LinkId(3));
        assert_eq!(search.limit, Some(second(17)), "it came from another one");
        assert_eq!(search.overdue(second(17), second(100)), Some(Overdue::Blamed));
        search.chunk_came(second(45), LinkId(2));
        assert_eq!(search.limit, Some(second(50)), "half of the time");
    }

    // Promise: spreading, seen to fail
    #[test]
    fn fetch_has_half_of_its_time_for_the_owner() {
        let mut search = search(100);
        search.ask(Time(0), LinkId(2));
        search.join(second(1), second(21));
        assert_eq!(search.limit, Some(second(10)));
        search.chunk_came(second(5), LinkId(2));
        assert_eq!(search.limit, Some(second(11)), "half of the time of the one that has joined");
        assert_eq!(search.overdue(second(11), second(21)), Some(Overdue::NoTime), "there is not even room");
        assert_eq!(search.next_source(second(11), &name("here")), None);
    }

    #[test]
    fn looks_are_apart_however_little_time_is_left() {
        let mut search = search(0);
        for signs in 0..3 {
            assert!(search.look(Time(0), signs, None));
            assert!(!search.look(Time(0), signs, None), "no sign since the last look");
            assert_eq!(search.look_at, Some(Time(0) + LOOK_AFTER));
        }
        assert!(silent_for(u64::MAX) > Duration::from_secs(1 << 38));
    }
}
