//! The fabric that makes its links of links of inner fabrics.

use super::atomics::NO_ATOMICS;
#[cfg(test)]
use super::broken::Broken;
use super::frame::Frame;
use super::link::{Link, Phase, WorkKind};
use super::links::Links;
use super::offer;
use super::rail::{Chore, Entry, Item, Rail};
use super::{Out, RailsConfig, RailsError};
use crate::fabric::{
    Atomics, Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, LinkId, LinkRails,
    Offer, PostError, Rails, WorkId,
};
use crate::memory::{ALIGNMENT, LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use crate::plan::{GatherList, stripe};

/// The number of grants and revokes that may wait on a rail before the link refuses further ones as full.
const MAX_CHORES: usize = 256;

type RailFabric<M> = Box<dyn Fabric<Memory = M>>;

/// A fabric whose links consist of several links of inner fabrics. See the [module](super).
pub struct MultiRail<M> {
    config: RailsConfig,
    kind: FabricKind,
    capabilities: Capabilities,
    pub(super) inner: Vec<RailFabric<M>>,
    pub(super) links: Links,
}

impl<M> std::fmt::Debug for MultiRail<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MultiRail").field("config", &self.config).field("links", &self.links).finish_non_exhaustive()
    }
}

impl<M> MultiRail<M> {
    /// Creates a fabric with rails over these inner fabrics.
    ///
    /// # Errors
    /// [`RailsError`] if the fabrics do not fit together.
    pub fn new(inner: Vec<RailFabric<M>>, config: RailsConfig) -> Result<MultiRail<M>, RailsError> {
        let what: Vec<_> = inner.iter().map(|fabric| (fabric.kind(), fabric.capabilities().clone())).collect();
        let capabilities = config.check(&what)?;
        let kind = what.first().map_or(FabricKind::Sim, |(kind, _)| *kind);
        let slots = config.rails.iter().filter_map(|fabric| what.get(*fabric)).map(|(_, c)| c.receive_slots as usize);
        let links = Links {
            bound: slots.sum(),
            copies: what.iter().map(|(_, c)| c.receiver_copies.into()).collect(),
            ..Links::default()
        };
        Ok(MultiRail { config, kind, capabilities, inner, links })
    }

    /// Breaks a rule on purpose.
    #[cfg(test)]
    pub(crate) fn set_broken(&mut self, broken: Option<Broken>) {
        self.links.broken = broken;
    }

    fn expect_new(&self, link: LinkId, what: &'static str) -> Result<(), FabricError> {
        if self.links.links.contains_key(&link) { Err(FabricError::WrongState { link, what }) } else { Ok(()) }
    }

