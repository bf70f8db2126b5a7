//! What the host has done for the node.

use crate::protocol::action::HostDone;
use crate::protocol::node::Node;
use crate::protocol::relays::Proof;
use crate::protocol::slab::Id;
use crate::time::Time;

impl Node {
    /// Handles the answer to [`HostAction::Copy`](crate::protocol::HostAction::Copy), [`Apply`](crate::protocol::HostAction::Apply) or
    /// [`Digest`](crate::protocol::HostAction::Digest) with this tag. A push that waited for its copy is sent.
    pub fn host_done(&mut self, now: Time, tag: u64, done: HostDone) {
        self.common.latest = now;
        match done {
            HostDone::Copied => {
                if let Some((link, flow)) = answering!(self).copied(now, tag) {
                    pushing!(self).drain_flow(now, link, flow);
                }
            }
            HostDone::Applied(result) => fetching!(self).delta_applied(now, tag, result),
            HostDone::Digest(digest) => match self.proofs.remove(Id::from_u64(tag)) {
                Some(Proof::Published(blob)) => answering!(self).version_proved(now, blob, digest),
                Some(Proof::Came(link, pull, blob, header)) => {
                    fetching!(self).relayed_proved(now, (link, pull), blob, *header, digest);
                }
                None => {}
            },
        }
    }
}
