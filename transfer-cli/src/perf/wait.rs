//! Waiting for completions, by polling or by events, while the other end may stop.

use super::control::{Control, interrupted, timespec};
use super::error::PerfError;
use super::message::Message;
use rustix::event::{PollFd, PollFlags, poll};
use std::time::{Duration, Instant};
use transfer_verbs::{Completion, CompletionChannel, CompletionQueue, Context};

/// How long a measurement may go without a completion.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a busy loop looks at the clock, in rounds, and at the other end.
const ROUNDS_PER_CLOCK: u32 = 256;
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Completions that are taken together.
const COMPLETIONS_PER_POLL: usize = 16;

/// The other end during a measurement.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    control: &'a mut Control,
    waiting: &'static str,
    /// What it has said.
    pub(super) said: Option<Message>,
    /// Whether it is not listened to any more.
    pub(super) is_done: bool,
    /// Messages so far, for errors.
    pub(super) messages: u64,
    /// What may explain that nothing comes.
    pub(super) hint: &'static str,
    limit: Duration,
    rounds: u32,
    looked: Instant,
    since: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// Watches the other end.
    pub(super) fn new(control: &'a mut Control, waiting: &'static str, hint: &'static str) -> Watch<'a> {
        let looked = Instant::now();
        Watch {
            control,
            waiting,
            said: None,
            is_done: false,
            messages: 0,
            hint,
            limit: COMPLETION_TIMEOUT,
            rounds: 0,
            looked,
            since: None,
        }
    }

    /// Waits no longer than that for the next completion.
    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Something has come: the wait begins anew.
    pub(super) fn progress(&mut self) {
        self.since = None;
    }

    /// A round of a busy loop. Whether the other end has said something.
    pub(super) fn round(&mut self) -> Result<bool, PerfError> {
        self.rounds = self.rounds.wrapping_add(1);
        if !self.rounds.is_multiple_of(ROUNDS_PER_CLOCK) {
            return Ok(false);
        }
        let now = Instant::now();
        if now - *self.since.get_or_insert(now) > self.limit {
            return Err(self.stalled());
        }
        if now - self.looked < PEER_CHECK_INTERVAL {
            return Ok(false);
        }
        self.looked = now;
        self.look()
    }

    /// The error for a message that does not come next.
    pub(super) fn unexpected(&self, message: &Message, wanted: &'static str) -> PerfError {
        self.control.unexpected(message, wanted)
    }

    /// Fails if the other end has said something: nothing comes next but completions.
    pub(super) fn expect_nothing(&self) -> Result<(), PerfError> {
        self.said.as_ref().map_or(Ok(()), |message| Err(self.unexpected(message, "nothing")))
    }

    fn listens(&self) -> bool {
        self.said.is_none() && !self.is_done
    }

    fn look(&mut self) -> Result<bool, PerfError> {
        if self.listens() {
            self.said = self.control.recv_or_end(self.waiting)?;
            return Ok(self.said.is_some());
        }
        Ok(false)
    }

    /// Sleeps until the channel has an event, or for a moment. Returns whether the other end has said something.
    ///
    /// The other end is looked at now and then, and not waited for: it speaks when no message comes any more, and
    /// each descriptor makes each sleep longer.
    fn sleep(&mut self, channel: &CompletionChannel) -> Result<bool, PerfError> {
        let now = Instant::now();
        let passed = now - *self.since.get_or_insert(now);
        if passed > self.limit {
            return Err(self.stalled());
        }
        match poll(
            &mut [PollFd::new(channel, PollFlags::IN)],
            Some(&timespec(PEER_CHECK_INTERVAL.min(self.limit - passed))),
        ) {
            Ok(0) => self.look(),
            Ok(_) => Ok(false),
            Err(error) => interrupted(error).map(|()| false),
        }
    }

    fn stalled(&self) -> PerfError {
        PerfError::Stalled { limit: self.limit, messages: self.messages, hint: self.hint }
    }
}

/// A completion queue, and how to wait for it.
#[derive(Debug)]
pub(super) struct Completions {
    queue: CompletionQueue,
    channel: Option<CompletionChannel>,
    armed: bool,
    batch: [Completion; COMPLETIONS_PER_POLL],
}

impl Completions {
    /// Makes a queue for so many completions; with `events` it is waited for by sleeping.
    pub(super) fn new(context: &Context, capacity: u32, events: bool) -> Result<Completions, PerfError> {
        let channel = events.then(|| CompletionChannel::new(context)).transpose()?;
        let queue = CompletionQueue::new(context, capacity, channel.as_ref())?;
        Ok(Completions { queue, channel, armed: false, batch: [Completion::EMPTY; COMPLETIONS_PER_POLL] })
    }

    /// The queue.
    pub(super) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Waits for some. There are none if the other end says something first.
    pub(super) fn wait(&mut self, watch: &mut Watch<'_>) -> Result<&[Completion], PerfError> {
        let count = loop {
            let count = self.queue.poll(&mut self.batch)?;
            if count > 0 {
                watch.progress();
                break count;
            }
            let recv_or_end = match &self.channel {
                None => watch.round()?,
                // What came before it was armed causes no event.
                Some(_) if !self.armed => {
                    self.queue.arm()?;
                    self.armed = true;
                    false
                }
                Some(channel) => {
                    let recv_or_end = watch.sleep(channel)?;
                    // The queue has the channel for itself.
                    self.armed = !channel.take_event()?;
                    recv_or_end
                }
            };
            if recv_or_end {
                break 0;
            }
        };
        checked(&self.batch[..count])
    }
}

fn checked(completions: &[Completion]) -> Result<&[Completion], PerfError> {
    // The first failure is the cause; those behind it were flushed.
    for completion in completions {
        if let Err(status) = completion.result {
            return Err(PerfError::Work { queue_pair: completion.queue_pair, status });
        }
    }
    Ok(completions)
}
