//! Drives a [`Node`] over its fabrics: polls the fabrics, hands their events to the node, and does the actions that
//! concern fabrics.
//!
//! The engine's thread and the simulator use the same driver, so the simulated schedules test the code that runs. The
//! driver reads no clock, starts no thread, and touches memory only through [`HeaderMemory`].

mod posts;

pub use posts::PostMeter;

use crate::fabric::{
    Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, LinkId, LinkRails, Offer, PostError, WorkId,
};
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Command, Request};
use crate::protocol::{
    Action, FabricAction, HostAction, LinkStatus, Node, Page, PeerInfo, Post, SessionId, Snapshot, Write,
};
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The bytes of a landing header.
pub type HeaderBytes = [u8; HEADER_BYTES as usize];

/// Reads and writes landing headers in registered memory. The protocol itself looks at no other bytes of a segment.
pub trait HeaderMemory {
    /// Copies a header out. Returns `None` if the slice is not in known memory.
    fn read_header(&self, slice: LocalSlice) -> Option<HeaderBytes>;

    /// Writes a header into its cell. Returns `false` if the slice is not in known memory.
    fn write_header(&mut self, slice: LocalSlice, header: &HeaderBytes) -> bool;
}

/// A node and the fabrics that serve it. `M` is the form in which the fabrics get memory.
pub struct Driver<M> {
    /// The state machine. The caller hands it the events that concern no fabric.
    pub node: Node,
    fabrics: Vec<Box<dyn Fabric<Memory = M>>>,
    /// What each fabric is and can do, in the same order.
    kinds: Vec<(FabricKind, Capabilities)>,
    /// The meters of the fabrics, in the same order.
    posts: Vec<PostMeter>,
    /// The index of the fabric whose device operates on words. There is at most one, because the operations of two
    /// devices are not atomic to each other.
    atomics: Option<usize>,
    links: BTreeMap<LinkId, LinkState>,
    /// The links with blocked posts, which take their turns in this order.
    blocked: BTreeSet<LinkId>,
    /// Whether a fabric was given something to do since all were heard.
    is_unheard: bool,
    next_link: u32,
    next_foreign: u32,
}

struct LinkState {
    fabric: usize,
    /// Present until the link is up: the peer, once it is known, and whether this side is the initiator.
    pending: Option<Pending>,
    /// Posts that found the send queue full. Later posts of the link queue up behind them.
    blocked: VecDeque<Post>,
    /// This side has ended the link. Later posts are dropped: a peer that has not noticed the end yet would otherwise
    /// receive them without the blocked posts before them.
    ended: bool,
}

struct Pending {
    initiator_of: Option<Name>,
    peer: Option<PeerInfo>,
}

impl LinkState {
    /// Marks the link as connected. Returns the peer the first time, and `None` afterwards or if the peer is not known
    /// yet.
    fn connected(&mut self) -> Option<PeerInfo> {
        let peer = self.pending.as_mut()?.peer.take()?;
        self.pending = None;
        Some(peer)
    }
}

impl<M> Driver<M> {
    /// Creates a driver for this node. The first fabric of a kind serves that kind.
    #[must_use]
    pub fn new(node: Node, fabrics: Vec<Box<dyn Fabric<Memory = M>>>) -> Driver<M> {
        let atomics = fabrics.iter().position(|f| f.capabilities().atomics);
        let posts = vec![PostMeter::default(); fabrics.len()];
        let mut kinds: Vec<_> = fabrics.iter().map(|f| (f.kind(), f.capabilities().clone())).collect();
        for (i, (_, capabilities)) in kinds.iter_mut().enumerate() {
            capabilities.atomics = atomics == Some(i);
        }
        Driver {
            node,
            fabrics,
            kinds,
            posts,
            atomics,
            links: BTreeMap::new(),
            blocked: BTreeSet::new(),
            is_unheard: false,
            next_link: 1,
            next_foreign: SegmentId::FIRST_FOREIGN,
        }
    }

