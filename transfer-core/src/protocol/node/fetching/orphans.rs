//! Fetches whose version is searched for at other nodes, and whose owner's link has ended. They know the digest, so they go on with those
//! nodes: with the one that is asked, and then with those to which there is a link, or with the first to which one comes up.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::PullId;
use crate::protocol::node::flows::Fetching;
use crate::protocol::relays::{Redirect, Search, SearchStage};
use crate::protocol::sessions::FetchStage;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{OfLink, Pull, PullState, Readers};
use crate::tensor::{Key, Name, Select};
use crate::time::Time;
use smallvec::smallvec;
use std::sync::Arc;

/// What a request to a node has that an owner has named: if the link to the owner has ended, the fetches and their search.
pub(super) struct Orphans {
    pub(super) redirect: Arc<Redirect>,
    pub(super) readers: Readers,
    search: Option<Box<Search>>,
    of: (Key, Tenant),
    number_in_queue: Option<u64>,
}

impl Orphans {
    /// Takes them out of a request. `None`: it is another one.
    pub(super) fn of(pull: &mut Pull, search: Option<Box<Search>>) -> Option<Orphans> {
        let redirect = pull.redirect().or(search.as_ref().map(|search| &search.redirect))?.clone();
        let (of, number_in_queue) = ((pull.key.clone(), pull.domain), pull.number_in_queue);
        Some(Orphans { redirect, readers: pull.take_readers().0, search, of, number_in_queue })
    }
}

