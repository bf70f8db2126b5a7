//! Links that end, and sockets that are closed.

use super::connecting::Waiting;
use super::frame::Kind;
use super::link::{Link, Stage};
use super::poller::Source;
use super::{Report, TcpFabric};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, LinkId};
use transfer_core::memory::RemoteKey;

/// How long a link that ends tries to send its last frame, and a socket waits for the peer to have read it.
const LINGER: Duration = Duration::from_secs(1);

/// How much of what still arrives at one socket is thrown away in one round.
const DISCARD_BYTES: usize = 1 << 20;

/// How many sockets without a link are kept until their peers have read the last frame. Who makes more loses the oldest ones' last frames.
pub(super) const MAX_PARTINGS: usize = 64;

/// How many of them are looked at in one round.
const PARTINGS_OF_A_ROUND: usize = 4;

/// A socket without a link. Closing it while bytes are unread would reset the connection, and the peer might not see our last frame:
/// they are read and thrown away until the peer closes, for a while.
#[derive(Debug)]
pub(super) struct Parting {
    socket: OwnedFd,
    deadline: Instant,
}

impl TcpFabric {
    /// The moment `after` from now, at which deadlines are looked at.
    pub(super) fn deadline_after(&mut self, after: Duration) -> Instant {
        let at = Instant::now() + after;
        self.alarm = Some(self.alarm.map_or(at, |alarm| alarm.min(at)));
        at
    }

    /// Begins to watch the peer of a link. Costs nothing more until the watch is due.
    pub(super) fn watch(&mut self, id: LinkId) {
        let due = self.deadline_after(self.config.peer_timeout);
        if let Some(link) = self.links.get_mut(&id) {
            link.watch.begin(due, link.signs);
        }
    }

    /// Reports a grant as taken back. A link whose peer writes through it at this moment dies.
    pub(super) fn revoked(&mut self, id: LinkId, key: RemoteKey, tag: u64) {
        let Some(link) = self.links.get(&id) else { return };
        self.reports.push_back(Report::Revoked { link: id, key, tag });
        if link.inbox.landing_key() == Some(key) {
            let why = format!("a write with key {:#x}, which is revoked", key.0);
            self.end(id, DownReason::Violation(why));
        }
    }

    /// Begins to end a link: nothing is placed any more. It is reported when its last frame has left and nothing of ours is read for
    /// it any more.
    pub(super) fn end(&mut self, id: LinkId, reason: DownReason) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (last, reason) = match (&link.stage, reason) {
            (Stage::Ending { .. }, _) => return,
            (
                Stage::Securing { .. } | Stage::Greeting { .. } | Stage::Proving { .. },
                DownReason::Lost(why) | DownReason::Refused(why),
            ) => (None, DownReason::NotConnected(why)),
            (Stage::Securing { .. } | Stage::Greeting { .. } | Stage::Proving { .. }, reason) => (None, reason),
            (Stage::Up, DownReason::Violation(why)) => (Some((Kind::Refuse, why.clone())), DownReason::Violation(why)),
            (Stage::Up, DownReason::Closed(why)) => (Some((Kind::Bye, why.clone())), DownReason::Closed(why)),
            (Stage::Up, reason) => (None, reason),
        };
        self.regions.revoke_all(id);
        link.outbox.drop_unsent();
        if let Some((kind, text)) = last {
            link.outbox.push_text(kind, &text);
            let deadline = Instant::now() + LINGER;
            link.stage = Stage::Ending { reason, deadline };
            self.deadline_after(LINGER);
            self.list(id);
        } else if let Some(link) = self.links.remove(&id) {
            self.poller.remove(&link.socket);
            self.reports.push_back(Report::Down { link: id, reason });
            if link.tls.is_some() {
                // An alert may be on its way, which says more than a reset would.
                self.part(link.socket);
            }
        }
    }

    /// Reports a link that was ending, and lets its socket go.
    pub(super) fn ended(&mut self, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        self.poller.remove(&link.socket);
        if let Stage::Ending { reason, .. } = link.stage {
            self.reports.push_back(Report::Down { link: id, reason });
        }
        self.part(link.socket);
    }

    /// Closes a socket, once the peer has had the time to read what was sent.
    pub(super) fn part(&mut self, socket: OwnedFd) {
        // Fails for a socket that is not connected any more, which is as well.
        let _ = rustix::net::shutdown(&socket, Shutdown::Write);
        let deadline = self.deadline_after(LINGER);
        self.partings.push_back(Parting { socket, deadline });
        if self.partings.len() > MAX_PARTINGS {
            let oldest = self.partings.iter().enumerate().min_by_key(|(_, parting)| parting.deadline);
            if let Some(i) = oldest.map(|(i, _)| i) {
                self.partings.remove(i);
            }
        }
    }

    /// Throws away what has arrived. `None` where no more will come.
    pub(super) fn discard(socket: impl AsFd) -> Option<()> {
        let mut scrap = [0; 16 << 10];
        for _ in 0..DISCARD_BYTES / scrap.len() {
            match rustix::net::recv(&socket, &mut scrap, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return None,
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Some(()),
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// Ends what is late.
    pub(super) fn check_deadlines(&mut self) {
        // In turns, for there may be many.
        for _ in 0..self.partings.len().min(PARTINGS_OF_A_ROUND) {
            if let Some(parting) = self.partings.pop_front()
                && Self::discard(&parting.socket).is_some()
            {
                self.partings.push_back(parting);
            }
        }
        let Some(alarm) = self.alarm else { return };
        let now = Instant::now();
        if now < alarm {
            return;
        }
        if std::mem::take(&mut self.listener_paused)
            && let Err(error) = self.poller.add(&self.listener, Source::Listener)
        {
            tracing::error!(%error, "the data listener cannot be watched");
        }
        self.partings.retain(|parting| now < parting.deadline);
        self.pending.retain(|connection| now < connection.deadline);
        let late = |what: &str| DownReason::NotConnected(format!("{what} in time"));
        for (link, _) in
            self.waiting.extract_if(|_, w| matches!(w, Waiting::ForSocket { deadline, .. } if *deadline <= now))
        {
            self.reports.push_back(Report::Down { link, reason: late("the peer did not come") });
        }
        let (mut late_to_greet, mut late_to_end, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for link in self.links.values_mut() {
            match link.stage {
                _ if link.deadline().is_none_or(|deadline| now < deadline) => {}
                Stage::Ending { .. } => late_to_end.push(link.id),
                Stage::Up => {
                    let why = link.watch.check(now, link.in_flight.len(), link.signs, self.config.peer_timeout);
                    lost.extend(why.map(|why| (link.id, why)));
                }
                _ => late_to_greet.push(link.id),
            }
        }
        for id in late_to_greet {
            self.end(id, late("the peer did not answer"));
        }
        for id in late_to_end {
            self.ended(id);
        }
        for (id, why) in lost {
            self.end(id, why);
        }
        self.alarm = self.next_deadline();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.values().filter_map(|waiting| match waiting {
            Waiting::ForSocket { deadline, .. } => Some(*deadline),
            Waiting::ForAnswer(_) => None,
        });
        let links = self.links.values().filter_map(Link::deadline);
        let pending = self.pending.iter().map(|connection| connection.deadline);
        let partings = self.partings.iter().map(|parting| parting.deadline);
        waiting.chain(links).chain(pending).chain(partings).min()
    }
}
