//! Digests that the host has made.

use crate::protocol::node::Node;
use crate::protocol::relays::Proof;
use crate::protocol::slab::Id;
use crate::time::Time;

impl Node {
    /// Handles the answer to [`HostAction::Digest`](crate::protocol::HostAction::Digest).
    pub fn digested(&mut self, now: Time, tag: u64, digest: [u8; 16]) {
        self.common.latest = now;
        match self.proofs.remove(Id::from_u64(tag)) {
            Some(Proof::Published(blob)) => answering!(self).version_proved(now, blob, digest),
            Some(Proof::Came(link, pull, blob, header)) => {
                fetching!(self).relayed_proved(now, (link, pull), blob, *header, digest);
            }
            None => {}
        }
    }
}
