//! When to look at what costs a system call: the events of the completion channel, of the device, and of rdma_cm.
//!
//! A thread that is busy polling asks the completion queues, which is cheap, and looks up now and then. One that sleeps has armed the
//! queues before; when it wakes, the channel's event has to be taken, or the next sleep would end at once.

use super::VerbsFabric;
use transfer_core::fabric::DownReason;
use transfer_verbs::{AsyncEvent, AsyncSource};

/// A thread that does not sleep looks up so often: each so many polls.
const LOOK_UP: u32 = 64;

/// Whether the queues are armed, and how long ago.
#[derive(Debug, Default)]
pub(super) struct Waking {
    armed: bool,
    polls: u32,
}

/// What is to be looked at in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PollScope {
    Nowhere,
    /// At the completion channel; and where it has nothing, everywhere.
    Channel,
    Everywhere,
}

impl Waking {
    /// The queues were armed. Whether they had to be.
    fn arm(&mut self) -> bool {
        let was = std::mem::replace(&mut self.armed, true);
        if !was {
            self.polls = 0;
        }
        !was
    }

    /// A round begins.
    pub(super) fn poll(&mut self) -> PollScope {
        self.polls = self.polls.wrapping_add(1);
        match (self.armed, self.polls) {
            // This one only looks for what came before the queues were armed; all else wakes the sleeper by itself.
            (true, 1) => PollScope::Nowhere,
            (true, _) => PollScope::Channel,
            (false, polls) if polls % LOOK_UP == 0 => PollScope::Everywhere,
            (false, _) => PollScope::Nowhere,
        }
    }

    fn event_taken(&mut self) {
        self.armed = false;
        self.polls = 0;
    }

    /// A queue was made, which is not armed: maybe after the others were, and with nothing to come from those.
    pub(super) fn queue_made(&mut self) {
        *self = Waking::default();
    }
}

impl VerbsFabric {
    /// Asks for a wake-up with the next completion, event or deadline.
    pub(super) fn arm_all(&mut self) {
        self.clock.arm();
        if !self.waking.arm() {
            return;
        }
        let loopback = self.loopback.as_ref().map(|loopback| loopback.queue());
        let failed = self.queues.iter().chain(loopback).find_map(|queue| queue.arm().err());
        if let Some(error) = failed {
            self.device_failed(&error.to_string());
        }
    }

    /// Takes the events that are there.
    pub(super) fn look(&mut self, look: PollScope) {
        if look == PollScope::Nowhere {
            return;
        }
        if look == PollScope::Channel {
            match self.device.channel.take_events() {
                Ok(0) => {}
                Ok(_) => return self.waking.event_taken(),
                Err(error) => return self.device_failed(&error.to_string()),
            }
        }
        self.hear_device();
        self.hear_manager();
        self.check_deadlines();
    }

    fn hear_device(&mut self) {
        loop {
            match self.async_events.next() {
                Ok(Some(event)) => self.device_says(event),
                Ok(None) => return,
                Err(error) => return self.device_failed(&error.to_string()),
            }
        }
    }

    pub(super) fn device_says(&mut self, event: AsyncEvent) {
        let words = event.words();
        if !event.is_fatal() {
            // Among them that a port went down: whether its links can go on, the retries will show.
            tracing::info!(source = ?event.source, "the RDMA device says: {words}");
            return;
        }
        match event.source {
            AsyncSource::QueuePair(number) => {
                let found = self.links.values().find(|link| link.number == number).map(|link| link.id);
                if let Some(id) = found {
                    // A completion may tell it better.
                    self.fail(id, DownReason::Violation(format!("the device stopped the queue pair: {words}")), false);
                }
            }
            AsyncSource::Port(_) => tracing::warn!("the RDMA device says: {words}"),
            _ => self.device_failed(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_looks_up_now_and_then() {
        let mut waking = Waking::default();
        let looks = (0..1000).filter(|_| waking.poll() != PollScope::Nowhere).count();
        assert_eq!(looks, 1000 / LOOK_UP as usize);
    }

    #[test]
    fn a_sleeper_takes_the_event_that_woke_it() {
        let mut waking = Waking::default();
        assert!(waking.arm());
        assert_eq!(waking.poll(), PollScope::Nowhere, "the poll before the sleep");
        assert!(!waking.arm(), "nothing has come: it is armed still");
        assert_eq!(waking.poll(), PollScope::Channel);
        waking.event_taken();
        assert_eq!(waking.poll(), PollScope::Nowhere);
        assert!(waking.arm());
    }
}
