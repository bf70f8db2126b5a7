//! Rules that a test makes the node break; see [`Broken`].

use super::Node;
use super::flows::Ownership;
use crate::fabric::LinkId;
use crate::memory::RemoteKey;
use crate::protocol::action::{Action, HostAction, Post};
use crate::protocol::broken::Broken;
use crate::protocol::landing::GrantTag;
use crate::protocol::references::OfLink;
use crate::time::Time;

impl Node {
    pub(super) fn names_slots_by_key(&self) -> bool {
        self.config.broken == Some(Broken::NamesSlotsByKey)
    }

    /// See [`Broken::NamesSlotsByKey`].
    pub(super) fn revoked_by_key(&mut self, now: Time, link: LinkId, key: RemoteKey) {
        if let Some(slot) = self.landing.slot_of_key(link, key) {
            self.revoked(now, link, GrantTag::of(slot));
        }
    }

    /// See [`Broken::ForgetsMarks`]: treats a ticket that was just withdrawn as if no hazard pointer held it.
    pub(crate) fn forget_marks(&mut self, action: &Action) {
        if self.config.broken == Some(Broken::ForgetsMarks)
            && let Action::Host(HostAction::Withdraw { ticket, .. }) = action
        {
            self.withdrawn(*ticket);
        }
    }

    /// See [`Broken::DeliversBeforeRevoke`]: treats the revoke that was just requested as confirmed.
    pub(super) fn deliver_too_early(&mut self, now: Time) {
        if self.config.broken == Some(Broken::DeliversBeforeRevoke)
            && let Some(Action::Post(Post::Revoke { link, tag, .. })) = self.actions.last()
        {
            let (link, tag) = (*link, GrantTag::from_u64(*tag));
            self.revoked(now, link, tag);
        }
    }
}

impl Ownership<'_> {
    /// See [`Broken::ForgetsReaders`]: treats the versions that the peer of a lost link held as if no worker read them.
    pub(super) fn forget_readers(&mut self, mut lost: OfLink) -> OfLink {
        if self.config.broken == Some(Broken::ForgetsReaders) {
            for blob in self.references.forget_lent(&mut lost) {
                memory!(self).release(blob);
            }
        }
        lost
    }
}
