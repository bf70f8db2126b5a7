//! Decides when a link's receiver acknowledges what it has placed.
//!
//! Every frame carries the number of placed works, so an acknowledgement of its own is only needed if a peer waits for
//! it. A peer waits for the completion of a *write*, because it holds memory until then. Nobody waits for the completion
//! of a *message*: its bytes were copied when it was posted. So messages are acknowledged by the next frame, whatever it
//! carries, unless [`MAX_UNACKNOWLEDGED`] are owed or [`ACKNOWLEDGE_WITHIN`] has passed. So a stream in one direction does not fill its send queue,
//! and a peer that has posted something gets a sign of life.

use std::time::{Duration, Instant};

/// The number of owed works that are acknowledged at once. Send queues and receive slots are many times larger.
pub(crate) const MAX_UNACKNOWLEDGED: u64 = 16;

/// The time after which a message is acknowledged even if no frame is sent. Several times longer than an answer takes,
/// and short beside the time after which a silent peer is lost.
pub(crate) const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(10);

/// What a fabric has sent: frames, or records of a ring, and those that only acknowledge.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SentCounts {
    pub(crate) frames: u64,
    pub(crate) acknowledgements: u64,
}

impl SentCounts {
    pub(crate) fn count(&mut self, is_acknowledgement: bool) {
        self.frames += 1;
        self.acknowledgements += u64::from(is_acknowledgement);
    }

    /// Moves the counts of a link here.
    pub(crate) fn take_from(&mut self, link: &mut SentCounts) {
        let SentCounts { frames, acknowledgements } = std::mem::take(link);
        self.frames += frames;
        self.acknowledgements += acknowledgements;
    }

    pub(crate) fn named(self) -> Vec<(&'static str, u64)> {
        vec![("frames", self.frames), ("acknowledgements", self.acknowledgements)]
    }
}

/// The works of the peer of one link that are placed, and those that the peer was told.
#[derive(Debug, Default)]
pub(crate) struct AckState {
    placed: u64,
    told: u64,
    /// The number of works placed up to the last write.
    last_write: u64,
    due: Option<Instant>,
    /// Whether the time has passed.
    late: bool,
}

impl AckState {
    /// Records that a write is placed.
    pub(crate) fn write_placed(&mut self) {
        self.placed += 1;
        self.last_write = self.placed;
    }

    /// Records that a message is placed.
    pub(crate) fn message_placed(&mut self) {
        self.placed += 1;
    }

    /// Returns the number of works that are placed.
    pub(crate) fn placed(&self) -> u64 {
        self.placed
    }

    /// Returns whether the peer has to be told now.
    pub(crate) fn is_urgent(&self) -> bool {
        let AckState { placed, told, .. } = *self;
        placed > told && (self.late || self.last_write > told || placed - told >= MAX_UNACKNOWLEDGED)
    }

    /// Returns whether works are owed that have no time limit yet.
    pub(crate) fn needs_limit(&self) -> bool {
        self.due.is_none() && self.placed > self.told
    }

    /// Returns the time at which the peer has to be told.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Sets the time at which the peer has to be told.
    pub(crate) fn limit(&mut self, due: Instant) {
        self.due = Some(due);
    }

    /// Returns whether the time is up. From then on the acknowledgement is urgent.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let late = self.due.take_if(|due| *due <= now).is_some();
        self.late |= late;
        late
    }

    /// Records that the peer was told that this many works are placed.
    pub(crate) fn tell(&mut self, placed: u64) {
        self.told = placed;
        if placed == self.placed {
            (self.due, self.late) = (None, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_urgent_and_messages_are_when_they_are_many_or_old() {
        let mut acks = AckState::default();
        assert!(!acks.is_urgent() && !acks.needs_limit(), "nothing is owed");
        (1..MAX_UNACKNOWLEDGED).for_each(|_| acks.message_placed());
        assert!(!acks.is_urgent() && acks.needs_limit());
        acks.message_placed();
        assert!(acks.is_urgent(), "they are many");
        acks.tell(acks.placed());
        acks.write_placed();
        acks.message_placed();
        assert!(acks.is_urgent(), "a write");
        acks.tell(acks.placed() - 1);
        assert!(!acks.is_urgent(), "only the message behind it");
        let now = Instant::now();
        acks.limit(now + ACKNOWLEDGE_WITHIN);
        assert!(!acks.needs_limit() && !acks.expire(now) && acks.due() == Some(now + ACKNOWLEDGE_WITHIN));
        assert!(acks.expire(now + ACKNOWLEDGE_WITHIN) && acks.is_urgent(), "late");
        assert_eq!(acks.due(), None, "it has expired once");
        acks.message_placed();
        acks.tell(acks.placed() - 1);
        assert!(acks.is_urgent(), "the peer was told of a part");
        acks.tell(acks.placed());
        acks.message_placed();
        assert!(!acks.is_urgent(), "a new one is not late");
    }
}