    /// Returns the kind of the fabric whose device operates on words of memory, if there is one. The node then needs
    /// memory for its counters; see [`Node::use_words`].
    #[must_use]
    pub fn atomic_fabric(&self) -> Option<FabricKind> {
        self.atomics.map(|i| self.fabrics[i].kind())
    }

    /// Returns the fabrics, for waiting on their descriptors.
    pub fn fabrics(&mut self) -> &mut [Box<dyn Fabric<Memory = M>>] {
        &mut self.fabrics
    }

    /// Returns the counts of posts and events of each fabric, in the order of [`Driver::fabrics`].
    #[must_use]
    pub fn posts(&self) -> &[PostMeter] {
        &self.posts
    }

    /// Registers a segment with every fabric, or with none. Returns the fabrics that cannot read it, which have not registered it, and
    /// their errors; none of them, for memory that is mapped writable.
    ///
    /// # Errors
    /// The error of a fabric that refused for another reason.
    pub fn register(&mut self, segment: SegmentId, memory: &M) -> Result<Vec<(FabricKind, FabricError)>, FabricError>
    where
        M: Clone,
    {
        let mut unreadable = Vec::new();
        for i in 0..self.fabrics.len() {
            match self.fabrics[i].register(segment, memory.clone()) {
                Ok(()) => {}
                Err(error @ FabricError::Unreadable { .. }) => unreadable.push((self.fabrics[i].kind(), error)),
                Err(e) => {
                    for fabric in &mut self.fabrics[..i] {
                        // A fabric that does not know the segment has nothing to release, so the error is ignored.
                        let _ = fabric.deregister(segment);
                    }
                    return Err(e);
                }
            }
        }
        Ok(unreadable)
    }

    /// Deregisters a segment with all fabrics that know it.
    pub fn deregister(&mut self, segment: SegmentId) {
        self.is_unheard = true;
        for fabric in &mut self.fabrics {
            // A fabric that does not know the segment has nothing to release, so the error is ignored.
            let _ = fabric.deregister(segment);
        }
    }

    fn fabric_of_kind(&self, kind: FabricKind) -> Result<usize, FabricError> {
        self.fabrics.iter().position(|f| f.kind() == kind).ok_or_else(|| FabricError::Device {
            what: "making a link",
            why: format!("this sidecar has no {kind} fabric"),
        })
    }

    fn add_link(&mut self, fabric: usize, pending: Pending) -> LinkId {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.links.insert(link, LinkState { fabric, pending: Some(pending), blocked: VecDeque::new(), ended: false });
        link
    }

