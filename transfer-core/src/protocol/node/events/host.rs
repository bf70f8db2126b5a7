//! What the host has done for the node.

use crate::protocol::action::HostDone;
use crate::protocol::node::Node;
use crate::protocol::relays::{MOVED, Proof};
use crate::protocol::slab::Id;
use crate::time::Time;

impl Node {
    /// Handles the answer to [`HostAction::Copy`](crate::protocol::HostAction::Copy), [`Apply`](crate::protocol::HostAction::Apply) or
    /// [`Digest`](crate::protocol::HostAction::Digest) with this tag. A push that waited for its copy is sent.
    pub fn host_done(&mut self, now: Time, tag: u64, done: HostDone) {
        self.common.latest = now;
        match done {
            HostDone::Copied => match tag & MOVED {
                0 => {
                    if let Some((link, flow)) = answering!(self).copied(now, tag) {
                        pushing!(self).drain_flow(now, link, flow);
                    }
                }
                _ => {
                    if let Some(Proof::Moved(from, to)) = self.proofs.remove(Id::from_u64(tag & !MOVED)) {
                        fetching!(self).chunks_moved(now, from, to);
                    }
                }
            },
            HostDone::Applied(result) => fetching!(self).delta_applied(now, tag, result),
            HostDone::Digest(digest) => match self.proofs.remove(Id::from_u64(tag)) {
                Some(Proof::Published(blob)) => answering!(self).digest_made(blob, digest),
                Some(Proof::Came(blob, number)) => fetching!(self).chunk_proved(now, (blob, number), digest),
                Some(Proof::Moved(..)) | None => {}
            },
        }
    }
}
