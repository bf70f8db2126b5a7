//! The sending direction of a link: it shows the peer records, and wakes the peer if it sleeps.

use super::link::Link;
use super::record::Record;
use transfer_core::fabric::DownReason;
use transfer_memory::ring::RingError;

fn broken(error: RingError) -> DownReason {
    DownReason::Violation(error.to_string())
}

impl Link {
    /// Shows the peer the posted records, or else an acknowledgement if the peer waits for one. Returns whether anything
    /// was shown, or can be shown by now.
    pub(super) fn send(&mut self) -> Result<bool, DownReason> {
        while let Some(record) = self.outbox.front() {
            if !self.shared.out.try_push(record).map_err(broken)? {
                break;
            }
            self.unpublished = true;
            self.outbox.pop_front();
        }
        if self.must_acknowledge() {
            self.push(&Record::Ack, &[]);
        }
        // The peer wakes this side when there is room. If there is room by now, the peer does not, and the next round
        // continues.
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

    /// Returns whether the peer waits for an acknowledgement that no record carries so far.
    pub(super) fn must_acknowledge(&self) -> bool {
        self.outbox.is_empty() && self.acks.is_urgent()
    }

    pub(super) fn ring(&self) -> Result<(), DownReason> {
        self.socket.ring().map_err(|error| DownReason::Lost(error.to_string()))
    }
}
