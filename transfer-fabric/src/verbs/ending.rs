//! Ends links. The queue pair is stopped, the requests in flight are awaited, the windows are deallocated, and the
//! queue pair is destroyed, in this order (docs/adr/0001). Then the end is reported.

use super::VerbsFabric;
use super::link::{Posted, Stage};
use super::notice::goodbye;
use crate::links;
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, LinkId};
use transfer_verbs::{Data, SendKind};

/// How long an ending link waits until the peer has its goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a stopped queue pair is waited for. It flushes its requests without the peer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the reason for a link that was never connected.
fn not_connected(reason: DownReason) -> DownReason {
    match reason {
        DownReason::Lost(why) | DownReason::Refused(why) | DownReason::Violation(why) | DownReason::PeerClosed(why) => {
            DownReason::NotConnected(why)
        }
        other => other,
    }
}

impl VerbsFabric {
    /// Ends the link from this side. The peer is told the reason, if there is one for it.
    pub(super) fn end(&mut self, id: LinkId, reason: DownReason) {
        let Some(reason) = self.links.end_waiting(id, reason) else { return };
        let Some(link) = self.links.get_mut(id) else { return };
        match link.stage {
            Stage::Ending { .. } | Stage::Draining { .. } => return,
            Stage::Offered | Stage::Greeting { .. } => return self.drain(id, reason, true),
            Stage::Up => {}
        }
        // Requests that have not left never will.
        link.list.clear();
        link.sends.forget_waiting();
        let Some((notice, text)) = goodbye(&reason).filter(|_| link.sends.has_room(1, 0)) else {
            return self.drain(id, reason, true);
        };
        let immediate = Some(notice.number());
        if text.len() <= self.device.inline_bytes as usize {
            let data = Data::Inline(&[text.as_bytes()]);
            link.post(Posted::Goodbye, SendKind::Send { data, immediate });
        } else if let Some((_, element)) = link.area.store(text.as_bytes()) {
            let data = Data::Gather(&[element]);
            link.post(Posted::Goodbye, SendKind::Send { data, immediate });
        } else {
            link.post(Posted::Goodbye, SendKind::Send { data: Data::Inline(&[]), immediate });
        }
        self.counters.notices += 1;
        let deadline = self.links.deadline_after(GOODBYE_TIMEOUT);
        let Some(link) = self.links.get_mut(id) else { return };
        link.stage = Stage::Ending { reason, deadline };
        if let Err(reason) = link.ring(&mut self.counters) {
            self.fail(id, reason, true);
        }
    }

    /// Handles the failure of a link. A later reason that is `sure` replaces one that is not.
    pub(super) fn fail(&mut self, id: LinkId, reason: DownReason, sure: bool) {
        let Some(link) = self.links.get_mut(id) else { return };
        let reason = match &mut link.stage {
            Stage::Offered | Stage::Greeting { .. } => not_connected(reason),
            Stage::Up => reason,
            Stage::Ending { reason, .. } => {
                let reason = reason.clone();
                return self.drain(id, reason, true);
            }
            Stage::Draining { reason: first, sure: was_sure, .. } => {
                if sure && !*was_sure {
                    (*first, *was_sure) = (reason, true);
                }
                return;
            }
        };
        self.drain(id, reason, sure);
    }

    /// Stops the queue pair. Nothing is placed any longer.
    fn drain(&mut self, id: LinkId, reason: DownReason, sure: bool) {
        let deadline = self.links.deadline_after(DRAIN_TIMEOUT);
        let Some(link) = self.links.get_mut(id) else { return };
        link.stop();
        link.stage = Stage::Draining { reason, sure, deadline };
        self.draining.push((id, false));
    }

