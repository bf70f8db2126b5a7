//! Searches that have outlived the link to the owner of their version: peers may ask for what has come, and for what is still to come.

use super::Transfers;
use crate::fabric::LinkId;
use crate::protocol::ids::PullId;
use crate::protocol::passing::Publication;
use crate::protocol::relays::Spreading;
use crate::protocol::search::Search;
use crate::tensor::Key;

impl Transfers {
    /// Returns the search for this publication at other nodes, mutably, which may have outlived the link to its owner.
    pub(in crate::protocol) fn search_of(&mut self, of: &Spreading, publication: &Publication) -> Option<&mut Search> {
        if let Some(id) = self.search_for(of, publication.3) {
            return self.search_mut(of.0, id);
        }
        let is_it = |search: &Search| search.redirect.owner == of.0 && search.redirect.publication() == *publication;
        let home = self.orphan_home(is_it);
        match home {
            Some((link, id)) => self.search_mut(link, id),
            None => self.awaiting_links.iter_mut().filter_map(|p| p.search.as_deref_mut()).find(|s| is_it(s)),
        }
    }

    /// Returns the key of the owner, of this publication, whose link has ended and for whose version the search goes on.
    pub(in crate::protocol) fn orphan_of(&self, key: &Key, publication: &Publication) -> Option<Spreading> {
        let is_it = |search: &Search| search.redirect.key == *key && search.redirect.publication() == *publication;
        let homes = self.orphan_home(is_it).and_then(|(link, id)| self.pull(link, id));
        let search = homes.and_then(|pull| pull.search.as_deref());
        let unlinked = || self.awaiting_links.iter().filter_map(|p| p.search.as_deref()).find(|s| is_it(s));
        search.or_else(unlinked).map(|search| search.redirect.spreading())
    }

    /// Returns the request that has the search of which this is true, and whose owner's link has ended.
    fn orphan_home(&self, is_it: impl Fn(&Search) -> bool) -> Option<(LinkId, PullId)> {
        let search = |(link, id): &(LinkId, PullId)| self.pull(*link, *id)?.search.as_deref();
        let mut orphans = self.orphans.iter().filter(|home| search(home).is_some_and(&is_it));
        orphans.next().copied()
    }

    /// Notes that a search has ended without its version, whose owner's link has ended: requests of peers may wait for it.
    pub(in crate::protocol) fn search_dropped(&mut self, of: Spreading) {
        self.awaited_ended.push(of);
    }
}
