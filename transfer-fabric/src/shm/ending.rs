//! Ends links.

use super::ShmFabric;
use super::link::Stage;
use super::note::Note;
use crate::links;
use std::time::Instant;
use transfer_core::fabric::{DownReason, FabricEvent, LinkId};
use transfer_core::memory::RemoteKey;

impl ShmFabric {
    /// Begins to watch the peer of a link, unless it is watched already. Costs nothing more until the watch is due.
    pub(super) fn watch(&mut self, id: LinkId) {
        if self.links.get(id).is_some_and(|link| !link.works.is_watched()) {
            self.links.set_deadline(id, self.config.peer_timeout, |link, due| link.works.watch(due, link.signs()));
        }
    }

    /// Reports a grant as revoked. A link whose peer is writing through the grant at this moment dies instead; its end
    /// is reported once no thread copies for it any longer.
    pub(super) fn revoked(&mut self, id: LinkId, key: RemoteKey, tag: u64) {
        let Some(link) = self.links.get(id) else { return };
        if link.landing.as_ref().is_some_and(|landing| landing.key == key) {
            let why = format!("a write with key {:#x}, which is revoked", key.0);
            self.end(id, DownReason::Violation(why));
        } else {
            self.links.report(FabricEvent::Revoked { link: id, key, tag });
        }
    }

    /// Begins to end a link. Nothing is placed any longer except the pieces that are being copied at this moment.
    pub(super) fn end(&mut self, id: LinkId, reason: DownReason) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (last, reason) = match (&link.stage, reason) {
            (Stage::Ending { .. }, _) => return,
            (Stage::Greeting { .. }, DownReason::Lost(why) | DownReason::Refused(why)) => {
                (None, DownReason::NotConnected(why))
            }
            (_, DownReason::Violation(why)) => (Some(Note::Refuse(why.clone())), DownReason::Violation(why)),
            (_, DownReason::Closed(why)) => (Some(Note::Bye(why.clone())), DownReason::Closed(why)),
            (_, reason) => (None, reason),
        };
        // This comes first, because the memory is used again once the end is reported.
        link.shared.end();
        self.regions.revoke_all(id);
        if let Some(landing) = &link.landing {
            landing.job.cancel();
        }
        if let Some(note) = last {
            // A peer that does not read its socket sees that it is closed.
            let _ = link.socket.send(&note.encode(), &[], Instant::now());
        }
        self.poller.remove(&link.socket);
        link.stage = Stage::Ending { reason };
        self.check_end(id);
    }

    /// Reports a link that has ended, once no thread copies for it any longer. Returns whether it was reported.
    fn check_end(&mut self, id: LinkId) -> bool {
        let over = |link: &super::Link| {
            matches!(link.stage, Stage::Ending { .. }) && link.landing.as_ref().is_none_or(|l| l.job.is_over())
        };
        if !self.links.get(id).is_some_and(over) {
            return false;
        }
        let Some(mut link) = self.links.remove(id) else { return false };
        let (theirs, last) = link.take_theirs();
        self.copy_pool.discard(theirs, last);
        if let Stage::Ending { reason } = link.stage {
            self.links.down(id, reason);
        }
        true
    }

    /// Reports the links that have ended. Returns whether there were any.
    pub(super) fn check_ends(&mut self) -> bool {
        let ending = |link: &super::Link| matches!(link.stage, Stage::Ending { .. }).then_some(link.id);
        let ending: Vec<LinkId> = self.links.values().filter_map(ending).collect();
        ending.into_iter().fold(false, |any, id| any | self.check_end(id))
    }

    /// Handles everything whose deadline has passed.
    pub(super) fn check_deadlines(&mut self) {
        let Some(now) = self.links.due() else { return };
        self.pending.check(&self.poller, now);
        for id in self.links.late(now) {
            let Some(link) = self.links.get_mut(id) else { continue };
            let checked = match link.stage {
                Stage::Greeting { .. } => Err(links::no_answer()),
                Stage::Up => {
                    // What is late is acknowledged in the next round.
                    link.acks.expire(now);
                    link.works.check_peer(now, link.signs(), self.config.peer_timeout)
                }
                Stage::Ending { .. } => Ok(()),
            };
            if let Err(reason) = checked {
                self.end(id, reason);
            }
        }
        self.links.set_alarm(self.pending.deadline());
    }
}
