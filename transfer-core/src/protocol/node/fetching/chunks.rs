//! The chunks of versions: which are asked for, and what becomes of them when they have landed, or do not come.

use crate::fabric::LinkId;
use crate::memory::{LocalSlice, padded};
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::chunks::{Chunks, Compared};
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::{BlobId, PullId, SlotId};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::LandedTensor;
use crate::protocol::node::flows::Fetching;
use crate::protocol::node::replies::Carried;
use crate::protocol::relays::{MOVED, Proof};
use crate::protocol::rules::Broken;
use crate::protocol::search::{CLOSING, Search};
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{ChunkPull, Held, OfLink, Pull, PullState};
use crate::tensor::{Packing, Select};
use crate::time::Time;
use smallvec::smallvec;

/// The request that has a search, and the fetches that wait for it.
pub(super) type Home = (LinkId, PullId);

impl Fetching<'_> {
    /// Whether a node may be asked for a version for workers of a tenant.
    pub(super) fn may_ask(&self, to: LinkId, domain: Tenant) -> bool {
        let is_met = self.links.get(to).is_some_and(|l| l.unmet(self.config.require).is_none());
        is_met && self.has_request_left(to) && access!(self).vouched(to, domain).is_ok()
    }

    fn has_request_left(&self, to: LinkId) -> bool {
        let limit = self.config.max_requests_per_link;
        let pulls = self.transfers.of(to).map(OfLink::pulls);
        pulls.is_some_and(|pulls| pulls.len() < limit && pulls.has_short_room())
    }

    /// Asks the node that a search has got to for as many chunks as may be asked for at a time.
    pub(super) fn ask_for_chunks(&mut self, now: Time, (link, id): Home) {
        if self.transfers.search_mut(link, id).is_none_or(|search| search.moving.is_some()) {
            return;
        }
        while self.ask_for_chunk(now, (link, id)) {}
        let Some(search) = self.transfers.search_mut(link, id) else { return };
        let (Some(to), Some(chunks)) = (search.asked(), search.chunks.as_mut()) else { return };
        let (is_idle, is_stuck) = (chunks.asked().next().is_none(), chunks.is_stuck());
        if is_idle && !is_stuck && chunks.next().is_some() {
            // There is no request left for it, or no room for a header.
            if to == search.redirect.owner && search.has_owner {
                return self.cannot_be_asked((link, id), to);
            }
            return self.give_up_source(now, (link, id), false);
        }
        // Where nothing has come, nothing has to be copied.
        let wait = if chunks.runs().is_empty() { now } else { now + CLOSING };
        self.transfers.change_search(link, id, |search| {
            search.limit_while(now, !is_idle);
            if is_stuck != search.stuck_until.is_some() {
                search.stuck_until = is_stuck.then_some(wait);
            }
        });
    }

    fn ask_for_chunk(&mut self, now: Time, (link, id): Home) -> bool {
        let Some(p) = self.transfers.pull(link, id) else { return false };
        let (of, domain) = (p.key.clone(), p.domain);
        let Some(to) = p.search.as_ref().and_then(|search| search.asked()) else { return false };
        if !self.has_request_left(to) {
            return false;
        }
        let Some(search) = self.transfers.search_mut(link, id) else { return false };
        let (redirect, Some(chunks)) = (search.redirect.clone(), search.chunks.as_mut()) else { return false };
        let Some(number) = chunks.next() else { return false };
        let Some((range, slice)) = chunks.place(number) else { return false };
        let (blob, is_first) = (chunks.blob, chunks.asked().next().is_none());
        let cell = self.landing.room_for_slot(domain, 0);
        let cell = cell.or_else(|| if is_first { chunks.cell.take() } else { None });
        let Some(cell) = cell else { return false };
        let select = Select::Exactly(redirect.version);
        let pull = Pull::new(now, smallvec![], (of, select, None), domain, None, 0).asking(redirect);
        let pull = pull.for_chunk(ChunkPull { blob, number, range, slice });
        self.keys.hold(blob);
        let Some(pull) = self.transfers.begin_pull(to, pull) else {
            self.landing.free(domain, cell);
            pull_slots!(self).release_chunks(blob);
            return false;
        };
        let slot = pull_slots!(self).open_pull_slot(to, pull, (domain, range.len, cell));
        if let Some(p) = self.transfers.pull_mut(to, pull) {
            p.slot = slot;
        }
        if let Some(chunks) = self.transfers.search_mut(link, id).and_then(|search| search.chunks.as_mut()) {
            chunks.ask(number, to, pull);
        }
        true
    }

    /// Changes the search whose chunks land in a blob.
    fn change_search_of<T>(&mut self, blob: BlobId, change: impl FnOnce(&mut Search, &mut Chunks) -> T) -> Option<T> {
        let change = |search: &mut Search| {
            let mut chunks = search.chunks.take()?;
            let changed = change(search, &mut chunks);
            search.chunks = Some(chunks);
            Some(changed)
        };
        match self.transfers.home_of(blob) {
            Some((link, id)) => self.transfers.change_search(link, id, change).flatten(),
            None => self.transfers.unlinked_search(blob).and_then(change),
        }
    }

    /// Handles a chunk that has landed. Its slot is closed.
    pub(in crate::protocol::node) fn chunk_landed(
        &mut self,
        now: Time,
        link: LinkId,
        id: PullId,
        slot: SlotId,
        landed: LandedTensor,
    ) {
        let LandedTensor { header, copied, .. } = landed;
        if self.transfers.pull(link, id).is_some_and(|p| p.state == PullState::Cancelling) {
            // CANCELLED is still due.
            self.landing.free_slot(link, slot);
            return self.chunk_closed(now, link, id);
        }
        let copies = self.links.get(link).map_or(0, |l| u64::from(l.limits().sender_copies));
        let copied = copied + header.body_len * copies;
        let (Some(pull), Some(slot)) = (self.transfers.end_pull(link, id), self.landing.take_slot(link, slot)) else {
            return;
        };
        let Some(chunk) = pull.chunk() else { return };
        self.links.carried_in(link, chunk.range.len);
        let (blob, trace) = (chunk.blob, pull.origin_of(header.version));
        let mut cell = Some(slot.range);
        let landed = self.change_search_of(blob, |search, chunks| {
            if chunks.cell.is_none() {
                chunks.cell = cell.take();
            }
            let is_owners = link == search.redirect.owner && search.has_owner;
            let is_it = chunks.landed(chunk.number, link, id);
            if is_it {
                search.chunk_came(now, link);
                chunks.copied += copied;
                chunks.relayed += if is_owners { 0 } else { chunk.range.len };
                chunks.header = Some(header);
            }
            is_it.then_some(is_owners)
        });
        if let Some(cell) = cell {
            self.landing.free(slot.domain, cell);
        }
        match landed.flatten() {
            None => pull_slots!(self).release_chunks(blob),
            Some(is_owners) => {
                self.keys.set_trace(blob, trace);
                if is_owners {
                    self.change_search_of(blob, |_, chunks| chunks.came(chunk.number));
                    self.chunk_here(now, blob, chunk.number);
                    pull_slots!(self).release_chunks(blob);
                } else {
                    let tag = self.proofs.insert(Proof::Came(blob, chunk.number)).to_u64();
                    self.actions.push(HostAction::Digest { of: std::iter::once(chunk.slice).collect(), tag });
                }
            }
        }
        if let Some(home) = self.transfers.home_of(blob) {
            self.ask_for_chunks(now, home);
        }
    }

    /// Handles the digest of a chunk that has not come from the owner.
    pub(in crate::protocol::node) fn chunk_proved(
        &mut self,
        now: Time,
        (blob, number): (BlobId, usize),
        digest: [u8; 16],
    ) {
        self.compare_chunk(now, (blob, number), digest);
        pull_slots!(self).release_chunks(blob);
        if let Some(home) = self.transfers.home_of(blob) {
            self.ask_for_chunks(now, home);
        }
    }

    fn compare_chunk(&mut self, now: Time, (blob, number): (BlobId, usize), digest: [u8; 16]) {
        let believes = self.config.rules.breaks(Broken::BelievesRelays);
        let compared = self.change_search_of(blob, |_, chunks| chunks.proved(number, digest, believes));
        match compared {
            Some(Compared::Here) => self.chunk_here(now, blob, number),
            Some(Compared::Refused(from)) => self.chunk_refused(now, blob, from),
            Some(Compared::Waits) | None => {}
        }
    }

    /// Handles a chunk that a node has sent, and that is not that of the owner.
    fn chunk_refused(&mut self, now: Time, blob: BlobId, from: LinkId) {
        self.meters.relay_refused();
        let Some(home) = self.transfers.home_of(blob) else { return };
        let key = self.transfers.pull(home.0, home.1).map(|p| p.key.clone());
        let peer = self.links.get(from).map(|l| l.peer().name.clone());
        if let Some((key, peer)) = key.zip(peer)
            && let Some(untold) = self.failure_rate.next(now)
        {
            self.actions.report(NodeEvent::RelayRefused { key, peer, untold });
        }
        match self.transfers.search_mut(home.0, home.1).and_then(|search| search.asked()) == Some(from) {
            true => self.give_up_source(now, home, true),
            false => self.ask_for_chunks(now, home),
        }
    }

    /// Handles the message DIGESTS of an owner.
    pub(in crate::protocol::node) fn digests_came(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        (first, digests): (u32, &[[u8; 16]]),
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if p.state == PullState::Cancelling {
            return;
        }
        let search =
            p.search.as_deref_mut().filter(|search| (search.redirect.owner, search.redirect.request) == (link, id));
        let landed = search.and_then(|search| {
            let landed = search.add_digests(first, digests)?;
            Some((search.chunks.as_ref().map(|chunks| chunks.blob), landed))
        });
        let Some((blob, landed)) = landed else {
            let count = digests.len();
            return sending!(self).violation(
                link,
                &format!("{count} DIGESTS from chunk {first} on for request {index:#x}, which are not its next ones"),
            );
        };
        let Some(blob) = blob else { return };
        for (number, digest) in landed {
            self.compare_chunk(now, (blob, number), digest);
        }
        if let Some(home) = self.transfers.home_of(blob) {
            self.ask_for_chunks(now, home);
        }
    }

    /// Handles a chunk that is here and right: those get it that wait for it, and with the last one the version is here.
    fn chunk_here(&mut self, now: Time, blob: BlobId, number: usize) {
        let found = self.change_search_of(blob, |search, chunks| {
            let follow = chunks.header.as_ref().is_some_and(|header| header.deltas_follow);
            (search.redirect.clone(), chunks.place(number).map(|(range, _)| range), follow, chunks.are_all_here())
        });
        let Some((redirect, Some(range), follow, are_all_here)) = found else { return };
        if let Some((link, id)) = self.transfers.home_of(blob)
            && let Some(p) = self.transfers.pull(link, id)
        {
            let of = (redirect.owner, p.domain, p.key.clone());
            if self.relays.is_awaited(&of) {
                answering!(self).chunk_come(now, &of, redirect.identity, Some(range), (blob, follow));
            }
        }
        if are_all_here {
            self.version_here(now, blob);
        }
    }

    /// Answers the fetches of a version of which all chunks are here.
    fn version_here(&mut self, now: Time, blob: BlobId) {
        let home = self.transfers.home_of(blob);
        let (search, orphan) = match home {
            Some((link, id)) => (self.transfers.end_search(link, id), None),
            None => {
                let mut pull = self.transfers.take_unlinked(blob);
                (pull.as_mut().and_then(|pull| pull.search.take()), pull)
            }
        };
        let Some(Search { redirect, chunks: Some(mut chunks), has_owner, asked_until, .. }) =
            search.map(|search| *search)
        else {
            return;
        };
        pull_slots!(self).free_cell(&mut chunks);
        let held = Held { blob, identity: redirect.identity };
        let p = orphan.as_ref().or_else(|| home.and_then(|(link, id)| self.transfers.pull(link, id)));
        let (Some(header), Some(p)) = (chunks.header.take(), p) else { return memory!(self).release(blob) };
        let (asked, of) = (p.asked, (p.key.clone(), p.select, None));
        let pull = Pull::new(asked, smallvec![], of, p.domain, None, 0).asking(redirect.clone());
        let at = home.map_or(redirect.owner, |(link, _)| link);
        self.keep_base(at, &pull, Some(held), &header);
        let (of, is_base) = (redirect.spreading(), self.is_base(&redirect.spreading(), held));
        match asked_until.filter(|until| *until > now) {
            Some(until) if is_base => self.bases.ask_until(&of, until),
            Some(until) => self.pass_on(redirect.publication(), (held, header.deltas_follow), until),
            None => {}
        }
        let carried = self.links.get(at).map(|l| Carried {
            kind: l.kind(),
            path: l.path(),
            copied: chunks.copied,
            waited_us: header.waited_us,
            delta: 0,
            identity: None,
            relayed: chunks.relayed,
        });
        match home.filter(|_| has_owner) {
            Some(home) => self.came_elsewhere(now, home, held, carried),
            None => {
                let ended = home.and_then(|(link, id)| self.transfers.end_pull(link, id)).or(orphan);
                if let Some(mut ended) = ended {
                    self.hand_out(now, at, &pull, ended.take_readers().0, blob, carried);
                }
            }
        }
        memory!(self).release(blob);
    }

    /// Handles the end of a request for a chunk that did not come. No peer can write to its place any more.
    pub(in crate::protocol::node) fn chunk_closed(&mut self, now: Time, link: LinkId, id: PullId) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let (state, domain) = (p.state, p.domain);
        let Some(chunk) = p.take_chunk() else { return };
        if state == PullState::Closing {
            self.transfers.end_pull(link, id);
        }
        self.chunk_is_free(now, link, chunk, domain);
    }

    fn chunk_is_free(&mut self, now: Time, link: LinkId, chunk: ChunkPull, domain: Tenant) {
        let landing = &mut *self.landing;
        let home = self.transfers.home_of(chunk.blob);
        if let Some((at, id)) = home
            && let Some(chunks) = self.transfers.search_mut(at, id).and_then(|search| search.chunks.as_mut())
        {
            chunks.closed(chunk.number, link);
            if chunks.cell.is_none() {
                chunks.cell = landing.room_for_slot(domain, 0);
            }
        } else if let Some(chunks) = self.transfers.unlinked_search(chunk.blob).and_then(|s| s.chunks.as_mut()) {
            chunks.closed(chunk.number, link);
        }
        pull_slots!(self).release_chunks(chunk.blob);
        if let Some(home) = home {
            self.ask_for_chunks(now, home);
        }
    }

    /// Handles ERROR_STATUS for a chunk: the node does not send it.
    pub(in crate::protocol::node) fn chunk_failed(&mut self, now: Time, link: LinkId, id: PullId, failure: &Failure) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        match p.state {
            PullState::Asked => {}
            // CANCELLED is still due, and ends the request.
            PullState::Cancelling => return,
            _ => {
                let what =
                    format!("ERROR_STATUS for request {:#x}, which it does not know or has answered", id.short());
                return sending!(self).violation(link, &what);
            }
        }
        if self.landing.has_landed(link, p.slot) {
            let what = format!("ERROR_STATUS for request {:#x}, which it has answered", id.short());
            return sending!(self).violation(link, &what);
        }
        p.state = PullState::Closing;
        let (chunk, slot) = (p.chunk(), p.slot);
        if let Some(slot) = slot {
            room!(self).drop_slot(link, slot);
        }
        if let Some(chunk) = chunk {
            self.source_refuses(now, link, chunk, failure);
        }
    }

    /// Handles the end of the link over which a chunk was asked for.
    pub(in crate::protocol::node) fn chunk_lost(
        &mut self,
        now: Time,
        link: LinkId,
        pull: &Pull,
        chunk: ChunkPull,
        failure: &Failure,
    ) {
        self.source_refuses(now, link, chunk, failure);
        self.chunk_is_free(now, link, chunk, pull.domain);
    }

    fn source_refuses(&mut self, now: Time, link: LinkId, chunk: ChunkPull, failure: &Failure) {
        let Some((at, id)) = self.transfers.home_of(chunk.blob) else { return };
        let Some(search) = self.transfers.search_mut(at, id).filter(|search| search.asked() == Some(link)) else {
            return;
        };
        match link == search.redirect.owner && search.has_owner {
            true => self.fail_search((at, id), failure),
            false => {
                let is_blamed = !matches!(failure.code, FailureCode::Draining | FailureCode::Busy);
                self.give_up_source(now, (at, id), is_blamed);
            }
        }
    }

    /// Goes on in other memory, because a peer may still write to the places of the chunks that are missing. What has come is copied there.
    pub(super) fn move_chunks(&mut self, now: Time, (link, id): Home) {
        self.transfers.change_search(link, id, |search| search.stuck_until = Some(now + CLOSING));
        let Some(p) = self.transfers.pull(link, id) else { return };
        let Some((search, chunks)) = p.search.as_ref().and_then(|search| Some((search, search.chunks.as_ref()?)))
        else {
            return;
        };
        let (domain, redirect, from) = (p.domain, search.redirect.clone(), chunks.blob);
        let (runs, len) = (chunks.runs(), redirect.meta.len_bytes());
        if !chunks.is_stuck() || self.landing.is_contended(domain) {
            return;
        }
        let Some((range, slice)) = padded(len).and_then(|len| self.room_for_result(domain, len)) else { return };
        let slice = LocalSlice { len, ..slice };
        let blob = Blob::new(slice, redirect.meta.clone(), domain, Source::Pool(Box::new(range)));
        let to = self.keys.insert(blob.at(redirect.version, self.keys.blob(from).and_then(Blob::trace)));
        let count = runs.len();
        self.transfers.change_search(link, id, |search| {
            (search.moving, search.stuck_until) = (Some((to, count)), None);
        });
        for run in &runs {
            let (Some(target), Some(b)) = (slice.sub(run.offset, run.len), self.keys.hold(from)) else { continue };
            let body = b.chunk(*run).collect();
            self.keys.hold(to);
            let tag = self.proofs.insert(Proof::Moved(from, to)).to_u64() | MOVED;
            let packing = Box::new(Packing::all(run.len));
            self.actions.push(HostAction::Copy { from: body, packing, to: target, tag });
        }
        if runs.is_empty() {
            self.go_on_in(now, from);
        }
    }

    /// Handles a run of chunks that is copied to another blob.
    pub(in crate::protocol::node) fn chunks_moved(&mut self, now: Time, from: BlobId, to: BlobId) {
        let left = self.change_search_of(from, |search, _| {
            let (_, left) = search.moving.as_mut().filter(|(blob, _)| *blob == to)?;
            *left -= 1;
            Some(*left)
        });
        if left.flatten() == Some(0) {
            self.go_on_in(now, from);
        }
        pull_slots!(self).release_chunks(from);
        pull_slots!(self).release_chunks(to);
    }

    /// Lets a search go on in the blob to which what has come is copied.
    fn go_on_in(&mut self, now: Time, from: BlobId) {
        let home = self.transfers.home_of(from);
        let moving = self.change_search_of(from, |search, _| search.moving.take()).flatten();
        let Some((to, slice)) = moving.and_then(|(to, _)| Some((to, self.keys.blob(to)?.slice()))) else { return };
        self.change_search_of(from, |_, chunks| chunks.moved(to, slice));
        if let Some(home) = home {
            self.transfers.lands_elsewhere(from);
            self.transfers.lands_in(to, home);
        }
        pull_slots!(self).release_chunks(from);
        if let Some(home) = home {
            self.ask_for_chunks(now, home);
        }
    }
}
