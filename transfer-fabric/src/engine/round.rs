//! One round of the engine, and its sleep.

use super::boards::Kept;
use super::run::Run;
use super::wait::Ready;
use super::workers::Take;
use crate::epoll::Event;
use std::time::{Duration, Instant};
use transfer_core::protocol::{HostDone, SessionId};
use transfer_memory::session::SessionError;
use transfer_memory::socket::SocketError;

/// The interval at which sockets and processes are checked while the engine does not sleep.
const LOOK_UP: Duration = Duration::from_millis(1);

/// The interval at which a reply is retried that found its worker's ring or socket full.
const REPLY_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The most times per round that requests for announced keys are answered, each time after draining all rings.
const ANSWERS_PER_ROUND: usize = 4;

/// The end of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// There was work.
    Worked,
    /// There was none, and more may come soon.
    Polled,
    /// There was none, and it is time to sleep.
    Tired,
}

impl Run {
    /// Does all work that there is. Only the engine's own thread has `kept`; any other leaves commands that need it to that
    /// thread. Once requests of workers were answered, `enough` may end the round: what is to be sent stays for the next.
    /// It begins now, at `began`.
    pub(super) fn round(
        &mut self,
        began: Instant,
        kept: Option<&mut Vec<Kept>>,
        enough: impl FnOnce() -> bool,
    ) -> Round {
        self.wake();
        self.pause(began);
        let now = self.clock.time(began);
        if let Some(trace) = &self.trace {
            trace.begin(&mut self.driver.node);
        }
        let mut active = self.commands(now, kept);
        if self.take(now, Take::Some) {
            active = true;
            self.answer_asked(now);
            // This comes before polling the fabrics, which costs system calls: the posts of this moment leave with
            // them.
            self.work(now);
            if enough() {
                self.worked_from = Some(began);
                if let Some(trace) = &self.trace {
                    trace.end(&mut self.driver.node, self.clock);
                }
                return Round::Worked;
            }
        }
        active |= self.driver.poll_fabrics(now, &self.memory);
        // This comes before deadlines. A request that arrives during one drain of the rings is answered after the
        // next.
        for _ in 0..ANSWERS_PER_ROUND {
            if !self.answer_asked(now) {
                break;
            }
            active = true;
        }
        if self.driver.node.next_deadline().is_some_and(|at| at <= now) {
            self.driver.timeout(now);
            active = true;
        }
        if let Some(free) = self.boards.take_free() {
            free.into_iter().for_each(|ticket| self.driver.node.withdrawn(ticket));
            active = true;
        }
        self.work(now);
        if !self.copies.is_empty() {
            active = true;
            if let Some(tag) = self.copies.step(&self.memory) {
                self.driver.node.host_done(now, tag, HostDone::Copied);
                self.work(now);
            }
        }
        while let Some((tag, result)) = self.deltas.applied() {
            active = true;
            self.driver.node.host_done(now, tag, HostDone::Applied(result));
            self.work(now);
        }
        if !self.digests.is_empty() {
            active = true;
            if let Some((tag, digest)) = self.digests.step() {
                self.driver.node.host_done(now, tag, HostDone::Digest(digest));
                self.work(now);
            }
        }
        if !self.tables.is_idle() {
            active = true;
            self.read_tables(now);
            self.work(now);
        }
        if self.disk_done(now) {
            active = true;
            self.work(now);
        }
        if let Some(trace) = &self.trace {
            trace.end(&mut self.driver.node, self.clock);
        }
        let round = if active {
            self.worked_from = Some(began);
            Round::Worked
        } else if self.pace.should_sleep(began) {
            return Round::Tired;
        } else {
            Round::Polled
        };
        if began.saturating_duration_since(self.looked_up) > LOOK_UP {
            let ready = self.sleeper.wait(Some(Duration::ZERO));
            self.ready(&ready);
        }
        round
    }

    /// Ends the time of the last round that had work: the next round begins, or nobody turns the engine for now.
    pub(super) fn pause(&mut self, now: Instant) {
        if let Some(began) = self.worked_from.take() {
            self.meters.rounds += 1;
            self.meters.busy += now.saturating_duration_since(began);
            self.pace.worked(began, now);
        }
    }

    /// Announces that the engine sleeps. Returns until when, or `None` if there is work by now. The caller waits at
    /// [`sleeper`](Run::sleeper).
    pub(super) fn fall_asleep(&mut self) -> Option<Option<Duration>> {
        let now = self.clock.time(Instant::now());
        self.asleep = true;
        for fabric in self.driver.fabrics() {
            fabric.arm();
        }
        let mut timeout = self.driver.node.next_deadline().map(|at| at.since(now));
        if self.workers.has_backlog() {
            timeout = Some(timeout.map_or(REPLY_RETRY_INTERVAL, |t| t.min(REPLY_RETRY_INTERVAL)));
        }
        // Polling once more finds events from before a fabric was armed. Commands ring the bell.
        let sleeps = self.workers.prepare_sleep()
            && !self.driver.poll_fabrics(now, &self.memory)
            && self.inbox.is_empty()
            && self.tables.is_idle()
            && self.put_off.is_none();
        if !sleeps {
            self.wake();
            return None;
        }
        self.meters.sleeps += 1;
        self.asleep_until = timeout.map(|timeout| now + timeout);
        Some(timeout)
    }

    /// Ends the sleep, if there is one.
    pub(super) fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.workers.awake();
            self.pace.slept();
        }
    }

    /// Handles what [`sleeper`](Run::sleeper) has found.
    pub(super) fn ready(&mut self, events: &[Event<Ready>]) {
        self.looked_up = Instant::now();
        let now = self.clock.time(self.looked_up);
        for event in events {
            match event.token {
                Ready::Fabric(place) => {
                    if let Some(fabric) = self.driver.fabrics().get_mut(usize::from(place)) {
                        fabric.woken();
                    }
                }
                Ready::Engine => {}
                Ready::Bell => {
                    // Every round checks for commands anyway.
                    let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
                }
                Ready::Process(session) => self.worker_gone(now, SessionId(session), "its process has ended"),
                Ready::Socket(session) => match self.workers.take_message(SessionId(session)) {
                    Ok(false) => {}
                    Ok(true) => self.worker_left(now, SessionId(session)),
                    Err(e @ SessionError::Socket(SocketError::Closed)) => {
                        self.worker_gone(now, SessionId(session), &e.to_string());
                    }
                    Err(e) => self.broken.push((SessionId(session), e.to_string())),
                },
            }
        }
    }
}
