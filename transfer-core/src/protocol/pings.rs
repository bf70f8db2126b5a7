//! Round trips that an operator measures: PINGs that a peer has not answered yet.

use crate::fabric::LinkId;
use std::collections::BTreeMap;

/// The most PINGs of operators that may be unanswered on one link. A peer that has stopped answers none, and each of
/// them would wait in the link's queue.
pub(crate) const MAX_PINGS_PER_LINK: usize = 64;

/// The PINGs that are not answered, as a state machine. Their role on the wire is [`Pull`](crate::wire::message::Role),
/// so that they do not meet the PINGs that follow grants.
#[derive(Default)]
pub(crate) struct Pings {
    /// By link and index: the token of the caller.
    open: BTreeMap<(LinkId, u32), u64>,
    next: u32,
}

impl Pings {
    /// Begins a PING. Returns its index; `None` if too many are unanswered.
    pub(crate) fn begin(&mut self, link: LinkId, token: u64) -> Option<u32> {
        if self.open.range((link, 0)..=(link, u32::MAX)).count() >= MAX_PINGS_PER_LINK {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        self.open.insert((link, self.next), token);
        Some(self.next)
    }

    /// Ends the PING that a peer has answered. Returns its token; `None` if there is no such PING.
    pub(crate) fn answered(&mut self, link: LinkId, index: u32) -> Option<u64> {
        self.open.remove(&(link, index))
    }

    /// Ends all PINGs of a link that is gone. Returns their tokens.
    pub(crate) fn link_down(&mut self, link: LinkId) -> Vec<u64> {
        let lost: Vec<_> = self.open.range((link, 0)..=(link, u32::MAX)).map(|(at, _)| *at).collect();
        lost.iter().filter_map(|at| self.open.remove(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ping_ends_once_by_its_own_link() {
        let mut pings = Pings { next: u32::MAX - 1, ..Pings::default() };
        let (one, other) = (LinkId(1), LinkId(2));
        let last = pings.begin(one, 10).unwrap();
        let wrapped = pings.begin(one, 11).unwrap();
        let there = pings.begin(other, 12).unwrap();
        assert_eq!((last, wrapped, there), (u32::MAX, 0, 1));
        assert_eq!(pings.answered(other, wrapped), None, "another link answers it");
        assert_eq!(pings.answered(one, wrapped), Some(11));
        assert_eq!(pings.answered(one, wrapped), None, "it is answered already");
        assert_eq!(pings.link_down(one), [10]);
        assert_eq!(pings.link_down(one), []);
        assert_eq!(pings.answered(other, there), Some(12));
    }

    #[test]
    fn unanswered_pings_are_bounded_for_each_link() {
        let mut pings = Pings::default();
        let indexes: Vec<u32> = (0..).map_while(|token| pings.begin(LinkId(1), token)).collect();
        assert_eq!(indexes.len(), MAX_PINGS_PER_LINK);
        assert!(pings.begin(LinkId(2), 0).is_some());
        assert!(pings.answered(LinkId(1), indexes[0]).is_some());
        assert!(pings.begin(LinkId(1), 0).is_some());
    }
}
