//! A barrier: its rounds and the waiters that have arrived.
//!
//! The barrier stores the sender of each arrival, not only a count, so that an arrival can be withdrawn. A waiter that
//! gives up, dies or loses its link before the round is complete does not count, and the others keep waiting for
//! another arrival. That is why an arrival is a message and not an atomic operation on a counter's word: after a link
//! dies, a FETCH_ADD that took effect cannot be told from one that did not arrive.

use crate::fabric::LinkId;
use crate::protocol::ids::OperationId;
use crate::time::Time;

/// A waiter at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    /// An operation of a worker of this node.
    Local(OperationId),
    /// The request with this index of the link's peer.
    Peer(LinkId, u32),
}

#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// The number of arrivals that complete a round; 0 before the first arrival.
    members: u32,
    round: u64,
    /// The waiters and the times of their arrival, in the order of arrival.
    waiting: Vec<(Waiter, Time)>,
}

/// The result of an arrival.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The round still waits for other arrivals.
    Waits,
    /// This arrival was the last of the round. Holds the number of the round and all of its waiters.
    Completes(u64, Vec<(Waiter, Time)>),
    /// The barrier has a different number of members, which this holds.
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

    /// Removes a waiter. If no round has completed yet, the last waiter to leave also clears the number of members.
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
    fn number_of_members_is_cleared_when_the_last_waiter_withdraws() {
        let (mut barrier, at) = (Barrier::default(), Time(0));
        assert_eq!(barrier.arrive(at, peer(1), 7), Arrival::Waits);
        assert_eq!(barrier.arrive(at, peer(2), 1), Arrival::WrongMembers(7));
        barrier.withdraw(peer(1));
        assert_eq!(barrier.arrive(at, peer(2), 1), Arrival::Completes(0, vec![(peer(2), at)]));
    }
}