    /// Returns an overview of the node, including the number of links with dead rails.
    #[must_use]
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let up = self.links.iter().filter(|(_, state)| state.pending.is_none());
        let rails = up.map(|(link, state)| rails_of(&*self.fabrics[state.fabric], *link));
        let impaired = rails.filter(|rails| rails.live < rails.all).count() as u64;
        Snapshot { impaired, ..self.node.state().snapshot(now) }
    }

    /// Returns a page of links with their rails; see [`NodeState::links`](crate::protocol::NodeState::links).
    #[must_use]
    pub fn links(&self, peer: &str, from: u64, limit: usize) -> Page<LinkStatus> {
        let mut page = self.node.state().links(peer, from, limit);
        for link in &mut page.entries {
            if let Some(state) = self.links.get(&link.link) {
                let rails = rails_of(&*self.fabrics[state.fabric], link.link);
                (link.rails, link.rails_live) = (rails.all, rails.live);
            }
        }
        page
    }

    /// Begins a link as its initiator. Returns the link, and what the peer must know: the offer and the number of this
    /// side's receive slots.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn begin_link(&mut self, peer: &Name, kind: FabricKind) -> Result<(LinkId, Offer, u32), FabricError> {
        let fabric = self.fabric_of_kind(kind)?;
        let pending = Pending { initiator_of: Some(peer.clone()), peer: None };
        let link = self.add_link(fabric, pending);
        match self.fabrics[fabric].offer(link) {
            Ok(offer) => Ok((link, offer, self.fabrics[fabric].capabilities().receive_slots)),
            Err(e) => {
                self.links.remove(&link);
                Err(e)
            }
        }
    }

    /// Begins a link as its acceptor. Returns the link, and what the initiator must know: the offer and the number of
    /// this side's receive slots.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn accept_link(
        &mut self,
        peer: PeerInfo,
        kind: FabricKind,
        offer: &Offer,
    ) -> Result<(LinkId, Offer, u32), FabricError> {
        let fabric = self.fabric_of_kind(kind)?;
        let link = self.add_link(fabric, Pending { initiator_of: None, peer: Some(peer) });
        match self.fabrics[fabric].accept(link, offer) {
            Ok(offer) => Ok((link, offer, self.fabrics[fabric].capabilities().receive_slots)),
            Err(e) => {
                self.links.remove(&link);
                Err(e)
            }
        }
    }

    /// Continues a link as its initiator, with the acceptor's answer.
    ///
    /// # Errors
    /// [`FabricError`]. The link is then removed.
    pub fn finish_link(&mut self, link: LinkId, peer: PeerInfo, offer: &Offer) -> Result<(), FabricError> {
        let what = "go on connecting";
        let Some(state) = self.links.get_mut(&link) else { return Err(FabricError::WrongState { link, what }) };
        let Some(pending) = &mut state.pending else { return Err(FabricError::WrongState { link, what }) };
        pending.peer = Some(peer);
        let fabric = state.fabric;
        self.fabrics[fabric].connect(link, offer).inspect_err(|_| {
            self.links.remove(&link);
        })
    }

    /// Ends a link that was begun and cannot be completed.
    pub fn abandon_link(&mut self, link: LinkId, why: &str) {
        if let Some(state) = self.links.remove(&link) {
            self.fabrics[state.fabric].disconnect(link, DownReason::Closed(why.to_owned()));
        }
    }

    /// Hands a worker's request to the node.
    ///
    /// A worker may learn from the sender that a version has landed here before this node has polled the completion
    /// from its device. So if that is possible for the key of a fetch, the fabrics are polled first.
    pub fn request(&mut self, now: Time, session: SessionId, request: Request, memory: &impl HeaderMemory) {
        if let Request::Command { command: Command::Fetch(fetch), .. } = &request
            && self.node.state().lands_unannounced(&fetch.key)
        {
            self.poll_fabrics(now, memory);
        }
        self.node.request(now, session, request);
    }

    /// Handles the passing of time; see [`Node::timeout`].
    pub fn timeout(&mut self, now: Time) {
        self.node.timeout(now);
    }

    /// Polls every fabric once and hands their events to the node. Returns whether anything happened.
    pub fn poll_fabrics(&mut self, now: Time, memory: &impl HeaderMemory) -> bool {
        self.hear_fabrics(now, memory, |fabric, sink| fabric.poll(sink))
    }

    /// Has `each` report events of every fabric, and hands them to the node. Returns whether anything happened.
    fn hear_fabrics(
        &mut self,
        now: Time,
        memory: &impl HeaderMemory,
        each: impl Fn(&mut dyn Fabric<Memory = M>, &mut dyn FnMut(FabricEvent<'_>)) -> bool,
    ) -> bool {
        let mut active = false;
        let Driver { node, fabrics, kinds, posts, links, .. } = self;
        for ((fabric, (kind, capabilities)), meter) in fabrics.iter_mut().zip(kinds).zip(posts) {
            active |= each(&mut **fabric, &mut |event| {
                meter.reported(&event);
                // The same poll may also report the peer's first messages, so the node must know the link before it
                // gets them.
                match &event {
                    FabricEvent::Connected { link } => {
                        if let Some(peer) = links.get_mut(link).and_then(LinkState::connected) {
                            node.link_up(now, *link, peer, *kind, capabilities.clone());
                        }
                    }
                    FabricEvent::LinkDown { link, reason } => {
                        if let Some(LinkState { pending: Some(Pending { initiator_of: Some(peer), .. }), .. }) =
                            links.remove(link)
                        {
                            node.link_failed(*link, peer, reason.to_string());
                        }
                    }
                    FabricEvent::Message { link, .. } | FabricEvent::Immediate { link, .. } => {
                        let early = links.get(link).is_some_and(|state| state.pending.is_some());
                        debug_assert!(!early, "{kind} brings something over {link} before it is connected: {event:?}");
                    }
                    _ => {}
                }
                let header = match &event {
                    FabricEvent::Immediate { link, value, .. } => {
                        node.landing_header(*link, *value).and_then(|slice| memory.read_header(slice))
                    }
                    _ => None,
                };
                node.fabric_event(now, event, header.as_ref());
            });
        }
        active
    }

    /// Moves all waiting actions into `batch`, which must be empty, in their order. Returns `false` when no action is left.
    /// The caller gives each to [`Driver::act`], and then does those that are for the host.
    #[must_use]
    pub fn take_actions(&mut self, now: Time, memory: &mut impl HeaderMemory, batch: &mut VecDeque<Action>) -> bool {
        loop {
            if self.node.take_actions(batch) {
                return true;
            }
            if !self.settle(now, memory) {
                return false;
            }
        }
    }

    /// Posts what had to wait, and hears what fabrics have granted and revoked by now, which is acted on in this turn. Returns
    /// whether there was anything to hear. Where nothing was posted, fabrics have nothing to say before they are polled.
    fn settle(&mut self, now: Time, memory: &mut impl HeaderMemory) -> bool {
        if !std::mem::take(&mut self.is_unheard) && self.blocked.is_empty() {
            return false;
        }
        self.retry_blocked(memory);
        self.hear_fabrics(now, memory, |fabric, sink| fabric.report(sink))
    }

    /// Does an action, or that part of it that concerns fabrics. The rest is the host's. Returns a segment of a peer which it
    /// was asked to keep, and its memory: from now on workers may get leases in it, until [`HostAction::SegmentUnused`]. Before that
    /// action is done, the segment is deregistered with the fabrics here.
    #[must_use]
    pub fn act(&mut self, action: &mut Action, memory: &mut impl HeaderMemory) -> Option<(SegmentId, M)> {
        self.is_unheard |= matches!(action, Action::Post(_) | Action::Fabric(_));
        match action {
            Action::Post(post) => {
                if self.post(post, memory)
                    && let Action::Post(post) = action.take()
                    && let Some(state) = self.links.get_mut(&post.link())
                {
                    state.blocked.push_back(post);
                }
            }
            Action::Fabric(FabricAction::Keep { link, handle }) => return self.keep(*link, *handle),
            Action::Fabric(FabricAction::Disconnect { link, reason }) => {
                if let Some(state) = self.links.get_mut(link) {
                    state.blocked.clear();
                    state.ended = true;
                    self.fabrics[state.fabric].disconnect(*link, reason.clone());
                }
            }
            Action::Fabric(FabricAction::LocalAtomic { work, word, op }) => {
                let fabric = self.atomics.and_then(|i| self.fabrics.get_mut(i));
                let posted = match fabric.and_then(|fabric| fabric.atomics()) {
                    Some(atomics) => atomics.post_local_atomic(*work, *word, *op).map_err(|e| e.to_string()),
                    None => Err("no fabric has atomic operations".to_owned()),
                };
                if let Err(why) = posted {
                    self.node.local_atomic_refused(*work, &why);
                }
            }
            Action::Host(HostAction::SegmentUnused { segment }) => self.deregister(*segment),
            Action::Host(_) | Action::Taken => {}
        }
        None
    }

    /// Takes a segment that a peer has passed. Taking it also tells the peer, so the peer refers to nothing in the
    /// segment before this node knows it.
    fn keep(&mut self, link: LinkId, handle: u32) -> Option<(SegmentId, M)> {
        let state = self.links.get(&link)?;
        let next = self.next_foreign.checked_sub(1)?;
        let (memory, len) = self.fabrics[state.fabric].sharing()?.keep(link, handle)?;
        let segment = SegmentId(std::mem::replace(&mut self.next_foreign, next));
        self.node.keep_segment(link, handle, segment, len).then_some((segment, memory))
    }

    /// Posts to a fabric. Returns whether the post has to wait for room.
    fn post(&mut self, post: &Post, memory: &mut impl HeaderMemory) -> bool {
        let link = post.link();
        let Some(state) = self.links.get_mut(&link).filter(|state| !state.ended) else { return false };
        if !state.blocked.is_empty() {
            return true;
        }
        match try_post(&mut *self.fabrics[state.fabric], post, memory) {
            Ok(()) => self.posts[state.fabric].posted(post),
            Err(PostError::Full(_)) => {
                self.posts[state.fabric].full += 1;
                self.blocked.insert(link);
                return true;
            }
            // The fabric reports `LinkDown` as an event. The node settles its posts then.
            Err(PostError::LinkDown(_)) => {}
            Err(e) => refused(&mut self.node, &mut *self.fabrics[state.fabric], post, &e),
        }
        false
    }

    /// Posts what found a send queue full, as far as there is room now. Costs nothing for links without such posts.
    fn retry_blocked(&mut self, memory: &mut impl HeaderMemory) {
        let Driver { node, links, fabrics, posts, blocked, .. } = self;
        if blocked.is_empty() {
            return;
        }
        blocked.retain(|link| {
            // A link that has ended meanwhile has nothing to post.
            let Some(state) = links.get_mut(link) else { return false };
            while let Some(post) = state.blocked.front() {
                match try_post(&mut *fabrics[state.fabric], post, memory) {
                    Err(PostError::Full(_)) => break,
                    Ok(()) => posts[state.fabric].posted(post),
                    Err(PostError::LinkDown(_)) => {}
                    Err(e) => refused(node, &mut *fabrics[state.fabric], post, &e),
                }
                state.blocked.pop_front();
            }
            !state.blocked.is_empty()
        });
    }
}

/// Handles a post that the fabric refused. An atomic operation that is unsupported can be requested by a message
/// instead. Every other error ends the link.
fn refused<M>(node: &mut Node, fabric: &mut dyn Fabric<Memory = M>, post: &Post, why: &PostError) {
    match (post, why) {
        (Post::Atomic { link, work, .. }, PostError::Unsupported { .. }) => node.atomic_refused(*link, *work),
        _ => fabric.disconnect(post.link(), DownReason::Closed(why.to_string())),
    }
}

fn rails_of<M>(fabric: &dyn Fabric<Memory = M>, link: LinkId) -> LinkRails {
    fabric.rails().map_or(LinkRails::ONE, |rails| rails.rails_of(link))
}

fn try_post<M>(
    fabric: &mut dyn Fabric<Memory = M>,
    post: &Post,
    memory: &mut impl HeaderMemory,
) -> Result<(), PostError> {
    match post {
        Post::Send { link, message } => fabric.post_send(*link, WorkId(u64::MAX), message),
        Post::Grant { link, range, access, tag } => fabric.grant(*link, *range, *access, *tag),
        Post::Revoke { link, key, tag } => fabric.revoke(*link, *key, *tag),
        Post::Share { link, segment } => match fabric.sharing() {
            Some(sharing) => sharing.share(*link, *segment),
            None => Err(PostError::Unsupported { link: *link, what: "refer to memory" }),
        },
        Post::Atomic { link, work, remote, op } => match fabric.atomics() {
            Some(atomics) => atomics.post_atomic(*link, *work, *remote, *op),
            None => Err(PostError::Unsupported { link: *link, what: "operate on words of the peer" }),
        },
        Post::Write(write) => {
            let Write { link, work, header, sgl, remote, immediate } = &**write;
            if let Some((cell, bytes)) = header
                && !memory.write_header(*cell, bytes)
            {
                return Err(PostError::BadLocalSlice(*cell));
            }
            fabric.post_write(*link, *work, sgl, *remote, *immediate)
        }
    }
}
