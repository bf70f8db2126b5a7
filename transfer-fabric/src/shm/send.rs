//! What a link sends: records that it shows the peer, whom it wakes if need be.

use super::link::Link;
use super::record::Record;
use transfer_core::fabric::DownReason;
use transfer_memory::ring::RingError;

fn broken(error: RingError) -> DownReason {
    DownReason::Violation(error.to_string())
}

impl Link {
    /// Shows the peer what was posted, or else what is placed where it has not been told. Answers whether anything was shown.
    pub(super) fn send(&mut self) -> Result<bool, DownReason> {
        while let Some(record) = self.outbox.front() {
            if !self.shared.out.try_push(record).map_err(broken)? {
                break;
            }
            self.unpublished = true;
            self.outbox.pop_front();
        }
        if self.owes_word() {
            self.push(&Record::Ack, &[]);
        }
        // The peer wakes this side when there is room; where there is by now, it does not, and the next round goes on.
        let has_room = match self.outbox.front() {
            Some(record) => !self.shared.out.prepare_wait(record.len()).map_err(broken)?,
            None => false,
        };
        if !std::mem::take(&mut self.unpublished) {
            return Ok(has_room);
        }
        self.shared.out.publish();
        if self.shared.out.should_wake() {
            self.ring()?;
        }
        Ok(true)
    }

    /// Whether the peer is to be told what is placed, and nothing else will tell it.
    pub(super) fn owes_word(&self) -> bool {
        self.outbox.is_empty() && self.placed > self.placed_told
    }

    pub(super) fn ring(&self) -> Result<(), DownReason> {
        self.socket.ring().map_err(|error| DownReason::Lost(error.to_string()))
    }
}
