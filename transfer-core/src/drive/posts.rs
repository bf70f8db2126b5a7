//! Counts the posts to a fabric and its reports. Every fabric has the same counters.

use crate::fabric::FabricEvent;
use crate::protocol::Post;

/// The number of work requests and completions of one fabric since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PostMeter {
    /// Messages posted.
    pub sends: u64,
    /// Writes posted.
    pub writes: u64,
    /// Grants requested.
    pub grants: u64,
    /// Revokes requested.
    pub revokes: u64,
    /// Atomic operations on words of peers posted.
    pub atomics: u64,
    /// Posts that found the send queue full and had to wait.
    pub full: u64,
    /// Writes that were placed at the peer.
    pub writes_done: u64,
    /// Messages received.
    pub messages: u64,
    /// Immediates received: tensors that landed.
    pub immediates: u64,
    /// Atomic operations completed, on words of peers and of this side.
    pub atomics_done: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Links that ended or failed to come up.
    pub links_down: u64,
}

impl PostMeter {
    pub(super) fn posted(&mut self, post: &Post) {
        match post {
            Post::Send { .. } => self.sends += 1,
            Post::Write(_) => self.writes += 1,
            Post::Grant { .. } => self.grants += 1,
            Post::Revoke { .. } => self.revokes += 1,
            Post::Atomic { .. } => self.atomics += 1,
            Post::Share { .. } => {}
        }
    }

    pub(super) fn reported(&mut self, event: &FabricEvent<'_>) {
        match event {
            FabricEvent::WriteDone { .. } => self.writes_done += 1,
            FabricEvent::Message { .. } => self.messages += 1,
            FabricEvent::Immediate { .. } => self.immediates += 1,
            FabricEvent::AtomicDone { .. } | FabricEvent::LocalAtomicDone { .. } => self.atomics_done += 1,
            FabricEvent::Connected { .. } => self.links_up += 1,
            FabricEvent::LinkDown { .. } => self.links_down += 1,
            FabricEvent::SendDone { .. }
            | FabricEvent::Granted { .. }
            | FabricEvent::Revoked { .. }
            | FabricEvent::References { .. }
            | FabricEvent::SegmentCame { .. }
            | FabricEvent::SegmentKept { .. }
            | FabricEvent::SegmentGone { .. }
            | FabricEvent::RailDown { .. } => {}
        }
    }
}