    /// Ends the links that are drained. The queues were polled in this round, and are empty if `emptied` is set.
    pub(super) fn finish_drained(&mut self, emptied: bool) {
        if self.draining.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut drained = Vec::new();
        let links = &self.links;
        self.draining.retain_mut(|(id, polled)| {
            let Some(link) = links.get(*id) else { return false };
            let Stage::Draining { deadline, .. } = link.stage else { return false };
            // One whole round has to lie between the stop and the end.
            let polled_since = std::mem::replace(polled, emptied);
            // Receives are not waited for: a receive that was posted after the device had stopped the queue pair may
            // never come back.
            let idle = link.sends.in_flight() == 0 && emptied && polled_since;
            if idle || now >= deadline {
                drained.push(*id);
            }
            !idle && now < deadline
        });
        for id in drained {
            let Some(mut link) = self.links.remove(id) else { continue };
            if link.sends.in_flight() > 0 {
                tracing::warn!(%id, left = link.sends.in_flight(), "a stopped queue pair has not flushed all it had");
            }
            if let Some(connection) = &link.connection
                && let Err(error) = connection.id.disconnect()
            {
                tracing::debug!(%id, %error, "the connection had ended before");
            }
            let stage = std::mem::replace(&mut link.stage, Stage::Offered);
            self.forget(link);
            if let Stage::Draining { reason, .. } = stage {
                self.links.down(id, reason);
            }
        }
        self.let_go();
    }

    /// Handles the failure of the device: every link dies, and no new one is made.
    pub(super) fn device_failed(&mut self, why: &str) {
        if self.broken.is_some() {
            return;
        }
        let why = format!("{} does not work any more: {why}", self.device.context.device_name());
        tracing::error!(why, "an RDMA device has failed");
        self.broken = Some(why.clone());
        for id in self.links.ids() {
            self.fail(id, DownReason::Lost(why.clone()), true);
        }
        self.links.end_all_waiting(&DownReason::NotConnected(why.clone()));
        self.lose_loopback(&why);
    }

    /// Ends everything whose deadline has passed, and asks idle peers whether they are there.
    pub(super) fn check_deadlines(&mut self) {
        let now = Instant::now();
        if !self.clock.rings(now, self.links.alarm()) {
            return;
        }
        for id in self.links.late(now) {
            match self.links.get(id).map(|link| &link.stage) {
                Some(Stage::Greeting { .. }) => self.fail(id, links::no_answer(), true),
                Some(Stage::Ending { .. }) => self.fail(id, DownReason::Lost("no goodbye".into()), true),
                // The next poll looks at the links that are drained.
                _ => {}
            }
        }
        if self.clock.probing(now) {
            self.probe(now);
        }
        self.links.set_alarm(None);
        self.clock.set(now, !self.links.is_empty(), self.config.probe_interval);
    }

    /// Asks idle peers whether they are there, and ends the links whose device has stalled.
    fn probe(&mut self, now: Instant) {
        let (mut probed, mut stalled) = (Vec::new(), Vec::new());
        for link in self.links.all_up() {
            let quiet = !std::mem::replace(&mut link.heard, false);
            let waits = quiet && link.sends.in_flight() > 0;
            let since = waits.then(|| *link.stalled_since.get_or_insert(now));
            link.stalled_since = since;
            if since.is_some_and(|since| now - since >= self.config.stall_timeout()) {
                stalled.push((link.id, link.sends.in_flight()));
                continue;
            }
            // A probe also goes behind requests of which the device has said nothing for a whole round. The last place
            // is reserved for the goodbye.
            if quiet && link.sends.has_room(1, 1) {
                let (data, key) = (Data::Inline(&[]), transfer_verbs::RemoteKey::from_peer(0));
                link.post(Posted::Probe, SendKind::Write { data, address: 0, key, immediate: None });
                self.counters.probes += 1;
                probed.push(link.id);
            }
        }
        for (id, requests) in stalled {
            let why = format!(
                "the device has stalled: {requests} requests are in flight, and none has completed or failed for {:?}",
                self.config.stall_timeout()
            );
            self.fail(id, DownReason::Lost(why), true);
        }
        for id in probed {
            let rung = self.links.get_mut(id).map_or(Ok(()), |link| link.ring(&mut self.counters));
            if let Err(reason) = rung {
                self.fail(id, reason, true);
            }
        }
    }
}
