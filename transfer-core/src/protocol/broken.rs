//! Rules that can be broken on purpose, to see that the schedules notice.

use super::node::Node;
use super::slab::Id;
use super::{Action, HostAction, Post};
use crate::fabric::LinkId;
use crate::memory::RemoteKey;
use crate::time::Time;

/// A rule of the protocol that a node breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// What has landed is delivered before the fabric has confirmed that its slot is closed.
    DeliversBeforeRevoke,
    /// The slot of a fetch that was given up is used again without waiting for CANCELLED.
    SkipsQuarantine,
    /// Each message gives back one credit too few.
    ForgetsCredits,
    /// An operation on a counter whose link died is said not to have been done.
    DeniesLostAdds,
    /// What has landed in a flow is delivered as its slots are closed, not as it came.
    DeliversOutOfOrder,
    /// Slots that are called back are used again without waiting for RECALLED.
    ReclaimsAtOnce,
    /// What a landed header says of its slot and length is believed.
    BelievesHeaders,
    /// RECALLED counts whichever round of slots it speaks of.
    MixesRounds,
    /// A number of a full table of names gets a new meaning without a word to the peer.
    ReusesNames,
    /// What was set aside for a version to come is not given back when it has come.
    KeepsSpeculation,
    /// A released lease does not count as released.
    ForgetsReleases,
    /// What is shown no more is given back whoever has marked it.
    ForgetsMarks,
    /// Who asks for what its owner announces is answered with what was heard of by then.
    AnswersAtOnce,
    /// What a peer referred to is not given back to it.
    KeepsReferences,
    /// What a peer held when its link was lost is not held any more, whoever still reads it.
    ForgetsReaders,
    /// A key that the directory has given to another owner is kept.
    KeepsLostKeys,
    /// Workers of other tenants are given a tensor, too.
    ServesStrangers,
    /// What is closed is found by its key, which others may have too.
    NamesSlotsByKey,
}

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
}
