//! How the node breaks the rules that it is told to break.

use super::Node;
use crate::fabric::LinkId;
use crate::memory::RemoteKey;
use crate::protocol::action::{Action, HostAction, Post};
use crate::protocol::broken::Broken;
use crate::protocol::references::OfLink;
use crate::protocol::slab::Id;
use crate::time::Time;

impl Node {
    pub(super) fn names_slots_by_key(&self) -> bool {
        self.config.broken == Some(Broken::NamesSlotsByKey)
    }

    /// See [`Broken::NamesSlotsByKey`].
    pub(super) fn revoked_by_key(&mut self, now: Time, link: LinkId, key: RemoteKey) {
        if let Some(slot) = self.landing.slot_of_key(link, key) {
            self.revoked(now, link, slot);
        }
    }

    /// See [`Broken::ForgetsMarks`]: does as if nobody had marked what was just withdrawn.
    pub(super) fn forget_marks(&mut self, action: Option<&Action>) {
        if self.config.broken == Some(Broken::ForgetsMarks)
            && let Some(Action::Host(HostAction::Withdraw { ticket, .. })) = action
        {
            self.withdrawn(*ticket);
        }
    }

    /// See [`Broken::DeliversBeforeRevoke`]: does as if the revoke that was just asked for were confirmed.
    pub(super) fn deliver_too_early(&mut self, now: Time) {
        if self.config.broken == Some(Broken::DeliversBeforeRevoke)
            && let Some(Action::Post(Post::Revoke { link, tag, .. })) = self.actions.last()
        {
            let (link, slot) = (*link, Id::from_u64(*tag));
            self.revoked(now, link, slot);
        }
    }

    /// See [`Broken::ForgetsReaders`]: does as if nobody read what the peer of a lost link held.
    pub(super) fn forget_readers(&mut self, mut lost: OfLink) -> OfLink {
        if self.config.broken == Some(Broken::ForgetsReaders) {
            for blob in self.references.forget_lent(&mut lost) {
                self.unhold(blob);
            }
        }
        lost
    }
}
