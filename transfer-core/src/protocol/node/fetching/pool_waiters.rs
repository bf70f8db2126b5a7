//! Freed room in the landing pools goes to who waits for it, in order.

use crate::protocol::events::NodeEvent;
use crate::protocol::landing::Want;
use crate::protocol::meters::WhyWhole;
use crate::protocol::node::flows::Fetching;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Pull;

impl Fetching<'_> {
    /// Gives freed room to the waiters of each pool, in order.
    pub(in crate::protocol::node) fn serve_pool_waiters(&mut self) {
        for domain in self.landing.take_to_serve() {
            while let Some(want) = self.landing.first(domain) {
                let served = match want {
                    Want::Pull(link, pull) => self.try_room(self.common.latest, domain, (link, pull)),
                    Want::Flow(link, flow) => {
                        self.landing.try_slots(self.common.latest, domain, (link, flow), self.actions)
                    }
                    Want::Copy(copying) => answering!(self).try_copy(domain, copying),
                };
                if !served {
                    // What is kept for those who ask next is given up first.
                    if self.give_up_kept(domain) {
                        continue;
                    }
                    if let Some(bytes) = self.landing.is_full(self.common.latest, domain) {
                        let tenant = self.config.tenants.name(domain);
                        self.actions.report(NodeEvent::PoolFull { domain, tenant, bytes });
                    }
                    room!(self).reclaim(domain, want);
                    break;
                }
                self.landing.pop_first(domain);
            }
            if let Some(after) = self.landing.served(self.common.latest, domain) {
                let tenant = self.config.tenants.name(domain);
                self.actions.report(NodeEvent::PoolFree { domain, tenant, after });
            }
        }
    }

    /// Gives up a version of a tenant that is kept for those who ask next. Returns whether there was one.
    fn give_up_kept(&mut self, domain: Tenant) -> bool {
        // Those who get it have other nodes, and the owner.
        let passing = self.relays.passing.of(domain).into_iter().next();
        if let Some(blob) = passing.and_then(|(of, _)| self.relays.passing.give_up(&of)) {
            memory!(self).release(blob);
            return true;
        }
        // Nobody waits for those.
        if let Some(base) = self.bases.give_up_oldest(domain) {
            memory!(self).release(base);
            return true;
        }
        if let Some(copy) = self.keys.take_oldest_copy(domain) {
            memory!(self).release(copy);
            return true;
        }
        let Some((link, id)) = self.transfers.holding_of(domain) else { return false };
        if let Some(held) = self.transfers.take_held(link, id) {
            memory!(self).release(held);
        }
        // Without its base, a delta that waits for room would come in vain.
        if self.transfers.pull(link, id).is_some_and(Pull::wants_room) {
            self.ask_for_whole(self.common.latest, link, id, WhyWhole::BaseGone);
        }
        true
    }
}
