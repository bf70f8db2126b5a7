//! Ends links.

use super::connecting::Waiting;
use super::link::Stage;
use super::note::Note;
use super::{Report, ShmFabric};
use crate::poller::Source;
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, LinkId};
use transfer_core::memory::RemoteKey;

impl ShmFabric {
    /// Returns the moment `after` from now, and has deadlines checked then.
    pub(super) fn deadline_after(&mut self, after: Duration) -> Instant {
        let at = Instant::now() + after;
        self.alarm = Some(self.alarm.map_or(at, |alarm| alarm.min(at)));
        at
    }

    /// Begins to watch the peer of a link, unless it is watched already. Costs nothing more until the watch is due.
    pub(super) fn watch(&mut self, id: LinkId) {
        if self.links.get(&id).is_some_and(|link| link.watch.is_off()) {
            let due = self.deadline_after(self.config.peer_timeout);
            if let Some(link) = self.links.get_mut(&id) {
                link.watch.begin(due, link.signs());
            }
        }
    }

    fn check_watches(&mut self, now: Instant) {
        let mut lost = Vec::new();
        for link in self.links.values_mut().filter(|link| link.is_up()) {
            let why = link.watch.check(now, link.in_flight.len(), link.signs(), self.config.peer_timeout);
            lost.extend(why.map(|why| (link.id, why)));
        }
        for (id, why) in lost {
            self.end(id, why);
        }
    }

    /// Reports a grant as revoked. A link whose peer is writing through the grant at this moment dies instead; its end
    /// is reported once no thread copies for it any longer.
    pub(super) fn revoked(&mut self, id: LinkId, key: RemoteKey, tag: u64) {
        let Some(link) = self.links.get(&id) else { return };
        if link.landing.as_ref().is_some_and(|landing| landing.key == key) {
            let why = format!("a write with key {:#x}, which is revoked", key.0);
            self.end(id, DownReason::Violation(why));
        } else {
            self.reports.push_back(Report::Revoked { link: id, key, tag });
        }
    }

    /// Begins to end a link. Nothing is placed any longer except the pieces that are being copied at this moment.
    pub(super) fn end(&mut self, id: LinkId, reason: DownReason) {
        let Some(link) = self.links.get_mut(&id) else { return };
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
        if !self.links.get(&id).is_some_and(over) {
            return false;
        }
        let Some(mut link) = self.links.remove(&id) else { return false };
        let (theirs, last) = link.take_theirs();
        self.copy_pool.discard(theirs, last);
        if let Stage::Ending { reason } = link.stage {
            self.reports.push_back(Report::Down { link: id, reason });
        }
        true
    }

    /// Reports the links that have ended. Returns whether there were any.
    pub(super) fn check_ends(&mut self) -> bool {
        let ending = |(id, link): (&LinkId, &super::Link)| matches!(link.stage, Stage::Ending { .. }).then_some(*id);
        let ending: Vec<LinkId> = self.links.iter().filter_map(ending).collect();
        ending.into_iter().fold(false, |any, id| any | self.check_end(id))
    }

    /// Ends everything whose deadline has passed.
    pub(super) fn check_deadlines(&mut self) {
        let Some(alarm) = self.alarm else { return };
        let now = Instant::now();
        if now < alarm {
            return;
        }
        if std::mem::take(&mut self.listener_paused)
            && let Err(error) = self.poller.add(&self.listener, Source::Listener)
        {
            tracing::error!(%error, "the socket for peers of this host cannot be watched");
        }
        self.pending.retain(|connection| now < connection.deadline);
        let late = |what: &str| DownReason::NotConnected(format!("{what} in time"));
        let waits_too_long =
            |waiting: &Waiting| matches!(waiting, Waiting::ForHello { deadline, .. } if *deadline <= now);
        for (link, _) in self.waiting.extract_if(|_, waiting| waits_too_long(waiting)) {
            self.reports.push_back(Report::Down { link, reason: late("the peer did not come") });
        }
        let greets_too_long =
            |link: &super::Link| matches!(link.stage, Stage::Greeting { deadline, .. } if deadline <= now);
        let late_to_greet: Vec<LinkId> =
            self.links.values().filter(|link| greets_too_long(link)).map(|link| link.id).collect();
        for id in late_to_greet {
            self.end(id, late("the peer did not answer"));
        }
        // What is late is acknowledged in the next round.
        for link in self.links.values_mut() {
            link.owed.expire(now);
        }
        self.check_watches(now);
        self.alarm = self.next_deadline();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.values().filter_map(|waiting| match waiting {
            Waiting::ForHello { deadline, .. } => Some(*deadline),
            Waiting::ForAnswer { .. } => None,
        });
        let links = self.links.values().filter_map(|link| match link.stage {
            Stage::Greeting { deadline, .. } => Some(deadline),
            Stage::Up => link.watch.due().into_iter().chain(link.owed.due()).min(),
            Stage::Ending { .. } => None,
        });
        let pending = self.pending.iter().map(|connection| connection.deadline);
        waiting.chain(links).chain(pending).min()
    }
}
