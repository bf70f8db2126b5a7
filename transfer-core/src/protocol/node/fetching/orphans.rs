//! Fetches whose version comes in chunks, and whose owner's link has ended. If they know the digests of all chunks, they go on with the
//! other nodes: with the one that is asked, and then with those to which there is a link, or with the first to which one comes up.

use super::chunks::Home;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::landing::Want;
use crate::protocol::node::flows::Fetching;
use crate::protocol::relays::Redirect;
use crate::protocol::search::Search;
use crate::protocol::sessions::FetchStage;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{OfLink, Pull, PullState, Readers};
use crate::tensor::{Key, Name, Select};
use crate::time::Time;
use smallvec::smallvec;
use std::sync::Arc;

/// The fetches of a request that has ended, and their search.
pub(super) struct Orphans {
    redirect: Arc<Redirect>,
    readers: Readers,
    search: Box<Search>,
    of: (Key, Tenant),
}

impl Orphans {
    fn of(pull: &mut Pull) -> Option<Orphans> {
        let search = pull.search.take()?;
        let (of, redirect) = ((pull.key.clone(), pull.domain), search.redirect.clone());
        Some(Orphans { redirect, readers: pull.take_readers().0, search, of })
    }
}

impl Fetching<'_> {
    /// Handles the end of a link: lets the fetches of its requests go on whose versions come from other nodes. Nothing is to come
    /// between that end and this: an answer of those nodes would find no fetches.
    pub(in crate::protocol::node) fn searches_lost(
        &mut self,
        now: Time,
        lost_link: LinkId,
        lost: &mut OfLink,
        why: &str,
    ) {
        for pull in lost.searching() {
            if pull.redirect().is_none() {
                // When the owner comes back, the key may have another one.
                self.keys.forget_location(&pull.key);
            }
            if let Some(chunks) = pull.search.as_ref().and_then(|search| search.chunks.as_ref()) {
                self.transfers.lands_elsewhere(chunks.blob);
            }
            if let Some(orphans) = Orphans::of(pull) {
                self.go_on_without_link(now, lost_link, orphans, why);
            }
        }
    }

    fn go_on_without_link(&mut self, now: Time, lost: LinkId, mut orphans: Orphans, why: &str) {
        orphans.readers.retain(|op| self.sessions.op(*op).is_some());
        let deadlines = orphans.readers.iter().filter_map(|op| self.sessions.op(*op)).map(|op| op.deadline);
        let Some(deadline) = deadlines.max() else { return pull_slots!(self).drop_search(*orphans.search) };
        let search = &mut orphans.search;
        if lost == orphans.redirect.owner {
            search.lose_owner(now, deadline);
        }
        if !search.has_all_digests() {
            return self.fail_orphans(orphans, why);
        }
        let asked = search.asked();
        if asked == Some(lost)
            && let Some(chunks) = &mut search.chunks
        {
            // They end with the link.
            chunks.give_up();
        }
        match asked.filter(|to| *to != lost && self.links.get(*to).is_some()) {
            Some(to) => {
                for node in search.others() {
                    // So that there is a link once the node is needed.
                    self.links.reach(node, self.actions);
                }
                self.let_wait(now, to, orphans);
            }
            None => self.ask_without_owner(now, Some(orphans), None, why),
        }
    }

    /// Takes the fetches and the search out of a request.
    pub(super) fn take_orphans(&mut self, (link, id): Home) -> Option<Orphans> {
        let search = self.transfers.end_search(link, id)?;
        let mut pull = self.transfers.end_pull(link, id)?;
        pull.search = Some(search);
        Orphans::of(&mut pull)
    }

    /// Asks the next node for fetches whose owner's link has ended: the first to which there is a link, else the first to which one comes up.
    pub(super) fn ask_without_owner(&mut self, now: Time, orphans: Option<Orphans>, next: Option<Name>, why: &str) {
        let Some(mut orphans) = orphans else { return };
        orphans.readers.retain(|op| self.sessions.op(*op).is_some());
        if orphans.readers.is_empty() {
            return pull_slots!(self).drop_search(*orphans.search);
        }
        let (mut unlinked, mut next) = (Vec::new(), next);
        while let Some(node) = next.take().or_else(|| orphans.search.next_source(now, &self.config.name)) {
            if self.relays.is_unreachable(now, &node) {
                continue;
            }
            let Some(to) = self.links.reach(&node, self.actions) else {
                unlinked.push(node);
                continue;
            };
            if self.may_ask(to, orphans.of.1) {
                let others: Vec<_> = unlinked.into_iter().chain(orphans.search.others().iter().cloned()).collect();
                orphans.search.later(others);
                let has_room = orphans.search.chunks.is_some();
                if has_room {
                    orphans.search.ask(now, to);
                } else {
                    // It is the first to be asked, once there is room.
                    let others = std::iter::once(node).chain(orphans.search.others().iter().cloned()).collect();
                    orphans.search.later(others);
                }
                return self.let_wait(now, to, orphans);
            }
        }
        match unlinked.first().cloned() {
            Some(node) => {
                orphans.search.later(unlinked);
                self.await_links(now, &node, orphans);
            }
            None => self.fail_orphans(orphans, why),
        }
    }

    fn fail_orphans(&mut self, orphans: Orphans, why: &str) {
        let Orphans { redirect, readers, search, .. } = orphans;
        pull_slots!(self).drop_search(*search);
        let owner = &redirect.owner_name;
        let text = format!(
            "the link to node {owner:?}, which owns the key, was lost, and no other node has sent the version: {why}"
        );
        self.fail_readers(&readers, &Failure::new(FailureCode::PeerLost, text));
    }

    /// Returns a request that has these fetches. No peer knows it.
    fn request_of(&self, now: Time, orphans: Orphans) -> Pull {
        let Orphans { redirect, readers, search, of: (key, domain) } = orphans;
        let described = Some((0, redirect.meta.clone()));
        let select = Select::Exactly(redirect.version);
        let mut pull = Pull::new(now, smallvec![], (key, select, None), domain, described, 0).asking(redirect);
        pull.state = if search.chunks.is_some() { PullState::Redirected } else { PullState::WaitingForRoom };
        pull.add_readers(readers);
        pull.search = Some(search);
        pull
    }

    /// Lets fetches wait for a request on the link to the node that is asked, which has their search from here on.
    fn let_wait(&mut self, now: Time, to: LinkId, orphans: Orphans) {
        let readers = orphans.readers.clone();
        let mut pull = self.request_of(now, orphans);
        let (search, domain) = (pull.search.take(), pull.domain);
        let (Some(search), Some(id)) = (search, self.transfers.begin_pull(to, pull)) else { return };
        for op in &readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Pulling(to, id));
        }
        let has_room = search.chunks.is_some();
        self.transfers.move_search(to, id, search);
        match has_room {
            true => self.ask_for_chunks(now, (to, id)),
            false => room!(self).want(domain, Want::Pull(to, id)),
        }
    }

    /// Lets fetches wait until there is a link to one of the nodes of their search.
    fn await_links(&mut self, now: Time, node: &Name, orphans: Orphans) {
        for op in &orphans.readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Connecting(node.clone()));
        }
        let pull = self.request_of(now, orphans);
        self.transfers.await_link(pull);
    }

    /// Goes on with the fetches that wait for a link to this node, among others: there is one, or there will be none.
    pub(super) fn go_on_with_orphans(&mut self, now: Time, node: &Name, is_up: bool) {
        for mut pull in self.transfers.take_awaiting(node) {
            let Some(mut orphans) = Orphans::of(&mut pull) else { continue };
            if !is_up {
                orphans.search.leave_out(node);
            }
            self.ask_without_owner(now, Some(orphans), None, "no link to it came up");
        }
    }
}
