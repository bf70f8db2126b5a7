//! Boards and notices: how workers find versions without a request, and when requests for announced keys are answered.

use crate::protocol::node::Node;
use crate::protocol::tenant::Tenant;

impl Node {
    /// Registers a board with places for `places` keys, for the workers of this tenant.
    pub fn add_board(&mut self, domain: Tenant, places: usize) {
        self.keys.add_board(domain, places);
    }

    /// Ends a ticket: workers can no longer find what it named, and no hazard pointer holds it. The host calls this
    /// once after each [`HostAction::Withdraw`](crate::protocol::HostAction::Withdraw).
    pub fn withdrawn(&mut self, ticket: u64) {
        if let Some(blob) = self.keys.withdrawn(ticket) {
            memory!(self).release(blob);
        }
    }

    /// Ends a ticket that [`HostAction::Show`](crate::protocol::HostAction::Show) could not put on the board: the key's description is too long, or all
    /// places that the key could have are taken.
    pub fn not_shown(&mut self, ticket: u64) {
        if let Some(blob) = self.keys.not_shown(ticket, &mut self.actions) {
            memory!(self).release(blob);
        }
    }

    /// Returns how many requests about keys with a notice wait for an answer.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.keys.asked()
    }
}