impl Fetching<'_> {
    /// Handles the end of a link: lets the fetches of its requests go on whose versions are searched for at other nodes. Nothing is to come
    /// between that end and this: an answer of those nodes would find no fetches.
    pub(in crate::protocol::node) fn searches_lost(&mut self, now: Time, lost: &mut OfLink, why: &str) {
        for pull in lost.searching() {
            let search = pull.search.take();
            if pull.redirect().is_none() {
                // When the owner comes back, the key may have another one.
                self.keys.forget_location(&pull.key);
            }
            if let Some(orphans) = Orphans::of(pull, search) {
                self.go_on_without_owner(now, orphans, why);
            }
        }
    }

    fn go_on_without_owner(&mut self, now: Time, mut orphans: Orphans, why: &str) {
        let Some(mut search) = orphans.search.take() else { return };
        orphans.readers.retain(|op| self.sessions.op(*op).is_some());
        let asked = search.asked();
        let deadlines = orphans.readers.iter().filter_map(|op| self.sessions.op(*op)).map(|op| op.deadline);
        let Some(deadline) = deadlines.max() else {
            return asked.into_iter().for_each(|(to, named)| pull_slots!(self).cancel_named(to, named));
        };
        search.lose_owner(deadline);
        let is_there = |p: &Pull| !matches!(p.state, PullState::Cancelling | PullState::Closing);
        match asked.filter(|(to, named)| self.transfers.pull(*to, *named).is_some_and(is_there)) {
            Some((to, named)) => {
                for node in search.others() {
                    // So that there is a link once the node is needed.
                    self.links.reach(node, self.actions);
                }
                self.let_wait((to, named), orphans, search);
            }
            None => self.ask_without_owner(now, Some(Orphans { search: Some(search), ..orphans }), why),
        }
    }

    /// Takes the fetches and the search out of a request to a node that an owner has named. `None`: it is another one.
    pub(super) fn take_orphans(&mut self, link: LinkId, id: PullId) -> Option<Orphans> {
        self.transfers.pull(link, id)?.redirect()?;
        let search = self.transfers.end_search(link, id);
        Orphans::of(self.transfers.pull_mut(link, id)?, search)
    }

    /// Asks the next node for fetches whose owner's link has ended: the first to which there is a link, else the first to which one comes up.
    pub(super) fn ask_without_owner(&mut self, now: Time, orphans: Option<Orphans>, why: &str) {
        let Some(mut orphans) = orphans else { return };
        orphans.readers.retain(|op| self.sessions.op(*op).is_some());
        if let Some(mut search) = orphans.search.take().filter(|_| !orphans.readers.is_empty()) {
            let mut unlinked = Vec::new();
            while let Some(node) = search.next_source(now, &self.config.name) {
                if self.relays.is_unreachable(now, &node) {
                    continue;
                }
                let Some(to) = self.links.reach(&node, self.actions) else {
                    unlinked.push(node);
                    continue;
                };
                if let Some(named) = self.begin_named(now, to, orphans.of.clone(), orphans.redirect.clone()) {
                    search.later(unlinked);
                    self.let_wait((to, named), orphans, search);
                    self.set_stage(now, (to, named), SearchStage::Asked(to, named));
                    return pull_slots!(self).ask(now, to, named, None);
                }
            }
            if let Some(node) = unlinked.first().cloned() {
                search.later(unlinked);
                return self.await_links(now, &node, orphans, search);
            }
        }
        let owner = &orphans.redirect.owner_name;
        let text =
            format!("the link to node {owner:?} was lost, and a node to which that has sent this one failed: {why}");
        let failure = Failure::new(FailureCode::PeerLost, text);
        for op in &orphans.readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Waiting);
            answering!(self).fail_op(*op, failure.clone());
        }
    }

    /// Begins a request to a node that an owner has named, if that is possible.
    pub(super) fn begin_named(
        &mut self,
        now: Time,
        to: LinkId,
        (key, domain): (Key, Tenant),
        redirect: Arc<Redirect>,
    ) -> Option<PullId> {
        let is_met = self.links.get(to).is_some_and(|l| l.unmet(self.config.require).is_none());
        let under_way = self.transfers.of(to).map(OfLink::pulls);
        let limit = self.config.max_requests_per_link;
        let is_full = under_way.is_none_or(|pulls| pulls.len() >= limit || !pulls.has_short_room());
        if !is_met || is_full || access!(self).vouched(to, domain).is_err() {
            return None;
        }
        let select = Select::Exactly(redirect.version);
        let pull = Pull::new(now, smallvec![], (key, select, None), domain, None, 0).asking(redirect);
        self.transfers.begin_pull(to, pull)
    }

    /// Sets which node a search has got to, and its limit.
    pub(super) fn set_stage(&mut self, now: Time, (link, id): (LinkId, PullId), stage: SearchStage) {
        self.transfers.change_search(link, id, |search| {
            search.stage = stage;
            search.begin_limit(now);
        });
    }

    /// Lets fetches wait for a request to a node that an owner has named, which has their search from here on.
    fn let_wait(&mut self, (to, named): (LinkId, PullId), orphans: Orphans, search: Box<Search>) {
        let Orphans { readers, number_in_queue, .. } = orphans;
        for op in &readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Pulling(to, named));
        }
        if let Some(p) = self.transfers.pull_mut(to, named) {
            p.add_readers(readers);
            p.number_in_queue = p.number_in_queue.or(number_in_queue);
        }
        self.transfers.move_search(to, named, search);
    }

    /// Lets fetches wait until there is a link to one of the nodes of their search.
    fn await_links(&mut self, now: Time, node: &Name, orphans: Orphans, search: Box<Search>) {
        let Orphans { redirect, readers, of: (key, domain), number_in_queue, .. } = orphans;
        for op in &readers {
            self.sessions.set_fetch_stage(*op, FetchStage::Connecting(node.clone()));
        }
        let select = Select::Exactly(redirect.version);
        let mut pull = Pull::new(now, smallvec![], (key, select, None), domain, None, 0).asking(redirect);
        pull.add_readers(readers);
        (pull.search, pull.number_in_queue) = (Some(search), number_in_queue);
        self.transfers.await_link(pull, |op| self.sessions.op(op).is_some());
    }

    /// Goes on with the fetches that wait for a link to this node, among others: there is one, or there will be none.
    pub(super) fn go_on_with_orphans(&mut self, now: Time, node: &Name, is_up: bool) {
        for mut pull in self.transfers.take_awaiting(node) {
            let mut search = pull.search.take();
            if let Some(search) = search.as_mut().filter(|_| !is_up) {
                search.leave_out(node);
            }
            let orphans = Orphans::of(&mut pull, search);
            self.ask_without_owner(now, orphans, "no link to it came up");
        }
    }
}
