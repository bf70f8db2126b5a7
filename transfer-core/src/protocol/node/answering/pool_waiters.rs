//! Freed room in the landing pools goes to who waits for it, in order.

use crate::protocol::events::NodeEvent;
use crate::protocol::landing::Want;
use crate::protocol::node::flows::Answering;

impl Answering<'_> {
    /// Gives freed room to the waiters of each pool, in order.
    pub(in crate::protocol::node) fn serve_pool_waiters(&mut self) {
        for domain in self.landing.take_to_serve() {
            while let Some(want) = self.landing.first(domain) {
                let served = match want {
                    Want::Pull(link, pull) => pull_slots!(self).try_pull_slot(domain, link, pull),
                    Want::Flow(link, flow) => {
                        self.landing.try_slots(self.common.latest, domain, (link, flow), self.actions)
                    }
                    Want::Copy(copying) => self.try_copy(domain, copying),
                };
                if !served {
                    // What is kept for those who ask next is given up first.
                    let held = self.transfers.take_held_of(domain);
                    if let Some(held) = held.or_else(|| self.bases.give_up_oldest(domain)) {
                        memory!(self).release(held);
                        continue;
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
}
