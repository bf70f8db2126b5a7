//! What is posted to a fabric, and what it reports: the same counts for every fabric.

use crate::fabric::FabricEvent;
use crate::protocol::Post;

/// Work requests of one fabric since the start, and completions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PostMeter {
    /// Messages posted.
    pub sends: u64,
    /// Writes posted.
    pub writes: u64,
    /// Grants asked for.
    pub grants: u64,
    /// Grants taken back.
    pub revokes: u64,
    /// Operations on words of peers posted.
    pub atomics: u64,
    /// Posts that found the send queue full, and had to wait.
    pub full: u64,
    /// Writes that are placed at the peer.
    pub writes_done: u64,
    /// Messages that came in.
    pub messages: u64,
    /// Immediates that came in: tensors that landed.
    pub immediates: u64,
    /// Operations on words that are done.
    pub atomics_done: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Links that ended, or did not come up.
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
