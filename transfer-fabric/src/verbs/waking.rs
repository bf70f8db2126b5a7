//! When to check the events that cost a system call: those of the completion channel, of the device, and of rdma_cm.
//!
//! A thread that is busy polls the completion queues, which is cheap, and checks the events only now and then. A
//! thread that sleeps has armed the queues before. When it wakes, it has to take the channel's event, or the next
//! sleep would end at once.

use super::VerbsFabric;
use transfer_core::fabric::DownReason;
use transfer_verbs::{AsyncEvent, AsyncSource};

/// A thread that does not sleep checks the events once in this many polls.
const LOOK_UP: u32 = 64;

/// Whether the queues are armed, and how many polls ago.
#[derive(Debug, Default)]
pub(super) struct Waking {
    armed: bool,
    polls: u32,
}

/// The events that a round checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PollScope {
    Nowhere,
    /// The completion channel; and if it has no event, everything.
    Channel,
    Everywhere,
}

impl Waking {
    /// Records that the queues are armed. Returns whether they were not armed before.
    fn arm(&mut self) -> bool {
        let was = std::mem::replace(&mut self.armed, true);
        if !was {
            self.polls = 0;
        }
        !was
    }

    /// Begins a round. Returns the events that it has to check.
    pub(super) fn poll(&mut self) -> PollScope {
        self.polls = self.polls.wrapping_add(1);
        match (self.armed, self.polls) {
            // This poll only looks for completions from before the queues were armed. All other events wake the
            // sleeper by themselves.
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

    /// Handles a new queue, which is not armed. The other queues may be armed, and may have no completion to come.
    pub(super) fn queue_made(&mut self) {
        *self = Waking::default();
    }
}

impl VerbsFabric {
    /// Requests a wake-up at the next completion, event or deadline.
    pub(super) fn arm_all(&mut self) {
        self.clock.arm(self.links.alarm());
        if !self.waking.arm() {
            return;
        }
        let loopback = self.loopback.as_ref().map(|loopback| loopback.queue());
        let failed = self.queues.iter().chain(loopback).find_map(|queue| queue.arm().err());
        if let Some(error) = failed {
            self.device_failed(&error.to_string());
        }
    }

    /// Takes the events that have come.
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
        self.poll_cm_events();
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
            // One of these events is that a port went down. The retries will show whether its links survive.
            tracing::info!(source = ?event.source, "the RDMA device says: {words}");
            return;
        }
        match event.source {
            AsyncSource::QueuePair(number) => {
                let found = self.links.values().find(|link| link.number == number).map(|link| link.id);
                if let Some(id) = found {
                    // A completion may give a better reason.
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
