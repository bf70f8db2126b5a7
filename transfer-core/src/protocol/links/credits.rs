//! The receive slots of both ends of a link.

/// Credits that only a bare ACK may use, so that two sides that have run out can still give credits back to each other.
const ACK_CREDITS: u32 = 2;

/// Counts the free receive slots of the peer, and the slots of this side that the peer does not know to be free again.
///
/// - Getters: [`free`](Credits::free), [`may_post`](Credits::may_post),
///   [`is_ack_due`](Credits::is_ack_due).
/// - Events: [`slot_used`](Credits::slot_used), [`given_back`](Credits::given_back).
/// - Effects: [`spend`](Credits::spend) with each post, [`take_owed`](Credits::take_owed) with each message.
#[derive(Debug, Clone)]
pub(super) struct Credits {
    of_peer: u32,
    free: u32,
    ours: u32,
    owed: u32,
    /// How many slots of this side the peer has used in all.
    used: u64,
}

impl Credits {
    /// Creates the credits of a link. The peer has `of_peer` receive slots, and this side has `ours`.
    pub(super) fn new(of_peer: u32, ours: u32) -> Credits {
        Credits { of_peer, free: of_peer, ours, owed: 0, used: 0 }
    }

    /// Returns how many receive slots of the peer are free.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Returns how many slots of this side the peer has used in all.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns how many slots of this side the peer has used and does not know to be free again.
    #[cfg(test)]
    pub(super) fn owed(&self) -> u32 {
        self.owed
    }

    /// Whether something other than a bare ACK may be posted.
    pub(super) fn may_post(&self) -> bool {
        self.free > ACK_CREDITS
    }

    /// Whether enough credits are owed to the peer for an ACK of their own, and a slot is free for the ACK.
    pub(super) fn is_ack_due(&self) -> bool {
        self.is_owed_much() && self.free > 0
    }

    /// The threshold is a quarter of this side's slots, and at least two: with one, two sides would acknowledge each
    /// other's ACKs without end.
    fn is_owed_much(&self) -> bool {
        self.owed >= (self.ours / 4).clamp(2, u32::from(u16::MAX))
    }

    /// Counts a slot of this side that the peer has used. Returns whether an ACK may be due.
    ///
    /// # Errors
    /// Returns what the peer did wrong.
    pub(super) fn slot_used(&mut self) -> Result<bool, String> {
        if self.owed >= self.ours {
            return Err(format!("it used more than its {} receive slots", self.ours));
        }
        self.owed += 1;
        self.used += 1;
        Ok(self.is_owed_much())
    }

    /// Counts slots of the peer that it has reported as free again.
    ///
    /// # Errors
    /// Returns what the peer did wrong.
    pub(super) fn given_back(&mut self, credits: u16) -> Result<(), String> {
        self.free = self.free.saturating_add(u32::from(credits));
        if self.free > self.of_peer {
            return Err(format!("it gave back {} credits, more than its {}", self.free, self.of_peer));
        }
        Ok(())
    }

    /// Uses a receive slot of the peer.
    pub(super) fn spend(&mut self) {
        debug_assert!(self.free > 0, "posted without a credit");
        self.free = self.free.saturating_sub(1);
    }

    /// Takes as many credits owed to the peer as one message can return.
    pub(super) fn take_owed(&mut self) -> u16 {
        let credits = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(credits);
        credits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_leave_credits_for_an_ack() {
        let mut credits = Credits::new(4, 8);
        while credits.may_post() {
            credits.spend();
        }
        assert_eq!(credits.free(), ACK_CREDITS);
        for _ in 0..2 {
            assert!(!credits.is_ack_due(), "nothing much is owed");
            credits.slot_used().unwrap();
        }
        assert!(credits.is_ack_due());
        assert_eq!((credits.take_owed(), credits.owed()), (2, 0));
    }

    #[test]
    fn a_peer_cannot_use_more_slots_than_there_are_nor_give_back_more_than_it_has() {
        let mut credits = Credits::new(4, 2);
        assert_eq!((credits.slot_used(), credits.slot_used()), (Ok(false), Ok(true)));
        assert!(credits.slot_used().unwrap_err().contains("more than its 2 receive slots"));
        credits.spend();
        credits.given_back(1).unwrap();
        assert!(credits.given_back(1).unwrap_err().contains("gave back 5 credits, more than its 4"));
        assert!(credits.given_back(u16::MAX).is_err());
    }

    #[test]
    fn message_gives_back_at_most_what_its_field_holds() {
        let mut credits = Credits::new(4, 100_000);
        (0..70_000).for_each(|_| _ = credits.slot_used().unwrap());
        assert_eq!((credits.take_owed(), credits.owed()), (u16::MAX, 70_000 - u32::from(u16::MAX)));
    }
}
