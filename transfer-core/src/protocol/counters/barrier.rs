//! A barrier: who has arrived, round after round.
//!
//! An arrival is known by who made it, not only counted, so that it can be taken back: whoever gives up, dies, or loses its link
//! before the round is complete was never there, and the others go on waiting for somebody else. That is why an arrival is a message
//! and not an operation on a counter's word: a FETCH_ADD of a link that died cannot be told from one that did not arrive.

use crate::fabric::LinkId;
use crate::protocol::ids::OperationId;
use crate::time::Time;

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A worker here.
    Local(OperationId),
    /// The request of this index of that link's peer.
    Peer(LinkId, u32),
}

#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// How many arrivals make a round; 0 until the first.
    members: u32,
    round: u64,
    /// In the order of their arrival, and when they came.
    waiting: Vec<(Waiter, Time)>,
}

/// What an arrival comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Others are awaited.
    Waits,
    /// It was the last of this round; all of these go on.
    Completes(u64, Vec<(Waiter, Time)>),
    /// The barrier is for another number of members.
    WrongMembers(u32),
}

impl Barrier {
    pub(super) fn arrive(&mut self, now: Time, who: Waiter, members: u32) -> Arrival {
        if self.members == 0 {
            self.members = members;
        }
        if self.members != members {
            return Arrival::WrongMembers(self.members);
        }
        self.waiting.push((who, now));
        if self.waiting.len() < members as usize {
            return Arrival::Waits;
        }
        let round = self.round;
        self.round += 1;
        Arrival::Completes(round, std::mem::take(&mut self.waiting))
    }

    /// It does not wait any more. A number of members that no round has confirmed goes with the last who gave it.
    pub(super) fn withdraw(&mut self, who: Waiter) {
        self.waiting.retain(|(other, _)| *other != who);
        if self.waiting.is_empty() && self.round == 0 {
            self.members = 0;
        }
    }

    pub(super) fn arrived(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn take_waiting(&mut self) -> Vec<(Waiter, Time)> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u32) -> Waiter {
        Waiter::Peer(LinkId(1), index)
    }

    #[test]
    fn rounds_follow_each_other_and_withdrawn_arrivals_do_not_count() {
        let (mut barrier, at) = (Barrier::default(), Time(0));
        for round in 0..3 {
            assert_eq!(barrier.arrive(at, peer(1), 2), Arrival::Waits);
            barrier.withdraw(peer(1));
            assert_eq!(barrier.arrive(at, peer(2), 2), Arrival::Waits);
            assert_eq!(barrier.arrive(at, peer(3), 2), Arrival::Completes(round, vec![(peer(2), at), (peer(3), at)]));
        }
        assert_eq!(barrier.arrive(at, peer(4), 1), Arrival::WrongMembers(2));
        assert_eq!(barrier.arrived(), 0);
    }

    #[test]
    fn a_number_that_nobody_stands_for_any_more_is_free_again() {
        let (mut barrier, at) = (Barrier::default(), Time(0));
        assert_eq!(barrier.arrive(at, peer(1), 7), Arrival::Waits);
        assert_eq!(barrier.arrive(at, peer(2), 1), Arrival::WrongMembers(7));
        barrier.withdraw(peer(1));
        assert_eq!(barrier.arrive(at, peer(2), 1), Arrival::Completes(0, vec![(peer(2), at)]));
    }
}