    /// Begins up to `count` inner links, and the link that consists of them. An inner link that cannot be made leaves
    /// its rail down from the beginning, and its offer is empty. At least one inner link must be made.
    fn begin(
        &mut self,
        link: LinkId,
        (count, offered): (usize, bool),
        mut begin: impl FnMut(&mut RailFabric<M>, LinkId, usize) -> Result<Offer, FabricError>,
    ) -> Result<Offer, FabricError> {
        let (mut rails, mut offers, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (rail, fabric) in self.config.rails.iter().copied().enumerate().take(count) {
            let inner = self.links.new_inner();
            offers.push(begin(&mut self.inner[fabric], inner, rail).unwrap_or_else(|error| {
                refused.push((rail, error));
                Offer::default()
            }));
            rails.push((fabric, inner));
        }
        if refused.len() == rails.len() && !refused.is_empty() {
            let (_, error) = refused.swap_remove(0);
            return Err(of_link(error, link));
        }
        self.links.add(link, offered, &rails);
        let Some(offer) = offer::encode(&offers) else {
            self.links.remove(link, "an offer is too long");
            self.end_rails();
            return Err(FabricError::Device { what: "offering rails", why: "an inner offer is too long".into() });
        };
        for (rail, error) in refused {
            self.links.not_made(link, rail, &error);
        }
        self.end_rails();
        Ok(offer)
    }

    /// Disconnects the inner links that are due to end. Returns whether there were any.
    fn end_rails(&mut self) -> bool {
        let disconnects = std::mem::take(&mut self.links.out.disconnects);
        let any = !disconnects.is_empty();
        for (fabric, inner, reason) in disconnects {
            self.inner[fabric].disconnect(inner, reason);
        }
        any
    }

    /// Posts queued entries as far as there is room.
    fn flush(&mut self) -> bool {
        let mut moved = false;
        let Links { links, busy, out, .. } = &mut self.links;
        busy.retain(|id| {
            let Some(link) = links.get_mut(id) else { return false };
            moved |= flush(link, &mut self.inner, out);
            link.rails.iter().any(|rail| rail.is_up() && !(rail.queue.is_empty() && rail.chores.is_empty()))
        });
        self.end_rails() | moved
    }

    fn link(&mut self, link: LinkId) -> Result<&mut Link, PostError> {
        let up = |link: &&mut Link| link.phase == Phase::Up;
        self.links.links.get_mut(&link).filter(up).ok_or(PostError::LinkDown(link))
    }

    /// Posts an item in the link's order. `work` is the user's id.
    fn post_in_order(&mut self, id: LinkId, work: WorkId, kind: WorkKind, item: Item) -> Result<(), PostError> {
        let link = self.link(id)?;
        let entry = Entry { item, work: Some(link.next_work()) };
        if entry.item.is_counted() {
            link.fence();
        }
        self.links.busy.insert(id);
        self.flush();
        let MultiRail { inner, links, .. } = self;
        let Some(link) = links.links.get_mut(&id) else { return Err(PostError::LinkDown(id)) };
        let lead = &mut link.rails[link.lead];
        if lead.is_up() && lead.queue.is_empty() {
            match post(&mut *inner[lead.fabric], lead.inner, link.lead, &entry) {
                Ok(Posted::Yes) => lead.note_posted(entry),
                Ok(Posted::No | Posted::NoKey) => lead.queue.push_back(entry),
                Err(error) => return Err(of_post(error, id)),
            }
        } else {
            lead.queue.push_back(entry);
        }
        link.add_work(work, kind, 1);
        self.flush();
        Ok(())
    }

    /// Posts a write as shares over several rails. Returns `false` if the write is too short or too few rails are open
    /// for it.
    fn post_striped(
        &mut self,
        id: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<bool, PostError> {
        let least = self.config.stripe_bytes.max(1);
        let (align, max_sge) = (self.config.align_bytes.max(ALIGNMENT), self.capabilities.max_sge);
        let Some(link) = self.links.links.get_mut(&id) else { return Ok(false) };
        let rails = link.open_rails(&remote);
        let count = rails.len().min(usize::try_from(remote.len / least).unwrap_or(usize::MAX));
        if count < 2 {
            return Ok(false);
        }
        // Check all slices first, so that a write is not refused after a part of it was posted.
        for slice in sgl {
            for rail in &rails {
                self.inner[link.rails[*rail].fabric].check_slice(slice)?;
            }
        }
        let Some(shares) = stripe(sgl, remote, count, align, max_sge) else { return Ok(false) };
        let number = Some(link.next_work());
        let parts = shares.iter().map(|share| share.pieces.len()).sum();
        let mut shares = shares.into_iter();
        let Some(first) = shares.next() else { return Ok(false) };
        link.add_work(work, WorkKind::Write, parts);
        for share in shares {
            for piece in share.pieces {
                let (len, sgl) = (piece.remote.len, piece.sgl);
                let item = Item::Write { sgl, remote: piece.remote, immediate: None };
                link.queue_share(rails[share.rail], Entry { item, work: number }, len);
            }
        }
        if immediate.is_some() {
            link.fence();
        }
        // The piece with the first bytes is posted last, because they are the landing header.
        for (i, piece) in first.pieces.into_iter().enumerate().rev() {
            let immediate = immediate.filter(|_| i == 0);
            let item = Item::Write { sgl: piece.sgl, remote: piece.remote, immediate };
            link.rails[link.lead].queue.push_back(Entry { item, work: number });
        }
        self.links.busy.insert(id);
        self.flush();
        Ok(true)
    }
}

enum Posted {
    Yes,
    /// There is no room now, or the rail is about to be reported dead.
    No,
    /// The peer opened the range over other rails only. Its end of this rail is dead, and a RAIL_DOWN will follow.
    NoKey,
}

/// Posts an entry to its rail.
fn post<M>(
    fabric: &mut dyn Fabric<Memory = M>,
    inner: LinkId,
    rail: usize,
    entry: &Entry,
) -> Result<Posted, PostError> {
    let work = WorkId(entry.work.unwrap_or(u64::MAX));
    let result = match &entry.item {
        Item::Message(bytes) | Item::Notice(bytes) => fabric.post_send(inner, work, bytes),
        Item::Write { sgl, remote, immediate } => {
            // A write of zero bytes needs no key.
            let key = remote.keys.rail(rail).or_else(|| (remote.len == 0).then(|| remote.key()));
            let Some(key) = key else { return Ok(Posted::NoKey) };
            fabric.post_write(inner, work, sgl, RemoteSlice::new(remote.address, remote.len, key), *immediate)
        }
        Item::Atomic => Ok(()),
    };
    match result {
        Ok(()) => Ok(Posted::Yes),
        Err(PostError::Full(_) | PostError::LinkDown(_)) => Ok(Posted::No),
        Err(error) => Err(error),
    }
}

/// Posts the queued entries of a link's rails as far as there is room. Returns whether anything was posted.
fn flush<M>(link: &mut Link, fabrics: &mut [RailFabric<M>], out: &mut Out) -> bool {
    let mut moved = false;
    for rail in 0..link.rails.len() {
        if link.rails[rail].is_up() {
            moved |= flush_chores(link, rail, &mut *fabrics[link.rails[rail].fabric], out);
        }
        while link.rails[rail].is_up() {
            let Rail { fabric, inner, queue, .. } = &mut link.rails[rail];
            let Some(entry) = queue.front() else { break };
            match post(&mut *fabrics[*fabric], *inner, rail, entry) {
                Ok(Posted::Yes) => {
                    if let Some(entry) = queue.pop_front() {
                        link.rails[rail].note_posted(entry);
                    }
                    moved = true;
                }
                Ok(Posted::No) => break,
                Ok(Posted::NoKey) => {
                    let reason = DownReason::Closed("a range is not open over it: its other end is dead".into());
                    link.end_rail(rail, &reason, out);
                }
                Err(error) => {
                    link.end(DownReason::Closed(of_post(error, link.id).to_string()), out);
                }
            }
        }
    }
    moved
}

fn flush_chores<M>(link: &mut Link, rail: usize, fabric: &mut dyn Fabric<Memory = M>, out: &mut Out) -> bool {
    let mut moved = false;
    while let Some(chore) = link.rails[rail].chores.front() {
        let inner = link.rails[rail].inner;
        let asked = match chore {
            Chore::Grant { range, access, number } => fabric.grant(inner, *range, *access, *number),
            Chore::Revoke { key, number } => fabric.revoke(inner, *key, *number),
        };
        match (asked, chore) {
            (Err(PostError::Full(_) | PostError::LinkDown(_)), _) => break,
            (Err(_), Chore::Grant { number, .. }) => {
                let (number, mut asks) = (*number, Vec::new());
                let outcome = link.grants.answered(rail, number, None, &mut asks);
                link.ask(asks);
                if let Some(outcome) = outcome {
                    link.grant_outcome(outcome, out);
                }
            }
            (Err(error), Chore::Revoke { .. }) => {
                link.end(DownReason::Closed(of_post(error, link.id).to_string()), out);
            }
            (Ok(()), _) => {}
        }
        link.rails[rail].chores.pop_front();
        moved = true;
    }
    moved
}

/// Converts an error of an inner link into one of the link.
fn of_link(error: FabricError, link: LinkId) -> FabricError {
    match error {
        FabricError::WrongState { what, .. } => FabricError::WrongState { link, what },
        FabricError::BadOffer { why, .. } => FabricError::BadOffer { link, why },
        other => other,
    }
}

/// Converts a post error of an inner link into one of the link.
pub(super) fn of_post(error: PostError, link: LinkId) -> PostError {
    match error {
        PostError::Full(_) => PostError::Full(link),
        PostError::LinkDown(_) => PostError::LinkDown(link),
        PostError::Unsupported { what, .. } => PostError::Unsupported { link, what },
        other => other,
    }
}

impl<M: Clone> Fabric for MultiRail<M> {
    type Memory = M;

    fn kind(&self) -> FabricKind {
        self.kind
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, segment: SegmentId, memory: M) -> Result<(), FabricError> {
        for i in 0..self.inner.len() {
            if let Err(error) = self.inner[i].register(segment, memory.clone()) {
                for fabric in &mut self.inner[..i] {
                    // This fabric registered the segment just now, so the call cannot fail.
                    let _ = fabric.deregister(segment);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        let results: Vec<_> = self.inner.iter_mut().map(|fabric| fabric.deregister(segment)).collect();
        results.into_iter().collect()
    }

    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError> {
        self.inner.iter().try_for_each(|fabric| fabric.check_slice(slice))
    }

    fn offer(&mut self, link: LinkId) -> Result<Offer, FabricError> {
        self.expect_new(link, "offer")?;
        self.begin(link, (self.config.rails.len(), true), |fabric, inner, _| fabric.offer(inner))
    }

    fn accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        self.expect_new(link, "accept")?;
        let offers = offer::decode(peer).map_err(|why| FabricError::BadOffer { link, why: why.into() })?;
        self.begin(link, (offers.len(), false), |fabric, inner, rail| fabric.accept(inner, &offers[rail]))
    }

    fn connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError> {
        let Some(found) = self.links.links.get_mut(&link).filter(|link| link.offered) else {
            return Err(FabricError::WrongState { link, what: "connect" });
        };
        let bad = |why: &str| FabricError::BadOffer { link, why: why.into() };
        let answers = offer::decode(peer).map_err(bad)?;
        if answers.len() > found.rails.len() {
            return Err(bad("it has more rails than were offered"));
        }
        let spare = found.answered(answers.len(), &mut self.links.out);
        let rails: Vec<_> = found.rails.iter().map(|rail| (rail.fabric, rail.inner, rail.is_down())).collect();
        for rail in &spare {
            self.links.drop_rail(rail, "the peer has fewer rails");
        }
        let mut refused = None;
        for (number, ((fabric, inner, _), answer)) in
            rails.into_iter().zip(&answers).enumerate().filter(|(_, ((_, _, down), _))| !down)
        {
            if let Err(error) = self.inner[fabric].connect(inner, answer) {
                self.links.not_made(link, number, &error);
                refused.get_or_insert(error);
            }
        }
        let dead = self.links.links.get(&link).is_none_or(Link::is_dead);
        if dead {
            self.links.remove(link, "no rail can be made");
        }
        self.end_rails();
        if dead {
            let died =
                || FabricError::Device { what: "connecting", why: "its rails died while it was offered".to_owned() };
            return Err(of_link(refused.unwrap_or_else(died), link));
        }
        Ok(())
    }

    fn disconnect(&mut self, link: LinkId, reason: DownReason) {
        let Links { links, out, .. } = &mut self.links;
        if let Some(link) = links.get_mut(&link) {
            if let (true, Some(rail)) = (link.is_single(), link.rails.first()) {
                out.disconnects.push((rail.fabric, rail.inner, reason));
            } else {
                link.end(reason, out);
            }
        }
        self.end_rails();
    }

    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError> {
        let MultiRail { inner, links, .. } = self;
        let found = links.links.get_mut(&link).ok_or(PostError::LinkDown(link))?;
        if let [rail] = &found.rails[..] {
            let asked = inner[rail.fabric].grant(rail.inner, range, access, tag);
            return asked.map_err(|error| of_post(error, link));
        }
        let found = self.link(link)?;
        let open = |rail: &Rail| rail.is_up() && (access == GrantAccess::Write || rail.fabric == 0);
        let rails: Vec<_> = (0..found.rails.len()).filter(|rail| open(&found.rails[*rail])).collect();
        let Some((first, others)) = rails.split_first() else {
            return match access {
                GrantAccess::Write => Err(PostError::Full(link)),
                GrantAccess::Atomic => Err(PostError::Unsupported { link, what: NO_ATOMICS }),
            };
        };
        if found.rails.iter().any(|rail| rail.chores.len() >= MAX_CHORES) {
            return Err(PostError::Full(link));
        }
        let number = found.grants.begin(tag, range, &rails);
        let first = &found.rails[*first];
        let (fabric, inner) = (first.fabric, first.inner);
        // The first rail decides whether the grant is possible.
        if let Err(error) = self.inner[fabric].grant(inner, range, access, number) {
            self.link(link)?.grants.abandon(number);
            return Err(match of_post(error, link) {
                // The rail is about to be reported dead.
                PostError::LinkDown(_) => PostError::Full(link),
                error => error,
            });
        }
        let found = self.link(link)?;
        found.ask(others.iter().map(|rail| (*rail, Chore::Grant { range, access, number })).collect());
        self.links.busy.insert(link);
        self.flush();
        Ok(())
    }

    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        let MultiRail { inner, links, .. } = self;
        let found = links.links.get_mut(&link).ok_or(PostError::LinkDown(link))?;
        if let [rail] = &found.rails[..] {
            return inner[rail.fabric].revoke(rail.inner, key, tag).map_err(|error| of_post(error, link));
        }
        let Links { links, out, busy, .. } = links;
        let up = |link: &&mut Link| link.phase == Phase::Up;
        let found = links.get_mut(&link).filter(up).ok_or(PostError::LinkDown(link))?;
        if found.rails.iter().any(|rail| rail.chores.len() >= MAX_CHORES) {
            return Err(PostError::Full(link));
        }
        let mut asks = Vec::new();
        let outcome = found.grants.revoke(key, tag, &mut asks);
        found.ask(asks);
        if let Some(outcome) = outcome {
            found.grant_outcome(outcome, out);
        }
        busy.insert(link);
        self.flush();
        Ok(())
    }

    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let MultiRail { inner, links, .. } = self;
        let found = links.links.get_mut(&link).ok_or(PostError::LinkDown(link))?;
        if let [rail] = &found.rails[..] {
            let posted = inner[rail.fabric].post_write(rail.inner, work, sgl, remote, immediate);
            return posted.map_err(|error| of_post(error, link));
        }
        if !self.link(link)?.has_room() {
            return Err(PostError::Full(link));
        }
        self.capabilities.check_write(sgl, &remote)?;
        if self.post_striped(link, work, sgl, remote, immediate)? {
            return Ok(());
        }
        let item = Item::Write { sgl: GatherList::from_slice(sgl), remote, immediate };
        self.post_in_order(link, work, WorkKind::Write, item)
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        let MultiRail { inner, links, .. } = self;
        let found = links.links.get_mut(&link).ok_or(PostError::LinkDown(link))?;
        if let [rail] = &found.rails[..] {
            let posted = inner[rail.fabric].post_send(rail.inner, work, message);
            return posted.map_err(|error| of_post(error, link));
        }
        if !self.link(link)?.has_room() {
            return Err(PostError::Full(link));
        }
        self.capabilities.check_message(message)?;
        self.post_in_order(link, work, WorkKind::Send, Item::Message(Frame::User(message).encode()))
    }

    fn atomics(&mut self) -> Option<&mut dyn Atomics> {
        if self.capabilities.atomics { Some(self) } else { None }
    }

    fn rails(&self) -> Option<&dyn Rails> {
        Some(self)
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        let inner = self.inner.iter().flat_map(|fabric| fabric.describe());
        inner.chain([("rails", self.config.rails.len().to_string())]).collect()
    }

    /// Returns the counters of the inner fabrics, summed by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = Vec::<(&'static str, u64)>::new();
        for (name, count) in self.inner.iter().flat_map(|fabric| fabric.counters()) {
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name, count)),
            }
        }
        sums
    }

    fn report(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        let MultiRail { inner, links, .. } = self;
        let mut any = false;
        for fabric in inner {
            any |= fabric.report(&mut |event| links.hear(event, sink));
        }
        any
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        let mut moved = self.links.report(sink);
        let MultiRail { inner, links, .. } = self;
        for fabric in inner {
            moved |= fabric.poll(&mut |event| links.hear(event, sink));
        }
        moved |= self.flush();
        moved | self.links.report(sink)
    }

    fn arm(&mut self) {
        for fabric in &mut self.inner {
            fabric.arm();
        }
    }

    fn woken(&mut self) {
        for fabric in &mut self.inner {
            fabric.woken();
        }
    }

    fn wait_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.inner.iter().flat_map(|fabric| fabric.wait_fds()).collect()
    }
}

impl<M: Clone> Rails for MultiRail<M> {
    fn rails_of(&self, link: LinkId) -> LinkRails {
        self.links.links.get(&link).map_or(LinkRails { all: 0, live: 0 }, |link| {
            // A link with one rail does not track the rail's state; only its end is reported.
            let live = link.rails.iter().filter(|rail| link.is_single() || rail.is_up()).count();
            LinkRails { all: link.rails.len(), live }
        })
    }
}
